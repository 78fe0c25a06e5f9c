"""Limits: bytes, seconds and places, each refused in the shape of the provider whose endpoint was called."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from tests.gateway.standing import Served, echo, served, settings
from tests.gateway.upstreams import wait_for
from uvicorn.protocols.http.h11_impl import H11Protocol

from kompakt.gateway import server as serving
from kompakt.gateway.http.access_log import JsonFormatter, TextFormatter
from kompakt.gateway.http.connections import with_header_timeout
from kompakt.gateway.routes import Route
from kompakt.gateway.tenancy.tenants import Tenant

SHAPES = {
    "/v1/chat/completions": lambda body: body["error"]["code"],
    "/v1/responses": lambda body: body["error"]["code"],
    "/openai/v1/chat/completions": lambda body: body["error"]["code"],
    "/v1/messages": lambda body: body["type"] == "error" and body["error"]["type"],
    "/v1/messages/count_tokens": lambda body: body["type"] == "error" and body["error"]["type"],
    "/v1beta/models/g:generateContent": lambda body: body["error"]["status"],
    "/v1beta/models/g:streamGenerateContent": lambda body: body["error"]["status"],
    "/v1/files": lambda body: body["error"]["code"],
}
each_path = pytest.mark.parametrize("path", SHAPES)


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A gateway with narrow limits."""
    with served(settings(max_body=1_000, max_header=2_000, body_timeout=0.4)) as gate:
        yield gate


class TestBodies:
    @each_path
    def test_one_that_is_said_to_be_too_long_is_refused_unread(self, small: Served, path: str) -> None:
        """In the provider's shape; the connection ends, since nobody reads the rest."""
        found = small.post(path, content=b"x" * 1_001)
        assert found.status_code == 413
        assert SHAPES[path](found.json()) in ("body_too_large", "request_too_large", "INVALID_ARGUMENT")
        assert found.headers["x-kompakt-refusal"] == "body_too_large"
        assert found.headers["connection"] == "close"

    @each_path
    def test_one_that_turns_out_too_long_is_refused(self, small: Served, path: str) -> None:
        """Counted while it comes, where nobody says how long it is."""
        found = small.post(path, content=iter([b"x" * 400] * 4))
        assert found.status_code == 413 and SHAPES[path](found.json())

    def test_one_that_fits_passes(self, small: Served) -> None:
        """To the last byte."""
        assert small.post("/v1/messages", content=b"x" * 1_000).json()["size"] == 1_000
        assert small.post("/v1/messages", content=iter([b"x" * 500] * 2)).json()["size"] == 1_000

    def test_one_that_does_not_come_is_given_up(self, small: Served) -> None:
        """A client that sends a byte now and then holds nobody up."""
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"
        began = time.monotonic()
        answer = small.raw(head)
        assert answer.startswith(b"HTTP/1.1 408") and b'"type":"error"' in answer
        assert time.monotonic() - began < 3

    @pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 30])
    def test_a_length_that_is_none_is_refused(self, small: Served, length: bytes) -> None:
        """By the server or by the gateway; never believed."""
        answer = small.raw(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + length + b"\r\n\r\n{}"
        )
        assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413")


class TestHeads:
    def test_headers_that_are_too_long_are_refused(self, small: Served) -> None:
        """All of them together count."""
        found = small.post("/v1/messages", headers={f"x-{at}": "y" * 80 for at in range(20)})
        assert found.status_code == 431 and found.json()["type"] == "error"

    def test_a_head_without_an_end_is_given_up_early(self, small: Served) -> None:
        """Not after all memory is full of it."""
        with socket.create_connection(("127.0.0.1", small.port), timeout=5) as line:
            line.sendall(b"GET / HTTP/1.1\r\n")
            with pytest.raises(OSError):  # noqa: PT012
                for _ in range(2_000):
                    line.sendall(b"x-a: " + b"y" * 1_000 + b"\r\n")
                    time.sleep(0.001)

    @pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"])
    def test_a_head_that_does_not_come_is_given_up(self, small: Served, begun: bytes) -> None:
        """Also on a connection on which nothing was ever said."""
        began = time.monotonic()
        assert small.raw(begun).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 3

    def test_a_second_head_that_does_not_come_is_given_up_too(self, small: Served) -> None:
        """The first request was served; the second never ends."""
        with socket.create_connection(("127.0.0.1", small.port), timeout=5) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            found = b""
            while not found.endswith(b"}"):
                found += line.recv(4_096)
            assert found.startswith(b"HTTP/1.1 200")
            line.sendall(b"GET /healthz HT")
            assert line.recv(4_096).startswith(b"HTTP/1.1 408")


class TestPlainServer:
    def test_heads_are_watched_without_the_quick_parser_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """h11 in its place: requests are served, and what does not come is given up."""
        monkeypatch.setattr(serving, "protocol", lambda made: with_header_timeout(H11Protocol, made))
        with served(settings(max_body=1_000, body_timeout=0.4)) as gate:
            assert gate.post("/v1/messages", content=b"x" * 1_000).json()["size"] == 1_000
            assert gate.post("/v1/messages", content=iter([b"x" * 400] * 4)).status_code == 413
            assert gate.raw(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n").startswith(b"HTTP/1.1 408")
            assert gate.raw(b"GET /v1/../x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")[9:12] == b"400"


class Holding:
    """A handler that streams until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    async def __call__(self, request: Request, tenant: Tenant, route: Route) -> Response:
        await request.body()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            self.begun.release()
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            yield b"data: 2\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")


class TestPlaces:
    def _hold(self, gate: Served, holding: Holding, credentials: list[str]) -> list[threading.Thread]:
        def stream(credential: str) -> None:
            httpx.post(f"{gate.url}/v1/messages", headers={"x-api-key": credential}, timeout=20, trust_env=False)

        threads = [threading.Thread(target=stream, args=(one,)) for one in credentials]
        for thread in threads:
            thread.start()
        assert all(holding.begun.acquire(timeout=10) for _ in threads)
        return threads

    @each_path
    def test_one_too_many_is_told_to_wait(self, path: str) -> None:
        """A stream holds its place to its end; the gateway's own endpoints need none."""
        holding = Holding()
        with served(settings(max_concurrency=2), holding) as gate:
            threads = self._hold(gate, holding, ["a", "b"])
            found = gate.post(path, headers={"x-api-key": "c"})
            assert found.status_code == 429 and found.headers["retry-after"] == "1"
            assert SHAPES[path](found.json())
            assert gate.get("/healthz").status_code == 200
            holding.go.set()
            for thread in threads:
                thread.join(10)
            assert gate.post("/v1/messages", headers={"x-api-key": "c"}).text.endswith("data: 2\n\n")
            gate.empty()
            assert gate.gateway.slots.tenants == {}

    def test_one_tenant_does_not_take_the_places_of_others(self) -> None:
        """Each has as many as each other."""
        holding = Holding()
        with served(settings(max_per_tenant=1), holding) as gate:
            threads = self._hold(gate, holding, ["a"])
            assert gate.post("/v1/messages", headers={"x-api-key": "a"}).status_code == 429
            threads += self._hold(gate, holding, ["b"])
            holding.go.set()
            for thread in threads:
                thread.join(10)
            gate.empty()
            text = gate.gateway.metrics.text().decode()
            assert 'kompakt_refusals_total{code="too_many_requests"} 1.0' in text
            assert "kompakt_in_flight 0.0" in text


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/openai/..%2f..%2fx",
            "/openai/%252e%252e/x",
            "/v1/a%5c..%5cb",
            "/v1/%00",
            "/v1/..;/x",
            "/v1/%0d%0ax:y",
        ],
    )
    def test_a_path_that_leads_out_is_refused(self, small: Served, path: str) -> None:
        """However often it was escaped."""
        answer = small.raw(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"x-kompakt-refusal: invalid_path" in answer

    @pytest.mark.parametrize(
        ("path", "headers", "url"),
        [
            ("/v1/chat/completions", {}, "http://openai.invalid/v1/chat/completions"),
            ("/v1/responses", {"x-api-key": "a"}, "http://openai.invalid/v1/responses"),
            ("/v1/messages", {}, "http://anthropic.invalid/v1/messages"),
            ("/v1/messages/batches", {}, "http://anthropic.invalid/v1/messages/batches"),
            ("/v1beta/models/a%2Fb:generateContent", {}, "http://gemini.invalid/v1beta/models/a%2Fb:generateContent"),
            ("/v1/models", {"anthropic-version": "1"}, "http://anthropic.invalid/v1/models"),
            ("/v1/models", {"x-goog-api-key": "1"}, "http://gemini.invalid/v1/models"),
            ("/v1/models", {}, "http://openai.invalid/v1/models"),
            ("/anthropic/v1/models", {}, "http://anthropic.invalid/v1/models"),
            ("/gemini/v1beta/openai/chat/completions", {}, "http://gemini.invalid/v1beta/openai/chat/completions"),
            ("/openai", {}, "http://openai.invalid/openai"),
            ("//evil.example/x", {}, "http://openai.invalid//evil.example/x"),
        ],
    )
    def test_the_path_chooses_among_what_is_configured(
        self, small: Served, path: str, headers: dict[str, str], url: str
    ) -> None:
        """By a name in front, by the protocol, by what its clients send."""
        assert small.ask("POST", path, headers=headers).json()["url"] == url

    def test_a_protocol_without_an_upstream_uses_the_only_one_or_none(self) -> None:
        """And the refusal says how to name one."""
        from kompakt.gateway.config import Upstream

        one = {"mine": Upstream("mine", "http://mine.invalid/api")}
        with served(settings(upstreams=one)) as gate:
            assert gate.post("/v1/messages").json()["url"] == "http://mine.invalid/api/v1/messages"
        with served(settings(upstreams={**one, "other": Upstream("other", "http://o.invalid")})) as gate:
            found = gate.post("/v1/messages")
            assert found.status_code == 404 and found.json()["error"]["type"] == "not_found_error"
            assert "--upstream anthropic=URL" in found.json()["error"]["message"]


async def failing(request: Request, tenant: Tenant, route: Route) -> Response:
    """Fail with words of the request."""
    raise RuntimeError((await request.body()).decode())


class TestTelling:
    @pytest.mark.parametrize(
        ("sent", "kept"), [("abc-1.2_3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)]
    )
    def test_a_plain_id_of_the_client_is_the_requests(self, small: Served, sent: str, kept: bool) -> None:
        """Any other is replaced, not repeated."""
        found = small.ask("GET", "/healthz", headers={"x-request-id": sent.encode()})  # type: ignore[dict-item]
        shown = found.headers["x-kompakt-request"]
        assert (shown == sent) is kept
        assert kept or re.fullmatch(r"[0-9a-f]{24}", shown)

    def test_one_record_says_what_became_of_a_request(self, caplog: pytest.LogCaptureFixture) -> None:
        """With its id, and nothing that the client or the provider would not want there."""
        caplog.set_level(logging.INFO, "kompakt.gateway")
        with served(settings()) as gate:
            sent = {"authorization": "Bearer sk-secret", "x-request-id": "r1"}
            gate.post("/v1beta/models/g:generateContent?key=sk-other", content=b"words", headers=sent)
        records = [record for record in caplog.records if record.name == "kompakt.gateway"]
        (record,) = [record for record in records if getattr(record, "kompakt", {}).get("request") == "r1"]
        told = JsonFormatter().format(record) + TextFormatter().format(record)
        assert record.kompakt["route"] == "generate" and record.kompakt["model"] == "g"  # type: ignore[attr-defined]
        assert record.kompakt["status"] == 200 and record.kompakt["total_ms"] > 0  # type: ignore[attr-defined]
        assert not any(secret in told for secret in ("sk-secret", "sk-other", "words"))

    def test_a_span_says_the_same(self) -> None:
        """Where OpenTelemetry is installed; no credential in it either."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter = InMemorySpanExporter()
        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            trace.set_tracer_provider(TracerProvider())
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))  # type: ignore[attr-defined]
        with served(settings()) as gate:
            gate.post("/v1/messages", headers={"x-api-key": "sk-secret", "x-request-id": "spanned"})
            gate.empty()
        (span,) = [one for one in exporter.get_finished_spans() if one.name == "kompakt.messages"]
        facts = dict(span.attributes or {})
        assert (facts["kompakt.request"], facts["kompakt.status"]) == ("spanned", 200)
        assert "sk-secret" not in str(facts)

    def test_an_error_nobody_foresaw_is_told_without_its_words(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client has an answer in its provider's shape; the log has where it was."""
        with served(settings(), failing) as gate:
            monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # other tests may have silenced it
            caplog.set_level(logging.ERROR, logger="uvicorn.error")
            found = gate.post("/v1/messages", content=b"words of mine")
            assert found.status_code == 500 and found.json()["error"]["type"] == "api_error"
            assert found.headers["x-kompakt-request"] in found.json()["error"]["message"]
            assert gate.post("/v1/messages", content=b"again").status_code == 500
            gate.empty()
            assert 'status="500"' in gate.gateway.metrics.text().decode()
            wait_for(lambda: any(record.exc_info for record in caplog.records), "the error is logged")
        failed = [record for record in caplog.records if record.exc_info]
        for record in failed:
            told = JsonFormatter().format(record) + TextFormatter().format(record)
            assert "words of mine" not in told and "RuntimeError" in told and "failing" in told

    def test_echo_is_what_is_served_here(self, small: Served) -> None:
        """The stand-in answers; what is tested is around it."""
        assert small.gateway.handler is echo

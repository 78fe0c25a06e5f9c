"""Limits on size, time and concurrency; errors have the format of the provider whose endpoint was called."""

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
from tests.gateway.stub_gateway import Served, echo, served, settings
from tests.gateway.upstreams import wait_for
from uvicorn.protocols.http.h11_impl import H11Protocol

from kompakt.gateway import server as serving
from kompakt.gateway.http.access_log import JsonFormatter, TextFormatter
from kompakt.gateway.http.limits import with_header_timeout
from kompakt.gateway.tenants import Tenant
from kompakt.gateway.upstream import Route

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
    """Run a gateway with low limits."""
    with served(settings(max_body=1_000, max_header=2_000, body_timeout=60)) as gate:
        yield gate


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    """Run a gateway that waits less than a second for heads and bodies."""
    with served(settings(body_timeout=0.8)) as gate:
        yield gate


class TestBodies:
    @each_path
    def test_an_announced_length_over_the_limit_is_rejected_unread(self, small: Served, path: str) -> None:
        """In the provider's format; the connection is closed, since the rest is not read."""
        found = small.post(path, content=b"x" * 1_001)
        assert found.status_code == 413
        assert SHAPES[path](found.json()) in ("body_too_large", "request_too_large", "INVALID_ARGUMENT")
        assert found.headers["x-kompakt-refusal"] == "body_too_large"
        assert found.headers["connection"] == "close"

    @each_path
    def test_a_chunked_body_over_the_limit_is_rejected(self, small: Served, path: str) -> None:
        """It is counted while it arrives."""
        found = small.post(path, content=iter([b"x" * 400] * 4))
        assert found.status_code == 413 and SHAPES[path](found.json())

    def test_a_body_of_the_limit_passes(self, small: Served) -> None:
        """The limit is exact."""
        assert small.post("/v1/messages", content=b"x" * 1_000).json()["size"] == 1_000
        assert small.post("/v1/messages", content=iter([b"x" * 500] * 2)).json()["size"] == 1_000

    def test_a_slow_body_times_out(self, impatient: Served) -> None:
        """A client that sends one byte at a time does not keep the connection."""
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"
        answer = impatient.raw(head)
        assert answer.startswith(b"HTTP/1.1 408") and b'"type":"error"' in answer

    @pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 30])
    def test_an_invalid_content_length_is_rejected(self, small: Served, length: bytes) -> None:
        """By the server or by the gateway."""
        answer = small.raw(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + length + b"\r\n\r\n{}"
        )
        assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413")


class TestHeads:
    def test_headers_over_the_limit_are_rejected(self, small: Served) -> None:
        """The limit applies to their total."""
        found = small.post("/v1/messages", headers={f"x-{at}": "y" * 80 for at in range(20)})
        assert found.status_code == 431 and found.json()["type"] == "error"

    def test_an_endless_head_is_rejected(self, small: Served) -> None:
        """It is not buffered without limit."""
        with socket.create_connection(("127.0.0.1", small.port), timeout=120) as line:
            line.sendall(b"GET / HTTP/1.1\r\n")
            with pytest.raises(OSError):  # noqa: PT012
                for _ in range(2_000):
                    line.sendall(b"x-a: " + b"y" * 1_000 + b"\r\n")
                    time.sleep(0.001)

    @pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"])
    def test_a_slow_head_times_out(self, impatient: Served, begun: bytes) -> None:
        """Also on a connection without any data."""
        assert impatient.raw(begun).startswith(b"HTTP/1.1 408")

    def test_a_slow_second_head_times_out(self, impatient: Served) -> None:
        """The first request was served; the second never completes."""
        with socket.create_connection(("127.0.0.1", impatient.port), timeout=120) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            found = b""
            while not found.endswith(b"}"):
                found += line.recv(4_096)
            assert found.startswith(b"HTTP/1.1 200")
            line.sendall(b"GET /healthz HT")
            assert line.recv(4_096).startswith(b"HTTP/1.1 408")


class TestPlainServer:
    def test_heads_are_limited_with_h11_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without httptools, requests are served and slow heads time out."""
        monkeypatch.setattr(serving, "protocol", lambda made: with_header_timeout(H11Protocol, made))
        with served(settings(max_body=1_000, body_timeout=0.8)) as gate:
            assert gate.raw(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n").startswith(b"HTTP/1.1 408")
        with served(settings(max_body=1_000, body_timeout=60)) as gate:
            assert gate.post("/v1/messages", content=b"x" * 1_000).json()["size"] == 1_000
            assert gate.post("/v1/messages", content=iter([b"x" * 400] * 4)).status_code == 413
            assert gate.raw(b"GET /v1/../x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")[9:12] == b"400"


class Holding:
    """A handler that streams until it is released."""

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


class TestSlots:
    def _hold(self, gate: Served, holding: Holding, credentials: list[str]) -> list[threading.Thread]:
        def stream(credential: str) -> None:
            httpx.post(f"{gate.url}/v1/messages", headers={"x-api-key": credential}, timeout=120, trust_env=False)

        threads = [threading.Thread(target=stream, args=(one,)) for one in credentials]
        for thread in threads:
            thread.start()
        assert all(holding.begun.acquire(timeout=120) for _ in threads)
        return threads

    @each_path
    def test_a_request_over_the_limit_gets_429(self, path: str) -> None:
        """A stream occupies its slot until its end; the gateway's own endpoints need none."""
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

    def test_the_limit_per_tenant_is_separate(self) -> None:
        """One tenant cannot use the slots of another."""
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
    def test_a_path_traversal_is_rejected(self, small: Served, path: str) -> None:
        """Also when it is escaped several times."""
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
    def test_the_path_selects_the_upstream(self, small: Served, path: str, headers: dict[str, str], url: str) -> None:
        """By a name prefix, by the protocol, or by headers of its clients."""
        assert small.ask("POST", path, headers=headers).json()["url"] == url

    def test_a_protocol_without_an_upstream_uses_the_only_one_or_none(self) -> None:
        """The error names the setting."""
        from kompakt.gateway.config import Upstream

        one = {"mine": Upstream("mine", "http://mine.invalid/api")}
        with served(settings(upstreams=one)) as gate:
            assert gate.post("/v1/messages").json()["url"] == "http://mine.invalid/api/v1/messages"
        with served(settings(upstreams={**one, "other": Upstream("other", "http://o.invalid")})) as gate:
            found = gate.post("/v1/messages")
            assert found.status_code == 404 and found.json()["error"]["type"] == "not_found_error"
            assert "--upstream anthropic=URL" in found.json()["error"]["message"]


async def failing(request: Request, tenant: Tenant, route: Route) -> Response:
    """Fail with text from the request."""
    raise RuntimeError((await request.body()).decode())


class TestAccessLog:
    @pytest.mark.parametrize(
        ("sent", "kept"), [("abc-1.2_3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)]
    )
    def test_a_safe_request_id_of_the_client_is_used(self, small: Served, sent: str, kept: bool) -> None:
        """Any other id is replaced."""
        found = small.ask("GET", "/healthz", headers={"x-request-id": sent.encode()})  # type: ignore[dict-item]
        shown = found.headers["x-kompakt-request"]
        assert (shown == sent) is kept
        assert kept or re.fullmatch(r"[0-9a-f]{24}", shown)

    def test_each_request_has_one_log_record(self, caplog: pytest.LogCaptureFixture) -> None:
        """It has the id and no secrets of client or provider."""
        caplog.set_level(logging.INFO, "kompakt.gateway")
        with served(settings()) as gate:
            sent = {"authorization": "Bearer sk-secret", "x-request-id": "r1"}
            gate.post("/v1beta/models/g:generateContent?key=sk-other", content=b"words", headers=sent)
        records = [record for record in caplog.records if record.name == "kompakt.gateway"]
        (record,) = [record for record in records if getattr(record, "kompakt", {}).get("request") == "r1"]
        logged = JsonFormatter().format(record) + TextFormatter().format(record)
        assert record.kompakt["route"] == "generate" and record.kompakt["model"] == "g"  # type: ignore[attr-defined]
        assert record.kompakt["status"] == 200 and record.kompakt["total_ms"] > 0  # type: ignore[attr-defined]
        assert not any(secret in logged for secret in ("sk-secret", "sk-other", "words"))

    def test_each_request_has_a_span(self) -> None:
        """When OpenTelemetry is installed; it has no credentials."""
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

    def test_an_unexpected_error_is_logged_without_its_message(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client gets an error in the provider's format; the log has the traceback."""
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
            logged = JsonFormatter().format(record) + TextFormatter().format(record)
            assert "words of mine" not in logged and "RuntimeError" in logged and "failing" in logged

    def test_the_stub_handler_responds(self, small: Served) -> None:
        """The other tests here rely on it."""
        assert small.gateway.handler is echo

"""Providers that break, hang or send garbage: the client gets 502 or 504 in its own protocol, never a traceback."""

from __future__ import annotations

import gzip
import logging
import socket
import struct
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, STREAMED, history, request
from tests.gateway.stub_gateway import Served, served, settings
from tests.gateway.upstreams import Reply
from tests.gateway.upstreams import Upstream as Planned

from kompakt.gateway import upstream
from kompakt.gateway.config import Upstream
from kompakt.gateway.http import encodings
from kompakt.gateway.upstream import MAX_ERROR

PATIENCE = 0.5
Act = Callable[[socket.socket], None]


class Crooked:
    """A provider on a bare socket: reads a request, then does what the test says to the connection."""

    def __init__(self) -> None:
        self.act: Act = lambda line: None
        self.over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            _read_request(line)
            self.act(line)

    def hang(self, line: socket.socket) -> None:
        """Say nothing until the other side has had enough."""
        line.settimeout(20)
        while not self.over.is_set() and line.recv(1_024):
            pass


def _read_request(line: socket.socket) -> None:
    line.settimeout(10)
    data = b""
    while b"\r\n\r\n" not in data:
        data += line.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(one.split(b":")[1]) for one in head.lower().split(b"\r\n") if one.startswith(b"content-le")), 0)
    while len(body) < length:
        body += line.recv(65_536)


def sends(data: bytes) -> Act:
    return lambda line: line.sendall(data)


def resets(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "content-type: application/json", *lines, "", ""]).encode()


SIZED = head("content-length: 100")
CHUNKED = head("transfer-encoding: chunked")
REFUSES = head("content-length: 100", status="400 Bad Request")

BROKEN: dict[str, Act] = {
    "closes": sends(b""),
    "resets": resets,
    "garbage": sends(b"\x00\xff not HTTP at all\r\n\r\n"),
    "half a status line": sends(b"HTTP/1.1 20"),
    "half a head": sends(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "an endless header": sends(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000),
    "a status that is none": sends(b"HTTP/1.1 9999 What\r\n\r\n"),
    "another protocol": sends(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
    "a length that is none": sends(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}"),
    "two lengths": sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} "),
    "closes after the head": sends(SIZED),
    "closes after a chunked head": sends(CHUNKED),
    "a chunk that is none": sends(CHUNKED + b"many\r\n{}\r\n"),
    "closes in a refusal": sends(REFUSES),
    "closes within a refusal": sends(REFUSES + b'{"error"'),
}


@pytest.fixture(scope="module")
def crooked() -> Iterator[Crooked]:
    made = Crooked()
    yield made
    made.close()


@pytest.fixture(scope="module")
def gate(crooked: Crooked) -> Iterator[Served]:
    upstreams = {name: Upstream(name, crooked.url) for name in ("openai", "anthropic", "gemini")}
    with served(settings(upstreams=upstreams, upstream_timeout=PATIENCE, context_window=32_000), None) as gate:
        yield gate


def ask(gate: Served, format: str, path: str | None = None) -> httpx.Response:
    body = request(format, history(format, 1))
    return gate.post(path or PATHS[format], json=body, headers=HEADERS[format])


def assert_in_shape(format: str, answer: httpx.Response, status: int) -> None:
    """Assert that an answer is an error as this protocol writes it."""
    assert answer.status_code == status, answer.text
    body: Any = answer.json()
    kind = {502: "api_error", 504: "timeout_error"}[status]
    if format == "anthropic":
        assert body["type"] == "error" and body["error"]["type"] == kind and body["error"]["message"]
    elif format == "gemini":
        state = {502: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}[status]
        assert (body["error"]["code"], body["error"]["status"]) == (status, state) and body["error"]["message"]
    else:
        code = body["error"]["code"]
        assert body["error"]["type"] == "server_error" and code.startswith("upstream_") and body["error"]["message"]


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Assert that no behaviour of a provider causes a traceback in the log."""
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # other tests may have silenced it
    with caplog.at_level(logging.INFO):
        yield
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("format", FORMATS)
class TestBeforeTheFirstByte:
    @pytest.mark.parametrize("case", BROKEN)
    def test_a_provider_that_breaks_is_answered_with_502(
        self, gate: Served, crooked: Crooked, format: str, case: str
    ) -> None:
        crooked.act = BROKEN[case]
        assert_in_shape(format, ask(gate, format), 502)
        gate.empty()

    @pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200", SIZED, CHUNKED, REFUSES], ids=range(5))
    def test_a_provider_that_hangs_is_answered_with_504(
        self, gate: Served, crooked: Crooked, format: str, begun: bytes
    ) -> None:
        def act(line: socket.socket) -> None:
            line.sendall(begun)
            crooked.hang(line)

        crooked.act = act
        assert_in_shape(format, ask(gate, format), 504)
        gate.empty()

    def test_a_refused_connection_gives_502(self, format: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        nowhere = {name: Upstream(name, f"http://127.0.0.1:{port}") for name in ("openai", "anthropic", "gemini")}
        with served(settings(upstreams=nowhere, context_window=32_000), None) as gate:
            assert_in_shape(format, ask(gate, format), 502)

    def test_a_request_that_is_passed_on_untouched_gets_the_same(
        self, gate: Served, crooked: Crooked, format: str
    ) -> None:
        """Without a history in the body nothing is compacted, but the answer is still monitored."""
        crooked.act = sends(SIZED)
        assert_in_shape(format, gate.post(PATHS[format], json={"model": "m"}, headers=HEADERS[format]), 502)


class TestTimeOfTheProvider:
    @pytest.mark.parametrize("begun", [b"", SIZED, REFUSES], ids=["before the head", "after the head", "in a refusal"])
    def test_a_wait_that_ends_with_a_timeout_is_not_the_overhead_of_the_gateway(
        self, gate: Served, crooked: Crooked, begun: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        def act(line: socket.socket) -> None:
            line.sendall(begun)
            crooked.hang(line)

        crooked.act = act
        assert ask(gate, "anthropic").status_code == 504
        gate.empty()
        assert_is_of_the_provider(caplog, PATIENCE)

    def test_the_wait_after_an_announcement_is_not_the_overhead_of_the_gateway(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer is passed on after the delay, while the next chunk is still waited for."""
        monkeypatch.setattr(upstream, "ERROR_DELAY", PATIENCE)
        rest = threading.Event()
        created = b'event: response.created\ndata: {"type": "response.created"}\n\n'
        reply = Reply([created, b"event: response.completed\n\n"], 200, {"content-type": "text/event-stream"}, [rest])
        with Planned(reply) as provider:
            upstreams = {"openai": Upstream("openai", provider.url)}
            with served(settings(upstreams=upstreams, context_window=32_000), None) as gate:
                body = request("openai-responses", history("openai-responses", 1)) | {"stream": True}
                path = gate.url + PATHS["openai-responses"]
                with httpx.stream("POST", path, json=body, timeout=60, trust_env=False) as answer:
                    arriving = answer.iter_raw()
                    first = next(arriving)
                    time.sleep(PATIENCE)
                    rest.set()
                    assert first + b"".join(arriving) == b"".join(reply.chunks)
                gate.empty()
        assert assert_is_of_the_provider(caplog, PATIENCE) < 2 * PATIENCE * 1_000, "the wait after the start counts"


def assert_is_of_the_provider(caplog: pytest.LogCaptureFixture, seconds: float) -> float:
    """Assert that the one logged request waited so long for the provider, and return its ``upstream_ms``."""
    logged = [vars(one).get("kompakt", {}) for one in caplog.records if one.name == "kompakt.gateway"]
    (fields,) = [one for one in logged if "total_ms" in one]
    assert fields["upstream_ms"] >= seconds * 900
    assert fields["overhead_ms"] < seconds * 900
    return fields["upstream_ms"]


@pytest.mark.parametrize("format", FORMATS)
class TestAfterTheFirstByte:
    @pytest.mark.parametrize("ends", ["closes", "resets", "hangs", "garbage"])
    @pytest.mark.parametrize("paths", [PATHS, STREAMED], ids=["whole", "streamed"])
    def test_the_client_sees_that_the_answer_is_not_complete(
        self, gate: Served, crooked: Crooked, format: str, ends: str, paths: dict[str, str]
    ) -> None:
        """The connection is closed before the end, as the provider's was; what came before it arrives."""

        def act(line: socket.socket) -> None:
            line.sendall(CHUNKED + b"8\r\ndata: 1\n\r\n")
            time.sleep(0.05)
            {"closes": lambda _: None, "resets": resets, "hangs": crooked.hang, "garbage": sends(b"zz\r\n\r\n")}[ends](
                line
            )

        crooked.act = act
        body = request(format, history(format, 1))
        received = list[bytes]()
        with (
            httpx.Client(timeout=120, trust_env=False) as client,
            client.stream("POST", gate.url + paths[format], json=body, headers=HEADERS[format]) as answer,
        ):
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                received.extend(answer.iter_raw())
        assert b"".join(received) == b"data: 1\n"
        gate.empty()


@pytest.mark.parametrize("format", FORMATS)
def test_a_break_while_the_whole_answer_is_read_is_answered_with_502(
    gate: Served, crooked: Crooked, format: str, tmp_path: Path
) -> None:
    """With recall the gateway reads answers before it passes them on, so it can still say what happened."""
    crooked.act = sends(CHUNKED + b"8\r\ndata: 1\n\r\n")
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with gateway(crooked.url, store=store, upstream_timeout=PATIENCE) as reading:
        body = request(format, history(format, 60))
        answer = httpx.post(reading.url + PATHS[format], json=body, headers=HEADERS[format], timeout=120)
        assert_in_shape(format, answer, 502)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_an_answer_without_a_body_may_have_a_content_length(gate: Served, crooked: Crooked, status: str) -> None:
    crooked.act = sends(head("content-length: 10", status=status))
    assert ask(gate, "openai-chat").status_code == int(status[:3])


# --- compressed errors --------------------------------------------------------------------------------------------


def test_decompression_stops_at_its_limit() -> None:
    """A body that would become 64 MB takes little more memory than what is asked for."""
    squeezer = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join([*(squeezer.compress(bytes(1 << 20)) for _ in range(64)), squeezer.flush()])
    tracemalloc.start()
    try:
        assert encodings.decode_prefix(bomb, ["gzip"], MAX_ERROR) == bytes(MAX_ERROR)
        assert encodings.decode_prefix(gzip.compress(bomb), ["gzip", "gzip"], MAX_ERROR) is not None
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_ERROR
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "encodings_", "expected"),
    [
        (b"plain", [], b"plain"),
        (b"plain", ["identity"], b"plain"),
        (gzip.compress(b"text", mtime=0), ["gzip"], b"text"),
        (gzip.compress(b"text", mtime=0)[:-9], ["x-gzip"], b"text"),
        (zlib.compress(b"text"), ["deflate"], b"text"),
        (zlib.compress(b"text")[2:-4], ["deflate"], b"text"),
        (b"no gzip", ["gzip"], None),
        (b"?", ["br"], None),
        (b"?", ["gzip"] * 9, None),
    ],
    ids=["none", "identity", "gzip", "cut gzip", "zlib", "raw deflate", "no gzip", "unknown", "too many"],
)
def test_encodings_are_undone_or_left_unread(data: bytes, encodings_: list[str], expected: bytes | None) -> None:
    assert encodings.decode_prefix(data, encodings_, 100) == expected


def test_a_compressed_refusal_is_read_and_passed_on_as_it_came(tmp_path: Path) -> None:
    """The overflow inside is understood and recovered; a refusal that cannot be read arrives byte for byte."""
    said = b'{"error": {"message": "This model\'s maximum context length is 2000 tokens. However, your messages '
    said += b'resulted in 2600 tokens.", "type": "invalid_request_error", "code": "context_length_exceeded"}}'
    squeezed = gzip.compress(said)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    asked: list[str | None] = []

    def plan(raw: Any) -> Reply:
        asked.append(raw.header("accept-encoding"))
        return Reply([squeezed], 400, headers) if len(asked) == 1 else Reply([b"{}"])

    body = request("openai-chat", history("openai-chat", 8, size=30))
    sent = {**HEADERS["openai-chat"], "accept-encoding": "br, gzip;q=0.5, zstd"}
    with Planned(plan) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=sent, timeout=120)
        assert answer.status_code == 200 and len(upstream.raw) == 2
        assert asked == ["gzip;q=0.5", "identity"]  # the gateway can read any answer to it, and recall calls at once
        upstream.plan = Reply([b"no gzip"], 400, headers)
        with (
            httpx.Client(timeout=120) as client,
            client.stream("POST", gate.url + PATHS["openai-chat"], json=body, headers=sent) as answer,
        ):
            assert answer.status_code == 400 and b"".join(answer.iter_raw()) == b"no gzip"


def test_a_provider_cannot_set_headers_of_the_gateway(tmp_path: Path) -> None:
    forged = {"x-kompakt-session": "theirs", "X-Kompakt-Degraded": "yes", "x-kompakt-new": "1", "x-other": "kept"}
    plain = Reply([b"{}"], 200, {"content-type": "application/json", **forged})
    body = request("openai-chat", history("openai-chat", 1))
    with Planned(plain) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        for path, sent in ((PATHS["openai-chat"], body), ("/v1/files", {})):
            answer = httpx.post(gate.url + path, json=sent, headers=HEADERS["openai-chat"], timeout=120)
            assert answer.headers["x-other"] == "kept"
            assert "theirs" not in answer.headers.get_list("x-kompakt-session")
            assert "x-kompakt-degraded" not in answer.headers and "x-kompakt-new" not in answer.headers

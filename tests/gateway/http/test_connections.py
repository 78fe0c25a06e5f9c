"""Clients that disconnect before the response starts: the upstream request is closed and the slot freed."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, history, request
from tests.gateway.stub_gateway import Served, served, settings
from tests.gateway.upstreams import wait_for

from kompakt.gateway.config import Upstream
from kompakt.gateway.http.limits import DisconnectWatch
from kompakt.gateway.tenants import Tenant
from kompakt.gateway.upstream import Route

CLIENTS = 100


class Silent:
    """A provider that accepts requests, sends the given bytes and then hangs until the client disconnects."""

    def __init__(self) -> None:
        self.begins = b""
        self.asked = self.left = 0
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        line.settimeout(60)
        with line, suppress(OSError):
            assert line.recv(65_536)
            line.sendall(self.begins)
            with self._lock:
                self.asked += 1
            with suppress(ConnectionResetError):
                while line.recv(65_536):
                    pass
            with self._lock:
                self.left += 1


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


@pytest.fixture
def gate(silent: Silent) -> Iterator[Served]:
    upstreams = {name: Upstream(name, silent.url) for name in ("openai", "anthropic", "gemini")}
    made = settings(upstreams=upstreams, context_window=32_000, max_concurrency=CLIENTS, recall=True)
    with served(made, None) as gate:
        yield gate


def head(gate: Served, method: str, path: str, length: int, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{gate.port}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def open_request(gate: Served, data: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", gate.port), timeout=120)
    line.sendall(data)
    return line


def conversation(gate: Served, at: int) -> bytes:
    format = FORMATS[at % len(FORMATS)]
    body = json.dumps(request(format, history(format, 0, tag=f"{at}"), stream=bool(at % 2))).encode()
    return head(gate, "POST", PATHS[format], len(body), **HEADERS[format]) + body


HEADERS_ONLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
PARTLY = HEADERS_ONLY + b"{"


@pytest.mark.parametrize("begins", [b"", HEADERS_ONLY, PARTLY], ids=["no head", "head", "part of a body"])
def test_disconnected_clients_release_upstream_requests_and_slots(gate: Served, silent: Silent, begins: bytes) -> None:
    """After every client disconnected, all upstream requests are closed and all slots are free.

    Also when the provider has sent part of a body: with recall, a response is read completely before it is forwarded.
    """
    silent.begins = begins
    lines = [open_request(gate, conversation(gate, at)) for at in range(CLIENTS)]
    wait_for(lambda: silent.asked == CLIENTS, "the provider has all requests")
    assert gate.gateway.slots.total == CLIENTS
    for line in lines:
        line.close()
    wait_for(lambda: silent.left == CLIENTS, "the provider's requests are closed")
    gate.empty()
    assert gate.gateway.slots.tenants == {}


@pytest.mark.parametrize(
    ("method", "path", "body"), [("GET", "/v1/models", b""), ("POST", "/v1/files", b"x" * 10), ("DELETE", "/v1/x", b"")]
)
def test_untouched_requests_are_cancelled_too(
    gate: Served, silent: Silent, method: str, path: str, body: bytes
) -> None:
    line = open_request(gate, head(gate, method, path, len(body)) + body)
    wait_for(lambda: silent.asked == 1, "the provider has the request")
    line.close()
    wait_for(lambda: silent.left == 1, "the provider's request is closed")
    gate.empty()


def test_a_get_request_without_a_length_is_cancelled_too(gate: Served, silent: Silent) -> None:
    line = open_request(gate, f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:{gate.port}\r\n\r\n".encode())
    wait_for(lambda: silent.asked == 1, "the provider has the request")
    line.close()
    wait_for(lambda: silent.left == 1, "the provider's request is closed")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/files"])
def test_a_disconnect_during_the_body_is_not_an_error(
    gate: Served, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    with caplog.at_level(logging.INFO):
        line = open_request(gate, head(gate, "POST", path, 1_000) + b"{")
        wait_for(lambda: gate.gateway.slots.total == 1, "the request is served")
        line.close()
        gate.empty()
        assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_upstream_responses_are_closed_when_the_handler_fails(silent: Silent) -> None:
    """A handler that fails after its upstream request leaves no open connection."""
    from kompakt.gateway import upstream as forwarding

    silent.begins = HEADERS_ONLY

    async def failing(request: Request, tenant: Tenant, route: Route) -> Response:
        await forwarding.send(gate.gateway.client, request, route, gate.gateway.settings, b"{}")
        raise RuntimeError("after asking")

    with served(settings(upstreams={"openai": Upstream("openai", silent.url)}), failing) as gate:
        assert gate.post("/v1/chat/completions", json={}).status_code == 500
        wait_for(lambda: silent.left == 1, "the provider's request is closed")


class TestDisconnectWatch:
    def test_work_completes_while_the_client_is_connected(self) -> None:
        async def run() -> str:
            presence = DisconnectWatch(messages(stays=True))
            await presence()
            return await presence.run(work())

        async def work() -> str:
            await asyncio.sleep(0)
            return "done"

        assert asyncio.run(run()) == "done"

    def test_work_is_cancelled_and_awaited_after_a_disconnect(self) -> None:
        seen: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned up")

        async def run() -> None:
            presence = DisconnectWatch(messages(stays=False))
            await presence()
            with pytest.raises(ClientDisconnect):
                await presence.run(work())
            assert seen == ["cleaned up"]

        asyncio.run(run())

    def test_the_watch_does_not_read_from_the_body(self) -> None:
        """A chunk that the watch received would be lost."""

        async def run() -> list[bytes]:
            presence = DisconnectWatch(messages(b"a", b"b", b"c", stays=True))

            async def read() -> list[bytes]:
                found = []
                while True:
                    await asyncio.sleep(0)
                    message = await presence()
                    found.append(message["body"])
                    if not message["more_body"]:
                        return found

            return await presence.run(read())

        assert asyncio.run(run()) == [b"a", b"b", b"c"]


def messages(*pieces: bytes, stays: bool) -> Any:
    waiting = [*pieces] or [b""]

    async def receive() -> dict[str, object]:
        if waiting:
            piece = waiting.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(waiting)}
        if stays:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive

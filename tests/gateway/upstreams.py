"""Upstreams of the gateway in tests: the strict provider with raw bytes recorded, and a server with planned answers.

Both record every request as it arrived: method, target, headers in order, body.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from tests.provider import Provider
from tests.provider.server import Quick

KEYS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
HOP = frozenset(["host", "content-length", "connection", "transfer-encoding", "accept-encoding", "keep-alive"])
"""Headers of one connection or of the transfer of the body."""


@dataclass
class Raw:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    aborted: bool = False
    """Whether the client disconnected before the end of the answer."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def lasting(self) -> list[tuple[str, str]]:
        """The headers that must arrive unchanged."""
        return sorted((name, value) for name, value in self.headers if name not in HOP)


def _raw(scope: Scope) -> Raw:
    query = scope["query_string"].decode("latin-1")
    target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return Raw(scope["method"], target, pairs)


class Recorded(Provider):
    """The strict provider; ``raw`` has every request as it arrived."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.raw: list[Raw] = []
        super().__init__(*arguments, **options)

    def _app(self) -> Any:
        inner = super()._app()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            one = _raw(scope)
            self.raw.append(one)

            async def tee() -> Any:
                message = await receive()
                one.body += message.get("body", b"")
                return message

            await inner(scope, tee, send)

        return app

    @property
    def asked(self) -> list[Raw]:
        """The requests for answers of a model, in order."""
        return [one for one in self.raw if one.method == "POST"]


@dataclass
class Reply:
    """What a planned upstream answers: a status, headers, and a body in chunks.

    ``holds`` are waited for before each chunk but the first, so that a test decides when the rest is sent.
    """

    chunks: Iterable[bytes] = (b"{}",)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    holds: list[threading.Event] = field(default_factory=list)
    breaks: bool = False
    """Whether the connection is cut after the last chunk."""
    delay: float = 0


def said(value: object, status: int = 200, **headers: str) -> Reply:
    """Answer with JSON."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply([json.dumps(value).encode()], status, {"content-type": "application/json", **named})


Plan = Callable[[Raw], Reply]


class Upstream:
    """A server with planned answers that records the requests."""

    def __init__(self, plan: Plan | Reply | None = None) -> None:
        self.plan = plan if plan is not None else Reply()
        self.raw: list[Raw] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self._serve, interface="asgi3", log_level="critical", lifespan="off", ws="none", server_header=False
        )
        self._server = Quick(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Upstream:
        self._thread.start()
        wait_for(lambda: self._server.started, "the upstream starts")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        one = _raw(scope)
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            one.body += message.get("body", b"")
            more = message.get("more_body", False)
        self.raw.append(one)
        reply = self.plan(one) if callable(self.plan) else self.plan
        await asyncio.sleep(reply.delay)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async for chunk in self._chunks(reply, one, receive):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if reply.breaks:
            raise ConnectionAbortedError("planned")
        await send({"type": "http.response.body", "body": b""})

    async def _chunks(self, reply: Reply, one: Raw, receive: Receive) -> AsyncIterator[bytes]:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            for at, chunk in enumerate(reply.chunks):
                if at and at <= len(reply.holds):
                    while not reply.holds[at - 1].is_set():
                        if gone.done():
                            one.aborted = True
                            return
                        await asyncio.sleep(0.002)
                yield chunk
                await asyncio.sleep(0)
        finally:
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def wait_for(done: Callable[[], bool], what: str, *, seconds: float = 60, pause: float = 0.005) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: it is not true in time.
    """
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)

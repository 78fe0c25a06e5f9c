"""Limits on client connections that uvicorn does not enforce.

``HeaderTimeout`` bounds the size and the arrival time of a request's head: uvicorn waits for a first line without a
timeout and, with httptools, buffers headers of any length, so a client that sends one byte a minute could hold a
connection forever. ``DisconnectWatch`` cancels work for a client that left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from kompakt.gateway.config import GatewayConfig

Value = TypeVar("Value")

_TOO_LONG = b"431 Request Header Fields Too Large"
_TOO_SLOW = b"408 Request Timeout"


def protocol(settings: GatewayConfig) -> type[Any]:
    """Return the protocol class for connections, based on httptools where it is installed, else on h11."""
    try:
        import_module("httptools")
    except ImportError:
        base = import_module("uvicorn.protocols.http.h11_impl").H11Protocol
    else:
        base = import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol
    return with_header_timeout(base, settings)


def with_header_timeout(base: type[asyncio.Protocol], settings: GatewayConfig) -> type[Any]:
    """Derive a protocol class that closes connections whose request head is too slow or too long."""
    limits = {"max_header": settings.max_header, "seconds": settings.body_timeout}
    return type("Connection", (HeaderTimeout, base), limits)


class HeaderTimeout(asyncio.Protocol):
    """Mixin for uvicorn's HTTP protocols."""

    max_header: int
    seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    """uvicorn's state of the newest request."""
    _timer: asyncio.TimerHandle | None = None
    _pending = 0
    """Bytes received since the last complete request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.seconds, self._on_timeout)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_head():
            self._reset()
            return
        self._pending += len(data)
        if self._pending > self.max_header:
            self._reject(_TOO_LONG)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reset()
        super().connection_lost(exc)

    def _awaits_head(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _reset(self) -> None:
        self._pending = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._awaits_head():
            self._reject(_TOO_SLOW)

    def _reject(self, status: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()


class DisconnectWatch:
    """A ``receive`` that detects the client's disconnect once the body has been read.

    ASGI servers report a disconnect only to a pending ``receive`` call, and nothing calls it between a request's body
    and its response. This class does, so the upstream request of a client that left is closed and its concurrency slot
    freed.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = asyncio.Event()

    async def __call__(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._complete.set()
        return message

    async def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Return the result of ``work``; cancel it when the client disconnects first.

        Raises:
            ClientDisconnect: the client disconnected.
        """
        task = asyncio.create_task(work)
        watch = asyncio.create_task(self._disconnected())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # marks it as retrieved; nothing else awaits the task now

    async def _disconnected(self) -> None:
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

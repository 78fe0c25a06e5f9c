"""Limits on the size, duration and number of requests, and on connections.

``LimitsMiddleware`` is plain ASGI so that streams pass through unbuffered. It also turns a ``GatewayError`` raised
further in into a response in the format of the provider whose endpoint was called.

Two limits are below ASGI. ``HeaderTimeout`` bounds the size and the arrival time of a request's head: uvicorn waits for
a first line without a timeout and, with httptools, buffers headers of any length, so a client that sends one byte a
minute could hold a connection forever. ``DisconnectWatch`` cancels work for a client that left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.access_log import RequestLog
from kompakt.gateway.tenants import check_site
from kompakt.gateway.upstream import error_format

_log = logging.getLogger("kompakt.gateway")

_PER_HEADER = 32
"""Bytes of memory per header besides its name and value."""

_CLOSE = {"connection": "close"}
"""Sent when the rest of the body is not read."""


class LimitsMiddleware:
    """Enforces the limits on headers and bodies."""

    def __init__(self, app: ASGIApp, settings: Callable[[], GatewayConfig]) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        settings, started = self.settings(), False

        async def send_tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            _check_headers(scope, settings)
            check_site(scope, settings)
            await self.app(scope, _Body(receive, scope["kompakt"], settings), send_tracked)
        except GatewayError as error:
            scope["kompakt"].refusal = error.code
            if started:  # the server closes the connection, which tells the client that the response is incomplete
                fields = {"request": scope["kompakt"].id, "refusal": error.code}
                _log.warning("response aborted: %s", error.message, extra={"kompakt": fields})
                return
            path = scope.get("raw_path", b"").decode("latin-1")
            await error.response(error_format(path, settings))(scope, receive, send)


def _check_headers(scope: Scope, settings: GatewayConfig) -> None:
    """Reject oversized headers and bodies whose announced length is too large."""
    headers = scope["headers"]
    if sum(len(name) + len(value) + _PER_HEADER for name, value in headers) > settings.max_header:
        raise GatewayError(
            431,
            f"the headers exceed the limit of {settings.max_header:,} bytes",
            code="headers_too_large",
            headers=_CLOSE,
        )
    lengths = [value for name, value in headers if name == b"content-length"]
    if not lengths:
        return
    if len(set(lengths)) > 1 or not lengths[0].isdigit():
        raise GatewayError(400, "content-length is not one number", code="invalid_content_length", headers=_CLOSE)
    if len(lengths[0]) > 18 or int(lengths[0]) > settings.max_body:
        raise _too_large(settings)


def _too_large(settings: GatewayConfig) -> GatewayError:
    message = f"the body exceeds the gateway's limit of {settings.max_body:,} bytes (--max-body)"
    return GatewayError(413, message, code="body_too_large", headers=_CLOSE)


class _Body:
    """A ``receive`` that enforces the limits on a body's size and time."""

    def __init__(self, receive: Receive, entry: RequestLog, settings: GatewayConfig) -> None:
        self.receive = receive
        self.entry = entry
        self.settings = settings
        self.size = 0

    async def __call__(self) -> Message:
        """Receive the next chunk. After the last one there is no timeout: the next message is the disconnect."""
        if self.entry.received is not None:
            return await self.receive()
        left = self.entry.began + self.settings.body_timeout - time.perf_counter()
        try:
            async with asyncio.timeout(max(0.0, left)):
                message = await self.receive()
        except TimeoutError:
            raise GatewayError(
                408,
                f"the body was not received within {self.settings.body_timeout:g} seconds",
                code="body_timeout",
                headers=_CLOSE,
            ) from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            if self.size > self.settings.max_body:
                raise _too_large(self.settings)
            if not message.get("more_body", False):
                self.entry.received = time.perf_counter()
        return message


class Slots:
    """Concurrency limits: requests in flight, in total and per tenant."""

    def __init__(self) -> None:
        self.total = 0
        self.tenants: dict[str, int] = {}

    @contextmanager
    def hold(self, tenant: str, settings: GatewayConfig) -> Generator[None]:
        """Hold a slot for the duration of a request, including its stream.

        Raises:
            GatewayError: the limit is reached.
        """
        mine = self.tenants.get(tenant, 0)
        if self.total >= settings.max_concurrency:
            raise _busy("the gateway", settings.max_concurrency)
        if settings.max_per_tenant is not None and mine >= settings.max_per_tenant:
            raise _busy("this tenant", settings.max_per_tenant)
        self.total += 1
        self.tenants[tenant] = mine + 1
        try:
            yield
        finally:
            self.total -= 1
            self.tenants[tenant] -= 1
            if not self.tenants[tenant]:
                del self.tenants[tenant]


def _busy(who: str, limit: int) -> GatewayError:
    headers = {"retry-after": "1", **_CLOSE}
    message = f"{who} has {limit:,} requests in flight, which is the limit; retry in a second"
    return GatewayError(429, message, code="too_many_requests", headers=headers)


# --- Connections ---

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

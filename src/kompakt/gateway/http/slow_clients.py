"""What the server itself does not watch: how long a request's head takes to arrive, and how long it is.

uvicorn waits for a first line as long as it takes and, with httptools, keeps headers of any length; a client that
sends a byte a minute would hold a connection for ever.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from kompakt.gateway.config import GatewayConfig

_TOO_LONG = b"431 Request Header Fields Too Large"
_TOO_SLOW = b"408 Request Timeout"


def protocol(settings: GatewayConfig) -> type[Any]:
    """Return the protocol that connections speak: httptools' where it is installed, else h11's."""
    try:
        import_module("httptools")
    except ImportError:
        base = import_module("uvicorn.protocols.http.h11_impl").H11Protocol
    else:
        base = import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol
    return with_header_timeout(base, settings)


def with_header_timeout(base: type[asyncio.Protocol], settings: GatewayConfig) -> type[Any]:
    """Lay the watch over a protocol."""
    limits = {"max_header": settings.max_header, "seconds": settings.body_timeout}
    return type("Connection", (HeaderTimeout, base), limits)


class HeaderTimeout(asyncio.Protocol):
    """What is laid over a server's protocol: ends connections on which no request's head arrives."""

    max_header: int
    seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    """The newest request, as the server keeps it."""
    _timer: asyncio.TimerHandle | None = None
    _pending = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.seconds, self._late)

    def data_received(self, data: bytes) -> None:
        """Read on; what does not end a head counts for it."""
        super().data_received(data)
        if not self._is_waiting():
            self._calm()
            return
        self._pending += len(data)
        if self._pending > self.max_header:
            self._end(_TOO_LONG)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._calm()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _calm(self) -> None:
        self._pending = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._is_waiting():
            self._end(_TOO_SLOW)

    def _end(self, status: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

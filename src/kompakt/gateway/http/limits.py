"""Limits on the size, duration and number of requests.

``LimitsMiddleware`` is plain ASGI so that streams pass through unbuffered. It also turns a ``GatewayError`` raised
further in into a response in the format of the provider whose endpoint was called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kompakt.gateway.access import check_site
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.access_log import RequestLog
from kompakt.gateway.routes import error_format

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
                _log.warning("response aborted: %s", error.message)
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
        raise GatewayError(400, "content-length is not a number", code="invalid_content_length", headers=_CLOSE)
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

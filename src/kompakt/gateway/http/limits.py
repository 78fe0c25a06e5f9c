"""What one request, one tenant and all together may take: bytes, seconds, places.

Plain ASGI, so that streams pass as they are. Whatever is refused here or further in, as ``Refused``, is answered in the
shape of the provider whose endpoint was called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.access_log import RequestLog
from kompakt.gateway.routes import error_format
from kompakt.gateway.tenancy.access import check_site

_log = logging.getLogger("kompakt.gateway")

_PER_HEADER = 32
"""Bytes that a header is counted for beside its own: what it takes to keep it."""

_CLOSE = {"connection": "close"}
"""Said where a body may be left unread: nobody waits for the rest of it."""


class LimitsMiddleware:
    """The layer that holds requests to their limits."""

    def __init__(self, app: ASGIApp, settings: Callable[[], GatewayConfig]) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request within its limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        settings, started = self.settings(), False

        async def say(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            _check_headers(scope, settings)
            check_site(scope, settings)
            await self.app(scope, _Body(receive, scope["kompakt"], settings), say)
        except GatewayError as refused:
            scope["kompakt"].refusal = refused.code
            if started:  # the server closes the connection, so the client sees that its answer is not complete
                _log.warning("an answer ended early: %s", refused.message)
                return
            path = scope.get("raw_path", b"").decode("latin-1")
            await refused.response(error_format(path, settings))(scope, receive, send)


def _check_headers(scope: Scope, settings: GatewayConfig) -> None:
    """Refuse headers that are too many or too long, and bodies that are said to be too long."""
    headers = scope["headers"]
    if sum(len(name) + len(value) + _PER_HEADER for name, value in headers) > settings.max_header:
        raise GatewayError(
            431, f"the headers take more than {settings.max_header:,} bytes", code="headers_too_large", headers=_CLOSE
        )
    lengths = [value for name, value in headers if name == b"content-length"]
    if not lengths:
        return
    if len(set(lengths)) > 1 or not lengths[0].isdigit():
        raise GatewayError(400, "content-length is not a number", code="invalid_content_length", headers=_CLOSE)
    if len(lengths[0]) > 18 or int(lengths[0]) > settings.max_body:
        raise _too_large(settings)


def _too_large(settings: GatewayConfig) -> GatewayError:
    message = f"the body has more than {settings.max_body:,} bytes; the gateway's --max-body allows no more"
    return GatewayError(413, message, code="body_too_large", headers=_CLOSE)


class _Body:
    """A request's body, counted and timed while it is read."""

    def __init__(self, receive: Receive, told: RequestLog, settings: GatewayConfig) -> None:
        self.receive = receive
        self.told = told
        self.settings = settings
        self.size = 0

    async def __call__(self) -> Message:
        """Receive the next piece; after the last one, wait for the client to go for as long as it takes."""
        if self.told.received is not None:
            return await self.receive()
        left = self.told.began + self.settings.body_timeout - time.perf_counter()
        try:
            async with asyncio.timeout(max(0.0, left)):
                message = await self.receive()
        except TimeoutError:
            raise GatewayError(
                408,
                f"the body was not there within {self.settings.body_timeout:g} seconds",
                code="body_timeout",
                headers=_CLOSE,
            ) from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            if self.size > self.settings.max_body:
                raise _too_large(self.settings)
            if not message.get("more_body", False):
                self.told.received = time.perf_counter()
        return message


class Slots:
    """How many requests are under way, in all and of each tenant."""

    def __init__(self) -> None:
        self.total = 0
        self.tenants: dict[str, int] = {}

    @contextmanager
    def taken(self, tenant: str, settings: GatewayConfig) -> Generator[None]:
        """Take a place for as long as a request lasts, its stream included.

        Raises:
            Refused: there is none.
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
    message = f"{who} has {limit:,} requests under way, which is all that is allowed; try again in a second"
    return GatewayError(429, message, code="too_many_requests", headers=headers)

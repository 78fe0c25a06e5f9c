"""The gateway as a Starlette application: the resources that are open while it runs, and the layers of a request.

From the outside in: ``AccessLog`` (request id, log, metrics) and ``LimitsMiddleware`` (bytes, seconds). Then either one
of the gateway's own endpoints, or ``Gateway.handle``, which determines the tenant and the route, takes a slot and calls
the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import islice
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import httpx
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.routing import Route as Endpoint
from starlette.types import Receive, Scope, Send

from kompakt.errors import KompaktError, StoreError, StoreUnavailable
from kompakt.gateway.admin.inspector import GatewayInspector
from kompakt.gateway.admin.mcp import McpEndpoint
from kompakt.gateway.admin.sessions import SessionsApi
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.config import FIXED, FLUSH_SECONDS, GatewayConfig, default_store
from kompakt.gateway.http.access_log import AccessLog, request_log
from kompakt.gateway.http.encodings import read_body
from kompakt.gateway.http.health import Health
from kompakt.gateway.http.limits import DisconnectWatch, LimitsMiddleware, Slots
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.proxy import Proxy
from kompakt.gateway.request.labels import client_of
from kompakt.gateway.storage.storage import RECONNECT_PAUSE, GatewayStorage, LazyRecords
from kompakt.gateway.tenants import PATIENCE, Tenant, TenantRegistry, load_secret, restore_secret, tenant_of
from kompakt.gateway.upstream import ProviderTransport, Route, closing_responses, has_body, route_of
from kompakt.model.tokens import counter_for
from kompakt.session.store import Store, open_store
from kompakt.store import sqlite_path
from kompakt.store.records import Records

_log = logging.getLogger("kompakt.gateway")

Handler: TypeAlias = Callable[[Request, Tenant, Route], Awaitable[Response]]
"""Answers a provider request whose tenant and route are known, such as ``proxy.Proxy``."""

_SERVERS = ("postgres", "redis", "unix")
"""Schemes of stores that are servers. Such a store may start later than the gateway."""

_OTHER_STORE = "choose another store with --store, or keep nothing with --store memory:"

LONG = 5
"""Answers of the model in a request from which on its conversation is not new."""

_SCANNED = 512 * 1024
"""Bytes of a request that are searched for answers, because the search blocks the event loop."""

_ANSWER = re.compile(rb'"role"\s*:\s*"(?:assistant|model)"|"type"\s*:\s*"function_call"')


class Gateway:
    """The resources that are open while the gateway runs."""

    store: Store
    client: httpx.AsyncClient
    registry: TenantRegistry
    storage: GatewayStorage
    handler: Handler

    def __init__(
        self,
        settings: GatewayConfig,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        key: bytes | None = None,
        make: Callable[[Gateway], Handler] | None = None,
        worker: int = 1,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(worker)
        self.slots = Slots()
        self.is_draining = False
        self._transport = transport
        self._key = key
        self._make = make or make_proxy
        self._has_own_secret = False
        """Whether the secret is configured, as opposed to stored."""
        self._restoring: asyncio.Task[None] | None = None
        self._at_exit: list[Callable[[], Awaitable[None]]] = []

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open all resources. On exit, write pending records before the store is closed.

        Raises:
            KompaktError: the store cannot be opened.
        """
        del app
        _warm_up()
        self.store = await _open_store(self.settings, self._key)
        try:
            self._has_own_secret = bool(self.settings.secret)
            adoption = None if self.settings.secret else await self._take_secret()
            self.storage = GatewayStorage(
                self.store, self.metrics, on_loss=self._on_loss, timeout=self.settings.store_timeout
            )
            self.registry = TenantRegistry(self.store, self.metrics)
            async with _client(self.settings, self._transport) as self.client:
                self.handler = self._make(self)
                try:
                    yield
                finally:
                    while self._at_exit:
                        await self._at_exit.pop()()
                    if adoption is not None:
                        adoption.cancel()
                    if self._restoring is not None:
                        await asyncio.wait({self._restoring})
                    await self._flush()
        finally:
            await self.store.close()

    def at_exit(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call ``close`` when the gateway stops, before the store is closed."""
        self._at_exit.append(close)

    async def _take_secret(self) -> asyncio.Task[None] | None:
        """Load the secret from the store. While the store is unavailable, use a temporary one.

        Tenants that come from a credential change when the stored secret replaces the temporary one.
        """
        try:
            secret = await with_timeout(load_secret(self.store), PATIENCE)
        except StoreError as error:
            _log.warning(
                "store unavailable: using a temporary tenant secret; clients without a gateway key do not find their "
                "sessions until the store is connected: %s",
                error,
            )
            self.settings = msgspec.structs.replace(self.settings, secret=secrets.token_hex(32))
            return asyncio.create_task(self._adopt_secret())
        self.settings = msgspec.structs.replace(self.settings, secret=secret)
        return None

    async def _adopt_secret(self) -> None:
        """Wait until the store is available and use its secret."""
        while True:
            await asyncio.sleep(RECONNECT_PAUSE)
            try:
                secret = await with_timeout(load_secret(self.store), PATIENCE)
            except StoreError:
                continue
            self.settings = msgspec.structs.replace(self.settings, secret=secret)
            self.handler = self._make(self)
            _log.info("store connected: using its tenant secret")
            return

    def _on_loss(self) -> None:
        """Restore shared data after a session disappeared: the whole store may have been emptied."""
        self.registry.recheck()
        if not self._has_own_secret and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore_secret())

    async def _restore_secret(self) -> None:
        try:
            await with_timeout(restore_secret(self.store, self.settings.secret), PATIENCE)
        except StoreError as error:
            self.metrics.store_failures.inc()
            _log.warning("store unavailable: cannot restore the tenant secret: %s", error)

    async def _flush(self) -> None:
        try:
            await with_timeout(self.storage.flush(), FLUSH_SECONDS)
        except StoreError as error:
            self.metrics.store_failures.inc()
            _log.warning("flush failed: the newest messages are not in the store: %s", error)

    def reconfigure(self, settings: GatewayConfig) -> list[str]:
        """Apply new settings; return the names of changed settings that require a restart and keep their old value."""
        kept = {name: getattr(self.settings, name) for name in FIXED}
        changed = [name for name in FIXED if name != "secret" and getattr(settings, name) != kept[name]]
        if settings.secret and settings.secret != kept["secret"]:
            changed.append("secret")
        self.settings = msgspec.structs.replace(settings, **kept)
        self.client.timeout = _timeout(self.settings)
        self.handler = self._make(self)
        return changed

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings, watch = self.settings, DisconnectWatch(receive)
        request = Request(scope, watch)
        log = request_log(request)
        log.route = "other"
        path = scope["raw_path"].decode("latin-1")
        route = route_of(path, request.headers, settings)
        log.route, log.format, log.model = route.name, route.format, route.model
        log.client = client_of(request.headers.get("user-agent", ""))
        tenant = tenant_of(request.headers, request.query_params, settings)
        log.tenant = tenant.id
        with self.slots.hold(tenant.id, settings):
            try:
                async with closing_responses(scope):
                    response = await watch.run(self._respond(request, tenant, route))
                    await response(scope, watch, send)
            except ClientDisconnect:
                _log.info("client disconnected before the answer was complete", extra={"kompakt": {"request": log.id}})

    async def _respond(self, request: Request, tenant: Tenant, route: Route) -> Response:
        if not has_body(request):
            await request.body()  # the disconnect watch needs to know that there is nothing more to read
        if await self.registry.is_new(tenant.id) and tenant.source == "credential" and route.compacts:
            answers = _ANSWER.finditer((await read_body(request, self.settings.max_body))[:_SCANNED])
            request_log(request).is_new = len(list(islice(answers, LONG))) == LONG
        return await self.handler(request, tenant, route)


def create_app(
    settings: GatewayConfig,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    key: bytes | None = None,
    make: Callable[[Gateway], Handler] | None = None,
    worker: int = 1,
) -> Starlette:
    """Create the application; ``app.state.gateway`` is its ``Gateway``.

    ``transport`` replaces the network to the providers, ``key`` encrypts stored values, ``make`` creates the handler of
    provider requests, ``worker`` is the number of this process in the metrics.
    """
    gateway = Gateway(settings, transport=transport, key=key, make=make, worker=worker)
    health, api = Health(gateway), SessionsApi(gateway)
    inspector = GatewayInspector(api)
    gateway.at_exit(inspector.close)
    app = Starlette(
        routes=[
            Endpoint("/healthz", health.healthz, methods=["GET"]),
            Endpoint("/readyz", health.readyz, methods=["GET"]),
            Endpoint("/metrics", health.metrics, methods=["GET"]),
            Endpoint("/inspect/plain", api.inspect, methods=["GET"]),
            Endpoint("/inspect", inspector),
            Endpoint("/inspect/{path:path}", inspector),
            Endpoint("/favicon.ico", health.favicon, methods=["GET"]),
            Mount("/kompakt", app=api),
            Endpoint("/mcp", McpEndpoint(api)),
        ],
        middleware=[
            Middleware(AccessLog, metrics=gateway.metrics, is_draining=lambda: gateway.is_draining),
            Middleware(LimitsMiddleware, settings=lambda: gateway.settings),
        ],
        lifespan=gateway.lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = gateway.handle
    app.state.gateway = gateway
    return app


def _warm_up() -> None:
    """Load the tokenizer and the async backend now; the first request would block the event loop for it."""
    counter_for(None).text("a word")
    anyio.Event()


def make_proxy(gateway: Gateway) -> Handler:
    return Proxy(gateway.settings, gateway.storage, gateway.client, gateway.metrics)


async def _open_store(settings: GatewayConfig, key: bytes | None) -> Store:
    path = sqlite_path(settings.store)
    if path is not None and settings.store == default_store():
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return await open_store(settings.store, key=key)
    except StoreUnavailable as error:
        if not settings.store.startswith(_SERVERS):
            raise StoreUnavailable(f"{error}; {_OTHER_STORE}") from None
        _log.warning("store unavailable at startup, requests are served without it until it is connected: %s", error)
        return Store(cast("Records", LazyRecords(settings.store)), key=key)
    except KompaktError as error:
        raise type(error)(f"{error}; {_OTHER_STORE}") from None


def _timeout(settings: GatewayConfig) -> httpx.Timeout:
    quiet, connect = settings.upstream_timeout, settings.connect_timeout
    return httpx.Timeout(connect=connect, read=quiet, write=quiet, pool=connect)


def _client(settings: GatewayConfig, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """Create the client for all upstreams. It ignores proxy variables, follows no redirects and keeps no cookies."""
    return httpx.AsyncClient(
        transport=transport or ProviderTransport(max_idle=settings.max_concurrency),
        timeout=_timeout(settings),
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )

"""The gateway as a Starlette application: what is open while it runs, and the layers a request goes through.

From the outside in: ``Telling`` (id, log, metrics), ``Limiting`` (bytes, seconds), then either one of the gateway's own
endpoints or the entrance, which says whose request it is and where it goes, takes a place and calls the proxy.
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
from kompakt.gateway import upstream as forwarding
from kompakt.gateway.admin.sessions import Api
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.config import FIXED, GatewayConfig, default_store
from kompakt.gateway.http.access_log import AccessLog, request_log
from kompakt.gateway.http.connections import DisconnectWatch
from kompakt.gateway.http.encodings import read_body
from kompakt.gateway.http.health import Health
from kompakt.gateway.http.limits import LimitsMiddleware, Slots
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.request.labels import client_of
from kompakt.gateway.routes import Route, route_of
from kompakt.gateway.storage.records import PAUSE, LazyRecords
from kompakt.gateway.storage.storage import GatewayStorage
from kompakt.gateway.tenancy.tenants import PATIENCE, Tenant, TenantRegistry, load_secret, restore_secret, tenant_of
from kompakt.model.tokens import counter_for
from kompakt.session.store import Store, open_store
from kompakt.store.records import Records

_log = logging.getLogger("kompakt.gateway")

Handler: TypeAlias = Callable[[Request, Tenant, Route], Awaitable[Response]]
"""What answers a request once it is known whose it is and where it goes; ``proxy.Proxy`` is one."""

_SERVERS = ("postgres", "redis", "unix")
"""How addresses of stores begin that are servers of their own and may start later than the gateway."""

_ELSEWHERE = "name another store with --store, or start without one kept: --store memory:"

LONG = 5
"""Answers of a model in a request that say that the conversation did not begin just now."""

_SCANNED = 512 * 1024
"""Bytes of a request in which they are looked for; scanning takes time from everybody."""

_ANSWER = re.compile(rb'"role"\s*:\s*"(?:assistant|model)"|"type"\s*:\s*"function_call"')


class Gateway:
    """All that is open while the gateway runs."""

    store: Store
    client: httpx.AsyncClient
    registry: TenantRegistry
    keeping: GatewayStorage
    handler: Handler

    def __init__(
        self,
        settings: GatewayConfig,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        key: bytes | None = None,
        make: Callable[[Gateway], Handler] | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.places = Slots()
        self.is_draining = False
        self._transport = transport
        self._key = key
        self._make = make or proxied
        self._has_own_secret = False
        """Whether the secret is configured; otherwise it is kept in the store."""
        self._restoring: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self, app: object = None) -> AsyncGenerator[None]:
        """Open everything, and close it again in the order that loses nothing.

        Raises:
            KompaktError: the store cannot be opened.
        """
        del app
        _warm_up()
        self.store = await _opened(self.settings, self._key)
        try:
            self._has_own_secret = bool(self.settings.secret)
            adopting = None if self.settings.secret else await self._secret()
            self.keeping = GatewayStorage(self.store, self.metrics, on_loss=self._lost)
            self.registry = TenantRegistry(self.store, self.metrics)
            async with _client(self.settings, self._transport) as self.client:
                self.handler = self._make(self)
                try:
                    yield
                finally:
                    if adopting is not None:
                        adopting.cancel()
                    if self._restoring is not None:
                        await asyncio.wait({self._restoring})
                    await self._flushed()
        finally:
            await self.store.close()

    async def _secret(self) -> asyncio.Task[None] | None:
        """Take the store's secret; while the store is away one of our own, and whoever is named by it is named anew."""
        try:
            secret = await with_timeout(load_secret(self.store), PATIENCE)
        except StoreError:
            self.settings = msgspec.structs.replace(self.settings, secret=secrets.token_hex(32))
            return asyncio.create_task(self._adopted())
        self.settings = msgspec.structs.replace(self.settings, secret=secret)
        return None

    async def _adopted(self) -> None:
        """Wait for the store's secret and go on with it."""
        while True:
            await asyncio.sleep(PAUSE)
            try:
                secret = await with_timeout(load_secret(self.store), PATIENCE)
            except StoreError:
                continue
            self.settings = msgspec.structs.replace(self.settings, secret=secret)
            self.handler = self._make(self)
            return

    def _lost(self) -> None:
        """Put back what every replica needs, after a session disappeared: perhaps the whole store was emptied."""
        self.registry.recheck()
        if not self._has_own_secret and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restored())

    async def _restored(self) -> None:
        try:
            await with_timeout(restore_secret(self.store, self.settings.secret), PATIENCE)
        except StoreError as error:
            self.metrics.store_failures.inc()
            _log.warning("the secret cannot be put back into the store: %s", error)

    async def _flushed(self) -> None:
        """Write what waits to be written."""
        try:
            await self.keeping.flush()
        except StoreError as error:
            self.metrics.store_failures.inc()
            _log.warning("what was recorded last is not in the store: %s", type(error).__name__)

    def reconfigure(self, settings: GatewayConfig) -> list[str]:
        """Go on with other settings; return the names of those that need another start and stay as they are."""
        kept = {name: getattr(self.settings, name) for name in FIXED}
        changed = [name for name in FIXED if name != "secret" and getattr(settings, name) != kept[name]]
        if settings.secret and settings.secret != kept["secret"]:
            changed.append("secret")
        self.settings = msgspec.structs.replace(settings, **kept)
        self.client.timeout = _timeout(self.settings)
        self.handler = self._make(self)
        return changed

    async def enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that is for a provider."""
        settings, presence = self.settings, DisconnectWatch(receive)
        request = Request(scope, presence)
        told = request_log(request)
        told.route = "other"
        path = scope["raw_path"].decode("latin-1")
        route = route_of(path, request.headers, settings)
        told.route, told.format, told.model = route.name, route.format, route.model
        told.client = client_of(request.headers.get("user-agent", ""))
        tenant = tenant_of(request.headers, request.query_params, settings)
        told.tenant = tenant.id
        with self.places.hold(tenant.id, settings):
            try:
                async with forwarding.closing_responses(scope):
                    response = await presence.run(self._respond(request, tenant, route))
                    await response(scope, presence, send)
            except ClientDisconnect:
                _log.info("the client disconnected before it had its answer", extra={"kompakt": {"request": told.id}})

    async def _respond(self, request: Request, tenant: Tenant, route: Route) -> Response:
        """Make the answer to a request."""
        if not forwarding.has_body(request):
            await request.body()  # tells the watch on the client that there is nothing more to read
        if await self.registry.is_new(tenant.id) and tenant.source == "credential" and route.compacts:
            answers = _ANSWER.finditer((await read_body(request, self.settings.max_body))[:_SCANNED])
            request_log(request).is_new = len(list(islice(answers, LONG))) == LONG
        return await self.handler(request, tenant, route)


def application(
    settings: GatewayConfig,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    key: bytes | None = None,
    make: Callable[[Gateway], Handler] | None = None,
) -> Starlette:
    """Make the application.

    ``transport`` stands in for the network to the providers, ``key`` encrypts what is stored, ``make`` makes what
    answers requests; ``app.state.gateway`` is the ``Gateway``.
    """
    gateway = Gateway(settings, transport=transport, key=key, make=make)
    health, api = Health(gateway), Api(gateway)
    app = Starlette(
        routes=[
            Endpoint("/healthz", health.healthz, methods=["GET"]),
            Endpoint("/readyz", health.readyz, methods=["GET"]),
            Endpoint("/metrics", health.metrics, methods=["GET"]),
            Endpoint("/inspect", api.inspect, methods=["GET"]),
            Endpoint("/favicon.ico", health.favicon, methods=["GET"]),
            Mount("/kompakt", app=api),
        ],
        middleware=[
            Middleware(AccessLog, metrics=gateway.metrics),
            Middleware(LimitsMiddleware, settings=lambda: gateway.settings),
        ],
        lifespan=gateway.running,
    )
    app.router.redirect_slashes = False
    app.router.default = gateway.enter
    app.state.gateway = gateway
    return app


def _warm_up() -> None:
    """Load what would otherwise hold the event loop with the first request: the vocabulary, the sockets' library."""
    counter_for(None).text("a word")
    anyio.Event()


def proxied(gateway: Gateway) -> Handler:
    """Make the proxy."""
    from kompakt.gateway.proxy import Proxy  # late: what is open is passed to it, not imported

    return Proxy(gateway.settings, gateway.keeping, gateway.client, gateway.metrics)


async def _opened(settings: GatewayConfig, key: bytes | None) -> Store:
    if settings.store == default_store():
        Path(settings.store.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return await open_store(settings.store, key=key)
    except StoreUnavailable as error:
        if not settings.store.startswith(_SERVERS):
            raise StoreUnavailable(f"{error}; {_ELSEWHERE}") from None
        _log.warning("the store is not there; requests are served without it until it is")
        return Store(cast("Records", LazyRecords(settings.store)), key=key)
    except KompaktError as error:
        raise type(error)(f"{error}; {_ELSEWHERE}") from None


def _timeout(settings: GatewayConfig) -> httpx.Timeout:
    quiet, connect = settings.upstream_timeout, settings.connect_timeout
    return httpx.Timeout(connect=connect, read=quiet, write=quiet, pool=connect)


def _client(settings: GatewayConfig, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """Make the client for all upstreams: no environment, no redirects, no cookies, connections kept for all tenants."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=settings.max_concurrency)
    return httpx.AsyncClient(
        transport=transport,
        limits=limits,
        timeout=_timeout(settings),
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )

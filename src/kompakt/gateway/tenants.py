"""Tenants: which tenant a request belongs to, which sessions it may see, and the registry of tenants in the store.

No tenant can reach the sessions, pivots and recall results of another. A request is assigned to a tenant by the first
of these that applies: a key of the gateway in ``x-kompakt-key``, a header that a trusted proxy sets, or a keyed hash of
the client's credential for the provider. The credential itself stays in its header. It is never stored or logged, and
the tenant cannot be derived without it.

Any web page in a browser on the same machine can send requests to a gateway on the loopback: to 127.0.0.1 directly, or
to a foreign name that resolves to it (DNS rebinding). On every route the Host must therefore be a loopback name or a
configured one, and the Origin, if present, the gateway's own or a configured one. Programs other than browsers send no
Origin and are not affected. A valid gateway key passes both checks, because no web page knows it.

Sessions and metrics are visible to a key, or to clients on the same machine. A request that passed through another
proxy does not count as local.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from kompakt.errors import Conflict, StoreError, UsageError
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.config import GatewayConfig, check_tenant
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.metrics import Metrics
from kompakt.model.lru import Lru
from kompakt.session.store import Store
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Batch, Head, Records, key_of

KEY_HEADER = "x-kompakt-key"
ANONYMOUS = "anonymous"
"""The tenant of requests without a credential, such as requests to a local model."""

Source: TypeAlias = Literal["key", "header", "credential", "none"]
_CREDENTIALS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")

REGISTRY_TENANT = "kompakt tenants"
"""The tenant that owns the registry in the store. No request can have it: tenant names contain no space."""

PATIENCE = 2.0
"""Seconds that a request waits for the registry."""

PAUSE = 5.0
"""Seconds without registry queries after the store failed, so that not every request waits for it."""

_MAX_SEEN = 100_000
_PAGE = 200
_SCOPE_DIGITS = 12


class Tenant(NamedTuple):
    """The tenant of a request, and how it was determined."""

    id: str
    source: Source


class Owner(NamedTuple):
    """The owner of sessions: a tenant of the store and a prefix of session ids.

    The prefix is empty for tenants that an operator configured.
    """

    tenant: str
    scope: str

    @classmethod
    def of(cls, tenant: Tenant) -> Owner:
        """Return the owner of a tenant's sessions.

        Clients known only by their credential share the store's default tenant, so that its tools find their sessions.
        Their session ids start with the hash of the credential, and the gateway shows them no others.
        """
        if tenant.source in ("key", "header"):
            return cls(tenant.id, "")
        return cls("", f"{tenant.id.rpartition('-')[2][:_SCOPE_DIGITS]}-")

    def session(self, name: str) -> str:
        """Return the id of a session in the store."""
        return name if self.scope and name.startswith(self.scope) else f"{self.scope}{name}"

    def owns(self, session: str) -> bool:
        """Whether a session of the tenant belongs to this owner."""
        return session.startswith(self.scope)


def tenant_of(headers: Mapping[str, str], query: Mapping[str, str], settings: GatewayConfig) -> Tenant:
    """Return the tenant of a request.

    Raises:
        GatewayError: keys or a trusted header are configured, and the request has none that is valid.
    """
    if settings.keys:
        presented = headers.get(KEY_HEADER, "")
        if presented:
            found = tenant_of_key(presented, settings)
            if found is None:
                raise _unknown_key()
            return Tenant(found, "key")
    if settings.tenant_header is not None:
        named = headers.get(settings.tenant_header, "")
        if named:
            return _of_header(named, settings.tenant_header)
    if settings.keys or settings.tenant_header is not None:
        raise _unknown_key()
    credential = credential_of(headers, query)
    if not credential:
        return Tenant(ANONYMOUS, "none")
    return Tenant(f"credential-{hash_credential(credential, settings.secret)}", "credential")


def _of_header(named: str, header: str) -> Tenant:
    try:
        return Tenant(check_tenant(named), "header")
    except UsageError:
        raise GatewayError(400, f"the header {header} has no valid tenant name", code="invalid_tenant") from None


def _unknown_key() -> GatewayError:
    return GatewayError(
        401,
        f"this gateway requires a gateway key in the header {KEY_HEADER}; your provider's key stays where it is",
        code="invalid_kompakt_key",
    )


def tenant_of_key(presented: str, settings: GatewayConfig) -> str | None:
    """Return the tenant of a key, in constant time."""
    digest, found = hash_key(presented), None
    for known, tenant in settings.keys.items():
        if hmac.compare_digest(known, digest):
            found = tenant
    return found


def is_admin(presented: str, settings: GatewayConfig) -> bool:
    """Return whether a key is an admin key, in constant time."""
    digest, found = hash_key(presented), False
    for known in settings.admin_keys:
        found |= hmac.compare_digest(known, digest)
    return found


def credential_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the client's credential for the provider, without ``Bearer``; empty when there is none."""
    for name in _CREDENTIALS:
        value = headers.get(name, "").strip()
        if value:
            kind, _, rest = value.partition(" ")
            return rest.strip() if kind.lower() == "bearer" else value
    return query.get("key", "")


def make_key() -> str:
    return f"kk-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """Hash a gateway key. Keys are long and random, so a plain SHA-256 cannot be reversed."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def hash_credential(credential: str, secret: str) -> str:
    key = hashlib.blake2b(secret.encode(), digest_size=32).digest()
    data = credential.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=16, person=b"kompakt tenant").hexdigest()


def is_named(id: str) -> bool:
    """Return whether the operator configured this tenant, as opposed to one derived from a credential."""
    return id != ANONYMOUS and not id.startswith("credential-")


def is_private(name: str, settings: GatewayConfig) -> bool:
    """Return whether a request header, in lower case, is meant for the gateway and must not go upstream."""
    return name.startswith("x-kompakt-") or name == settings.tenant_header


# --- registry ------------------------------------------------------------------------------------------------------


async def load_secret(store: Store) -> str:
    """Return the secret in the store. Creates one if needed; replicas that start at once agree on the same one."""
    name = {"secret": secrets.token_hex(32).encode()}
    await store.records.note(REGISTRY_TENANT, key_of(REGISTRY_TENANT, "secret"), name)
    return (await store.records.notes(REGISTRY_TENANT, name.keys()))["secret"].decode()


async def restore_secret(store: Store, secret: str) -> None:
    """Write the secret into a store that may have lost it; an existing secret stays."""
    await store.records.note(REGISTRY_TENANT, key_of(REGISTRY_TENANT, "secret"), {"secret": secret.encode()})


class TenantRegistry:
    """The tenants known to a store.

    Each tenant is a session head without rows, owned by ``REGISTRY_TENANT``. One call shows whether any replica has
    seen a tenant before. The process caches the tenants that it has seen.
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self.records = store.records
        self.metrics = metrics
        self._seen = Lru[str, bool](_MAX_SEEN)
        self._unsure: set[str] = set()
        """Tenants that were seen and that the store may have lost since."""
        self._paused_until = 0.0

    async def is_new(self, tenant: str) -> bool:
        """Register a tenant; return whether it was unknown. ``False`` while the store is unavailable."""
        if (tenant in self._seen and tenant not in self._unsure) or time.monotonic() < self._paused_until:
            return False
        try:
            new = await with_timeout(self._register(tenant), PATIENCE)
        except StoreError:
            self.metrics.store_failures.inc()
            self._paused_until = time.monotonic() + PAUSE
            return False
        new = new and tenant not in self._seen
        self._seen.put(tenant, True)
        self._unsure.discard(tenant)
        return new

    def recheck(self) -> None:
        """Register all tenants again on their next request, because the store has lost data."""
        self._unsure = {tenant for tenant, _ in self._seen.items()}

    async def _register(self, tenant: str) -> bool:
        key = key_of(REGISTRY_TENANT, tenant)
        if await self.records.head(key) is not None:
            return False
        now, nothing = time.time(), ValueCodec(None).pack_whole(None)
        head = Head(key, REGISTRY_TENANT, tenant.encode(), "openai-chat", nothing, created=now, touched=now)
        try:
            return await self.records.commit(Batch("first seen", head), seen=None)
        except Conflict:
            return False

    async def tenants(self) -> AsyncIterator[str]:
        """Iterate over all tenants, ordered by key."""
        async for head in heads_of(self.records, REGISTRY_TENANT):
            yield head.name


async def heads_of(records: Records, tenant: str, *, after: str = "") -> AsyncIterator[Head]:
    """Iterate over the session heads of a tenant with keys greater than ``after``."""
    while page := await records.heads(tenant, after=after, limit=_PAGE):
        for head in page:
            yield head
        after = page[-1].key


# --- Access ---

_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}|::1|::ffff:127(?:\.\d{1,3}){3}")
_NAMES = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_LOCAL = re.compile(rf"localhost|{_LOOPBACK.pattern}", re.IGNORECASE)
_FROM_CONTAINERS = ("host.docker.internal", "host.containers.internal")
"""Names under which containers reach their host. They cannot be registered, so no web page can use them."""
_PORT = re.compile(r":\d+$")
_DEFAULT_PORT = re.compile(r":(?:80|443)$")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Access(NamedTuple):
    """Which sessions a request may see."""

    owner: Owner | None
    """The owner of the sessions; ``None`` for the sessions of all tenants."""
    is_keyless: bool = False
    """Whether keys are configured and the request has none."""


def check_site(scope: Scope, settings: GatewayConfig) -> None:
    """Reject requests that a foreign web page sends to a gateway on the loopback.

    Raises:
        GatewayError: the Host is not a name of this gateway, or the Origin is a foreign site.
    """
    if not (settings.allowed_hosts or is_loopback(settings.host) or is_loopback((scope.get("server") or ("",))[0])):
        return
    headers = Headers(scope=scope)
    if _has_key(headers, settings):
        return
    host = headers.get("host", "").lower()
    if host and not _is_own(host, settings):
        raise GatewayError(
            403,
            "the Host header is not a name of this gateway; allow a name with --allow-host NAME",
            code="host_not_allowed",
        )
    origin = headers.get("origin", "").lower()
    if origin in settings.allowed_origins:
        return
    site = origin.partition("://")[2]
    is_foreign = bool(origin) and _DEFAULT_PORT.sub("", site) != _DEFAULT_PORT.sub("", host)
    if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise GatewayError(
            403,
            "web pages of other origins may not use this gateway; allow one with --allow-origin ORIGIN",
            code="origin_not_allowed",
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    return _LOCAL.fullmatch(host) is not None


def _is_own(host: str, settings: GatewayConfig) -> bool:
    allowed = {*settings.allowed_hosts, *_FROM_CONTAINERS}
    return bool(_NAMES.fullmatch(host)) or not allowed.isdisjoint(["*", host, _PORT.sub("", host)])


def _has_key(headers: Headers, settings: GatewayConfig) -> bool:
    """Return whether a request has a valid gateway key."""
    if not settings.keys and not settings.admin_keys:
        return False
    key = headers.get(KEY_HEADER) or _bearer(headers)
    return bool(key) and (is_admin(key, settings) or tenant_of_key(key, settings) is not None)


def access_of(request: Request, settings: GatewayConfig) -> Access:
    """Return which sessions a request may see.

    Raises:
        GatewayError: the key is invalid, or there is none and the client is on another machine.
    """
    key = request.headers.get(KEY_HEADER) or _bearer(request.headers)
    if key and (settings.keys or settings.admin_keys):
        if is_admin(key, settings):
            return Access(None)
        tenant = tenant_of_key(key, settings)
        if tenant is not None:
            return Access(Owner.of(Tenant(tenant, "key")))
        if KEY_HEADER in request.headers:
            raise GatewayError(401, f"the key in {KEY_HEADER} is invalid", code="invalid_kompakt_key")
    if not is_local(request):
        raise GatewayError(
            403,
            f"access requires a key in {KEY_HEADER}, or a client on the gateway's machine that connects to localhost",
            code="not_allowed",
        )
    return _local(request, settings)


def _bearer(headers: Headers) -> str:
    kind, _, rest = headers.get("authorization", "").partition(" ")
    return rest.strip() if kind.lower() == "bearer" else ""


def _local(request: Request, settings: GatewayConfig) -> Access:
    """Return which sessions a local client sees: all, unless keys or a tenant header are configured."""
    if settings.tenant_header is not None and request.headers.get(settings.tenant_header):
        return Access(Owner.of(tenant_of(request.headers, {}, settings)))
    if settings.keys or settings.tenant_header is not None:
        return Access(Owner.of(Tenant(ANONYMOUS, "none")), is_keyless=True)
    if credential_of(request.headers, request.query_params):
        return Access(Owner.of(tenant_of(request.headers, request.query_params, settings)))
    return Access(None)


def is_local(request: Request) -> bool:
    """Return whether a request comes from this machine, directly and not on behalf of a web page."""
    headers = request.headers
    if request.client is None or not _LOOPBACK.fullmatch(request.client.host):
        return False
    if any(name in headers for name in _FORWARDED) or not _NAMES.fullmatch(headers.get("host", "")):
        return False
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{request.url.scheme}://{headers['host'].lower()}"

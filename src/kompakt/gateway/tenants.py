"""Tenants: which tenant a request belongs to, and the registry of known tenants in the store.

No tenant can reach the sessions, pivots and recall results of another. A request is assigned to a tenant by the first
of these that applies: a key of the gateway in ``x-kompakt-key``, a header that a trusted proxy sets, or a keyed hash of
the client's credential for the provider. The credential itself stays in its header. It is never stored or logged, and
nobody can derive the tenant without knowing it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

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


class Tenant(NamedTuple):
    """The tenant of a request, and how it was determined."""

    id: str
    source: Source


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
            return _of_header(named)
    if settings.keys or settings.tenant_header is not None:
        raise _unknown_key()
    credential = credential_of(headers, query)
    if not credential:
        return Tenant(ANONYMOUS, "none")
    return Tenant(f"credential-{hash_credential(credential, settings.secret)}", "credential")


def _of_header(named: str) -> Tenant:
    try:
        return Tenant(check_tenant(named), "header")
    except UsageError:
        raise GatewayError(400, "the trusted header does not contain a tenant name", code="invalid_tenant") from None


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
            yield head.id.decode()


async def heads_of(records: Records, tenant: str, *, after: str = "") -> AsyncIterator[Head]:
    """Iterate over the session heads of a tenant with keys greater than ``after``."""
    while page := await records.heads(tenant, after=after, limit=_PAGE):
        for head in page:
            yield head
        after = page[-1].key

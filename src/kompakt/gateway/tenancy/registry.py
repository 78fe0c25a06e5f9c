"""Which tenants there are, and the secret that names those who only show a credential. Both are in the store.

A tenant is a head without rows, under a tenant that no request can be: one call tells whether it was there before, on
whichever replica. The process remembers those it has seen; that is quicker and nothing else.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator

from kompakt.errors import Conflict, StoreError
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.http.metrics import Metrics
from kompakt.session.store import Store
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Batch, Head, Records, key_of

_log = logging.getLogger("kompakt.gateway")

PLACE = "kompakt tenants"
"""Where they are listed; the name of a tenant has no blank in it."""

PATIENCE = 2.0
"""Seconds that the store has to say whether a tenant is new; a request does not wait any longer for it."""

PAUSE = 5.0
"""Seconds that a store which failed is not asked again: requests would wait for it one after the other."""

_REMEMBERED = 100_000
_PAGE = 200


async def secret_in(store: Store) -> str:
    """Return the secret of a store; make one when it has none. Replicas that start at once agree on one."""
    name = {"secret": secrets.token_hex(32).encode()}
    await store.records.note(PLACE, key_of(PLACE, "secret"), name)
    return (await store.records.notes(PLACE, name.keys()))["secret"].decode()


async def keep_secret(store: Store, secret: str) -> None:
    """Put a secret into a store that may have lost it; one that is there stays."""
    await store.records.note(PLACE, key_of(PLACE, "secret"), {"secret": secret.encode()})


class Registry:
    """The tenants of a store."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self.records = store.records
        self.metrics = metrics
        self._seen: set[str] = set()
        self._unsure: set[str] = set()
        """Those that were seen and that the store may have lost since."""
        self._resting_until = 0.0

    async def is_new(self, tenant: str) -> bool:
        """Tell whether a tenant was never here before; from now on it was. A store that is down says no."""
        if (tenant in self._seen and tenant not in self._unsure) or time.monotonic() < self._resting_until:
            return False
        try:
            new = await with_timeout(self._enter(tenant), PATIENCE)
        except StoreError:
            self.metrics.store_failures.inc()
            self._resting_until = time.monotonic() + PAUSE
            return False
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        new = new and tenant not in self._seen
        self._seen.add(tenant)
        self._unsure.discard(tenant)
        return new

    def doubt(self) -> None:
        """Enter tenants again when they come next: the store has lost something, perhaps them too."""
        self._unsure = set(self._seen)

    async def _enter(self, tenant: str) -> bool:
        key = key_of(PLACE, tenant)
        if await self.records.head(key) is not None:
            return False
        now, nothing = time.time(), ValueCodec(None).pack_whole(None)
        head = Head(key, PLACE, tenant.encode(), "openai-chat", nothing, created=now, touched=now)
        try:
            return await self.records.commit(Batch("first seen", head), seen=None)
        except Conflict:
            return False

    async def tenants(self) -> AsyncIterator[str]:
        """Go through all tenants, in an order of their own."""
        async for head in heads_of(self.records, PLACE):
            yield head.id.decode()


async def heads_of(records: Records, tenant: str, *, after: str = "") -> AsyncIterator[Head]:
    """Go through the heads of a tenant, those behind a key."""
    while page := await records.heads(tenant, after=after, limit=_PAGE):
        for head in page:
            yield head
        after = page[-1].key

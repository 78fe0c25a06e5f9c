"""A store of sessions, as callers see it: open one by its address, take sessions from it.

store = await open_store("sqlite:///agent.db")
session = await store.session("id")
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from kompakt.engine.recall import DEFAULT_TOKENS, Recalled
from kompakt.errors import UsageError
from kompakt.session.row_codec import Redact
from kompakt.session.session import Session
from kompakt.store import open_records
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Head, Records

_PAGE = 200


class Store:
    """The sessions of one tenant in one place."""

    def __init__(
        self, records: Records, *, tenant: str = "", key: bytes | None = None, redact: Redact | None = None
    ) -> None:
        self.records = records
        self.tenant = tenant
        self.value_codec = ValueCodec(key)
        self._key = key
        self._redact = redact

    def of_tenant(self, tenant: str) -> Store:
        """Return the sessions of another tenant in the same place."""
        return Store(self.records, tenant=tenant, key=self._key, redact=self._redact)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections and files."""
        await self.records.close()

    async def session(self, id: str) -> Session:
        """Return a session; it begins to exist when something is appended to it."""
        if not isinstance(id, str) or not id:  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a session id is a text and not empty, not {id!r}")
        return Session(self.records, id, tenant=self.tenant, value_codec=self.value_codec, redact=self._redact)

    async def heads(self, *, strict: bool = False) -> AsyncIterator[Head]:
        """Go through all sessions of the tenant.

        A session whose head is damaged is skipped and logged; with ``strict`` it raises ``StoreDamaged``.
        """
        after = ""
        while page := await self.records.heads(self.tenant, after=after, limit=_PAGE, strict=strict):
            for head in page:
                yield head
            after = page[-1].key

    async def sessions(self) -> AsyncIterator[Session]:
        """Go through all sessions of the tenant."""
        async for head in self.heads():
            yield await self.session(head.id.decode("utf-8", "surrogatepass"))

    async def recall(self, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Find or restore what was said in any session: the first that has it answers."""
        nothing = Recalled(text="")
        async for session in self.sessions():
            found = await session.recall(query_or_reference, tokens)
            if found:
                return found
            nothing = found
        return nothing

    async def delete(self, id: str) -> bool:
        """Remove a session: messages, blobs, index, ledger, notes; return whether it existed.

        Freed space in the store's files may still hold its bytes until ``scrub`` is called.
        """
        return await (await self.session(id)).delete()

    async def purge(self) -> int:
        """Remove all sessions and notes of the tenant, scrub the store, and return how many sessions were removed.

        Raises:
            StoreDamaged: a session cannot be read; nothing was removed.
        """
        keys = [head.key async for head in self.heads(strict=True)]
        removed = await self.records.delete(keys)
        await self.records.forget(self.tenant)
        await self.scrub()
        return removed

    async def scrub(self) -> None:
        """Rewrite the store's files so that no byte of a removed session is left in them.

        Maintenance for all tenants (``VACUUM`` in SQLite, ``VACUUM FULL`` in PostgreSQL): it takes time in the size of
        the store, and writers wait.
        """
        await self.records.scrub()


async def open_store(url: str, *, tenant: str = "", key: bytes | None = None, redact: Redact | None = None) -> Store:
    """Open a store by its address: ``memory:``, ``sqlite:///agent.db``, ``postgresql://…`` or ``redis://…``.

    ``tenant`` keeps the sessions of one party apart from those of others. ``key``, 32 bytes, encrypts what is said.
    ``redact`` is run on every text before it is stored.

    Raises:
        UsageError: the address is none of these, or an extra is not installed.
        StoreUnavailable: the store cannot be reached.
        StoreVersion: the store was made by a version of kompakt that keeps things otherwise.
    """
    ValueCodec(key)  # a wrong key is said before anything is opened
    return Store(await open_records(url), tenant=tenant, key=key, redact=redact)

"""Stores as callers use them: open one by its URL and get sessions from it.

store = await open_store("sqlite:///agent.db")
session = await store.session("id")
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import msgspec

from kompakt.engine.recall import DEFAULT_TOKENS, Recalled
from kompakt.errors import StoreDamaged, UsageError
from kompakt.model.messages import History
from kompakt.session.rows import Redact
from kompakt.session.session import Session
from kompakt.store import open_records
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Head, Records

_log = logging.getLogger("kompakt.store")

_PAGE = 200

MAX_BRANCHES = 20
"""Most stored conversations of one name."""

_NUMBERED = re.compile(r"~\d+\Z")


class TooManyBranches(UsageError):
    """No more histories are kept under a name."""


def branch_name(id: str, number: int) -> str:
    """Return the name of a stored conversation among those of one name; the first is 1.

    No two pairs of id and number have one name: ``recall_saved`` must not search the conversation of another id.
    """
    return id if number == 1 and not _NUMBERED.search(id) else f"{id}~{number}"


class Store:
    """The sessions of one tenant in one store."""

    def __init__(
        self, records: Records, *, tenant: str = "", key: bytes | None = None, redact: Redact | None = None
    ) -> None:
        self.records = records
        self.tenant = tenant
        self.value_codec = ValueCodec(key)
        self._key = key
        self._redact = redact

    def of_tenant(self, tenant: str) -> Store:
        """Return the sessions of another tenant in the same store."""
        return Store(self.records, tenant=tenant, key=self._key, redact=self._redact)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections and files."""
        await self.records.close()

    async def session(self, id: str) -> Session:
        """Return a session; it is created when something is appended to it."""
        if not isinstance(id, str) or not id:  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{id!r} is not a session id; give a text that is not empty")
        return Session(self.records, id, tenant=self.tenant, value_codec=self.value_codec, redact=self._redact)

    async def heads(self, *, strict: bool = False) -> AsyncIterator[Head]:
        """Iterate over the heads of all sessions of the tenant.

        A session whose head is damaged is skipped and logged; with ``strict`` it raises ``StoreDamaged``.
        """
        after = ""
        while page := await self.records.heads(self.tenant, after=after, limit=_PAGE, strict=strict):
            for head in page:
                yield head
            after = page[-1].key

    async def sessions(self) -> AsyncIterator[Session]:
        """Iterate over all sessions of the tenant."""
        async for head in self.heads():
            yield await self.session(head.name)

    async def save(self, id: str, history: History) -> Session:
        """Save a whole history in the session of this name; a history that diverges from it gets another session.

        Its name is that of the first with a number. Stored messages are not written again.

        Raises:
            TooManyBranches: as many histories as are kept under one name diverge from this one.
            Conflict: other writers were always faster.
        """
        for number in range(1, MAX_BRANCHES + 1):
            session = await self.session(branch_name(id, number))
            try:
                await session.save(history)
            except UsageError:  # the stored messages differ, so this is another conversation
                continue
            return session
        raise TooManyBranches(f"{MAX_BRANCHES} stored conversations have the name {id!r}; use another name")

    async def recall(self, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Search or restore in all sessions; return the first answer.

        A damaged session is skipped and logged. If nothing is found, the text of the answer names the skipped sessions.
        """
        nothing, skipped = Recalled(text=""), list[str]()
        async for session in self.sessions():
            try:
                found = await session.recall(query_or_reference, tokens)
            except StoreDamaged as error:
                _log.warning("session %r skipped in recall, it is damaged: %s", session.id, error)
                skipped.append(session.id)
                continue
            if found:
                return msgspec.structs.replace(found, session=session.id)
            nothing = found
        if not skipped:
            return nothing
        names = ", ".join(map(repr, skipped))
        text = f"{nothing.text} Damaged sessions were skipped: {names}; check them with `kompakt session verify`."
        return msgspec.structs.replace(nothing, text=text.strip())

    async def delete(self, id: str) -> bool:
        """Delete a session with its messages, blobs, index, ledger and notes; return whether it existed.

        Freed space in the store's files may hold its bytes until ``scrub`` is called.
        """
        return await (await self.session(id)).delete()

    async def purge(self) -> int:
        """Delete all sessions and notes of the tenant and scrub the store; return the number of sessions.

        Raises:
            StoreDamaged: a session cannot be read; nothing was deleted.
        """
        keys = [head.key async for head in self.heads(strict=True)]
        removed = await self.records.delete(keys)
        await self.records.forget(self.tenant)
        await self.scrub()
        return removed

    async def scrub(self) -> None:
        """Rewrite the store's files so that they contain no bytes of deleted sessions.

        This affects all tenants (``VACUUM`` in SQLite, ``VACUUM FULL`` in PostgreSQL). It takes time proportional to
        the size of the store, and blocks writers.
        """
        await self.records.scrub()


async def open_store(url: str, *, tenant: str = "", key: bytes | None = None, redact: Redact | None = None) -> Store:
    """Open a store by its URL: ``memory:``, ``sqlite:///agent.db``, ``postgresql://…`` or ``redis://…``.

    A path such as ``agent.db`` is that of a SQLite file.

    ``tenant`` separates the sessions of one party from those of others. ``key``, 32 bytes, encrypts the content.
    ``redact`` is applied to every text before it is stored.

    Raises:
        UsageError: the URL has another scheme, or an extra is not installed.
        StoreUnavailable: the store cannot be reached.
        StoreVersion: a newer kompakt wrote the store.
    """
    ValueCodec(key)  # checks the key before anything is opened
    return Store(await open_records(url), tenant=tenant, key=key, redact=redact)

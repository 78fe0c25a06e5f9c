"""What every store can do. One contract suite holds all of them to it.

Reading never needs a lock. Writing is one call: ``commit`` takes a batch whole, or not at all, and only when the
session is still what the writer saw. Each call may be repeated after an error; nothing is then written twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kompakt.store.values import Batch, Event, Fence, Head, Row


class Records(Protocol):
    """The rows and events of many sessions, and notes of a tenant that are found by their names.

    Raises, from every method:
        StoreUnavailable: the place cannot be reached, is full, or may not be written to.
        StoreDamaged: what is kept there is not what was written.
    """

    async def close(self) -> None:
        """Let go of connections and files; may be called twice."""
        ...

    async def head(self, key: str) -> Head | None:
        """Return a session as it is now; ``None`` when there is none."""
        ...

    async def heads(self, tenant: str, *, after: str = "", limit: int = 100, strict: bool = False) -> list[Head]:
        """List sessions of a tenant in the order of their keys, those after the key ``after``.

        A session whose head is damaged is skipped and logged; with ``strict`` it raises ``StoreDamaged``.
        """
        ...

    async def commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None = None) -> bool:
        """Write a batch in one transaction; false when the session has a batch of this id, which then changes nothing.

        ``seen`` is the head the batch was made from; ``None`` begins a session.

        Raises:
            Conflict: the session has other rows or events than ``seen`` says, or the fence was taken over.
        """
        ...

    async def rows(self, key: str, *, after: int = 0, upto: int, limit: int) -> list[Row]:
        """Return rows with ``after < seq <= upto`` in order, at most ``limit`` of them, ``words`` left empty."""
        ...

    async def rows_at(self, key: str, seqs: Collection[int]) -> list[Row]:
        """Return the rows of these numbers that exist, in order."""
        ...

    async def turn_seqs(self, key: str, turn: int) -> list[int]:
        """Return the numbers of a turn's rows, in order; after a revert a turn can be there twice."""
        ...

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        """Return which of these references are taken, with their rows' numbers."""
        ...

    async def events(self, key: str, *, after: int = 0) -> list[Event]:
        """Return the events behind a number, in order."""
        ...

    async def blobs(self, tenant: str, hashes: Collection[str]) -> dict[str, bytes]:
        """Return the blobs of these hashes that exist."""
        ...

    async def search(self, key: str, words: Sequence[str], *, limit: int) -> list[int] | None:
        """Return the numbers of rows with any of these words, best first; ``None`` when the store has no index."""
        ...

    async def note(self, tenant: str, key: str, notes: Mapping[str, bytes]) -> None:
        """Keep values under names of a tenant, in one transaction; a name that is there keeps its first value.

        They belong to a session, which need not have begun, and go with it. A name that was there belongs to the
        session that it was first given for.

        Raises:
            UsageError: a name is longer than 200 characters.
        """
        ...

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        """Return the values of these names that exist: a few at the cost of one look, any number in pages."""
        ...

    async def forget(self, tenant: str) -> None:
        """Remove all notes of a tenant, those of sessions that never began too; sessions stay as they are."""
        ...

    async def delete(self, keys: Iterable[str]) -> int:
        """Remove sessions for good: rows, events, notes, index, locks, and blobs nobody else needs; return how many."""
        ...

    async def scrub(self) -> None:
        """Make sure that what was deleted is no longer anywhere in the store's own files."""
        ...

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        """Try to take a lock for ``lease`` seconds; ``None`` when somebody else holds it. Locks need no session."""
        ...

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        """Hold a lock for ``lease`` seconds from now; false when it was lost."""
        ...

    async def release(self, key: str, fence: Fence) -> None:
        """Give a lock back; one that was lost is left alone."""
        ...

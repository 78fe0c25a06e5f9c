"""The storage interface: the values a store holds, and the ``Records`` protocol that every back end implements.

A row is one message as its provider wrote it, under a sequence number that is never reused. An event is something done
to the session as a whole: a compaction, an undo, a revert. Rows and events are append-only, and the state of a session
is derived from both. The head counts them, so comparing two numbers tells whether another writer committed first.

Reads take no lock. Writing is one call: ``commit`` applies a batch completely or not at all, and only if the session
still has the head that the writer read. Every call may be repeated after an error without writing anything twice.

Locks are leases with fencing numbers. A lease expires, because a holder may die without releasing its lock. A holder
that was only paused (a stopped process, a slow disk) may continue after its lease expired and another took the lock. No
clock can prevent that, so each change of holder increases the number in the ``Fence``, and ``commit`` refuses a fence
whose number is not the newest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from kompakt.errors import UsageError
from kompakt.model.json import prepare

LONGEST_NAME = 200
"""Maximum number of characters in the name of a note."""

RowKind: TypeAlias = Literal["message", "marker", "summary", "resume", "inserted", "finished"]
"""``message``: part of the conversation. ``marker``: a request to compact. ``summary``: the text of a compaction.
``resume``: asks the agent to continue after a compaction. ``inserted``: shown to the model by a caller or a provider.
``finished``: the result of one tool while other tools of the step still run; the step's own message repeats it."""


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """One message of a session."""

    seq: int
    """Sequence number in the session, starting at 1."""
    turn: int
    """The turn it belongs to, starting at 1; rows before the first turn have 1."""
    kind: RowKind
    name: str
    """Its reference, unique in the session."""
    chain: bytes
    """Hash over this message and all messages that were live before it; the reference is a prefix of it."""
    content: bytes
    """Hash of the item before it was packed."""
    item: bytes
    """The message, packed by ``ValueCodec``."""
    note: bytes
    """Packed metadata that the item does not contain."""
    blobs: tuple[str, ...] = ()
    """Hashes of the blobs that the item refers to."""
    words: str = ""
    """Text for the search index; written, never read back."""


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing done to a session."""

    number: int
    """Number in the session, starting at 1."""
    kind: str
    tip: int
    """The last row when it happened."""
    at: float
    """Unix time, for display only; no decision depends on it."""
    data: bytes
    """What was done, packed."""
    blobs: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, gc=False):
    """A session in one value."""

    key: str
    """The name of the session in the store; see ``key_of``."""
    tenant: str
    id: bytes
    """The caller's id as UTF-8 with lone surrogates allowed; bytes, because text columns reject some ids."""
    format: str
    envelope: bytes
    """The request body without its messages, packed."""
    created: float
    rows: int = 0
    """The newest sequence number, live or not."""
    events: int = 0
    """The newest event's number."""
    tip: int = 0
    """The newest live row; less than ``rows`` after a revert."""
    turn: int = 0
    """Number of turns; 0 before the first user message."""
    chain: bytes = b""
    """The chain hash of the tip."""
    messages: int = 0
    """Number of live rows that are messages."""
    touched: float = 0.0
    """Unix time of the last write; 0 before the first."""

    @property
    def last_write(self) -> float:
        """Return the Unix time of the last write, for display and for removing old sessions."""
        return self.touched or self.created

    @property
    def name(self) -> str:
        """The caller's id. It may have lone surrogates, which UTF-8 cannot carry."""
        return self.id.decode("utf-8", "surrogatepass")


class Batch(msgspec.Struct, frozen=True):
    """What one commit writes."""

    id: str
    """Unique in the session. Committing the same batch again changes nothing, so a commit can be retried."""
    head: Head
    """The session after the commit."""
    rows: tuple[StoredRow, ...] = ()
    events: tuple[StoredEvent, ...] = ()
    blobs: dict[str, bytes] = {}
    """Packed blobs by hash; a blob that the tenant already has is not written again."""
    notes: dict[str, bytes] = {}
    """Notes of the session; see ``Records.note``."""
    synced: bool = True
    """Whether the commit waits for the disk. The end of a process never loses a commit. A failure of the machine may
    lose one that does not wait, together with all later ones, until a commit that waits has returned."""


class Fence(msgspec.Struct, frozen=True):
    """Proof of a held lock: ``commit`` refuses it once the lock has had another holder."""

    name: str
    number: int
    """Increases each time the lock is acquired."""


class Records(Protocol):
    """Rows and events of many sessions, and named notes per tenant. One contract suite tests every back end.

    Raises, from every method:
        StoreUnavailable: the store cannot be reached, is full, or cannot be written to.
        StoreDamaged: stored data is not what was written.
    """

    async def close(self) -> None:
        """Close connections and files; may be called twice."""
        ...

    async def head(self, key: str) -> Head | None:
        """Return the current head of a session; ``None`` if there is no session."""
        ...

    async def heads(self, tenant: str, *, after: str = "", limit: int = 100, strict: bool = False) -> list[Head]:
        """List sessions of a tenant ordered by key, starting after the key ``after``.

        A session whose head is damaged is skipped and logged; with ``strict`` it raises ``StoreDamaged``.
        """
        ...

    async def commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None = None) -> bool:
        """Write a batch in one transaction; false, without a change, if the session has a batch of this id.

        ``seen`` is the head the batch was made from; ``None`` creates the session.

        Raises:
            Conflict: the session has other rows or events than ``seen``, or the fence is no longer the newest.
        """
        ...

    async def rows(self, key: str, *, after: int = 0, upto: int, limit: int) -> list[StoredRow]:
        """Return rows with ``after < seq <= upto`` in order, at most ``limit``, without ``words``."""
        ...

    async def rows_at(self, key: str, seqs: Collection[int]) -> list[StoredRow]:
        """Return the existing rows with these sequence numbers, in order."""
        ...

    async def turn_seqs(self, key: str, turn: int) -> list[int]:
        """Return the sequence numbers of a turn, in order; after a revert a turn can exist twice."""
        ...

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        """Return which of these references exist, with their sequence numbers."""
        ...

    async def events(self, key: str, *, after: int = 0) -> list[StoredEvent]:
        """Return the events after a number, in order."""
        ...

    async def blobs(self, tenant: str, hashes: Collection[str]) -> dict[str, bytes]:
        """Return the existing blobs with these hashes."""
        ...

    async def search(self, key: str, words: Sequence[str], *, limit: int) -> list[int] | None:
        """Return sequence numbers of rows with any of these words, best first; ``None`` if there is no index."""
        ...

    async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
        """Write named values of a tenant in one transaction; an existing name keeps its first value.

        Notes belong to a session, which need not exist yet, and are deleted with it. An existing name stays with the
        session it was first written for. For ``synced`` see ``Batch``.

        Raises:
            UsageError: a name is longer than 200 characters.
        """
        ...

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        """Return the existing values of these names; few names take one round trip, many are read in pages."""
        ...

    async def forget(self, tenant: str) -> None:
        """Remove all notes of a tenant, including notes of sessions that were never created; sessions are kept."""
        ...

    async def delete(self, keys: Iterable[str]) -> int:
        """Delete sessions with rows, events, notes, index, locks and unshared blobs; return how many existed."""
        ...

    async def scrub(self) -> None:
        """Rewrite the store's files so that they no longer contain deleted data."""
        ...

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        """Try to take a lock for ``lease`` seconds; ``None`` if it is held. The session need not exist."""
        ...

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        """Extend a lock to ``lease`` seconds from now; false if it was lost."""
        ...

    async def release(self, key: str, fence: Fence) -> None:
        """Release a lock; a lock that was lost is not touched."""
        ...


_MAX_TIME = 253_402_300_800.0
"""Seconds from 1970 to the year 10000, the first that ``datetime`` cannot represent."""


def is_sound(head: Head) -> bool:
    """Check that the values of a head are possible: the id is text, counts and times are in range."""
    try:
        head.id.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    counts = (head.rows, head.events, head.tip, head.turn, head.messages)
    return min(counts) >= 0 and all(0 <= time < _MAX_TIME for time in (head.created, head.touched))


def key_of(tenant: str, id: str) -> str:
    """Return the key of a session: a hash in hexadecimal digits, because an id may hold any characters."""
    parts = [text.encode("utf-8", "surrogatepass") for text in (tenant, id)]
    hasher = hashlib.blake2b(digest_size=16, person=b"kompakt key")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


def check_names(names: Iterable[str]) -> None:
    """Raise ``UsageError`` if the name of a note is too long."""
    for name in names:
        if len(name) > LONGEST_NAME:
            raise UsageError(f"the name of a note has {len(name)} characters; use at most {LONGEST_NAME} characters")


def used_blobs(batch: Batch) -> list[str]:
    """List the blobs a session uses after a batch: those in the batch and those its rows and events refer to."""
    referred = (hash for record in (*batch.rows, *batch.events) for hash in record.blobs)
    return list(dict.fromkeys((*batch.blobs, *referred)))


prepare(Head, StoredRow, StoredEvent)

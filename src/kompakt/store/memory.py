"""Sessions in the memory of this process: the simplest back end, and the reference for the others.

Several threads, each with its own event loop, may share one store: every method takes one lock and releases it without
awaiting anything. Reads cost what they return, except ``heads``, which looks at all sessions. There is no search index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import msgspec

from kompakt.errors import Conflict
from kompakt.store.records import Batch, Fence, Head, StoredEvent, StoredRow, check_names, used_blobs


class _Session:
    __slots__ = ("batches", "blobs", "events", "head", "names", "rows", "turns")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.rows: dict[int, StoredRow] = {}
        self.names: dict[str, int] = {}
        self.turns: dict[int, list[int]] = {}
        self.events: dict[int, StoredEvent] = {}
        self.blobs: set[str] = set()
        self.batches: set[str] = set()


class MemoryRecords:
    """Rows and events in dictionaries."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._blobs: dict[tuple[str, str], bytes] = {}
        self._uses: dict[tuple[str, str], set[str]] = {}
        self._notes: dict[str, dict[str, bytes]] = {}
        self._noted: dict[str, set[tuple[str, str]]] = {}
        self._fences: dict[str, dict[str, int]] = {}
        self._deadlines: dict[tuple[str, str], float] = {}
        # One counter for all locks: a fence number is never reused, not even after its session was deleted.
        self._numbers = count(1)

    async def close(self) -> None:
        """Do nothing; the data lives as long as this object."""

    async def head(self, key: str) -> Head | None:
        with self._guard:
            session = self._sessions.get(key)
            return session.head if session else None

    async def heads(self, tenant: str, *, after: str = "", limit: int = 100, strict: bool = False) -> list[Head]:
        with self._guard:
            heads = [session.head for session in self._sessions.values() if session.head.tenant == tenant]
        return sorted((head for head in heads if head.key > after), key=lambda head: head.key)[: max(limit, 0)]

    async def commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None = None) -> bool:
        key = batch.head.key
        check_names(batch.notes)
        with self._guard:
            session = self._sessions.get(key)
            if session and batch.id in session.batches:
                return False
            found = (session.head.rows, session.head.events) if session else None
            if found != ((seen.rows, seen.events) if seen else None):
                raise Conflict(f"session {key}: another writer committed first; read it again and retry")
            if fence and self._fences.get(key, {}).get(fence.name) != fence.number:
                raise Conflict(f"session {key}: its lock {fence.name!r} has a new holder; acquire it again and retry")
            self._write(session or self._sessions.setdefault(key, _Session(batch.head)), batch)
            return True

    def _write(self, session: _Session, batch: Batch) -> None:
        """Apply a batch; nothing here can fail half-way."""
        tenant, key = batch.head.tenant, batch.head.key
        for row in batch.rows:
            session.rows[row.seq] = msgspec.structs.replace(row, words="")
            session.names[row.name] = row.seq
            session.turns.setdefault(row.turn, []).append(row.seq)
        session.events |= {event.number: event for event in batch.events}
        for hash, blob in batch.blobs.items():
            self._blobs.setdefault((tenant, hash), blob)
        for hash in used_blobs(batch):
            self._uses.setdefault((tenant, hash), set()).add(key)
            session.blobs.add(hash)
        session.head = batch.head
        session.batches.add(batch.id)
        self._note(tenant, key, batch.notes)

    async def rows(self, key: str, *, after: int = 0, upto: int, limit: int) -> list[StoredRow]:
        with self._guard:
            session = self._sessions.get(key)
            if not session:
                return []
            last = min(upto, session.head.rows)
            found = (session.rows[seq] for seq in range(max(after, 0) + 1, last + 1) if seq in session.rows)
            return [row for row, _ in zip(found, range(limit), strict=False)]

    async def rows_at(self, key: str, seqs: Collection[int]) -> list[StoredRow]:
        with self._guard:
            session = self._sessions.get(key)
            return [session.rows[seq] for seq in sorted(set(seqs)) if seq in session.rows] if session else []

    async def turn_seqs(self, key: str, turn: int) -> list[int]:
        with self._guard:
            session = self._sessions.get(key)
            return list(session.turns.get(turn, ())) if session else []

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        with self._guard:
            session = self._sessions.get(key)
            return {name: session.names[name] for name in names if name in session.names} if session else {}

    async def events(self, key: str, *, after: int = 0) -> list[StoredEvent]:
        with self._guard:
            session = self._sessions.get(key)
            last = session.head.events if session else 0
            numbers = range(max(after, 0) + 1, last + 1)
            return [session.events[number] for number in numbers if number in session.events] if session else []

    async def blobs(self, tenant: str, hashes: Collection[str]) -> dict[str, bytes]:
        with self._guard:
            return {hash: self._blobs[tenant, hash] for hash in hashes if (tenant, hash) in self._blobs}

    async def search(self, key: str, words: Sequence[str], *, limit: int) -> list[int] | None:
        """Return ``None``: there is no index."""
        return None

    async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
        check_names(notes)
        with self._guard:
            self._note(tenant, key, notes)

    def _note(self, tenant: str, key: str, notes: Mapping[str, bytes]) -> None:
        kept = self._notes.setdefault(tenant, {})
        new = {name: value for name, value in notes.items() if name not in kept}
        kept |= new
        self._noted.setdefault(key, set()).update((tenant, name) for name in new)

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        with self._guard:
            kept = self._notes.get(tenant, {})
            return {name: kept[name] for name in names if name in kept}

    async def forget(self, tenant: str) -> None:
        with self._guard:
            self._notes.pop(tenant, None)
            for noted in self._noted.values():
                noted -= {pair for pair in noted if pair[0] == tenant}

    async def delete(self, keys: Iterable[str]) -> int:
        gone = 0
        for key in list(keys):
            with self._guard:
                for name in self._fences.pop(key, {}):
                    self._deadlines.pop((key, name), None)
                for tenant, name in self._noted.pop(key, ()):
                    del self._notes[tenant][name]
                session = self._sessions.pop(key, None)
                if session:
                    gone += 1
                    self._drop_blobs(session)
        return gone

    def _drop_blobs(self, session: _Session) -> None:
        """Remove a session from the users of its blobs, and the blobs without users."""
        tenant = session.head.tenant
        for hash in session.blobs:
            users = self._uses[tenant, hash]
            users.discard(session.head.key)
            if not users:
                del self._uses[tenant, hash]
                self._blobs.pop((tenant, hash), None)

    async def scrub(self) -> None:
        """Do nothing; there are no files."""

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        with self._guard:
            if self._holds(key, name):
                return None
            number = next(self._numbers)
            self._fences.setdefault(key, {})[name] = number
            self._deadlines[key, name] = time.monotonic() + lease
            return Fence(name, number)

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        with self._guard:
            kept = self._holds(key, fence.name) and self._fences[key][fence.name] == fence.number
            if kept:
                self._deadlines[key, fence.name] = time.monotonic() + lease
            return kept

    async def release(self, key: str, fence: Fence) -> None:
        with self._guard:
            if self._fences.get(key, {}).get(fence.name) == fence.number:
                self._deadlines.pop((key, fence.name), None)

    def _holds(self, key: str, name: str) -> bool:
        return self._deadlines.get((key, name), float("-inf")) > time.monotonic()

"""The store as the gateway uses it: pivots and recorded branches found by content, originals written in the background.

Caches only save store reads. They are never trusted: a session may be deleted while its conversation continues, so
every request checks the cached entries against the store. While the store is unavailable, the caches are all there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from kompakt.engine.recall import Recalled
from kompakt.errors import KompaktError, StoreDamaged, StoreError, StoreUnavailable, UsageError
from kompakt.gateway.concurrency import KeyedLocks, off_loop, with_timeout
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.lookup import (
    TRIES,
    Pivot,
    PivotCache,
    PivotMatch,
    RenderedPivot,
    applies,
    covered_items,
    pivot_name,
    pivot_names,
)
from kompakt.gateway.request.history import HashChain
from kompakt.gateway.storage import recorder
from kompakt.gateway.storage.recorder import (
    RecordedBranch,
    SessionGone,
    WriteBehind,
    WrittenPrefixes,
    encode_note,
    mark_name,
)
from kompakt.gateway.tenants import Owner
from kompakt.model.lru import Lru
from kompakt.session.session import changed_name
from kompakt.session.store import Store
from kompakt.store import open_records
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Records, key_of

_log = logging.getLogger("kompakt.gateway")

Value = TypeVar("Value")
Note = TypeVar("Note", bound=msgspec.Struct)

MAX_BRANCHES = 10_000
"""Requests whose recorded branch is cached."""

STORE_TIMEOUT = 3.0
"""Seconds for a store read; then the request is served without the store."""

WRITE_FACTOR = 2.5
"""Factor of the timeout for a write of originals: many replicas may write at once, and a pivot depends on it."""

_RETRY_AFTER = 2.0
"""Seconds in which an unavailable store is not called again."""

_CLAIM_TRIES = 20
_CLAIM_PAUSE = 0.05
"""How often, and with which pause in seconds, a replica checks whether another one has built the pivot."""
_CLAIM_LEASE = 2.0
"""Seconds for which a replica reserves the building of a pivot."""

_BYTES_PER_BYTE = 8
"""Memory of a decoded note per stored byte."""


class SessionChanges(msgspec.Struct, frozen=True):
    """What people changed in a session."""

    session: str
    number: int = 0
    """The number of the newest change."""
    pins: tuple[str, ...] = ()
    undone: bool = False
    """Whether a deeper pivot was undone; the request is sent without it as long as it fits."""


class Match(msgspec.Struct):
    """What the store knows of a request."""

    found: PivotMatch | None
    branch: RecordedBranch
    degraded: str | None = None
    """Why the store was not used."""
    changed: tuple[str, ...] = ()
    """Sessions of this request that a person has changed."""
    changes: SessionChanges | None = None
    """What the person changed, if it matters for this request."""


class _Cached(NamedTuple):
    """What the caches know of a request."""

    found: PivotMatch | None
    branch: RecordedBranch | None
    above: int
    """Number of items up to which the caches know all pivots."""
    notes: Mapping[str, str]
    """Notes that the store must still have for this to be valid, each with the session that is gone otherwise."""


_NOTHING = _Cached(None, None, 0, {})


class _ChangeMarks:
    """Which sessions were looked up for changes of people, and which of them have one."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.changed: list[str] = []

    def note(self, names: Mapping[str, str], notes: Mapping[str, bytes]) -> None:
        """Add what the notes of these names say."""
        self.read |= set(names.values())
        self.changed += [session for name, session in names.items() if name in notes]


class _Lost(Exception):
    """Something in the caches is no longer in the store."""


class GatewayStorage:
    """Pivots, recorded branches and sessions of all tenants."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        on_loss: Callable[[], object] = lambda: None,
        timeout: float = STORE_TIMEOUT,
    ) -> None:
        self.records = store.records
        self.value_codec = store.value_codec
        self._store = store
        self._metrics = metrics
        self._on_loss = on_loss
        """Called when data disappeared from the store."""
        self._timeout, self._write_timeout = timeout, WRITE_FACTOR * timeout
        self.losses = 0
        """How often data disappeared from the store; other caches of stored data are cleared when it changes."""
        self._cache = PivotCache()
        self._branches = Lru[bytes, RecordedBranch](MAX_BRANCHES)
        self._started = Lru[bytes, str](MAX_BRANCHES)
        """Sessions of requests that started one and are not recorded yet, by the key of the request."""
        self._written = WrittenPrefixes()
        self._queue = WriteBehind(self.store_failed, metrics=metrics)
        self._locks = KeyedLocks()
        self._retry_at = 0.0

    def store_of(self, owner: Owner) -> Store:
        return self._store.of_tenant(owner.tenant)

    # --- Match requests ---

    async def match(self, owner: Owner, chain: HashChain, *, named: str | None) -> Match:
        """Find the deepest pivot of a request and the session that records it.

        Cached entries save reads of older prefixes. They are checked against the store each time, since any client may
        have deleted the session in between.
        """
        cached, degraded, marks = self._cached(chain), None, _ChangeMarks()
        try:
            try:
                found, branch = await self._search(owner, chain, cached, marks)
            except _Lost:
                found, branch = await self._search(owner, chain, _NOTHING, marks)
            self._cache.put_match(chain, found)
            await self._read_marks(owner, marks, found, branch)
            if marks.changed:  # a change may depend on messages that the cached branch does not have
                branch = (await self._search(owner, chain, _NOTHING, marks))[1] or branch
        except StoreError as error:
            reason = self.store_failed(error)
            found, branch = cached.found, cached.branch
            degraded = reason if cached.above < chain.length else None  # the caches know all of a repeated request
        branch = branch or self._new_branch(owner, chain, named)
        return Match(found, await self._separated(owner, chain, branch), degraded, tuple(marks.changed))

    async def _read_marks(
        self, owner: Owner, marks: _ChangeMarks, found: PivotMatch | None, branch: RecordedBranch | None
    ) -> None:
        """Look for changes in the sessions of a request that the search did not ask for."""
        sessions = [*([branch.session] if branch else ()), *([found.pivot.session] if found else ())]
        names = {changed_name(key_of(owner.tenant, one)): one for one in sessions if one not in marks.read}
        if names:
            marks.note(names, await self.read_notes(owner, names))
        marks.changed = [one for one in dict.fromkeys(sessions) if one in marks.changed]

    async def match_uncached(self, owner: Owner, chain: HashChain, match: Match) -> Match:
        """Search the store for every pivot deeper than the one that a request matches, ignoring the caches."""
        known = _Cached(match.found, match.branch, covered_items(chain, match.found), {})
        try:
            found, _ = await self._search(owner, chain, known, _ChangeMarks(), is_thorough=True)
        except StoreError as error:
            return Match(match.found, match.branch, self.store_failed(error))
        self._cache.put_match(chain, found)
        return Match(found, match.branch, match.degraded)

    def _cached(self, chain: HashChain) -> _Cached:
        found, above = self._cache.deepest(chain)
        notes = dict[str, str]()
        if found is not None and found.rendered.is_stored:
            notes[pivot_name(chain.keys[found.at], found.pivot.attempt)] = found.pivot.session
        for at in chain.all_ends():
            branch = self._branches.get(chain.keys[at])
            if branch is not None:
                notes[mark_name(chain.keys[at])] = branch.session
                return _Cached(found, branch, above, notes)
        return _Cached(found, None, above, notes)

    async def _search(
        self, owner: Owner, chain: HashChain, cached: _Cached, changes: _ChangeMarks, *, is_thorough: bool = False
    ) -> tuple[PivotMatch | None, RecordedBranch | None]:
        """Search the store for pivots and marks of prefixes longer than the cached one.

        Pivots exist only for marked prefixes, and a mark records which pivot its request matched. So the newest mark
        ends the search unless it is thorough. The first read also asks whether a person changed the cached sessions.

        Raises:
            _Lost: a cached entry is no longer in the store and was removed.
        """
        # Without its branch a cached match is not enough: people may have changed the session that records the request.
        above = max(cached.above if cached.branch is not None else 0, chain.lead)
        branch, expected = None, cached.notes
        for page in chain.ends(above):
            names = [mark_name(chain.keys[at]) for at in page]
            if not names and not expected:
                continue
            changed = {changed_name(key_of(owner.tenant, one)): one for one in expected.values()}
            notes = await self.read_notes(owner, [*names, *expected, *changed])
            changes.note(changed, notes)
            lost = {session for name, session in expected.items() if name not in notes}
            if lost:
                self.forget(owner, lost)
                raise _Lost
            expected = {}
            marks = {at: notes[name] for at, name in zip(page, names, strict=True) if name in notes}
            if not marks:
                continue
            newest = decode_note(marks[max(marks)], self.value_codec, RecordedBranch)
            branch = branch or newest
            ends = set(marks)
            if not is_thorough and newest.pivot_covers and above < chain.lead + newest.pivot_covers <= chain.length:
                ends.add(chain.lead + newest.pivot_covers)
            stored = await self.read_notes(owner, pivot_names(chain, ends))
            size = _BYTES_PER_BYTE * sum(map(len, stored.values()))
            found = await off_loop(
                lambda stored=stored, ends=ends: deepest(chain, stored, self.value_codec, ends), size=size
            )
            if found is not None:
                self._cache.put(chain.keys[found.at], found.rendered)
                return found, branch
            if newest.pivot_covers is not None and not is_thorough:
                break
        return cached.found, branch or cached.branch

    def forget(self, owner: Owner, sessions: Collection[str]) -> None:
        """Remove sessions that are no longer in the store from the caches."""
        self.losses += 1
        self._on_loss()
        for session in sessions:
            _log.info(
                "session %s or its notes were deleted from the store; what is missing is recorded again when its "
                "conversation continues",
                session,
            )
            self._written.forget((owner.tenant, session))
            self._cache.forget(session)
        for key, branch in self._branches.items():
            if branch.session in sessions:
                self._branches.remove(key)

    def _cached_branch(self, chain: HashChain) -> RecordedBranch | None:
        """Return the cached branch of the longest prefix."""
        branches = (self._branches.get(chain.keys[at]) for at in chain.all_ends())
        return next((branch for branch in branches if branch is not None), None)

    def _new_branch(self, owner: Owner, chain: HashChain, named: str | None) -> RecordedBranch:
        """Start a session, named by the client or after the key of the first message.

        If a request with this history or a start of it waits to be recorded, its session is used: it will have both.
        """
        waiting = (self._started.get(chain.keys[at]) for at in (chain.length, *chain.all_ends()))
        session = next((one for one in waiting if one is not None), None)
        if session is None:
            first = chain.keys[min(chain.lead + 1, chain.length)].hex()[:16]
            session = owner.session(named or first)
            self._started.put(chain.key, session)
        return RecordedBranch(session=session, items=0, offset=0)

    async def _separated(self, owner: Owner, chain: HashChain, branch: RecordedBranch) -> RecordedBranch:
        """Record a conversation that diverges from its session at once, which moves it to another session."""
        place = (owner.tenant, branch.session)
        if not self._queue.has_other(place, chain) and not self._written.differs(place, chain):
            return branch
        try:
            await self._queue.write(place)
            return await self.record(owner, chain, branch)
        except StoreError as error:
            self.store_failed(error)
            return branch

    # --- Originals ---

    async def record(
        self,
        owner: Owner,
        chain: HashChain,
        branch: RecordedBranch,
        *,
        covers: int | None = None,
        recreates: bool = True,
    ) -> RecordedBranch:
        """Write the originals of a request; ``covers`` is how many items its pivot replaces.

        Raises:
            StoreError: the store is unavailable.
            SessionGone: the session was deleted, and ``recreates`` is false.
        """
        async with self._locks.hold((owner.tenant, branch.session)):
            known = self._branches.get(chain.key)
            if known is not None:
                return known
            covers = self._cache.covers(chain) if covers is None else covers
            return await self._recorded(owner, chain, self._cached_branch(chain) or branch, covers, recreates)

    async def _recorded(
        self, owner: Owner, chain: HashChain, branch: RecordedBranch, covers: int | None, recreates: bool
    ) -> RecordedBranch:
        store, whole = self.store_of(owner), chain.length - chain.lead
        while True:
            recording = recorder.record(store, chain, branch, covers=covers, recreates=recreates)
            branch = await self.call(recording, self._write_timeout)
            if branch.items >= whole:
                break
        self._branches.put(chain.key, branch)
        self._written.put((owner.tenant, branch.session), chain)
        for at in (chain.length, *chain.all_ends()):
            self._started.remove(chain.keys[at])
        return branch

    async def references(self, owner: Owner, branch: RecordedBranch, start: int) -> tuple[str, ...]:
        """Return the references of the recorded items from ``start`` on; empty if the store does not have them all.

        Each page has its own timeout: reading very many takes long, but the store responds.
        """
        session, count = await self.store_of(owner).session(branch.session), branch.rows - branch.offset - start
        found: list[str] = []
        while len(found) < count:
            page = await self.call(recorder.references(session, branch, start + len(found)))
            if not page:
                return ()
            found += page
        return tuple(found)

    async def recall(
        self, owner: Owner, chain: HashChain, branch: RecordedBranch, query: str, *, tokens: int
    ) -> Recalled:
        """Search or restore messages of a request's own history.

        Raises:
            StoreError: the store is unavailable.
        """
        recorded = await self.record(owner, chain, branch)
        try:
            return await self.call(recorder.recall_in_branch(self.store_of(owner), recorded, query, tokens=tokens))
        except UsageError:  # the session was deleted after it was recorded
            self.forget(owner, [recorded.session])
            recorded = await self.record(owner, chain, branch)
            return await self.call(recorder.recall_in_branch(self.store_of(owner), recorded, query, tokens=tokens))

    # --- Pivots ---

    async def publish(self, owner: Owner, chain: HashChain, branch: RecordedBranch, pivot: Pivot) -> RenderedPivot:
        """Store a pivot, and later add it to the compactions of its session.

        Returns the stored one, which another replica may have written first.

        Raises:
            StoreError: the store is unavailable.
        """
        name = pivot_name(chain.key, pivot.attempt)
        data = await self._encoded(pivot)
        await self.write_notes(owner, pivot.session, {name: data}, timeout=self._write_timeout)
        stored = (await self.read_notes(owner, [name])).get(name, data)
        pivot = pivot if stored == data else await self._decoded(stored)
        self._record_pivot_later(owner, branch, pivot)
        return await self._cache_pivot(chain, pivot, stored, is_stored=True)

    async def recorded_pivot(self, owner: Owner, names: Collection[str], id: str) -> RenderedPivot | None:
        """Return the pivot of a recorded compaction from one of these notes.

        Raises:
            StoreError: the store is unavailable.
        """
        notes = await self.read_notes(owner, names)
        for name in names:
            pivot = await self._decoded(notes[name]) if name in notes else None
            if pivot is not None and pivot.id == id:
                return await self._rendered(pivot, notes[name], is_stored=True)
        return None

    async def publish_recorded(self, owner: Owner, name: str, pivot: Pivot) -> RenderedPivot:
        """Store the pivot of a recorded compaction; return the stored one, as ``publish`` does.

        Raises:
            StoreError: the store is unavailable.
        """
        data = await self._encoded(pivot)
        await self.write_notes(owner, pivot.session, {name: data}, timeout=self._write_timeout)
        stored = (await self.read_notes(owner, [name])).get(name, data)
        return await self._rendered(pivot if stored == data else await self._decoded(stored), stored, is_stored=True)

    async def whole(self, rendered: RenderedPivot) -> Pivot:
        """Unpack a pivot."""
        return await self._decoded(rendered.packed)

    async def _rendered(self, pivot: Pivot, packed: bytes, *, is_stored: bool) -> RenderedPivot:
        return await off_loop(lambda: RenderedPivot.of(pivot, packed, is_stored=is_stored), size=pivot.size)

    async def cache_pivot(self, chain: HashChain, pivot: Pivot) -> RenderedPivot:
        """Add a pivot that the store does not have to the cache."""
        return await self._cache_pivot(chain, pivot, await self._encoded(pivot), is_stored=False)

    async def _cache_pivot(self, chain: HashChain, pivot: Pivot, packed: bytes, *, is_stored: bool) -> RenderedPivot:
        rendered = await self._rendered(pivot, packed, is_stored=is_stored)
        self._cache.put(chain.key, rendered)
        return rendered

    def cache_match(self, chain: HashChain, match: Match) -> None:
        """Cache which pivot a request matches after one was built for it."""
        self._cache.put_match(chain, match.found)

    async def claim(self, owner: Owner, chain: HashChain, attempt: int) -> PivotMatch | None:
        """Reserve the building of a pivot.

        Returns the pivot instead when another replica has built it or does so while this one waits.

        Raises:
            StoreError: the store is unavailable.
        """
        name = pivot_name(chain.key, attempt)
        for _ in range(_CLAIM_TRIES):
            data = (await self.read_notes(owner, [name])).get(name)
            if data is not None:
                rendered = await self._cache_pivot(chain, await self._decoded(data), data, is_stored=True)
                return PivotMatch(chain.length, rendered)
            lease = self.records.acquire(key_of(owner.tenant, name), "pivot", lease=_CLAIM_LEASE)
            if await self.call(lease) is not None:
                return None
            await asyncio.sleep(_CLAIM_PAUSE)
        return None

    async def prepared(self, owner: Owner, name: str) -> Pivot | None:
        """Return a pivot that was prepared before it is due.

        Raises:
            StoreError: the store is unavailable.
        """
        data = (await self.read_notes(owner, [name])).get(name)
        return None if data is None else await self._decoded(data)

    async def save_prepared(self, owner: Owner, name: str, pivot: Pivot) -> None:
        """Store a pivot that is not due yet.

        Raises:
            StoreError: the store is unavailable.
        """
        await self.write_notes(owner, pivot.session, {name: await self._encoded(pivot)}, synced=False)

    async def _encoded(self, pivot: Pivot) -> bytes:
        return await off_loop(lambda: encode_note(pivot, self.value_codec), size=pivot.size)

    async def _decoded(self, data: bytes) -> Pivot:
        return await off_loop(lambda: decode_note(data, self.value_codec, Pivot), size=_BYTES_PER_BYTE * len(data))

    # --- Notes ---

    async def read_notes(self, owner: Owner, names: Collection[str]) -> dict[str, bytes]:
        """Return the notes of these names that exist.

        Raises:
            StoreError: the store is unavailable.
        """
        return await self.call(self.records.notes(owner.tenant, names))

    async def write_notes(
        self,
        owner: Owner,
        session: str,
        notes: Mapping[str, bytes],
        *,
        timeout: float | None = None,
        synced: bool = True,
    ) -> None:
        """Store notes that are deleted with a session; a note that exists keeps its first value.

        With ``synced`` this waits until the disk has them and everything that was written before.

        Raises:
            StoreError: the store is unavailable.
        """
        key = key_of(owner.tenant, session)
        await self.call(self.records.note(owner.tenant, key, notes, synced=synced), timeout)

    async def call(self, call: Awaitable[Value], timeout: float | None = None) -> Value:
        """Await a store call, with a timeout. After a failure, calls fail at once for a while.

        Raises:
            StoreError: the store is unavailable.
        """
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            close = getattr(call, "close", None)
            if close is not None:
                close()
            raise StoreUnavailable(f"the store is unavailable; next attempt in {self._retry_at - now:.1f} seconds")
        try:
            found = await with_timeout(call, timeout or self._timeout)
        except StoreUnavailable:
            self._retry_at = asyncio.get_running_loop().time() + _RETRY_AFTER
            raise
        if 0 < self._retry_at <= now:  # no other call failed in the meantime
            self._retry_at = 0.0
            _log.info("store available again")
        return found

    # --- In background ---

    def record_later(self, owner: Owner, chain: HashChain, branch: RecordedBranch) -> None:
        """Write the originals of a request in the background.

        A session that another process deletes in the meantime stays deleted, until the next request records it again.
        """
        place = (owner.tenant, branch.session)

        async def write() -> None:
            try:
                await self.record(owner, chain, branch, recreates=False)
            except SessionGone:
                self.forget(owner, [branch.session])

        if not self._written.holds(place, chain):
            self._queue.put(place, chain, write)

    def _record_pivot_later(self, owner: Owner, branch: RecordedBranch, pivot: Pivot) -> None:
        """Add a pivot to the session's compactions in the background."""

        async def write() -> None:
            session = await self.store_of(owner).session(branch.session)
            with suppress(UsageError):  # the session was deleted meanwhile
                await self.call(recorder.record_pivot(session, branch, pivot))

        self._queue.put_other(write, _BYTES_PER_BYTE * pivot.size)

    def write_notes_later(
        self, owner: Owner, session: str, notes: Mapping[str, bytes], *, on_failure: Callable[[], object]
    ) -> None:
        """Write notes in the background; call ``on_failure`` if the store refuses them."""

        async def write() -> None:
            try:
                await self.write_notes(owner, session, notes, synced=False)
            except StoreError:
                on_failure()
                raise

        self._queue.put_other(write, sum(map(len, notes.values())))

    async def wait_for_room(self) -> None:
        await self._queue.wait_for_room()

    async def flush_session(self, tenant: str, session: str) -> None:
        """Write the queued originals of a session, so that a reader sees the newest messages."""
        await self._queue.write((tenant, session))
        async with self._locks.hold((tenant, session)):
            return

    async def flush_pivots(self) -> None:
        """Write the queued compactions of all sessions, so that the newest one of a session is known."""
        await self._queue.write_others()

    async def flush(self) -> None:
        await self._queue.flush()

    def store_failed(self, error: KompaktError) -> str:
        """Count and log a failed store call; return the reason for the ``x-kompakt-degraded`` header."""
        self._metrics.store_failures.inc()
        state = "store unavailable" if isinstance(error, StoreUnavailable) else "store call failed"
        _log.warning("%s: %s", state, error)
        return "store-unavailable"


def deepest(chain: HashChain, notes: Mapping[str, bytes], codec: ValueCodec, ends: Iterable[int]) -> PivotMatch | None:
    """Find the deepest pivot among notes that replaces one of these numbers of items."""
    for at in sorted(ends, reverse=True):
        for attempt in range(TRIES - 1, -1, -1):
            data = notes.get(pivot_name(chain.keys[at], attempt))
            if data is None:
                continue
            pivot = decode_note(data, codec, Pivot)
            if applies(pivot, chain):
                return PivotMatch(at, RenderedPivot.of(pivot, data, is_stored=True))
    return None


# --- Notes ---


def decode_note(data: bytes, codec: ValueCodec, kind: type[Note]) -> Note:
    """Decode a note.

    Raises:
        StoreDamaged: the bytes are damaged or hold another kind of value.
    """
    where = f"gateway note of type {kind.__name__}"
    try:
        return msgspec.convert(codec.unpack(data, where=where), kind)
    except msgspec.ValidationError as error:
        raise StoreDamaged(f"{where}: not written by this version of kompakt: {error}") from None


# --- A store that starts after the gateway ---

RECONNECT_PAUSE = 1.0
"""Seconds between two attempts to connect."""


class LazyRecords:
    """Implements ``Records`` for a store that is down when the gateway starts.

    Each call tries to connect, at most once per ``RECONNECT_PAUSE``, and raises ``StoreUnavailable`` until that
    succeeds. So a replica can start while the database is down, and serve requests without it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._records: Records | None = None
        self._lock = asyncio.Lock()
        self._next = 0.0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(await self.opened(), name)(*args, **kwargs)

        return call

    async def opened(self) -> Records:
        """Return the open records.

        Raises:
            StoreUnavailable: the store is still down.
        """
        async with self._lock:
            if self._records is not None:
                return self._records
            loop = asyncio.get_running_loop()
            if loop.time() < self._next:
                raise StoreUnavailable("the store is still unavailable")
            try:
                self._records = await open_records(self._url)
            except StoreError as error:
                self._next = loop.time() + RECONNECT_PAUSE
                raise StoreUnavailable(f"the store is still unavailable: {error}") from None
        _log.info("store connected")
        return self._records

    async def close(self) -> None:
        if self._records is not None:
            await self._records.close()

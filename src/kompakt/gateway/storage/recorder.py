"""Record the original messages of clients in sessions, after the response where possible.

A ``RecordedBranch`` states how much of a conversation is in which session. It is stored as a note, called a mark, whose
name contains the key of the prefix, so that every replica finds it. A history that the client changes afterwards is
another branch, in another session. A session may be deleted while its conversation continues. It is then recorded again
from the start.

A request must not wait for the store to record it: the client still has the whole history and sends it again. Only what
a pivot hides has to be stored first. Everything else is queued in ``WriteBehind``. A request contains all earlier
requests of its conversation, so only the newest one stays queued, and the longer a write waits, the more requests it
contains. Writing competes with requests that are being served, so the worker pauses after each write: longer after a
slow write, but only so long that a request is written within about ``DRAIN_SECONDS``. When the queue is full, new
requests wait, which bounds memory. A write that a request waits for is finished also if the client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kompakt.engine.pivot.saved_state import SavedContext
from kompakt.engine.recall import Recalled
from kompakt.errors import Conflict, KompaktError, UsageError
from kompakt.gateway.concurrency import off_loop
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.lookup import Pivot
from kompakt.gateway.request.history import HashChain, decode_item, parse_items
from kompakt.model.json import prepare
from kompakt.model.lru import Lru
from kompakt.model.messages import History, Message
from kompakt.model.references import digest
from kompakt.session.reader import SessionReader
from kompakt.session.rows import Draft, RowCodec, StoredMessage
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.session.timeline import RECOVERABLE, CompactionRecord, ViewEntry, build_record
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Fence, Head, StoredRow
from kompakt.wire.registry import WIRES

BATCH = 100
"""Items per transaction, so that each store call stays within its timeout."""

BATCH_BYTES = 1024 * 1024
"""Bytes per transaction, not counting its last item."""

_PAGE = 500
_FORK_DIGITS = 8
_TRIES = 8
"""Attempts to append to a session that other replicas write to at the same time."""


class RecordedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a conversation is in a session. The field names are stored."""

    session: str
    items: int
    """Recorded items, not counting leading system messages."""
    offset: int
    """Rows before the first of them: the leading system messages of the first request."""
    pivot_covers: int | None = None
    """Items that the pivot of the recorded request replaces; 0 without a pivot, ``None`` when unknown."""

    @property
    def rows(self) -> int:
        """Number of the row of the newest item."""
        return self.offset + self.items


class _Moved(Exception):
    """Another writer has appended to the session."""


class SessionGone(Exception):
    """A session that had messages was deleted."""


def mark_name(key: bytes) -> str:
    """Return the name of the note that states where a prefix is recorded; names are stored."""
    return f"mark {key.hex()}"


def encode_note(value: msgspec.Struct, codec: ValueCodec) -> bytes:
    """Encode a value as the bytes of a note."""
    return codec.pack_whole(msgspec.to_builtins(value))


async def record(
    store: Store, chain: HashChain, branch: RecordedBranch, *, covers: int | None = None, recreates: bool = True
) -> RecordedBranch:
    """Append the next batch of a request to its session, or to another session when the history diverges.

    Returns the branch as recorded so far; call it again until it has all items. The last batch contains the mark of the
    request, with ``covers`` as the number of items that its pivot replaces.

    Nothing here waits for the disk: a client still has what a failure of the machine may lose. What a pivot hides is
    safe once the pivot is stored, because that waits for everything before it.

    Raises:
        Conflict: other writers appended to the session during every attempt.
        SessionGone: the session was deleted, and ``recreates`` is false.
    """
    for _ in range(_TRIES):
        session = await store.session(branch.session)
        try:
            known = await _located(session, chain, branch, recreates=recreates)
            if known.session == branch.session:
                return await _append(session, chain, known, covers)
            branch = known
        except (_Moved, UsageError):  # changed or deleted meanwhile
            continue
    raise Conflict(f"session {branch.session!r} has too many concurrent writers; it is recorded with the next request")


async def _located(session: Session, chain: HashChain, branch: RecordedBranch, *, recreates: bool) -> RecordedBranch:
    """Check how much of a request its session has; return another session when the history diverges."""
    head = await session.records.head(session.key)
    if head is None:
        if branch.items and not recreates:
            raise SessionGone
        return RecordedBranch(session=branch.session, items=0, offset=0)
    if head.format != chain.request.format:
        return _forked(branch, chain, branch.items)
    if head.messages < branch.rows:
        if head.rows != head.messages:  # messages were undone
            return _forked(branch, chain, branch.items)
        branch = RecordedBranch(
            session=branch.session, items=0, offset=0
        )  # deleted and started again by another writer
    return branch if head.messages == branch.rows else await _compared(await session.reader(), chain, branch)


async def _append(session: Session, chain: HashChain, branch: RecordedBranch, covers: int | None) -> RecordedBranch:
    request = chain.request
    first = chain.lead + branch.items if branch.rows else 0
    end = _batch_end(chain, chain.lead + branch.items)
    recorded = RecordedBranch(
        session=branch.session,
        items=end - chain.lead,
        offset=branch.offset if branch.rows else chain.lead,
        pivot_covers=covers if end == chain.length else None,
    )
    mark = {mark_name(chain.key): encode_note(recorded, session.value_codec)} if end == chain.length else {}
    if first == end:
        await session.records.note(session.tenant, session.key, mark, synced=False)
        return recorded
    raw = [request.item(index) for index in range(first, end)]
    envelope, size = request.envelope(), sum(map(len, raw))

    def parse() -> History:
        return WIRES[request.format].parse(list(map(decode_item, raw)), envelope)

    history = await off_loop(parse, size=size)

    async def make(head: Head) -> Draft:
        if head.messages != branch.rows:
            raise _Moved
        return await off_loop(lambda: draft_from(head), size=size)

    def draft_from(head: Head) -> Draft:
        draft = Draft(head, session.codec(head.format, model=history.model))
        if not head.rows:
            draft.change(envelope=session.value_codec.pack_whole(draft.codec.cleaned(envelope)))
        for item, message in draft.codec.items(history.messages):
            draft.add(item, message)
        draft.notes, draft.is_synced = mark, False
        return draft

    await session.write(make, history=history)
    return recorded


def _batch_end(chain: HashChain, start: int) -> int:
    spans = chain.request.spans
    most = min(chain.length, start + BATCH)
    begins = spans[start][0] if start < most else 0
    return next((at + 1 for at in range(start, most) if spans[at][1] - begins >= BATCH_BYTES), most)


async def _compared(reader: SessionReader, chain: HashChain, branch: RecordedBranch) -> RecordedBranch:
    """Compare a request with a session that other writers extended; return another session when they diverge."""
    start, offset, same = chain.lead + branch.items, branch.offset, branch.items
    is_head = not branch.rows
    async for rows in reader.rows(after=branch.rows):
        messages = [one.message for one in await _stored(reader, rows) if one.row.kind == "message"]
        if is_head:
            own = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
            offset, is_head, messages = offset + own, own == len(messages), messages[own:]
        end = min(chain.length, start + len(messages))
        common = await _common(messages, chain, start, end, reader.codec)
        same += common
        if start + common < end:
            return _forked(branch, chain, same)
        start = end
        if end == chain.length:
            break
    return RecordedBranch(session=branch.session, items=same, offset=offset)


async def _stored(reader: SessionReader, rows: Sequence[StoredRow]) -> list[StoredMessage]:
    blobs = await reader.blobs(rows)
    return await off_loop(lambda: reader.codec.stored(rows, blobs), size=sum(len(row.item) for row in rows))


def _forked(branch: RecordedBranch, chain: HashChain, items: int) -> RecordedBranch:
    """Name the session of a history that diverges after ``items`` items, by the key of its first own item."""
    key = chain.keys[min(chain.length, chain.lead + items + 1)]
    return RecordedBranch(session=f"{branch.session}-{key.hex()[:_FORK_DIGITS]}", items=0, offset=0)


async def _common(stored: Sequence[Message], chain: HashChain, start: int, end: int, codec: RowCodec) -> int:
    """Count the equal messages at the start of both. The codec redacts these like the stored ones."""
    raw = [chain.request.item(index) for index in range(start, end)]

    def count() -> int:
        own = parse_items(list(map(decode_item, raw)), chain.request.format)
        pairs = enumerate(zip(stored, codec.items(own), strict=False))
        return next((at for at, (one, (_, other)) in pairs if digest(one) != digest(other)), len(own))

    return await off_loop(count, size=sum(map(len, raw)))


async def references(session: Session, branch: RecordedBranch, start: int) -> tuple[str, ...]:
    """Return the references of a page of items from ``start`` on, not counting leading system messages.

    Empty after the last item, and if the session was deleted or changed by another tool.
    """
    rows = await session.records.rows(session.key, after=branch.offset + start, upto=branch.rows, limit=_PAGE)
    return tuple(row.name for row in rows) if all(row.kind == "message" for row in rows) else ()


async def record_pivot(session: Session, branch: RecordedBranch, pivot: Pivot, *, fence: Fence | None = None) -> None:
    """Add a pivot to the session's compactions, so that people can see what the model sees."""
    record = await off_loop(lambda: _compaction_record(branch, pivot), size=pivot.size)

    async def make(head: Head) -> Draft:
        draft = Draft(head, session.codec(head.format))
        await off_loop(lambda: draft.add_event(record), size=pivot.size)
        draft.is_synced = fence is not None  # else the pivot is stored
        return draft

    await session.write(make, id=f"pivot {pivot.id}", fence=fence)


def _compaction_record(branch: RecordedBranch, pivot: Pivot) -> CompactionRecord:
    """Return the record of a pivot; its view starts with the system messages of the session."""
    visible = {one.at for one in pivot.view}
    hidden = next((at for at in reversed(range(pivot.covers)) if at not in visible), -1)
    offset, state = branch.offset, pivot.state
    lead = tuple(ViewEntry(seq) for seq in range(1, offset + 1))
    shown = tuple(ViewEntry(offset + one.at + 1, one.item if one.altered else None, one.pruned) for one in pivot.view)
    shifted: SavedContext = msgspec.structs.replace(
        state,
        covers=state.covers + offset if state.summary else state.covers,
        stripped=state.stripped + offset if state.stripped else 0,
        breaks=tuple(index + offset for index in state.breaks),
    )
    report = msgspec.structs.replace(pivot.report(branch.items), recoverable=RECOVERABLE)
    return build_record(
        (*lead, *shown),
        shifted,
        report,
        covers_to=offset + hidden + 1 if hidden >= 0 else 0,
        tip=offset + pivot.covers,
        auto=True,
        id=pivot.id,
    )


class _BranchReader(SessionReader):
    """Reads a session up to the last row of a branch."""

    last = 0

    async def stored(self, rows: Sequence[StoredRow]) -> list[StoredMessage]:
        """Read rows up to the last one."""
        return await super().stored([row for row in rows if row.seq <= self.last])


async def recall_in_branch(store: Store, branch: RecordedBranch, query: str, *, tokens: int) -> Recalled:
    """Search or restore messages of a branch; later messages of its session are not found.

    Raises:
        StoreError: the store is unavailable.
    """
    whole = await (await store.session(branch.session)).reader()
    reader = _BranchReader(whole.records, whole.head, whole.codec, whole.timeline)
    reader.last = branch.rows
    return await reader.recall(query, tokens=tokens)


# --- In the background ---

PAUSE_FACTOR = 10.0
"""Pause after a write as a multiple of its duration, while nothing has been queued for long."""

MAX_PAUSE = 1.0
"""Seconds of such a pause at most: one write that waited for a lock or a slow disk must not delay all others."""

DRAIN_SECONDS = 10.0
"""Seconds in which all that is queued is written, if the store is fast enough. A killed process loses what is queued.
Longer pauses save processor time: all that a session sends meanwhile is one write.
"""

MAX_WRITES = 4_000
"""Writes in the queue, at most one for each branch of a live session."""

MAX_BYTES = 128 * 1024 * 1024
"""Bytes in the queue."""

MAX_PREFIX_BYTES = 32 * 1024 * 1024
"""Bytes of prefix keys in the cache: about 2,000 long sessions."""

_MIN_PAUSE = 0.001
"""Seconds below which a pause is not worth a timer."""

_POLL = 0.01
"""Seconds between two checks of the queue."""

_KEY = 16
"""Bytes of a prefix key."""

Write: TypeAlias = Callable[[], Awaitable[object]]

SessionKey: TypeAlias = tuple[str, str]
"""A tenant and the id of a session."""


class _QueuedRequest(NamedTuple):
    chain: HashChain
    write: Write
    since: float
    """When its session got its place in the queue, by ``time.perf_counter``."""


class _QueuedWrite(NamedTuple):
    write: Write
    size: int
    since: float


class WriteBehind:
    """A queue of writes and the task that performs them."""

    def __init__(
        self,
        on_failure: Callable[[KompaktError], object],
        *,
        max_writes: int = MAX_WRITES,
        max_bytes: int = MAX_BYTES,
        metrics: Metrics | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._metrics = metrics or Metrics()
        self._max_writes, self._max_bytes = max_writes, max_bytes
        self._requests: OrderedDict[SessionKey, list[_QueuedRequest]] = OrderedDict()
        self._others: deque[_QueuedWrite] = deque()
        self._size = 0
        self._worker: asyncio.Task[None] | None = None
        self._writing: dict[asyncio.Task[None], SessionKey | None] = {}
        """Writes that are no longer queued and not done yet, each with its session."""
        self._lock = asyncio.Lock()
        self._is_flushing = False

    @property
    def load(self) -> float:
        """How full the queue is, from 0 to 1."""
        return max((len(self._requests) + len(self._others)) / self._max_writes, self._size / self._max_bytes)

    def put(self, session: SessionKey, chain: HashChain, write: Write) -> None:
        """Queue a request of a session in place of those that it extends.

        The session keeps its place in the queue. Otherwise one that sends more often than others would never be first.
        """
        earlier = self._requests.get(session, [])
        since = earlier[0].since if earlier else time.perf_counter()
        queued = [one for one in earlier if not extends(chain, one.chain)] + [_QueuedRequest(chain, write, since)]
        self._requests[session] = queued
        self._size += sum(one.chain.size for one in queued) - sum(one.chain.size for one in earlier)
        self._count()
        self._start()

    def put_other(self, write: Write, size: int) -> None:
        self._others.append(_QueuedWrite(write, size, time.perf_counter()))
        self._size += size
        self._count()
        self._start()

    def has_other(self, session: SessionKey, chain: HashChain) -> bool:
        """Whether a request of the session is queued that diverges from this one."""
        queued = [one.chain for one in self._requests.get(session, ())]
        return any(not extends(chain, one) and not extends(one, chain) for one in queued)

    async def wait_for_room(self) -> None:
        """Wait until the queue is no longer full."""
        while self.load >= 1:
            self._start()
            await asyncio.sleep(_POLL)

    async def write(self, session: SessionKey) -> None:
        """Write the queued requests of a session now, and wait for those that are being written."""
        if queued := self._pop(session):
            await self._finish(self._write_all([one.write for one in queued]), session)
        if others := [task for task, place in self._writing.items() if place == session]:
            await asyncio.wait(others)

    async def write_others(self) -> None:
        """Write now what is queued besides requests, and wait for what is being written."""
        if self._others or self._lock.locked():  # the worker holds the lock for a write that it took from the queue
            await self._finish(self._write_others(len(self._others)))

    async def _finish(self, work: Coroutine[Any, Any, None], session: SessionKey | None = None) -> None:
        """Wait for writes that are no longer queued; they are finished also if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._writing[task] = session
        task.add_done_callback(lambda done: self._writing.pop(done, None))
        await asyncio.shield(task)

    async def _write_all(self, writes: Sequence[Write]) -> None:
        for write in writes:
            await self._perform(write)

    async def _write_others(self, count: int) -> None:
        async with self._lock:  # in order
            for _ in range(min(count, len(self._others))):
                other = self._others.popleft()
                self._size -= other.size
                self._count()
                await self._perform(other.write)

    async def flush(self) -> None:
        """Write everything that is queued. If this is cancelled, drop the rest, because the store is closed next."""
        self._is_flushing = True
        try:
            while running := [task for task in (self._worker, *self._writing) if task is not None and not task.done()]:
                await asyncio.wait(running)
        except asyncio.CancelledError:
            self._requests.clear()
            self._others.clear()
            self._size = 0
            self._count()
            raise
        finally:
            self._is_flushing = False

    def _pop(self, session: SessionKey) -> Sequence[_QueuedRequest]:
        queued = self._requests.pop(session, ())
        self._size -= sum(one.chain.size for one in queued)
        self._count()
        return queued

    def _count(self) -> None:
        self._metrics.queued_writes.set(len(self._requests) + len(self._others))

    def _start(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
            self._worker.add_done_callback(self._restart)

    def _restart(self, worker: asyncio.Task[None]) -> None:
        """Continue after a write that failed with an unexpected error; asyncio logs the error."""
        if not worker.cancelled() and (self._requests or self._others):
            self._start()

    async def _work(self) -> None:
        while self._requests or self._others:
            began = time.perf_counter()
            if self._others:
                await self._write_others(1)
            else:
                await self.write(next(iter(self._requests)))
            await self._pause(time.perf_counter() - began)

    async def _pause(self, wrote: float) -> None:
        """Wait after a write, as long as there is time for all that is queued before the oldest is too old."""
        ended = time.perf_counter()
        while not self._is_flushing:  # the queue may grow meanwhile
            now = time.perf_counter()
            first = [*islice(self._others, 1), *(queued[0] for queued in islice(self._requests.values(), 1))]
            oldest = min((one.since for one in first), default=now)
            spare = oldest + DRAIN_SECONDS - now - wrote * (len(self._requests) + len(self._others))
            pause = min(MAX_PAUSE, PAUSE_FACTOR * wrote) * max(0.0, 1 - 2 * self.load)
            left = min(ended + pause - now, spare)
            if left < _MIN_PAUSE:
                break
            await asyncio.sleep(min(_POLL, left))

    async def _perform(self, write: Write) -> None:
        self._metrics.background_writes.inc()
        try:
            await write()
        except KompaktError as error:
            self._on_failure(error)


def extends(chain: HashChain, earlier: HashChain) -> bool:
    """Whether a request starts with all of an earlier one."""
    return earlier.length <= chain.length and chain.keys[earlier.length] == earlier.key


class WrittenPrefixes:
    """Keys of the prefixes that this process wrote to each session.

    They distinguish a request that the session already contains from one that diverges from it. This is only a cache of
    the store.
    """

    def __init__(self, max_bytes: int = MAX_PREFIX_BYTES) -> None:
        self._keys = Lru[SessionKey, bytes](max_bytes, len)

    def put(self, session: SessionKey, chain: HashChain) -> None:
        """Record that a session holds a request, unless it is known to hold a longer one."""
        if not self.holds(session, chain):
            self._keys.put(session, b"".join(chain.keys[chain.lead + 1 :]))

    def forget(self, session: SessionKey) -> None:
        self._keys.remove(session)

    def holds(self, session: SessionKey, chain: HashChain) -> bool:
        """Whether a session holds all of a request."""
        own = chain.length - chain.lead
        return self._key(session, own) == chain.key if own else True

    def differs(self, session: SessionKey, chain: HashChain) -> bool:
        """Whether a session and a request diverge within their common length."""
        both = min(chain.length - chain.lead, len(self._keys.get(session) or b"") // _KEY)
        return both > 0 and self._key(session, both) != chain.keys[chain.lead + both]

    def _key(self, session: SessionKey, items: int) -> bytes:
        return (self._keys.get(session) or b"")[(items - 1) * _KEY : items * _KEY]


prepare(RecordedBranch)

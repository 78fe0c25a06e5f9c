"""Writes that happen in the background, after the response: a queue, and a cache of what was written.

A request must not wait for the store to record it: the client still has the whole history and sends it again. Only what
a pivot hides has to be stored first (see ``single_flight``).

A request contains all earlier requests of its conversation, so only the newest one stays queued and the queue is short.
Writing competes with requests that are being served, so the worker pauses after each write, longer after a slow write
and shorter when the queue is long. When the queue is full, new requests wait, which bounds memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from kompakt.errors import KompaktError
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.lru import Lru

PAUSE_FACTOR = 10.0
"""Pause after a write as a multiple of its duration, while the queue is nearly empty."""

MAX_WRITES = 1_000
"""Writes in the queue."""

MAX_BYTES = 128 * 1024 * 1024
"""Bytes in the queue."""

MAX_PREFIX_BYTES = 32 * 1024 * 1024
"""Bytes of prefix keys in the cache: about 2,000 long sessions."""

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


class _QueuedWrite(NamedTuple):
    write: Write
    size: int


class WriteBehind:
    """A queue of writes and the task that performs them."""

    def __init__(
        self,
        on_failure: Callable[[KompaktError], object],
        *,
        max_writes: int = MAX_WRITES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._on_failure = on_failure
        self._max_writes, self._max_bytes = max_writes, max_bytes
        self._requests: OrderedDict[SessionKey, list[_QueuedRequest]] = OrderedDict()
        self._others: deque[_QueuedWrite] = deque()
        self._size = 0
        self._worker: asyncio.Task[None] | None = None
        self._is_flushing = False

    @property
    def load(self) -> float:
        """How full the queue is, from 0 to 1."""
        return max((len(self._requests) + len(self._others)) / self._max_writes, self._size / self._max_bytes)

    def put(self, session: SessionKey, chain: HashChain, write: Write) -> None:
        """Queue a request of a session in place of those that it extends."""
        queued = [one for one in self._pop(session) if not extends(chain, one.chain)]
        self._requests[session] = [*queued, _QueuedRequest(chain, write)]
        self._size += sum(one.chain.size for one in self._requests[session])
        self._start()

    def put_other(self, write: Write, size: int) -> None:
        self._others.append(_QueuedWrite(write, size))
        self._size += size
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
        """Write the queued requests of a session now."""
        for one in self._pop(session):
            await self._perform(one.write)

    async def flush(self) -> None:
        self._is_flushing = True
        try:
            while self._worker is not None and not self._worker.done():
                await asyncio.wait([self._worker])
        finally:
            self._is_flushing = False

    def _pop(self, session: SessionKey) -> Sequence[_QueuedRequest]:
        queued = self._requests.pop(session, ())
        self._size -= sum(one.chain.size for one in queued)
        return queued

    def _start(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._requests or self._others:
            began = time.perf_counter()
            if self._others:
                other = self._others.popleft()
                self._size -= other.size
                await self._perform(other.write)
            else:
                await self.write(next(iter(self._requests)))
            await self._pause(time.perf_counter() - began)

    async def _pause(self, wrote: float) -> None:
        ended = time.perf_counter()
        while not self._is_flushing and (self._requests or self._others):
            if time.perf_counter() >= ended + PAUSE_FACTOR * wrote * max(0.0, 1 - 2 * self.load):
                break
            await asyncio.sleep(_POLL)

    async def _perform(self, write: Write) -> None:
        try:
            await write()
        except KompaktError as error:
            self._on_failure(error)


def extends(chain: HashChain, earlier: HashChain) -> bool:
    """Whether a request starts with all of an earlier one."""
    return earlier.length <= chain.length and chain.keys[earlier.length] == earlier.key


class WrittenPrefixes:
    """Keys of the prefixes that this process wrote to each session.

    They tell a request that a session already holds from one that diverges. This is only a cache of the store.
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

"""Helpers for the event loop that all tenants share: worker threads, timeouts, garbage collection and keyed locks."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import TypeVar

from kompakt.errors import StoreUnavailable

Value = TypeVar("Value")

SMALL = 32 * 1024
"""Bytes whose processing takes about as long as handing them to a thread; smaller work runs on the event loop."""

THREADS = 2
"""Worker threads. The GIL lets one run at a time, so more would only delay the event loop."""


SWITCH_INTERVAL = 0.0005
"""Seconds after which a worker thread lets the event loop run.

A request releases the GIL a dozen times, for instance to read from a socket. While a pivot is built, it waits this long
each time; with the 5 milliseconds of Python that adds up.
"""

COLLECTION_PAUSE = 60.0
"""Seconds between full garbage collections."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "kompakt-work")


async def off_loop(work: Callable[[], Value], *, size: int) -> Value:
    """Run CPU-bound work on ``size`` bytes, in a worker thread when it would block the event loop for long."""
    return work() if size <= SMALL else await asyncio.get_running_loop().run_in_executor(_pool(), work)


async def with_timeout(call: Awaitable[Value], seconds: float) -> Value:
    """Return the result of a store call, or give up after ``seconds``.

    A write that waits for a database lock cannot be interrupted, so an overdue call is cancelled but not awaited. It
    may still take effect later, which is safe because all writes of the gateway are idempotent.

    Raises:
        StoreUnavailable: the call took longer.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not done:
        _abandon(task)
        raise StoreUnavailable(f"the store did not respond within {seconds:g} seconds")
    return task.result()


def _abandon(task: asyncio.Future[Value]) -> None:
    # Retrieving the exception keeps asyncio from logging it as "never retrieved".
    task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    task.cancel()


class FullCollections:
    """Suspends full garbage collections while something large is built, and makes them rare while the gateway runs.

    A full collection scans every object in memory and holds the GIL, so it blocks the event loop for longer the more is
    cached or built, up to a tenth of a second. It finds little: histories have no cycles, and what has cycles is mostly
    collected while it is young. Collections of young objects continue.
    """

    NEVER = 1_000_000_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._suspended = 0
        self._usual = gc.get_threshold()

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Suspend them until every build that runs now has ended."""
        with self._lock:
            if not self._suspended:
                self._usual = gc.get_threshold()
                gc.set_threshold(*self._usual[:2], self.NEVER)
            self._suspended += 1
        try:
            yield
        finally:
            with self._lock:
                self._suspended -= 1
                if not self._suspended:
                    gc.set_threshold(*self._usual)

    async def collect_rarely(self, pause: float = COLLECTION_PAUSE) -> None:
        """Make a full collection every ``pause`` seconds and none in between, until cancelled."""
        if sys.version_info >= (3, 14):  # collects in small steps
            return
        with self.suspended():
            while True:
                await asyncio.sleep(pause)
                gc.collect()


full_collections = FullCollections()


class KeyedLocks:
    """One ``asyncio.Lock`` per key, created on demand and dropped with its last user."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: dict[Hashable, int] = {}
        """Tasks that hold or wait for each lock."""

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]

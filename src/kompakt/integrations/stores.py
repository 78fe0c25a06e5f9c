"""Access to stores for framework adapters: from any thread, any event loop, and synchronous code.

A store given by its URL is opened once in this process and used in an event loop of its own thread. A store given as an
object belongs to the caller's event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

from kompakt.engine.recall import Recalled
from kompakt.errors import UsageError
from kompakt.session.session import Session
from kompakt.session.store import MAX_BRANCHES, Store, branch_name, open_store

CLOSE_SECONDS = 10
"""How long closing the stores may take."""

NEEDS_URL = "this framework calls kompakt synchronously; pass the URL of the store as store=…"

Result = TypeVar("Result")


class _BackgroundLoop:
    """One event loop in a thread of its own, for stores that are given by their URLs.

    A forked process starts its own loop and opens its own stores.
    """

    def __init__(self) -> None:
        self._abandoned: list[object] = []
        """Loop and stores of the parent process. A child must neither use nor close them."""
        self._start()

    def _start(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stores: dict[str, asyncio.Future[Store]] = {}
        """Open stores, and those that are being opened, by URL. Used in the loop only."""

    def restart(self) -> None:
        """Forget the loop and the stores of the parent process."""
        self._abandoned += [self._loop, self.stores]
        self._start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="kompakt-store", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def store(self, url: str) -> Store:
        """Return an open store. Concurrent callers share one; a failed attempt is repeated by the next caller."""
        opening = self.stores.get(url)
        if opening is None:
            opening = self.stores[url] = asyncio.ensure_future(open_store(url))
            opening.add_done_callback(partial(self._forget_failed, url))
        return await asyncio.shield(opening)

    def _forget_failed(self, url: str, opening: asyncio.Future[Store]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self.stores.pop(url, None)


_background = _BackgroundLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background.restart)


class StoreAccess:
    """A store that an adapter was given, as an object or by its URL."""

    def __init__(self, store: Store | str) -> None:
        self._store = store

    @property
    def has_url(self) -> bool:
        """Whether synchronous code can use the store."""
        return isinstance(self._store, str)

    async def run(self, work: Callable[[Store], Coroutine[Any, Any, Result]]) -> Result:
        """Run a function on the store."""
        if isinstance(self._store, str):
            return await asyncio.wrap_future(_background.submit(_opened(self._store, work)))
        return await work(self._store)

    def run_sync(self, work: Callable[[Store], Coroutine[Any, Any, Result]]) -> Result:
        """Run a function on the store and wait for it.

        Raises:
            UsageError: the store was given as an object.
        """
        if not isinstance(self._store, str):
            raise UsageError(NEEDS_URL)
        return _background.submit(_opened(self._store, work)).result()


async def _opened(url: str, work: Callable[[Store], Coroutine[Any, Any, Result]]) -> Result:
    return await work(await _background.store(url))


async def recall_saved(
    store: Store, *, own: Sequence[str], branches_of: str | None, query: str, tokens: int
) -> Recalled | None:
    """Search sessions by their names, then all branches of a name, the newest first."""
    sessions: list[Session] = []
    if branches_of is not None:
        for number in range(1, MAX_BRANCHES + 1):
            session = await store.session(branch_name(branches_of, number))
            if not await session.exists():
                break
            sessions.append(session)
    sessions += [await store.session(name) for name in own]
    for session in reversed(sessions):
        if found := await session.recall(query, tokens):
            return found
    return None


async def record_pins(session: Session, pins: Iterable[str]) -> None:
    """Pin texts in a session, unless they are pinned there."""
    if pins := tuple(pins):
        reader = await session.reader()
        for text in pins:
            if reader.codec.cleaned(text) not in reader.timeline.pins:
                await session.pin(text)


@atexit.register
def close_stores() -> None:
    """Close the stores that were opened by their URLs. Runs at exit."""

    async def close() -> None:
        while _background.stores:
            _, opening = _background.stores.popitem()
            await (await opening).close()

    if _background.stores:
        _background.submit(close()).result(CLOSE_SECONDS)

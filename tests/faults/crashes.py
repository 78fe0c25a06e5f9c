"""Records that fail on purpose: before or after one call, permanently or once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from kompakt.errors import StoreUnavailable
from kompakt.session.session import Session
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Batch, Fence, Records, key_of

Mode = Literal["before", "after", "lost call", "lost answer"]
"""A crash before or after a call; a connection that is lost on the way there or on the way back."""

CRASHES: tuple[Mode, ...] = ("before", "after")
DROPS: tuple[Mode, ...] = ("lost call", "lost answer")


class Crash(BaseException):
    """The end of the process; no handler catches it."""


class Crashing:
    """Records that end their process at the call of a given number, or lose its connection there."""

    def __init__(
        self,
        records: Records,
        at: int = 0,
        mode: Mode = "before",
        *,
        committed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._records = records
        self._at = at
        self._mode = mode
        self._committed = committed
        self._is_dead = False
        self.calls = 0
        self.commits = 0
        self.fences: list[tuple[str, Fence]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._records, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            if self._is_dead:
                raise Crash(name)
            self.calls += 1
            is_here = self.calls == self._at
            if is_here and self._mode in ("before", "lost call"):
                self._fail(name)
            result = await method(*arguments, **options)
            await self._noticed(name, arguments, result)
            if is_here:
                self._fail(name)
            return result

        return call

    def _fail(self, name: str) -> None:
        if self._mode in DROPS:
            raise StoreUnavailable(f"the connection was lost in {name}")
        self._is_dead = True
        raise Crash(name)

    async def _noticed(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "acquire" and result is not None:
            self.fences.append((arguments[0], result))
        if name == "commit" and result:
            self.commits += 1
            if self._committed is not None:
                await self._committed()

    async def expire(self) -> None:
        """Release the locks, as the end of their leases does."""
        for key, fence in self.fences:
            await self._records.release(key, fence)


async def cloned(records: Records, id: str, new: str) -> None:
    """Copy a session as it is, with all its past, under another id."""
    key = key_of("", id)
    head = await records.head(key)
    assert head is not None
    rows = await records.rows(key, upto=head.rows, limit=head.rows)
    events = await records.events(key)
    hashes = {hash for one in (*rows, *events) for hash in one.blobs}
    blobs = await records.blobs(head.tenant, hashes)
    moved = msgspec.structs.replace(head, key=key_of("", new), id=new.encode())
    assert await records.commit(Batch("clone", moved, tuple(rows), tuple(events), blobs), seen=None)


def session_of(records: Any, id: str) -> Session:
    """Return a session as a process would that has just started."""
    return Session(records, id, value_codec=ValueCodec())

"""What is written behind the answers: one thing after the other, and never more than a part of the time.

Of a conversation the newest request is enough, so those that wait are few however many come. Writing takes time from
those who are served, so there is a rest behind each write that is the longer the longer it took, and the shorter the
more waits. When so much waits that memory would grow without end, who comes next waits too.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from kompakt.errors import KompaktError
from kompakt.gateway.request.hash_chain import HashChain

REST = 10.0
"""How many times as long as it writes it rests, while little waits."""

MAX_WAITING = 1_000
"""Writes that may wait."""

MAX_BYTES = 128 * 1024 * 1024
"""Bytes that may wait."""

_MOMENT = 0.01

Write: TypeAlias = Callable[[], Awaitable[object]]


class Waiting(NamedTuple):
    """A request whose originals are to be written."""

    chain: HashChain
    write: Write

    @property
    def size(self) -> int:
        """Bytes that are held until then."""
        return self.chain.size


class Other(NamedTuple):
    """Something else that is to be written, and how many bytes it holds."""

    write: Write
    size: int


class WriteBehind:
    """Writes what can wait."""

    def __init__(
        self, failed: Callable[[KompaktError], object], *, most: int = MAX_WAITING, max_bytes: int = MAX_BYTES
    ) -> None:
        self._failed = failed
        self._most, self._max_bytes = most, max_bytes
        self._requests: OrderedDict[tuple[str, str], list[Waiting]] = OrderedDict()
        self._others: deque[Other] = deque()
        self._size = 0
        self._worker: asyncio.Task[None] | None = None
        self._hurry = False

    @property
    def load(self) -> float:
        """Say how much waits, as a share of what may."""
        return max((len(self._requests) + len(self._others)) / self._most, self._size / self._max_bytes)

    def put(self, place: tuple[str, str], chain: HashChain, write: Write) -> None:
        """Let a request of a session wait, in the place of those that it goes on from."""
        waiting = [one for one in self._taken(place) if not extends(chain, one.chain)]
        self._requests[place] = [*waiting, Waiting(chain, write)]
        self._size += sum(one.size for one in self._requests[place])
        self._awake()

    def put_other(self, write: Write, size: int) -> None:
        """Let something else wait."""
        self._others.append(Other(write, size))
        self._size += size
        self._awake()

    def has_other(self, place: tuple[str, str], chain: HashChain) -> bool:
        """Tell whether a request of a session waits that goes on otherwise than this one."""
        waiting = [one.chain for one in self._requests.get(place, ())]
        return any(not extends(chain, one) and not extends(one, chain) for one in waiting)

    async def room(self) -> None:
        """Wait until more may be put."""
        while self.load >= 1:
            self._awake()
            await asyncio.sleep(_MOMENT)

    async def write(self, place: tuple[str, str]) -> None:
        """Write what waits of a session now."""
        for one in self._taken(place):
            await self._written(one.write)

    async def flush(self) -> None:
        """Wait until everything is written."""
        self._hurry = True
        try:
            while self._worker is not None and not self._worker.done():
                await asyncio.wait([self._worker])
        finally:
            self._hurry = False

    def _taken(self, place: tuple[str, str]) -> Sequence[Waiting]:
        waiting = self._requests.pop(place, ())
        self._size -= sum(one.size for one in waiting)
        return waiting

    def _awake(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._requests or self._others:
            began = time.perf_counter()
            if self._others:
                other = self._others.popleft()
                self._size -= other.size
                await self._written(other.write)
            else:
                await self.write(next(iter(self._requests)))
            await self._rest(time.perf_counter() - began)

    async def _rest(self, wrote: float) -> None:
        """Leave the time to those who are served: all of it that can be left while more comes than is written."""
        ended = time.perf_counter()
        while not self._hurry and (self._requests or self._others):
            if time.perf_counter() >= ended + REST * wrote * max(0.0, 1 - 2 * self.load):
                break
            await asyncio.sleep(_MOMENT)

    async def _written(self, write: Write) -> None:
        try:
            await write()
        except KompaktError as error:
            self._failed(error)


def extends(chain: HashChain, earlier: HashChain) -> bool:
    """Tell whether a request begins with an earlier one."""
    return earlier.length <= chain.length and chain.keys[earlier.length] == earlier.key

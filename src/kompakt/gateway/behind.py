"""What is written behind the answers: one thing after the other, and never more than a part of the time.

Of a conversation the newest request is enough, so those that wait are few however many come. Writing takes time from
those who are served, so there is a rest behind each write that is the longer the longer it took.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from kompakt.errors import KompaktError
from kompakt.gateway.trails import Trail

REST = 10.0
"""How many times as long as it writes it rests, while there is more to write."""

Write: TypeAlias = Callable[[], Awaitable[object]]


class Waiting(NamedTuple):
    """A request whose originals are to be written."""

    trail: Trail
    write: Write


class Behind:
    """Writes what can wait."""

    def __init__(self, failed: Callable[[KompaktError], object]) -> None:
        self._failed = failed
        self._requests: OrderedDict[tuple[str, str], list[Waiting]] = OrderedDict()
        self._others: deque[Write] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._hurry = False

    def put(self, place: tuple[str, str], trail: Trail, write: Write) -> None:
        """Let a request of a session wait, in the place of those that it goes on from."""
        waiting = [one for one in self._requests.pop(place, ()) if not goes_on(trail, one.trail)]
        self._requests[place] = [*waiting, Waiting(trail, write)]
        self._awake()

    def put_other(self, write: Write) -> None:
        """Let something else wait."""
        self._others.append(write)
        self._awake()

    def has_other(self, place: tuple[str, str], trail: Trail) -> bool:
        """Tell whether a request of a session waits that goes on otherwise than this one."""
        waiting = [one.trail for one in self._requests.get(place, ())]
        return any(not goes_on(trail, one) and not goes_on(one, trail) for one in waiting)

    async def write(self, place: tuple[str, str]) -> None:
        """Write what waits of a session now."""
        for one in self._requests.pop(place, ()):
            await self._written(one.write)

    async def flush(self) -> None:
        """Wait until everything is written."""
        self._hurry = True
        try:
            while self._worker is not None and not self._worker.done():
                await asyncio.wait([self._worker])
        finally:
            self._hurry = False

    def _awake(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._requests or self._others:
            began = time.perf_counter()
            if self._others:
                await self._written(self._others.popleft())
            else:
                await self.write(next(iter(self._requests)))
            until = time.perf_counter() + REST * (time.perf_counter() - began)
            while not self._hurry and (self._requests or self._others) and time.perf_counter() < until:
                await asyncio.sleep(0.01)

    async def _written(self, write: Write) -> None:
        try:
            await write()
        except KompaktError as error:
            self._failed(error)


def goes_on(trail: Trail, earlier: Trail) -> bool:
    """Tell whether a request begins with an earlier one."""
    return earlier.covered <= trail.covered and trail.keys[earlier.covered] == earlier.keys[earlier.covered]

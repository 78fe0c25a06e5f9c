"""Locks of a session that work across processes and hosts.

A lock has a short lease, which a task renews while the block runs. If the holder dies, the renewals stop, and the lock
is free after the lease. If the holder is only paused for longer than the lease, another can take the lock without the
holder noticing. Therefore a commit under a lock passes the lock's fence, a number that grows with each holder, and the
store refuses the commit of a former holder. The lease limits how long others wait; the fence is what makes it safe.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from kompakt.errors import Busy, StoreError
from kompakt.store.records import Fence, Records

_log = logging.getLogger("kompakt.session")

COMPACTION = "compaction"
"""The lock under which a session is compacted, and changed by people."""
TURN = "turn"
"""The lock of an agent's turn."""

LEASE = 15.0
"""Seconds until the lock of a dead holder is free."""

PATIENCE = 120.0
"""Seconds that a caller waits for a lock by default."""

_LOG_AFTER = 2.0
"""Seconds of waiting after which a message is logged."""

_FIRST_WAIT = 0.005
_LONGEST_WAIT = 0.25


@asynccontextmanager
async def hold(
    records: Records, key: str, name: str, *, session: str, lease: float = LEASE, patience: float = PATIENCE
) -> AsyncGenerator[Fence]:
    """Wait for a lock, hold it during the block, and release it. ``session`` is the id for messages.

    Raises:
        Busy: others held it for ``patience`` seconds.
    """
    fence = await _acquire(records, key, name, session=session, lease=lease, patience=patience)
    done = asyncio.Event()
    renewal = asyncio.create_task(_renew(records, key, fence, lease=lease, done=done))
    try:
        yield fence
    finally:
        # An event instead of a cancellation: a driver may swallow that, or drop a connection that others use.
        done.set()
        await renewal
        with suppress(StoreError):  # a lock that cannot be released expires
            await records.release(key, fence)


async def _acquire(records: Records, key: str, name: str, *, session: str, lease: float, patience: float) -> Fence:
    clock = asyncio.get_running_loop().time
    began, wait, logged = clock(), _FIRST_WAIT, False
    end = began + patience
    while True:
        fence = await records.acquire(key, name, lease=lease)
        if fence is not None:
            return fence
        if clock() >= end:
            raise Busy(
                f"session {session!r} is in use: others held its {name} lock for {patience:g} seconds; try again later"
            )
        if not logged and clock() - began > _LOG_AFTER:
            logged = True
            message = "session %r: waiting for its %s lock, which another caller holds; at most %g s"
            _log.info(message, session, name, patience, extra={"kompakt": {"session": session}})
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(wait * 1.6, _LONGEST_WAIT)


async def _renew(records: Records, key: str, fence: Fence, *, lease: float, done: asyncio.Event) -> None:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(lease / 3):
                await done.wait()
            return
        with suppress(StoreError):  # the next attempt may succeed; if none does, the commit fails by its fence
            if not await records.renew(key, fence, lease=lease):
                return

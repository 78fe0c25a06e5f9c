"""Hold a lock of a session for as long as something takes, wherever the others are.

The lease is short and renewed while the work goes on, so that a holder who dies is followed within the lease. Whoever
writes under the lock shows its fence: one who was followed without knowing it is refused.
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

LEASE = 15.0
"""Seconds after which a lock of a dead holder is free."""

PATIENCE = 120.0
"""Seconds that somebody waits for a lock, as a rule."""

_SILENCE = 2.0
"""Seconds after which somebody who waits says so."""

_FIRST_WAIT = 0.005
_LONGEST_WAIT = 0.25


@asynccontextmanager
async def hold(
    records: Records, key: str, name: str, *, lease: float = LEASE, patience: float = PATIENCE
) -> AsyncGenerator[Fence]:
    """Wait for a lock, hold it, give it back.

    Raises:
        Busy: somebody else held it for all the time that the caller would wait.
    """
    fence = await _acquired(records, key, name, lease=lease, patience=patience)
    over = asyncio.Event()
    renewing = asyncio.create_task(_renew(records, key, fence, lease=lease, over=over))
    try:
        yield fence
    finally:
        over.set()  # told, not cancelled: a driver may swallow that, or drop a connection that others use
        await renewing
        with suppress(StoreError):  # a lock that cannot be given back expires
            await records.release(key, fence)


async def _acquired(records: Records, key: str, name: str, *, lease: float, patience: float) -> Fence:
    clock = asyncio.get_running_loop().time
    began, wait, told = clock(), _FIRST_WAIT, False
    end = began + patience
    while True:
        fence = await records.acquire(key, name, lease=lease)
        if fence is not None:
            return fence
        if clock() >= end:
            raise Busy(f"the session is in use: its {name} lock was held for {patience:g} seconds; try again later")
        if not told and clock() - began > _SILENCE:
            told = True
            _log.info("waiting for the %s lock of a session; one whose holder has died is free after its lease", name)
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(wait * 1.6, _LONGEST_WAIT)


async def _renew(records: Records, key: str, fence: Fence, *, lease: float, over: asyncio.Event) -> None:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(lease / 3):
                await over.wait()
            return
        with suppress(StoreError):  # the next try may work; if none does, the fence tells at the end
            if not await records.renew(key, fence, lease=lease):
                return

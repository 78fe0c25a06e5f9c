"""Wait for a store, but not for long: what takes longer is left to end by itself.

A write that waits for a lock cannot be stopped in the middle, so nobody waits for it to stop. That it may still happen
later does no harm: the gateway writes nothing that may not be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from kompakt.errors import StoreUnavailable

Value = TypeVar("Value")


async def with_timeout(call: Awaitable[Value], seconds: float) -> Value:
    """Return what a call returns, if that takes no longer than so many seconds.

    Raises:
        StoreUnavailable: it takes longer.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        _let_go(task)
        raise
    if not done:
        _let_go(task)
        raise StoreUnavailable(f"the store did not answer in {seconds:g} seconds")
    return task.result()


def _let_go(task: asyncio.Future[Value]) -> None:
    """Cancel a call that nobody waits for; what becomes of it is nobody's concern."""
    task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    task.cancel()

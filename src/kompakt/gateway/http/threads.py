"""Work that would hold the event loop: done in a thread when there is much of it.

The loop serves every tenant, so nobody may hold it for long. A thread shares the interpreter with it, but gives way
every few milliseconds. There are few threads: more would take as long together and let the loop wait longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Value = TypeVar("Value")

SMALL = 32 * 1024
"""Bytes of work that take about as long as handing them to a thread and back: they are done at once."""

THREADS = 2


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "kompakt-work")


async def off_loop(work: Callable[[], Value], *, size: int) -> Value:
    """Do work on so many bytes without holding the event loop."""
    return work() if size <= SMALL else await asyncio.get_running_loop().run_in_executor(_pool(), work)

"""A lock is released even during its renewal."""

from __future__ import annotations

import asyncio
from typing import Any

from kompakt.errors import StoreUnavailable
from kompakt.session.lock import hold
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Fence


class Deaf(MemoryRecords):
    """Renews slowly and, as some drivers do, continues when it is cancelled."""

    renewals = 0

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        self.renewals += 1
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return await super().renew(key, fence, lease=lease)


class Gone(MemoryRecords):
    """Unreachable when a lock is renewed or released."""

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        raise StoreUnavailable("gone")

    async def release(self, key: str, fence: Fence) -> None:
        raise StoreUnavailable("gone")


async def hold_lock(records: Any, *, lease: float, seconds: float) -> None:
    async with hold(records, "k", "turn", lease=lease):
        await asyncio.sleep(seconds)


class TestHold:
    def test_a_renewal_that_ignores_cancellation(self) -> None:
        async def run() -> None:
            records = Deaf()
            async with asyncio.timeout(60):
                await hold_lock(records, lease=0.3, seconds=0.12)
            assert records.renewals == 1
            assert await records.acquire("k", "turn", lease=1) is not None

        asyncio.run(run())

    def test_an_unavailable_store(self) -> None:
        """Work under the lock is kept; the lease of the lock ends."""

        async def run() -> None:
            records = Gone()
            await hold_lock(records, lease=0.15, seconds=0.07)
            async with asyncio.timeout(60):
                await hold_lock(records, lease=0.15, seconds=0.0)

        asyncio.run(run())

"""A lock is released even during its renewal."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kompakt.errors import Busy, StoreUnavailable
from kompakt.session import lock
from kompakt.session.lock import hold
from kompakt.session.store import open_store
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
    async with hold(records, "k", "turn", session="s", lease=lease):
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

    def test_who_waits_says_for_which_session(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(lock, "_LOG_AFTER", 0.02)
        caplog.set_level(logging.INFO, "kompakt.session")

        async def run() -> None:
            store = await open_store("memory:")
            session = await store.session("one")
            async with session.turn():
                with pytest.raises(Busy, match="session 'one' is in use: others held its turn lock"):
                    async with (await store.session("one")).turn(patience=0.1):
                        pass

        asyncio.run(run())
        assert "session 'one': waiting for its turn lock" in caplog.text and "at most 0.1 s" in caplog.text

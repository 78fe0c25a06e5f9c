"""PostgreSQL: lost connections, restarts, and locks whose holders die or hang."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from tests.contract import postgres
from tests.contract.builders import batch, digest, everything, extend, new_head, plain, row, start
from tests.store.sql.test_sql import HOLDER, process

from kompakt.errors import Conflict, StoreUnavailable
from kompakt.store.sql.postgres import open_postgres
from kompakt.store.sql.records import SqlRecords

KEY = new_head().key
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@asynccontextmanager
async def opened(url: str, count: int = 1) -> AsyncIterator[list[SqlRecords]]:
    stores = [await open_postgres(url) for _ in range(count)]
    try:
        yield stores
    finally:
        for records in stores:
            await records.close()


class TestServer:
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_calls_succeed_after_a_restart(self, mode: str) -> None:
        async def scenario() -> None:
            async with opened(postgres.database()) as [records]:
                head = await start(records)
                fence = await records.acquire(KEY, "compact", lease=100)
                assert fence is not None
                postgres.restart(mode)
                assert await records.head(KEY) == head
                assert await records.renew(KEY, fence, lease=100)
                postgres.restart(mode)
                next = batch(head, plain(head, 2))
                await records.commit(next, seen=head, fence=fence)
                assert await records.head(KEY) == next.head
                assert await records.acquire(KEY, "compact", lease=100) is not None

        asyncio.run(scenario())

    def test_an_unreachable_server(self) -> None:
        async def scenario() -> None:
            async with opened(postgres.database()) as [records]:
                head = await start(records)
                before = await everything(records, KEY)
                postgres.stop()
                try:
                    for _ in range(2):
                        with pytest.raises(StoreUnavailable):
                            await records.head(KEY)
                        with pytest.raises(StoreUnavailable):
                            await records.commit(batch(head, plain(head, 1)), seen=head)
                        with pytest.raises(StoreUnavailable):
                            await records.acquire(KEY, "compact", lease=1)
                finally:
                    postgres.start()
                assert await everything(records, KEY) == before
                assert await records.acquire(KEY, "compact", lease=1)

        asyncio.run(scenario())

    def test_a_connection_dropped_in_a_transaction(self) -> None:
        """Nothing is half-written; the same batch again is written once."""

        async def scenario(url: str) -> None:
            async with opened(url) as [records]:
                head = await start(records)
                before = await everything(records, KEY)
                server = await asyncpg.connect(url)
                transaction = server.transaction()
                await transaction.start()
                await server.execute("SELECT 1 FROM kompakt_heads FOR UPDATE")
                made = batch(head, plain(head, 2), blobs={digest("x"): b"x"})
                writing = asyncio.create_task(records.commit(made, seen=head))
                waiting = (
                    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
                while not (pid := await server.fetchval(waiting)):
                    await asyncio.sleep(0.02)
                await server.execute("SELECT pg_terminate_backend($1)", pid)
                with pytest.raises(StoreUnavailable):
                    await writing
                await transaction.rollback()
                await server.close()
                assert await everything(records, KEY) == before
                for _ in range(2):
                    await records.commit(made, seen=head)
                assert await records.head(KEY) == made.head

        asyncio.run(scenario(postgres.database()))


class TestHolders:
    @pytest.mark.parametrize("renews", [False, True])
    def test_a_lease_counts_from_the_end_of_the_wait(self, renews: bool) -> None:
        """A lock whose row was in use by a commit has its whole lease before it, taken or renewed."""

        async def scenario(url: str) -> None:
            async with opened(url) as [records]:
                fence = await records.acquire(KEY, "compact", lease=60)
                assert fence is not None
                if not renews:
                    await records.release(KEY, fence)
                server = await asyncpg.connect(url)
                transaction = server.transaction()
                await transaction.start()
                await server.execute("SELECT 1 FROM kompakt_locks FOR SHARE")
                work = records.renew(KEY, fence, lease=90) if renews else records.acquire(KEY, "compact", lease=90)
                task = asyncio.create_task(work)
                while not await server.fetchval(WAITING):
                    await asyncio.sleep(0.02)
                ended = await server.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
                await transaction.rollback()
                assert await task
                assert await server.fetchval("SELECT expires FROM kompakt_locks") >= ended + 90
                await server.close()

        asyncio.run(scenario(postgres.database()))

    def test_the_lock_of_a_dead_holder_is_free_at_once(self) -> None:
        async def scenario(url: str) -> None:
            async with opened(url) as [records]:
                holder = process(HOLDER, url)
                assert holder.stdout is not None
                number = int(await asyncio.to_thread(holder.stdout.readline))
                assert await records.acquire(KEY, "compact", lease=1) is None
                holder.kill()
                holder.communicate()
                for _ in range(100):
                    if fence := await records.acquire(KEY, "compact", lease=1):
                        break
                    await asyncio.sleep(0.05)
                assert fence is not None and fence.number > number

        asyncio.run(scenario(postgres.database()))

    def test_the_lock_of_a_hanging_holder_is_free_after_its_lease(self) -> None:
        """Its connection is alive, yet it is overtaken; what it then writes is refused."""

        async def scenario(url: str) -> None:
            async with opened(url, 3) as [one, two, three]:
                head = await start(one)
                old = await one.acquire(KEY, "compact", lease=0.3)
                assert old is not None
                assert await two.acquire(KEY, "compact", lease=100) is None
                await asyncio.sleep(0.4)
                new = await two.acquire(KEY, "compact", lease=100)
                assert new is not None and new.number > old.number
                with pytest.raises(Conflict):
                    await one.commit(batch(head, plain(head, 1)), seen=head, fence=old)
                assert not await one.renew(KEY, old, lease=100)
                # The advisory lock is free now, and its new holder never had it: the row alone counts.
                assert await three.acquire(KEY, "compact", lease=100) is None
                assert await one.acquire(KEY, "compact", lease=100) is None
                assert await two.renew(KEY, new, lease=100)
                await two.commit(batch(head, plain(head, 1)), seen=head, fence=new)
                await two.release(KEY, new)
                assert await three.acquire(KEY, "compact", lease=100) is not None

        asyncio.run(scenario(postgres.database()))

    def test_a_commit_under_a_fence_is_not_overtaken_half_way(self) -> None:
        """Whoever takes the lock over waits for a commit that has proved its fence."""

        async def scenario(url: str) -> None:
            async with opened(url, 2) as [one, two]:
                head = await start(one)
                old = await one.acquire(KEY, "compact", lease=0.2)
                server = await asyncpg.connect(url)
                transaction = server.transaction()
                await transaction.start()
                await server.execute("SELECT 1 FROM kompakt_heads FOR UPDATE")
                made = batch(head, plain(head, 1))
                writing = asyncio.create_task(one.commit(made, seen=head, fence=old))
                await asyncio.sleep(0.5)
                taking = asyncio.create_task(two.acquire(KEY, "compact", lease=100))
                await asyncio.sleep(0.3)
                assert not taking.done() and not writing.done()
                await transaction.rollback()
                await server.close()
                await writing
                assert await taking is not None
                assert await two.head(KEY) == made.head

        asyncio.run(scenario(postgres.database()))


class TestSharedBlobs:
    def test_the_same_blobs_at_once(self) -> None:
        """Concurrent writes of the same blobs in any order, and deletions, neither deadlock nor lose a blob."""
        names = [digest(f"blob {number}") for number in range(20)]

        async def work(records: SqlRecords, number: int) -> None:
            chance = random.Random(number)
            for turn in range(6):
                some = chance.sample(names, 10)
                head = await start(records, f"{number} {turn}", rows=0)
                blobs = {name: name.encode() for name in some}
                await extend(records, head, [row(1, blobs=some)], blobs=blobs)
                assert await records.blobs("tenant", some) == blobs
                if turn % 2:
                    gone = [new_head(f"{number} {turn}").key, new_head(f"{number} {turn - 1}").key]
                    assert await records.delete(gone) == 2

        async def scenario() -> None:
            async with opened(postgres.database(), 4) as stores:
                workers = [work(stores[number % 4], number) for number in range(12)]
                await asyncio.wait_for(asyncio.gather(*workers), 60)
                assert await stores[0].blobs("tenant", names) == {}

        asyncio.run(scenario())

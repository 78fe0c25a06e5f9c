"""Locks of every store: one holder, leases that end, fences that order the holders."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.contract.backends import Place, stored
from tests.contract.builders import batch, event, new_head, plain, row, start

from kompakt.errors import Conflict
from kompakt.store.records import Fence, Records, key_of

KEY = key_of("tenant", "session")
LONG = 60.0
SHORT = 0.05


async def taken(records: Records, name: str = "compact", *, lease: float = LONG, key: str = KEY) -> Fence:
    """Take a lock that is free."""
    fence = await records.acquire(key, name, lease=lease)
    assert fence is not None and fence.name == name
    return fence


async def taken_over(records: Records) -> tuple[Fence, Fence]:
    """Let a lock expire and another owner acquire it; return the old and the new fence."""
    old = await taken(records, lease=SHORT)
    await asyncio.sleep(2 * SHORT)
    return old, await taken(records)


class TestLocks:
    @stored
    async def test_a_lock_has_one_holder(self, records: Records) -> None:
        """A lock cannot be acquired again before its release, not even by its holder."""
        fence = await taken(records)
        assert await records.acquire(KEY, "compact", lease=LONG) is None
        await records.release(KEY, fence)
        assert (await taken(records)).number > fence.number

    @stored
    async def test_locks_are_independent(self, records: Records) -> None:
        """Another name or another session is another lock; none needs a session."""
        await taken(records)
        await taken(records, "append")
        await taken(records, key=key_of("tenant", "other"))
        await taken(records, "it's \\ % * ? [a-z] {} : / é")
        assert await records.acquire(KEY, "it's \\ % * ? [a-z] {} : / é", lease=LONG) is None
        assert await records.head(KEY) is None
        assert await records.heads("tenant") == []

    def test_a_lock_is_visible_to_other_connections(self, place: Place) -> None:
        """Another handle on the same store has the same lock and can release it with its fence."""

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                fence = await taken(one)
                assert await two.acquire(KEY, "compact", lease=LONG) is None
                assert await two.renew(KEY, fence, lease=LONG)
                await two.release(KEY, fence)
                assert (await taken(two)).number > fence.number

        asyncio.run(scenario())

    @stored
    async def test_a_lease_ends(self, records: Records) -> None:
        """A crashed holder's lock is free when its lease has run out, under a higher number."""
        old, new = await taken_over(records)
        assert new.number > old.number

    @stored
    async def test_a_lease_does_not_end_early(self, records: Records) -> None:
        """During a lease no other owner gets the lock."""
        await taken(records, lease=2)
        await asyncio.sleep(0.1)
        assert await records.acquire(KEY, "compact", lease=LONG) is None

    @stored
    async def test_a_renewed_lock_is_kept(self, records: Records) -> None:
        """A lock renewed in time is held beyond its first lease; the new lease starts at the renewal."""
        fence = await taken(records, lease=1)
        assert await records.renew(KEY, fence, lease=LONG)
        await asyncio.sleep(1.1)
        assert await records.acquire(KEY, "compact", lease=LONG) is None
        assert await records.renew(KEY, fence, lease=SHORT)
        await asyncio.sleep(2 * SHORT)
        await taken(records)

    @stored
    async def test_a_lost_lock_cannot_be_renewed(self, records: Records) -> None:
        """Not if it expired, was taken over, was released, or was never acquired."""
        fence = await taken(records, lease=SHORT)
        await asyncio.sleep(2 * SHORT)
        assert not await records.renew(KEY, fence, lease=LONG)
        new = await taken(records)
        assert not await records.renew(KEY, fence, lease=LONG)
        assert await records.renew(KEY, new, lease=LONG)
        await records.release(KEY, new)
        assert not await records.renew(KEY, new, lease=LONG)
        assert not await records.renew(KEY, Fence("compact", new.number + 1), lease=LONG)
        assert not await records.renew(KEY, Fence("append", new.number), lease=LONG)

    @stored
    async def test_a_lost_lock_cannot_be_released(self, records: Records) -> None:
        """The new holder keeps it; releasing twice, or what never was, does nothing."""
        old, new = await taken_over(records)
        await records.release(KEY, old)
        assert await records.acquire(KEY, "compact", lease=LONG) is None
        assert await records.renew(KEY, new, lease=LONG)
        await records.release(KEY, new)
        await records.release(KEY, new)
        await records.release(KEY, Fence("append", 1))
        await taken(records)

    def test_never_two_holders(self, place: Place) -> None:
        """Twenty tasks by two ways want one lock: each gets it, one at a time, with growing numbers."""

        async def scenario() -> None:
            inside: list[int] = []
            numbers: list[int] = []

            async def work(records: Records, number: int) -> None:
                while (fence := await records.acquire(KEY, "compact", lease=LONG)) is None:
                    await asyncio.sleep(0.002)
                inside.append(number)
                assert inside == [number]
                await asyncio.sleep(0.001)
                assert inside == [number]
                numbers.append(fence.number)
                inside.remove(number)
                await records.release(KEY, fence)

            async with place.opened() as one, place.opened() as two:
                await asyncio.wait_for(asyncio.gather(*(work((one, two)[n % 2], n) for n in range(20))), 60)
            assert len(numbers) == 20
            assert numbers == sorted(set(numbers))

        asyncio.run(scenario())


class TestFences:
    @stored
    async def test_the_holder_commits(self, records: Records) -> None:
        """A current fence admits any number of batches, for new and for existing sessions."""
        fence = await taken(records)
        head = new_head()
        first = batch(head, plain(head, 1))
        await records.commit(first, seen=None, fence=fence)
        second = batch(first.head, plain(first.head, 1))
        await records.commit(second, seen=first.head, fence=fence)
        assert await records.head(KEY) == second.head

    @stored
    async def test_a_former_holder_cannot_commit(self, records: Records) -> None:
        """The old holder wakes up and is refused; the new one is not."""
        head = await start(records)
        old, new = await taken_over(records)
        with pytest.raises(Conflict):
            await records.commit(batch(head, plain(head, 1), [event(1)]), seen=head, fence=old)
        assert await records.head(KEY) == head
        assert await records.events(KEY) == []
        await records.release(KEY, new)
        with pytest.raises(Conflict):
            await records.commit(batch(head, plain(head, 1)), seen=head, fence=old)
        await records.commit(batch(head, plain(head, 1)), seen=head, fence=new)

    @stored
    async def test_after_its_lease_ended_a_holder_commits_unless_the_lock_was_taken(self, records: Records) -> None:
        """An ended lease has no effect while no other owner has taken the lock."""
        head = await start(records)
        fence = await taken(records, lease=SHORT)
        await asyncio.sleep(2 * SHORT)
        written = batch(head, plain(head, 1))
        await records.commit(written, seen=head, fence=fence)
        assert await records.head(KEY) == written.head

    @stored
    async def test_a_repeated_batch_is_acknowledged_after_the_lock_was_lost(self, records: Records) -> None:
        """A batch that went in under a fence may be repeated after the fence was lost."""
        head = await start(records)
        fence = await taken(records, lease=SHORT)
        written = batch(head, plain(head, 1))
        await records.commit(written, seen=head, fence=fence)
        await asyncio.sleep(2 * SHORT)
        await taken(records)
        await records.commit(written, seen=head, fence=fence)
        assert await records.head(KEY) == written.head

    @stored
    async def test_an_unknown_fence_is_refused(self, records: Records) -> None:
        """An invented number, or one of another lock or session, is refused."""
        head = await start(records)
        fence = await taken(records)
        other = await taken(records, key=key_of("tenant", "other"))
        for wrong in (Fence("compact", fence.number + 1), Fence("append", fence.number), Fence("compact", -1)):
            with pytest.raises(Conflict):
                await records.commit(batch(head, plain(head, 1)), seen=head, fence=wrong)
        if other.number != fence.number:
            with pytest.raises(Conflict):
                await records.commit(batch(head, plain(head, 1)), seen=head, fence=other)

    @stored
    async def test_deleting_ends_locks(self, records: Records) -> None:
        """Deleting a session deletes its locks. An old fence is rejected, also when both are created again."""
        head = await start(records)
        fence = await taken(records)
        assert await records.delete([KEY]) == 1
        assert not await records.renew(KEY, fence, lease=LONG)
        with pytest.raises(Conflict):
            await records.commit(batch(head, plain(head, 1)), seen=None, fence=fence)
        new = await taken(records)
        assert new.number > fence.number
        again = batch(new_head(), plain(new_head(), 2))
        await records.commit(again, seen=None, fence=new)
        with pytest.raises(Conflict):
            await records.commit(batch(again.head, [row(3)]), seen=again.head, fence=fence)
        await records.release(KEY, fence)
        assert await records.acquire(KEY, "compact", lease=LONG) is None


class TestThreads:
    def test_threads_write_one_session(self, place: Place) -> None:
        """Threads with separate event loops write one session: no row is lost or duplicated."""
        each, failures = 12, []

        async def work(number: int) -> None:
            async with place.opened() as records:
                for turn in range(each):
                    item = b"%d %d" % (number, turn)
                    while True:
                        head = await records.head(KEY)
                        try:
                            await records.commit(batch(head, [row(head.rows + 1, item=item)]), seen=head)
                        except Conflict:
                            continue
                        break

        def run(number: int) -> None:
            try:
                asyncio.run(asyncio.wait_for(work(number), 60))
            except BaseException as error:
                failures.append(error)
                raise

        async def open_session() -> None:
            async with place.opened() as records:
                await start(records, rows=0)

        async def items() -> list[bytes]:
            async with place.opened() as records:
                return [found.item for found in await records.rows(KEY, upto=1000, limit=1000)]

        asyncio.run(open_session())
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sorted(asyncio.run(items())) == sorted(b"%d %d" % (n, turn) for n in range(4) for turn in range(each))

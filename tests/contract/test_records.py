"""Rows, events and blobs of every store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.contract.backends import Place, stored
from tests.contract.builders import batch, digest, event, everything, extend, new_head, noise, plain, row, start

from kompakt.errors import Conflict
from kompakt.store.records import Records, key_of

UNKNOWN = key_of("tenant", "unknown")


class TestCommit:
    @stored
    async def test_a_commit_is_read_back(self, records: Records) -> None:
        """Every field of head, rows and events is returned byte for byte; the words for the index are not."""
        head = new_head()
        rows = [row(1, words="some words"), row(2, blobs=[digest("a"), digest("b")]), row(3, turn=1)]
        rows += [msgspec.structs.replace(row(4, turn=1), kind=kind, seq=seq, name=f"m{seq}") for seq, kind in kinds()]
        written = batch(
            head, rows, [event(1), event(2, tip=3, blobs=[digest("b")])], blobs={digest("a"): b"", digest("b"): b"\0b"}
        )
        await records.commit(written, seen=None)
        assert await records.head(head.key) == written.head
        assert await records.rows(head.key, upto=100, limit=100) == [msgspec.structs.replace(r, words="") for r in rows]
        assert await records.events(head.key) == list(written.events)
        assert await records.blobs("tenant", [digest("a"), digest("b")]) == written.blobs

    @stored
    async def test_an_unknown_session_is_empty(self, records: Records) -> None:
        """A session that does not exist is empty for every read."""
        assert await everything(records, UNKNOWN) == (None, [], [], [[]] * 5, {}, [], {})
        assert await records.rows_at(UNKNOWN, [1, 2]) == []
        assert await records.named(UNKNOWN, ["m1"]) == {}
        assert await records.heads("tenant") == []
        assert await records.delete([UNKNOWN]) == 0

    @stored
    async def test_a_session_can_be_created_empty(self, records: Records) -> None:
        """A head alone is a session."""
        head = new_head()
        await records.commit(batch(head), seen=None)
        assert await records.head(head.key) == head
        assert await records.heads("tenant") == [head]

    @stored
    async def test_a_batch_is_written_once(self, records: Records) -> None:
        """Repeating a batch changes nothing, even after others were written, and says so without an error."""
        head = new_head()
        first = batch(head, plain(head, 2), id="first")
        assert await records.commit(first, seen=None) is True
        assert await records.commit(first, seen=None) is False
        newer = await extend(records, first.head, plain(first.head, 1), [event(1)])
        before = await everything(records, head.key)
        assert await records.commit(first, seen=None) is False
        assert await everything(records, head.key) == before
        assert await records.head(head.key) == newer

    @stored
    async def test_batch_ids_are_per_session(self, records: Records) -> None:
        """The same id in another session is another batch."""
        for id in ("one", "two"):
            head = new_head(id)
            await records.commit(batch(head, plain(head, 1), id="same"), seen=None)
            assert len(await records.rows(head.key, upto=9, limit=9)) == 1

    @pytest.mark.parametrize("rows, events", [(2, 0), (1, 1), (1, 0), (3, 0)])
    def test_a_stale_head_is_a_conflict(self, place: Place, rows: int, events: int) -> None:
        """A head with other rows or events than are there is refused, and the batch leaves no trace."""

        async def scenario() -> None:
            async with place.opened() as records:
                first = await start(records, rows=2)
                now = await extend(records, first, plain(first, 1), [event(1)])
                before = await everything(records, now.key)
                seen = msgspec.structs.replace(now, rows=rows, events=events)
                stale = batch(seen, [row(7, blobs=[digest("x")])], [event(9)], blobs={digest("x"): b"x"})
                with pytest.raises(Conflict):
                    await records.commit(stale, seen=seen)
                assert await everything(records, now.key) == before
                assert await records.blobs("tenant", [digest("x")]) == {}
                assert await records.rows_at(now.key, [7]) == []
                assert await records.named(now.key, ["m00007"]) == {}
                await records.commit(batch(now, [row(4)], id=stale.id), seen=now)
                assert len(await records.rows_at(now.key, [4])) == 1

        asyncio.run(scenario())

    @stored
    async def test_a_session_is_created_once(self, records: Records) -> None:
        """A session cannot start twice, nor continue before it has started."""
        head = await start(records)
        with pytest.raises(Conflict):
            await records.commit(batch(new_head(), plain(new_head(), 1)), seen=None)
        other = new_head("other")
        with pytest.raises(Conflict):
            await records.commit(batch(other, plain(other, 1)), seen=other)
        assert await records.head(other.key) is None
        assert await records.head(head.key) == head

    @stored
    async def test_one_of_two_concurrent_commits_wins(self, records: Records) -> None:
        """Of several writers that saw the same head, exactly one succeeds."""
        head = await start(records)
        tries = [batch(head, [row(3, item=b"%d" % number)]) for number in range(8)]
        done = await asyncio.gather(*(records.commit(one, seen=head) for one in tries), return_exceptions=True)
        won = [one for one, outcome in zip(tries, done, strict=True) if outcome is True]
        assert len(won) == 1
        assert [type(outcome) for outcome in done if outcome is not True] == [Conflict] * 7
        assert await records.rows(head.key, after=2, upto=9, limit=9) == list(won[0].rows)

    def test_one_of_two_connections_wins(self, place: Place) -> None:
        """The same through two openings of one place, again and again; every row that was taken is there."""

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                head = await start(one)
                for round in range(10):
                    tries = [batch(head, [row(head.rows + 1, item=b"%d %d" % (round, number))]) for number in range(2)]
                    calls = [way.commit(made, seen=head) for way, made in zip((one, two), tries, strict=True)]
                    done = await asyncio.gather(*calls, return_exceptions=True)
                    assert sorted(type(outcome).__name__ for outcome in done) == ["Conflict", "bool"]
                    won = tries[done.index(True)]
                    assert await two.rows_at(head.key, [won.head.rows]) == list(won.rows)
                    head = won.head

        asyncio.run(scenario())


class TestReading:
    @stored
    async def test_ranges(self, records: Records) -> None:
        """Rows after one number, up to another, at most a given number of them; none after the end."""
        head = await start(records, rows=10)

        async def seqs(after: int, upto: int, limit: int) -> list[int]:
            return [found.seq for found in await records.rows(head.key, after=after, upto=upto, limit=limit)]

        assert await seqs(0, 10, 100) == list(range(1, 11))
        assert await seqs(3, 6, 100) == [4, 5, 6]
        assert await seqs(3, 6, 2) == [4, 5]
        assert await seqs(8, 1 << 40, 100) == [9, 10]
        assert await seqs(6, 6, 100) == await seqs(7, 3, 100) == await seqs(10, 99, 9) == await seqs(0, 9, 0) == []

    @stored
    async def test_pages_are_complete(self, records: Records) -> None:
        """A batch of thousands of rows is stored completely, and pages of any size return it in order."""
        head = new_head()
        rows = [row(seq, turn=seq // 7) for seq in range(1, 2501)]
        await records.commit(batch(head, rows, [event(number) for number in range(1, 1201)]), seen=None)
        for size in (1000, 2500, 777):
            found, after = [], 0
            while page := await records.rows(head.key, after=after, upto=2500, limit=size):
                assert len(page) <= size and page[0].seq > after
                found += page
                after = page[-1].seq
            assert found == rows
        assert [found.number for found in await records.events(head.key)] == list(range(1, 1201))
        assert [found.number for found in await records.events(head.key, after=1198)] == [1199, 1200]
        assert await records.events(head.key, after=1200) == []

    @stored
    async def test_rows_by_number(self, records: Records) -> None:
        """The existing rows are returned in order, each once, for any order and number of requested rows."""
        head = await start(records, rows=5)
        assert [found.seq for found in await records.rows_at(head.key, [5, 1, 99, 1, 0, -3])] == [1, 5]
        assert await records.rows_at(head.key, []) == []
        assert [found.seq for found in await records.rows_at(head.key, set(range(40_000)))] == [1, 2, 3, 4, 5]

    @stored
    async def test_names(self, records: Records) -> None:
        """Only those that are taken, by rows of this session."""
        head = await start(records, rows=3)
        await start(records, "other", rows=9)
        assert await records.named(head.key, ["m00002", "m00009", "%", "m0000_", "m\udc80", "m\0"]) == {"m00002": 2}
        assert await records.named(head.key, []) == {}
        asked = [f"m{number:05x}" for number in range(40_000)]
        assert await records.named(head.key, asked) == {"m00001": 1, "m00002": 2, "m00003": 3}

    @stored
    async def test_turns(self, records: Records) -> None:
        """A turn's rows in the order of their numbers, with those from before a revert."""
        head = new_head()
        turns = [0, 0, 1, 1, 2, 1, 1, 2, 2, 2, 2, 2]
        await records.commit(batch(head, [row(seq, turn=turn) for seq, turn in enumerate(turns, 1)]), seen=None)
        assert await records.turn_seqs(head.key, 0) == [1, 2]
        assert await records.turn_seqs(head.key, 1) == [3, 4, 6, 7]
        assert await records.turn_seqs(head.key, 2) == [5, 8, 9, 10, 11, 12]
        assert await records.turn_seqs(head.key, 3) == []

    @stored
    async def test_large_values(self, records: Records) -> None:
        """Items, notes, envelopes, events and blobs of megabytes are returned byte for byte."""
        head = msgspec.structs.replace(new_head(), envelope=noise(1 << 20, "envelope"))
        large = msgspec.structs.replace(row(1, item=noise(3 << 20)), note=noise(1 << 20, "note"), blobs=(digest("a"),))
        written = msgspec.structs.replace(event(1), data=noise(1 << 20, "event"))
        await records.commit(batch(head, [large], [written], blobs={digest("a"): noise(3 << 20, "blob")}), seen=None)
        assert await records.rows(head.key, upto=1, limit=1) == [large]
        assert await records.events(head.key) == [written]
        assert (await records.blobs("tenant", [digest("a")]))[digest("a")] == noise(3 << 20, "blob")
        found = await records.head(head.key)
        assert found is not None and found.envelope == head.envelope

    def test_everything_survives_reopening(self, place: Place) -> None:
        """Acknowledged data exists after reopening; only the memory store ends with its object."""

        async def scenario() -> None:
            blobs = {digest("a"): b"\0blob"}
            async with place.opened() as records:
                head = await start(records, rows=3)
                await extend(records, head, [row(4, turn=1, blobs=list(blobs))], [event(1)], blobs=blobs)
                before = await everything(records, head.key, list(blobs))
                await records.close()
            async with place.opened() as records:
                assert await everything(records, head.key, list(blobs)) == before
                assert len(await records.heads("tenant")) == 1
                again = batch(head, [row(4)], id="later")
                with pytest.raises(Conflict):
                    await records.commit(again, seen=head)

        asyncio.run(scenario())


def kinds() -> list[tuple[int, str]]:
    """Number every kind of row that kompakt puts into the stream itself."""
    return [(4, "marker"), (5, "summary"), (6, "resume")]

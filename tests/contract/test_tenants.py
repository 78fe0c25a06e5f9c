"""Isolation in every store: tenants and ids of any characters, shared blobs, permanent deletion."""

from __future__ import annotations

import asyncio
import time

from tests.contract.backends import Place, stored
from tests.contract.builders import batch, digest, event, everything, extend, new_head, noise, plain, row, start

from kompakt.store.records import Records, StoredEvent

STRANGE = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "tenant\udcff",
    "'; DROP TABLE rows; --",
    '"quoted"',
    "../../../etc/passwd",
    "C:\\dir\\..",
    "%",
    "_",
    "*",
    "?[a-z]*",
    "{tenant}",
    "}:head",
    "kompakt:schema",
    "\r\nFLUSHALL\r\n",
    "$1 %s :name ?1",
    "日本語 🙂 é e\u0301",
    "\u202e\ufeff\uffff",
    "x" * 10_000,
    "x" * 9_999 + "y",
]


class TestTenants:
    @stored
    async def test_the_same_id_in_two_tenants(self, records: Records) -> None:
        """Sessions of two tenants with one id are independent in writes, locks and deletions."""
        one = await start(records, "same", "one", rows=2)
        two = await start(records, "same", "two", rows=5)
        assert one.key != two.key
        assert len(await records.rows(one.key, upto=99, limit=99)) == 2
        assert await records.acquire(one.key, "compact", lease=60) and await records.acquire(
            two.key, "compact", lease=60
        )
        assert await records.delete([one.key]) == 1
        assert len(await records.rows(two.key, upto=99, limit=99)) == 5
        assert await records.heads("one") == []
        assert await records.heads("two") == [two]

    @stored
    async def test_lists_are_paged_in_the_order_of_keys(self, records: Records) -> None:
        """Every session of the tenant once, no other's, in pages that follow one another."""
        mine = [await start(records, f"session {number}") for number in range(25)]
        for number in range(10):
            await start(records, f"session {number}", "tenan")
        expected = sorted(mine, key=lambda head: head.key)
        assert await records.heads("tenant") == expected
        assert await records.heads("tenant", limit=7) == expected[:7]
        assert await records.heads("tenant", limit=0) == []
        found, after = [], ""
        while page := await records.heads("tenant", after=after, limit=4):
            assert page[0].key > after
            found += page
            after = page[-1].key
        assert found == expected
        assert await records.heads("tenant", after=expected[3].key, limit=1) == [expected[4]]
        assert await records.heads("tenant", after=expected[3].key[:-1] + "\0", limit=0) == []
        assert await records.heads("unknown") == []

    @stored
    async def test_any_id(self, records: Records) -> None:
        """An id of any characters names one session and is returned unchanged."""
        heads = [await start(records, id, rows=1 + number) for number, id in enumerate(STRANGE)]
        assert len({head.key for head in heads}) == len(STRANGE)
        for number, head in enumerate(heads):
            assert await records.head(head.key) == head
            assert len(await records.rows(head.key, upto=99, limit=99)) == 1 + number
        assert {head.id.decode("utf-8", "surrogatepass") for head in await records.heads("tenant")} == set(STRANGE)
        assert await records.delete([heads[0].key]) == 1
        assert len(await records.heads("tenant")) == len(STRANGE) - 1

    @stored
    async def test_any_tenant(self, records: Records) -> None:
        """A tenant with any characters in its name has its own sessions and its own blobs."""
        hash = digest("blob")
        for tenant in STRANGE:
            head = new_head("same", tenant)
            blob = tenant.encode("utf-8", "surrogatepass")
            await records.commit(batch(head, [row(1, blobs=[hash])], blobs={hash: blob}), seen=None)
        for tenant in STRANGE:
            found = await records.heads(tenant)
            assert [(head.tenant, head.id) for head in found] == [(tenant, b"same")]
            assert await records.blobs(tenant, [hash]) == {hash: tenant.encode("utf-8", "surrogatepass")}
        assert await records.delete([found[0].key]) == 1
        assert await records.heads(STRANGE[-1]) == []
        assert len(await records.heads(STRANGE[-2])) == 1
        assert len(await records.blobs(STRANGE[-2], [hash])) == 1


class TestBlobs:
    @stored
    async def test_one_blob_for_many_sessions(self, records: Records) -> None:
        """A blob is deleted with the last session that uses it, in a row or an event, written or only referenced."""
        a, b = digest("a"), digest("b")
        one = await start(records, "one", rows=0)
        await extend(records, one, [row(1, blobs=[a])], blobs={a: b"a"})
        two = await start(records, "two", rows=0)
        await extend(records, two, [row(1, blobs=[a])], blobs={a: b"a"})
        three = await start(records, "three", rows=0)
        await extend(records, three, [row(1)], [event(1, blobs=[a, b])], blobs={b: b"b"})
        for gone, left in ((one, {a: b"a", b: b"b"}), (two, {a: b"a", b: b"b"}), (three, {})):
            assert await records.delete([gone.key]) == 1
            assert await records.blobs("tenant", [a, b]) == left

    @stored
    async def test_an_existing_blob_is_not_replaced(self, records: Records) -> None:
        """A blob that the tenant has is not written over; several uses by one session are one."""
        a = digest("a")
        head = await start(records, "one", rows=0)
        head = await extend(records, head, [row(1, blobs=[a]), row(2, blobs=[a])], blobs={a: b"first"})
        await extend(records, head, [row(3, blobs=[a])], [event(1, blobs=[a])], blobs={a: b"second"})
        assert await records.blobs("tenant", [a]) == {a: b"first"}
        assert await records.delete([head.key]) == 1
        assert await records.blobs("tenant", [a]) == {}
        head = await start(records, "one", rows=0)
        await extend(records, head, [row(1, blobs=[a])], blobs={a: b"third"})
        assert await records.blobs("tenant", [a]) == {a: b"third"}

    @stored
    async def test_tenants_share_nothing(self, records: Records) -> None:
        """A hash that another tenant has is not there for this one."""
        a = digest("a")
        mine = await start(records, "one", "mine", rows=0)
        await extend(records, mine, [row(1, blobs=[a])], blobs={a: b"mine"})
        assert await records.blobs("yours", [a]) == {}
        yours = await start(records, "one", "yours", rows=0)
        await extend(records, yours, [row(1, blobs=[a])], blobs={a: b"yours"})
        assert await records.delete([mine.key]) == 1
        assert await records.blobs("mine", [a]) == {}
        assert await records.blobs("yours", [a]) == {a: b"yours"}

    @stored
    async def test_many_at_once(self, records: Records) -> None:
        """Hundreds in one batch, asked for together with others that never were."""
        blobs = {digest(str(number)): noise(100, number) for number in range(700)}
        head = new_head()
        await records.commit(batch(head, [row(1, blobs=list(blobs))], blobs=blobs), seen=None)
        asked = [*blobs, *(digest(f"other {number}") for number in range(700)), "%", "", "\0", "\ud800"]
        assert await records.blobs("tenant", asked) == blobs
        assert await records.blobs("tenant", []) == {}
        assert (await records.rows(head.key, upto=1, limit=1))[0].blobs == tuple(blobs)


class TestDeletion:
    @stored
    async def test_a_session_is_deleted_completely(self, records: Records) -> None:
        """Nothing of the session is left, others are unchanged, and it can be created again."""
        a = digest("a")
        head = await start(records, rows=3)
        head = await extend(records, head, [row(4, turn=1, blobs=[a])], [event(1)], blobs={a: b"a"})
        other = await start(records, "other", rows=3)
        before = await everything(records, other.key)
        names = ["m00001", "m00004"]
        assert await records.delete([head.key]) == 1
        assert await everything(records, head.key) == (None, [], [], [[]] * 5, {}, [], {})
        assert await records.rows_at(head.key, [1, 4]) == []
        assert await records.named(head.key, names) == {}
        assert await records.blobs("tenant", [a]) == {}
        assert await everything(records, other.key) == before
        first = batch(new_head(), plain(new_head(), 1), id="batch 1")
        await records.commit(first, seen=None)
        assert await everything(records, head.key) == (
            first.head,
            [row(1)],
            [row(1)],
            [[1], *[[]] * 4],
            {"m00001": 1},
            [],
            {},
        )

    @stored
    async def test_batch_ids_are_deleted(self, records: Records) -> None:
        """The first batch of a deleted session creates it again."""
        head = new_head()
        first = batch(head, plain(head, 2))
        await records.commit(first, seen=None)
        await records.delete([head.key])
        await records.commit(first, seen=None)
        assert await records.head(head.key) == first.head

    @stored
    async def test_many_are_counted(self, records: Records) -> None:
        """Those that were there, each once; any iterable will do."""
        keys = [(await start(records, f"session {number}")).key for number in range(30)]
        assert await records.delete(key for key in [*keys[:20], keys[0], new_head("unknown").key]) == 20
        assert await records.delete([]) == 0
        assert len(await records.heads("tenant")) == 10
        assert await records.delete(keys) == 10

    def test_scrubbed_files_contain_no_deleted_data(self, place: Place) -> None:
        """After scrubbing, no file has an item, an event, a blob or a note of the session; others stay."""
        secrets = {name: noise(300, f"{name} {place.url} {id(place)}") for name in ("item", "event", "blob", "note")}

        async def scenario() -> None:
            async with place.opened() as records:
                other = await start(records, "other", rows=50)
                head = await start(records, rows=50)
                hash = digest("secret")
                written = StoredEvent(1, "compacted", 1, 1.0, secrets["event"])
                blobs = {hash: secrets["blob"]}
                await extend(records, head, [row(51, item=secrets["item"], blobs=[hash])], [written], blobs=blobs)
                await records.note("tenant", head.key, {"secret": secrets["note"]})
                assert len(await records.notes("tenant", ["secret"])) == 1
                before = await everything(records, other.key)
                if place.files():
                    # A server whose disk is slow may write a little later than it answers.
                    deadline = time.monotonic() + 60
                    while missing := [name for name, secret in secrets.items() if not place.holds(secret)]:
                        assert time.monotonic() < deadline, missing
                        await asyncio.sleep(0.05)
                assert await records.delete([head.key]) == 1
                await records.scrub()
                assert [name for name, secret in secrets.items() if place.holds(secret)] == []
                assert await everything(records, other.key) == before
                await extend(records, other, plain(other, 1))

        asyncio.run(scenario())

    def test_scrubbing_is_repeatable(self, place: Place) -> None:
        """An empty place can be scrubbed, and one that two scrub at once."""

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                await one.scrub()
                head = await start(one)
                await asyncio.gather(*(way.scrub() for way in (one, two)))
                assert await two.head(head.key) == head

        asyncio.run(scenario())

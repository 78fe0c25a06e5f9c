"""Notes of every store: found by name within a tenant, first value kept, deleted with their session."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import msgspec
import pytest
from tests.contract.backends import STORES, Place, stored
from tests.contract.builders import batch, everything, new_head, noise, plain, start
from tests.contract.test_tenants import STRANGE

from kompakt.errors import Conflict, UsageError
from kompakt.session.store import Store
from kompakt.store.records import Records

KEY = new_head().key
OTHER = new_head("other").key

RACER = """
import asyncio, sys
from kompakt.store import open_records

async def main(url, who):
    records = await open_records(url)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(50):
        await records.note("tenant", who, {f"{number} {letter}": who.encode() for letter in "abc"})
    await records.close()

asyncio.run(main(*sys.argv[1:]))
"""


class TestNames:
    @stored
    async def test_notes_are_read_back(self, records: Records) -> None:
        """Values are returned byte for byte, also empty and large ones, even before their session exists."""
        notes = {"a": b"", "b": b"\0\xff", "c" * 200: noise(3 << 20)}
        await records.note("tenant", KEY, notes)
        assert await records.notes("tenant", [*notes, "d", "a"]) == notes
        assert await records.notes("tenant", ["b", "d"]) == {"b": b"\0\xff"}
        assert await records.notes("tenant", []) == await records.notes("tenant", {"A", "a ", "", "%"}) == {}
        assert await records.head(KEY) is None
        assert await records.heads("tenant") == []

    @stored
    async def test_notes_of_a_batch(self, records: Records) -> None:
        """They are written with the batch or not at all, keep their first value, and are deleted with the session."""
        await records.note("tenant", OTHER, {"a": b"first"}, synced=False)
        head = new_head()
        written = msgspec.structs.replace(
            batch(head, plain(head, 1)), notes={"a": b"second", "b": b"\0\xff"}, synced=False
        )
        assert await records.commit(written, seen=None)
        assert not await records.commit(msgspec.structs.replace(written, notes={"c": b""}), seen=None)
        refused = msgspec.structs.replace(batch(head, plain(head, 2)), notes={"d": b""})
        with pytest.raises(Conflict):
            await records.commit(refused, seen=None)
        with pytest.raises(UsageError, match="use at most"):
            await records.commit(msgspec.structs.replace(refused, notes={"x" * 201: b""}), seen=written.head)
        assert await records.notes("tenant", "abcd") == {"a": b"first", "b": b"\0\xff"}
        assert await records.delete([head.key]) == 1
        assert await records.notes("tenant", "abcd") == {"a": b"first"}

    @stored
    async def test_the_first_value_stays(self, records: Records) -> None:
        """An existing name keeps its value, and the other names of the call are written."""
        await records.note("tenant", KEY, {"a": b"first", "b": b"first"})
        await records.note("tenant", KEY, {"a": b"second", "c": b"second"})
        await records.note("tenant", OTHER, {"b": b"third", "c": b"third", "d": b"third"})
        await records.note("tenant", KEY, {})
        found = await records.notes("tenant", "abcd")
        assert found == {"a": b"first", "b": b"first", "c": b"second", "d": b"third"}

    @stored
    async def test_any_name(self, records: Records) -> None:
        """A name of any characters is one name."""
        notes = {name: b"%d" % number for number, name in enumerate(STRANGE) if len(name) <= 200}
        await records.note("tenant", KEY, notes)
        assert await records.notes("tenant", STRANGE) == notes
        await records.delete([KEY])
        assert await records.notes("tenant", STRANGE) == {}

    @stored
    async def test_a_name_that_is_too_long(self, records: Records) -> None:
        """The call is rejected, and nothing of it is written."""
        with pytest.raises(UsageError, match="200 characters"):
            await records.note("tenant", KEY, {"a": b"a", "x" * 201: b"x"})
        assert await records.notes("tenant", ["a", "x" * 201]) == {}

    @stored
    async def test_thousands_of_names(self, records: Records) -> None:
        """In one call or in many, asked for together with as many that never were."""
        notes = {f"{number:064d}": b"%d" % number for number in range(3000)}
        await records.note("tenant", KEY, notes)
        asked = [*notes, *(f"{number:064d}" for number in range(50_000, 60_000))]
        assert await records.notes("tenant", asked) == notes
        assert await records.notes("tenant", set(asked[2990:3100])) == dict(list(notes.items())[2990:])

    def test_notes_survive_reopening(self, place: Place) -> None:
        """Acknowledged notes are visible to every handle, at once and later; closing twice is allowed."""

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                assert await two.notes("tenant", ["a"]) == {}
                await one.note("tenant", KEY, {"a": b"a"})
                assert await two.notes("tenant", ["a"]) == {"a": b"a"}
                await two.close()
            async with place.opened() as records:
                await records.note("tenant", OTHER, {"a": b"b"})
                assert await records.notes("tenant", ["a"]) == {"a": b"a"}

        asyncio.run(scenario())


class TestRaces:
    def test_the_first_of_many_tasks_wins(self, place: Place) -> None:
        """Whoever reads a name finds one value, and never another afterwards."""
        names = [f"name {number}" for number in range(10)]

        async def work(records: Records, number: int) -> dict[str, bytes]:
            mine = sorted(names, reverse=bool(number % 3))
            await records.note("tenant", new_head(f"{number}").key, dict.fromkeys(mine, b"%d" % number))
            return await records.notes("tenant", names)

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                found = await asyncio.gather(*(work((one, two)[number % 2], number) for number in range(24)))
                assert found == [await one.notes("tenant", names)] * 24
                assert set(found[0]) == set(names) and len(set(found[0].values())) == 1

        asyncio.run(scenario())

    @pytest.mark.parametrize("place", [name for name in STORES if name != "memory"], indirect=True)
    def test_the_first_of_two_processes_wins(self, place: Place) -> None:
        """Each call is atomic: its three names have one value and belong to one session."""
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        keys = [new_head("one").key, new_head("two").key]
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, place.url, key],
                env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for key in keys
        ]  # fmt: skip
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            racer.communicate(timeout=60)
        assert [racer.returncode for racer in racers] == [0, 0]

        async def scenario() -> None:
            names = [f"{number} {letter}" for number in range(50) for letter in "abc"]
            async with place.opened() as records:
                found = await records.notes("tenant", names)
                assert list(found) and set(found) == set(names)
                for number in range(50):
                    assert len({found[f"{number} {letter}"] for letter in "abc"}) == 1
                await records.delete([keys[0]])
                left = {name: value for name, value in found.items() if value == keys[1].encode()}
                assert await records.notes("tenant", names) == left

        asyncio.run(scenario())

    def test_concurrent_notes_and_deletions(self, place: Place) -> None:
        """No deadlock in any order of names; afterwards a name can be written again."""
        names = [f"name {number}" for number in range(30)]

        async def work(records: Records, number: int) -> None:
            keys = [new_head(f"{at}").key for at in range(4)]
            for turn in range(5):
                some = names[:: 1 if number % 2 else -1][number % 7 : number % 7 + 20]
                await records.note("tenant", keys[(number + turn) % 4], dict.fromkeys(some, b"x"))
                await records.delete(keys[:: 1 if turn % 2 else -1][: number % 3 + 2])

        async def scenario() -> None:
            async with place.opened() as one, place.opened() as two:
                workers = [work((one, two)[number % 2], number) for number in range(8)]
                await asyncio.wait_for(asyncio.gather(*workers), 60)
                await one.delete([new_head(f"{at}").key for at in range(4)])
                assert await two.notes("tenant", names) == {}
                await two.note("tenant", KEY, {"name 1": b"anew"})
                assert await one.notes("tenant", names) == {"name 1": b"anew"}

        asyncio.run(scenario())


class TestDeletion:
    @stored
    async def test_notes_are_deleted_with_their_session(self, records: Records) -> None:
        """The notes first written for the session are deleted, whether or not it exists; their names are free again."""
        head = await start(records)
        await records.note("tenant", head.key, {"a": b"1", "b": b"1"})
        await records.note("tenant", OTHER, {"b": b"2", "c": b"2"})
        assert await records.delete([head.key]) == 1
        assert await records.notes("tenant", "abc") == {"c": b"2"}
        assert await records.delete([OTHER]) == 0
        assert await records.notes("tenant", "abc") == {}
        await records.note("tenant", OTHER, {"a": b"3"})
        await records.delete([head.key])
        assert await records.notes("tenant", "abc") == {"a": b"3"}

    @stored
    async def test_tenants_share_nothing(self, records: Records) -> None:
        """The same name in two tenants is two notes, for tenants of any characters."""
        for number, tenant in enumerate(STRANGE):
            await records.note(tenant, new_head("same", tenant).key, {"name": b"%d" % number})
        for number, tenant in enumerate(STRANGE):
            assert await records.notes(tenant, ["name"]) == {"name": b"%d" % number}
        assert await records.notes("tenant", ["name"]) == {}
        await records.delete([new_head("same", STRANGE[0]).key])
        await records.forget(STRANGE[1])
        left = [tenant for tenant in STRANGE if await records.notes(tenant, ["name"])]
        assert left == STRANGE[2:]

    @stored
    async def test_forgetting_a_tenant(self, records: Records) -> None:
        """All notes of the tenant are deleted, with or without a session. Its sessions stay and can get new ones."""
        head = await start(records)
        await records.note("tenant", head.key, {"a": b"1"})
        await records.note("tenant", OTHER, {"b": b"2"})
        await records.note("tenan", OTHER, {"b": b"3"})
        before = await everything(records, head.key)
        await records.forget("tenant")
        await records.forget("unknown")
        assert await records.notes("tenant", "ab") == {}
        assert await records.notes("tenan", "ab") == {"b": b"3"}
        assert await everything(records, head.key) == before
        await records.note("tenant", head.key, {"a": b"4", "b": b"4"})
        assert await records.delete([head.key]) == 1
        assert await records.notes("tenant", "ab") == {}
        await records.delete([OTHER])
        assert await records.notes("tenan", "ab") == {}

    @stored
    async def test_purging_a_tenant(self, records: Records) -> None:
        """No note of the tenant is left, not even of a session that never existed. Other tenants keep theirs."""
        for tenant in ("one", "two"):
            head = await start(records, "started", tenant)
            await records.note(tenant, head.key, {"a": b"a"})
            await records.note(tenant, new_head("never", tenant).key, {"b": b"b"})
        assert await Store(records, tenant="one").purge() == 1
        assert await records.notes("one", "ab") == {}
        assert await records.notes("two", "ab") == {"a": b"a", "b": b"b"}
        assert await Store(records, tenant="two").delete("never") is False
        assert await records.notes("two", "ab") == {"a": b"a"}

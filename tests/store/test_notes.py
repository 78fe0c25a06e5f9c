"""Notes of single stores: shared connections, lost servers, damaged data."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from statistics import median

import asyncpg
import pytest
from tests.contract import postgres
from tests.contract.builders import new_head, noise, start
from tests.contract.redis import Server, command, on, server
from tests.store.sql.test_postgres import opened

from kompakt.errors import StoreDamaged, StoreUnavailable
from kompakt.store.redis.records import RedisRecords
from kompakt.store.sql.postgres import READERS
from kompakt.store.sql.sqlite import open_sqlite

KEY = new_head().key


class TestSqlite:
    def test_a_busy_file_does_not_stop_the_loop(self, tmp_path: Path) -> None:
        """While the file is locked a reader waits without blocking others, and then gets its answer."""

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            await records.note("tenant", KEY, {"a": b"a"})
            await records.close()
            alone = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
            alone.execute("PRAGMA locking_mode=EXCLUSIVE")
            alone.execute("BEGIN EXCLUSIVE")
            reading = asyncio.create_task(records.notes("tenant", ["a"]))
            pauses: list[float] = []
            for _ in range(20):
                since = time.perf_counter()
                await asyncio.sleep(0.01)
                pauses.append(time.perf_counter() - since)
            assert not reading.done()
            assert median(pauses) < 1
            alone.close()
            assert await asyncio.wait_for(reading, 120) == {"a": b"a"}
            assert await records.notes("tenant", ["a"]) == {"a": b"a"}
            await records.close()

        asyncio.run(scenario())

    def test_a_damaged_note(self, tmp_path: Path) -> None:
        """It is named, what is in it is not quoted, and others can be read."""

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            await records.note("tenant", KEY, {"a": b"a", "b": b"b"})
            with sqlite3.connect(tmp_path / "sessions.db") as connection:
                connection.execute("UPDATE kompakt_notes SET data = 'sesame' WHERE name = CAST('a' AS BLOB)")
            connection.close()
            with pytest.raises(StoreDamaged, match="note 'a' is damaged") as caught:
                await records.notes("tenant", ["a", "b"])
            assert "sesame" not in str(caught.value)
            assert await records.notes("tenant", ["b"]) == {"b": b"b"}
            await records.close()

        asyncio.run(scenario())

    def test_a_destroyed_file(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            path = tmp_path / "sessions.db"
            records = await open_sqlite(path)
            await records.note("tenant", KEY, {"a": b"a"})
            await records.close()
            path.write_bytes(noise(len(path.read_bytes())))
            with pytest.raises(StoreDamaged, match="is not a SQLite database"):
                await records.notes("tenant", ["a"])
            with pytest.raises(StoreDamaged, match="is not a SQLite database"):
                await records.note("tenant", KEY, {"b": b"b"})
            await records.close()

        asyncio.run(scenario())

    def test_reading_thousands_lets_others_work(self, tmp_path: Path) -> None:
        """After a start the gateway asks for all of a session at once."""

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            await records.note("tenant", KEY, {f"{number:064d}": noise(1000) for number in range(2000)})
            assert len(await records.notes("tenant", [f"{number:064d}" for number in (0, 7, 5000)])) == 2
            reading = asyncio.create_task(records.notes("tenant", [f"{number:064d}" for number in range(2000)]))
            turns = 0
            while not reading.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 10 and len(reading.result()) == 2000
            await records.close()

        asyncio.run(scenario())


class TestPostgres:
    def test_a_stopped_server(self) -> None:
        """A restart is not noticed. A missing server is reported, and used again when it is back."""

        async def scenario() -> None:
            async with opened(postgres.database()) as [records]:
                await records.note("tenant", KEY, {"a": b"a"})
                assert await records.notes("tenant", ["a"]) == {"a": b"a"}
                postgres.restart("immediate")
                assert await records.notes("tenant", ["a"]) == {"a": b"a"}
                postgres.stop()
                try:
                    for _ in range(2):
                        with pytest.raises(StoreUnavailable):
                            await records.notes("tenant", ["a"])
                        with pytest.raises(StoreUnavailable):
                            await records.note("tenant", KEY, {"b": b"b"})
                finally:
                    postgres.start()
                assert await records.notes("tenant", ["a", "b"]) == {"a": b"a"}

        asyncio.run(scenario())

    def test_many_readers_and_cancelled_ones(self) -> None:
        """A call waits for a free connection; the answer of a cancelled call never reaches the next; few are opened."""
        notes = {f"{number}": noise(5000, number) for number in range(40)}
        counting = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kompakt' AND datname = current_database()"
        )

        async def scenario(url: str) -> None:
            async with opened(url) as [records]:
                await records.note("tenant", KEY, notes)
                for round in range(15):
                    tasks = [asyncio.create_task(records.notes("tenant", [name])) for name in notes]
                    await asyncio.sleep(0.0005 * round)
                    for task in tasks[::2]:
                        task.cancel()
                    done = await asyncio.gather(*tasks, return_exceptions=True)
                    for (name, value), found in zip(notes.items(), done, strict=True):
                        assert found == {name: value} or isinstance(found, asyncio.CancelledError)
                    assert not any(isinstance(found, BaseException) for found in done[1::2])
                assert await records.notes("tenant", list(notes)) == notes
                watcher = await asyncpg.connect(url)
                deadline = time.monotonic() + 60
                while await watcher.fetchval(counting) > READERS + 1:  # a dropped one ends a little later
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
                await watcher.close()

        asyncio.run(scenario(postgres.database()))


class TestRedis:
    def test_no_keys_remain(self) -> None:
        """Deleting and forgetting leave no key; no key contains the name of a tenant."""
        with Server() as alone:

            async def scenario(records: RedisRecords) -> None:
                head = await start(records)
                await records.note("tenant", head.key, {"a": b"a", "}:note:{x}:": b"b"})
                await records.note("another", head.key, {"a": b"a"})
                await records.note("another", new_head("never").key, {"b": b"b"})
                names = command(alone.url, "KEYS", "*")
                assert len([name for name in names if b":note:" in name]) == 4
                assert not any(b"tenant" in name or b"another" in name for name in names)
                assert await records.delete([head.key]) == 1
                await records.forget("another")
                assert command(alone.url, "KEYS", "*") == [b"kompakt:schema"]

            on(alone.url, scenario)

    @pytest.mark.parametrize("part", ["notes", "noted"])
    def test_a_key_of_another_type(self, part: str) -> None:
        """Damage is reported as damage, and nothing of the call is written."""
        url = server()

        async def scenario(records: RedisRecords) -> None:
            key = f"{records._tenant('tenant')}noted" if part == "noted" else records._own(KEY, part)
            command(url, "SET", key, "x")
            with pytest.raises(StoreDamaged):
                await records.note("tenant", KEY, {"a": b"a"})
            assert await records.notes("tenant", ["a"]) == {}
            with pytest.raises(StoreDamaged):
                await (records.forget("tenant") if part == "noted" else records.delete([KEY]))
            command(url, "DEL", key)
            await records.note("tenant", KEY, {"a": b"a"})

        on(url, scenario)

    def test_no_memory(self) -> None:
        """Notes that find no room are refused whole; those that are there can be read, and deleting makes room."""
        with Server() as small:

            async def scenario(records: RedisRecords) -> None:
                await records.note("tenant", KEY, {"a": b"a"})
                command(small.url, "CONFIG", "SET", "maxmemory", "1")
                with pytest.raises(StoreUnavailable, match="out of memory"):
                    await records.note("tenant", KEY, {"b": b"b", "c": b"c"})
                assert await records.notes("tenant", "abc") == {"a": b"a"}
                await records.delete([KEY])
                assert await records.notes("tenant", "abc") == {}

            on(small.url, scenario)

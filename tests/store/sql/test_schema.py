"""Migrations up and down keep the stored data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.contract import postgres
from tests.contract.builders import digest, event, everything, extend, new_head, row, start

from kompakt.errors import StoreDamaged, StoreVersion, UsageError
from kompakt.store import open_records
from kompakt.store.sql import schema
from kompakt.store.sql.records import SqlRecords
from kompakt.store.sql.schema import NEWEST, Migration, migrate, version_of

KEY = new_head().key


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sessions.db'}" if request.param == "sqlite" else postgres.database()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlRecords]:
    records = await open_records(url)
    assert isinstance(records, SqlRecords)
    try:
        yield records
    finally:
        await records.close()


async def version(records: SqlRecords) -> int:
    async with records.engine.connect() as connection:
        return await version_of(connection)


async def filled(records: SqlRecords) -> tuple[object, ...]:
    """Write something into every table."""
    head = await start(records)
    rows = [row(number, words=f"red fox{number}", blobs=[digest("x")]) for number in range(3, 1500)]
    await extend(records, head, rows, [event(1)], blobs={digest("x"): b"x"})
    assert await records.acquire(KEY, "compact", lease=100)
    return await everything(records, KEY, [digest("x")])


class TestMigrations:
    def test_back_and_forward(self, url: str) -> None:
        """Stored data survives both migrations, and the index, which is built from the words, finds it."""

        async def scenario() -> None:
            async with opened(url) as records:
                before = await filled(records)
                for _ in range(2):
                    await migrate(records.engine, 1)
                    assert await version(records) == 1
                    assert await everything(records, KEY, [digest("x")]) == before
                    await migrate(records.engine)
                    assert await version(records) == NEWEST
                assert await everything(records, KEY, [digest("x")]) == before
                assert await records.search(KEY, ["fox1499"], limit=9) == [1499]
                assert len(await records.search(KEY, ["red"], limit=5000) or []) == 1497
                assert await records.acquire(KEY, "compact", lease=1) is None
                head = await records.head(KEY)
                assert head is not None
                await extend(records, head, [row(1500, words="late badger")])
                assert await records.search(KEY, ["badger"], limit=9) == [1500]
                assert await records.delete([KEY]) == 1
                assert await records.search(KEY, ["red"], limit=9) == []

        asyncio.run(scenario())

    def test_opening_an_older_store(self, url: str) -> None:
        async def scenario() -> None:
            async with opened(url) as records:
                before = await filled(records)
                await migrate(records.engine, 1)
            async with opened(url) as records:
                assert await version(records) == NEWEST
                assert await everything(records, KEY, [digest("x")]) == before
                assert await records.search(KEY, ["fox3"], limit=9) == [3]

        asyncio.run(scenario())

    def test_back_to_an_empty_database(self, url: str) -> None:
        """Tables are dropped only when no session is in them."""

        async def scenario() -> None:
            async with opened(url) as records:
                head = await start(records)
                with pytest.raises(UsageError, match="the store has 1 sessions"):
                    await migrate(records.engine, 0)
                assert await version(records) == NEWEST
                assert await records.head(KEY) == head
                await records.delete([KEY])
                await migrate(records.engine, 0)
                assert await version(records) == 0
            async with opened(url) as records:
                await start(records)

        asyncio.run(scenario())

    def test_a_failing_migration_changes_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            async with opened(url) as records:
                before = await filled(records)
                monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, Migration(fail, fail)))
                monkeypatch.setattr(schema, "NEWEST", NEWEST + 1)
                with pytest.raises(ZeroDivisionError):
                    await migrate(records.engine)
                assert await version(records) == NEWEST
                assert await everything(records, KEY, [digest("x")]) == before

        async def fail(connection: AsyncConnection) -> None:
            await connection.execute(text("DELETE FROM kompakt_rows"))
            await connection.execute(text("DROP TABLE kompakt_events"))
            raise ZeroDivisionError

        asyncio.run(scenario())


class TestNotes:
    def test_a_store_without_notes_is_migrated(self, url: str) -> None:
        """A store of version 2 keeps all it has, and takes notes from now on."""

        async def scenario() -> None:
            async with opened(url) as records:
                before = await filled(records)
                await migrate(records.engine, 2)
                with pytest.raises(StoreDamaged, match="a table of the store is missing"):
                    await records.notes("tenant", ["a"])
            async with opened(url) as records:
                assert await version(records) == NEWEST
                assert await everything(records, KEY, [digest("x")]) == before
                await records.note("tenant", KEY, {"a": b"a"})
                assert await records.notes("tenant", ["a", "b"]) == {"a": b"a"}
                assert await records.delete([KEY]) == 1
                assert await records.notes("tenant", ["a", "b"]) == {}

        asyncio.run(scenario())

    def test_notes_are_not_dropped(self, url: str) -> None:
        """There is a way back only when no note is left."""

        async def scenario() -> None:
            async with opened(url) as records:
                await records.note("tenant", KEY, {"a": b"a"})
                with pytest.raises(UsageError, match="the store has 1 notes"):
                    await migrate(records.engine, 2)
                assert await version(records) == NEWEST
                assert await records.notes("tenant", ["a"]) == {"a": b"a"}
                await records.forget("tenant")
                await migrate(records.engine, 2)
                assert await version(records) == 2

        asyncio.run(scenario())


class TestVersions:
    def test_a_newer_store_is_not_changed(self, url: str) -> None:
        async def scenario() -> None:
            async with opened(url) as records:
                await start(records)
                async with records.engine.begin() as connection:
                    await connection.execute(text("UPDATE kompakt_schema SET version = 71"))
            with pytest.raises(StoreVersion, match=rf"version 71 .* up to {NEWEST}; install the newer kompakt"):
                await open_records(url)

        asyncio.run(scenario())

    @pytest.mark.parametrize("wrong", [-1, NEWEST + 1])
    def test_no_such_version(self, url: str, wrong: int) -> None:
        async def scenario() -> None:
            async with opened(url) as records:
                with pytest.raises(UsageError, match=f"no schema version {wrong}"):
                    await migrate(records.engine, wrong)

        asyncio.run(scenario())

    def test_many_open_at_once(self, url: str) -> None:
        """One of them makes the tables; all of them work."""

        async def scenario() -> None:
            stores = await asyncio.gather(*(open_records(url) for _ in range(8)))
            for number, records in enumerate(stores):
                await start(records, f"session {number}")
            assert len(await stores[0].heads("tenant")) == 8
            for records in stores:
                await records.close()

        asyncio.run(scenario())

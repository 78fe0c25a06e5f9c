"""The stores that the contract suite runs against."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Records

STORES = ("memory", "sqlite", "postgres", "redis")
INDEXED = {"sqlite", "postgres"}
"""Stores with a word index."""


class Place:
    """A store of one kind; opening it twice gives two connections to the same sessions."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.memory = MemoryRecords()
        self.url = self._url()

    def _url(self) -> str:
        if self.name == "sqlite":
            return f"sqlite:///{self.directory / 'sessions.db'}"
        if self.name == "postgres":
            from tests.contract.postgres import database

            return database()
        if self.name == "redis":
            from tests.contract.redis import server

            return server()
        return "memory:"

    async def open(self) -> Records:
        """Open the place; the caller closes it."""
        if self.name == "sqlite":
            from kompakt.store.sql.sqlite import open_sqlite

            return await open_sqlite(self.url)
        if self.name == "postgres":
            from kompakt.store.sql.postgres import open_postgres

            return await open_postgres(self.url)
        if self.name == "redis":
            from kompakt.store.redis.records import open_redis

            return await open_redis(self.url)
        return self.memory

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Records]:
        """Open the place and close it."""
        records = await self.open()
        try:
            yield records
        finally:
            await records.close()

    def files(self) -> list[Path]:
        """List the files of the place that a test can read."""
        if self.name == "sqlite":
            return [path for path in self.directory.rglob("*") if path.is_file()]
        if self.name == "redis":
            from tests.contract.redis import shared

            return shared().files()
        return []

    def holds(self, secret: bytes) -> bool:
        """Return whether the files contain some bytes."""
        return any(secret in content(path) for path in self.files())


def content(path: Path) -> bytes:
    """Read a file of a running server, which may have removed it by now."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def stored(scenario: Callable[[Any, Records], Awaitable[None]]) -> Callable[[Any, Place], None]:
    """Make a test of a coroutine method: it is run on every place, with the records there."""

    def test(self: Any, place: Place) -> None:
        async def run() -> None:
            async with place.opened() as records:
                await scenario(self, records)

        asyncio.run(run())

    test.__doc__ = scenario.__doc__
    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    return test


async def set_pragma(records: Any, setting: str) -> None:
    """Change a setting of the connection with which a store in SQLite writes."""
    connection = await records._writer.connection()
    await connection.call(lambda opened: opened.execute(f"PRAGMA {setting}"))

"""Notes read from PostgreSQL in one round trip: connections of their own, spoken to by the driver itself.

The pool asks a connection whether it is alive before each use, and every statement passes through layers that a lookup
by name does not need; that is most of its time. Here a connection is used as it is. When it turns out to be gone, the
long way is taken, which opens another and says what it met; no more is lost than the attempt, since nothing is written.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

READERS = 4
"""Connections at most: who finds none free waits for one."""

_READ = "SELECT name, data FROM kompakt_notes WHERE tenant = $1 AND name = ANY($2::bytea[])"


class NoteReaders:
    """Connections that only read notes, each opened when it is first needed."""

    def __init__(self, engine: AsyncEngine, patience: float) -> None:
        self._engine = engine
        self._patience = patience
        self._free = asyncio.Semaphore(READERS)
        self._idle: list[tuple[AsyncConnection, Any]] = []

    async def read(self, tenant: bytes, names: list[bytes]) -> list[tuple[bytes, Any]] | None:
        """Return names and values of those that exist; ``None`` when the server could not be asked.

        Raises:
            TimeoutError: it did not answer.
        """
        async with self._free:
            try:
                return await self._read(tenant, names)
            except TimeoutError:
                raise
            except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                return None

    async def _read(self, tenant: bytes, names: list[bytes]) -> list[tuple[bytes, Any]]:
        connection, driver = self._idle.pop() if self._idle else await self._connected()
        try:
            found = await driver.fetch(_READ, tenant, names, timeout=self._patience)
        except BaseException:
            await _drop(connection)
            raise
        self._idle.append((connection, driver))
        return [(name, data) for name, data in found]

    async def _connected(self) -> tuple[AsyncConnection, Any]:
        connection = await self._engine.connect()
        return connection, (await connection.get_raw_connection()).driver_connection

    async def close(self) -> None:
        """Let go of the connections; the next reading opens one again."""
        while self._idle:
            await _drop(self._idle.pop()[0])


async def _drop(connection: AsyncConnection) -> None:
    await connection.invalidate()
    await connection.close()

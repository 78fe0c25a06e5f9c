"""Sessions in PostgreSQL, for services on several hosts.

Writers of different sessions do not wait for each other, with one exception: blobs are shared by a tenant, so a session
is not deleted while another session of the tenant writes blobs. After a server restart the next call reconnects.

A lock has two parts, because each covers a failure that the other does not:

- An advisory lock of the server, held on one connection per store. If the process dies, the server notices the closed
  connection and the advisory lock is free at once, without waiting for a lease.
- A row with a lease by the server's clock and the fence number. A process that hangs keeps its connection and its
  advisory lock, so only the lease ends its lock. ``guarded`` says whether the holder of the row has the advisory lock.

A caller that gets the advisory lock may take a guarded row at once, because its holder is gone. Otherwise it may take
the row when the lease has ended. Both increase the fence number, so a commit of the former holder is refused.

Advisory locks belong to a connection. A proxy that uses another connection for each transaction (PgBouncer in
transaction mode) cannot be used.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from kompakt.errors import Conflict, StoreDamaged, StoreError, UsageError
from kompakt.store.records import Fence, StoredRow
from kompakt.version import install_command

try:
    import asyncpg
    import greenlet
    from sqlalchemy import select, text
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
    from sqlalchemy.pool import NullPool

    from kompakt.store.sql.records import SqlRecords, refused
    from kompakt.store.sql.schema import HEADS, NAMES, as_bytes, cleaned, index_names, indexed, migrate
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a store in PostgreSQL needs {missing.name}, which is not installed: {install_command('postgres')}"
    ) from missing

NEEDS = (greenlet,)
"""Imported here so that a missing package is reported before anything is opened."""

CONNECTIONS = 10
"""Concurrent transactions of one store. One more connection holds its locks, and a few read notes."""

PATIENCE = 30.0
"""Seconds that a call waits for a connection or an answer."""

READERS = 4
"""Connections for notes; a reader that finds none free waits."""

_Value = TypeVar("_Value")

_READ_NOTES = "SELECT name, data FROM kompakt_notes WHERE tenant = $1 AND name = ANY($2::bytea[])"
_NOW = "extract(epoch FROM clock_timestamp())"
# A commit holds a share lock on the lock's row until it ends. Both statements read the clock after waiting for that:
# ON CONFLICT computes its SET once it has the row, and the renewal locks the row in ``held`` first.
_ACQUIRE = text(
    "INSERT INTO kompakt_locks AS l (key, name, fence, expires, guarded)"
    f" VALUES (:key, :name, CAST({_NOW} * 1000 AS bigint), {_NOW} + CAST(:lease AS float8), :guarded)"
    " ON CONFLICT (key, name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence),"
    f" expires = {_NOW} + CAST(:lease AS float8), guarded = excluded.guarded"
    f" WHERE l.expires <= {_NOW} OR (l.guarded AND CAST(:free AS boolean)) RETURNING fence"
)
_RENEW = text(
    "WITH held AS (SELECT key, name FROM kompakt_locks"
    f" WHERE key = :key AND name = :name AND fence = :fence AND expires > {_NOW} FOR UPDATE)"
    f" UPDATE kompakt_locks AS l SET expires = {_NOW} + CAST(:lease AS float8), guarded = :guarded"
    " FROM held WHERE l.key = held.key AND l.name = held.name"
)
_RELEASE = text("UPDATE kompakt_locks SET expires = 0 WHERE key = :key AND name = :name AND fence = :fence")
_UNSYNCED = text("SET LOCAL synchronous_commit TO OFF")
_TRY = text("SELECT pg_try_advisory_lock(:first, :second)")
_UNLOCK = text("SELECT pg_advisory_unlock(:first, :second)")
_SHARE = text("SELECT pg_advisory_xact_lock_shared(:first, :second)")
_ALONE = text("SELECT pg_advisory_xact_lock(:first, :second)")
_WORDS = text(
    "INSERT INTO kompakt_words (key, seq, text, names)"
    " VALUES (:key, :seq, :text, to_tsvector('simple', CAST(:names AS text)))"
)
_SEARCH = text(
    "SELECT seq FROM kompakt_words, to_tsquery('simple', CAST(:query AS text)) AS asked"
    " WHERE names @@ asked AND key = :key ORDER BY ts_rank(names, asked) DESC, seq DESC LIMIT :limit"
)

_REASONS = {
    "08": "the connection was lost; repeat the call, nothing is written twice",
    "28": "the server refused the user or password",
    "3D": "there is no such database; create it first",
    "42501": "this user lacks a privilege; allow it to create and change tables",
    "25006": "is read-only; use the primary server",
    "53100": "the server's disk is full, nothing of this call was written; free some space and retry",
    "53": "the server has no connections or memory left; retry",
    "57": "the server is stopping or starting; retry",
    "40": "was changed by a concurrent transaction; retry",
}


class PostgresRecords(SqlRecords):
    """Records in a PostgreSQL database."""

    _errors = (SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

    def __init__(self, engine: AsyncEngine, single: AsyncEngine, place: str) -> None:
        super().__init__(engine, place)
        self._single = single
        self._locks = _Locks(single)
        self._readers = _NoteReaders(single, PATIENCE)

    @asynccontextmanager
    async def _connection(self, *, write: bool) -> AsyncGenerator[AsyncConnection]:
        if write:
            async with self.engine.begin() as connection:
                yield connection
            return
        async with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection

    async def _write(
        self, work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]], *, synced: bool = True
    ) -> _Value:
        async with self._using(write=True) as connection:
            if not synced:
                await connection.execute(_UNSYNCED)
            return await work(connection)

    def _translate_error(self, error: BaseException) -> StoreError:
        place, state = self.place, _state(error)
        if state.startswith("XX0") and state != "XX000":
            return StoreDamaged(f"{place}: the server reports damaged files; restore them from a backup")
        if state == "42P01":
            return StoreDamaged(f"{place}: a table of the store is missing; restore it from a backup")
        if state.startswith("23"):
            return Conflict(f"{place}: a row, event or reference of this batch exists already; nothing was written")
        for begin in (state, state[:2]):
            if begin in _REASONS:
                return refused(place, _REASONS[begin])
        if state:
            return refused(place, f"the server refused a statement (SQLSTATE {state}); see its log")
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return refused(place, f"cannot be reached ({type(error).__name__}); check the URL and that the server runs")
        return refused(place, f"did not answer, or closed the connection ({type(error).__name__}); retry")

    async def close(self) -> None:
        async with self.translate_errors():
            await self._locks.close()
            await self._readers.close()
        await self._single.dispose()
        await super().close()

    async def _write_words(self, connection: AsyncConnection, key: str, rows: list[StoredRow]) -> None:
        words = [indexed("postgresql", key, row.seq, row.words) | {"text": cleaned(row.words)} for row in rows]
        await connection.execute(_WORDS, words)

    async def _forget_words(self, connection: AsyncConnection, keys: list[str]) -> None:
        """Nothing to do: the index is a column of the words."""

    async def _found(self, connection: AsyncConnection, key: str, words: str, limit: int) -> list[int]:
        names = dict.fromkeys(index_names(key, words))
        if not names:
            return []
        query = {"query": " | ".join(names), "key": key, "limit": limit}
        return list((await connection.execute(_SEARCH, query)).scalars())

    async def _keep_blobs(self, connection: AsyncConnection, tenants: list[bytes], *, alone: bool) -> None:
        for tenant in tenants:
            await connection.execute(_ALONE if alone else _SHARE, _numbers(b"blobs", tenant))

    async def _lock_heads(self, connection: AsyncConnection, keys: list[str]) -> list[bytes]:
        of = select(HEADS.c.tenant).where(HEADS.c.key.in_(keys)).order_by(HEADS.c.key).with_for_update()
        return list((await connection.execute(of)).scalars())

    async def _quick_notes(self, tenant: bytes, names: list[bytes]) -> Sequence[tuple[bytes, Any]] | None:
        async with self.translate_errors():
            return await self._readers.read(tenant, names)

    async def scrub(self) -> None:
        """Rewrite the tables one by one; writers wait.

        The server's write-ahead log contains deleted data until its files are reused. Replicas and backups are not
        rewritten.
        """
        async with self.translate_errors(), self._single.connect() as connection:
            for name in NAMES:
                await connection.execute(text(f"VACUUM FULL {name}"))
            try:
                await connection.execute(text("CHECKPOINT"))
            except DBAPIError as error:
                if _state(error.orig) != "42501":
                    raise

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        async with self.translate_errors():
            return await self._locks.acquire(key, name, lease)

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        async with self.translate_errors():
            return await self._locks.renew(key, fence, lease)

    async def release(self, key: str, fence: Fence) -> None:
        async with self.translate_errors():
            await self._locks.release(key, fence)


class _NoteReaders:
    """Connections that only read notes, used through the driver itself; each is opened on first use.

    The pool checks a connection before each use, and SQLAlchemy adds layers that a lookup by name does not need. Both
    take most of the time of such a lookup. If one of these connections is gone, ``read`` returns ``None`` and the
    caller uses the pool, which reconnects and reports errors. Nothing is lost, because notes are only read here.
    """

    def __init__(self, engine: AsyncEngine, patience: float) -> None:
        self._engine = engine
        self._patience = patience
        self._free = asyncio.Semaphore(READERS)
        self._idle: list[tuple[AsyncConnection, Any]] = []

    async def read(self, tenant: bytes, names: list[bytes]) -> list[tuple[bytes, Any]] | None:
        """Return the existing names with their values; ``None`` if the query failed.

        Raises:
            TimeoutError: the server did not answer.
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
        async with AsyncExitStack() as unfinished:
            unfinished.push_async_callback(_drop, connection)
            found = await driver.fetch(_READ_NOTES, tenant, names, timeout=self._patience)
            unfinished.pop_all()
        self._idle.append((connection, driver))
        return [(name, data) for name, data in found]

    async def _connected(self) -> tuple[AsyncConnection, Any]:
        connection = await self._engine.connect()
        return connection, (await connection.get_raw_connection()).driver_connection

    async def close(self) -> None:
        """Close the connections; the next read opens one again."""
        while self._idle:
            await _drop(self._idle.pop()[0])


async def _drop(connection: AsyncConnection) -> None:
    await connection.invalidate()
    await connection.close()


class _Locks:
    """The locks of one store, on one connection; see the module."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._open: AsyncConnection | None = None
        self._held: dict[tuple[str, str], int] = {}
        """Fence number of each lock whose advisory lock this connection holds."""
        self._turn = asyncio.Lock()

    async def acquire(self, key: str, name: str, lease: float) -> Fence | None:
        async with self._connected() as connection:
            mine = (key, name) in self._held
            free = not mine and await self._try(connection, key, name)
            values = {"key": key, "name": name, "lease": lease, "free": free, "guarded": free or mine}
            number = (await connection.execute(_ACQUIRE, values)).scalar()
            if number is None:
                if free:
                    await connection.execute(_UNLOCK, _lock(key, name))
                return None
            if free or mine:
                self._held[key, name] = number
            return Fence(name, number)

    async def renew(self, key: str, fence: Fence, lease: float) -> bool:
        """Renew the row. If the advisory lock was lost with a connection and is free, take it again."""
        async with self._connected() as connection:
            place = (key, fence.name)
            if place not in self._held and await self._try(connection, *place):
                self._held[place] = fence.number
            guarded = self._held.get(place) == fence.number
            values = {"key": key, "name": fence.name, "fence": fence.number, "lease": lease, "guarded": guarded}
            if (await connection.execute(_RENEW, values)).rowcount == 1:
                return True
            await self._unlock(connection, key, fence)
            return False

    async def release(self, key: str, fence: Fence) -> None:
        async with self._connected() as connection:
            await connection.execute(_RELEASE, {"key": key, "name": fence.name, "fence": fence.number})
            await self._unlock(connection, key, fence)

    async def close(self) -> None:
        async with self._turn:
            await self._drop()

    async def _unlock(self, connection: AsyncConnection, key: str, fence: Fence) -> None:
        if self._held.get((key, fence.name)) == fence.number:
            await connection.execute(_UNLOCK, _lock(key, fence.name))
            del self._held[key, fence.name]

    async def _try(self, connection: AsyncConnection, key: str, name: str) -> bool:
        return bool((await connection.execute(_TRY, _lock(key, name))).scalar())

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[AsyncConnection]:
        """Use the connection. After any error it is dropped, and the server frees its advisory locks."""
        async with self._turn, AsyncExitStack() as unfinished:
            unfinished.push_async_callback(self._drop)
            yield await self._alive()
            unfinished.pop_all()

    async def _alive(self) -> AsyncConnection:
        if self._open is not None:
            try:
                await self._open.execute(text("SELECT 1"))
            except (DBAPIError, OSError):
                await self._drop()
        if self._open is None:
            self._open = await self._engine.connect()
        return self._open

    async def _drop(self) -> None:
        self._held.clear()
        connection, self._open = self._open, None
        if connection is not None:
            await connection.invalidate()
            await connection.close()


async def open_postgres(url: str) -> SqlRecords:
    """Open a database: ``postgresql://user:pw@host:port/db`` or ``postgresql:///db?host=/socket/dir``.

    Raises:
        StoreUnavailable: the server cannot be reached, or refused the user.
        StoreVersion: a newer kompakt wrote the tables.
    """
    parsed = _parsed(url)
    place = f"postgresql://{parsed.host or parsed.query.get('host', '')}/{parsed.database or ''}"
    settings: dict[str, Any] = {"timeout": PATIENCE, "server_settings": {"application_name": "kompakt"}}
    engine = create_async_engine(
        parsed, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=PATIENCE, pool_pre_ping=True,
        hide_parameters=True, connect_args=settings | {"command_timeout": PATIENCE},
    )  # fmt: skip
    single = create_async_engine(
        parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT", hide_parameters=True, connect_args=settings
    )
    records = PostgresRecords(engine, single, place)
    async with AsyncExitStack() as unfinished:
        unfinished.push_async_callback(records.close)
        async with records.translate_errors():
            await migrate(engine)
        unfinished.pop_all()
    return records


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError("not a PostgreSQL URL; use postgresql://user:password@host:port/database") from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise UsageError(f"{parsed.get_backend_name()!r} is not PostgreSQL; use a URL that starts with postgresql://")
    query = {("ssl" if name == "sslmode" else name): value for name, value in parsed.query.items()}
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def _lock(key: str, name: str) -> dict[str, int]:
    return _numbers(as_bytes(key), as_bytes(name))


def _numbers(*parts: bytes) -> dict[str, int]:
    """Return the two integers that identify an advisory lock: a hash of its parts."""
    hasher = hashlib.blake2b(digest_size=8, person=b"kompakt lock")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    digest = hasher.digest()
    return {
        "first": int.from_bytes(digest[:4], "big", signed=True),
        "second": int.from_bytes(digest[4:], "big", signed=True),
    }


def _state(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")

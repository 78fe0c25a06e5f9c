"""Sessions in one SQLite file: no server, many processes at once, safe if a process is killed at any moment.

The file is in WAL mode, so readers never wait. A commit is synced unless its batch says otherwise, and a synced commit
survives a failure of the machine, together with all commits before it. Locks are not synced: their holders do not
survive such a failure either.

There is one writer at a time. Tasks of a process queue for an asyncio lock, in order, and only the first begins a
transaction, with ``BEGIN IMMEDIATE``: a transaction that starts as a reader and is upgraded later can fail half-way.
Writers wait up to ``patience`` seconds for other processes. Deleted data is overwritten with zeros.

A connection is a thread, and handing a statement to a thread costs more than most statements. So the frequent calls
avoid it: ``_Writer`` runs a whole transaction in one call of its thread, and ``_QuickReader`` reads without a thread.
Four connections of a pool serve all other calls.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar, cast

from kompakt.errors import Conflict, StoreDamaged, StoreError, StoreUnavailable, UsageError
from kompakt.store.records import Fence, Head, StoredRow
from kompakt.version import install_command

try:
    import aiosqlite
    import greenlet
    from sqlalchemy import ClauseElement, Connection, Executable, event, insert, select, text
    from sqlalchemy.dialects.sqlite import dialect
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
    from sqlalchemy.pool import AsyncAdaptedQueuePool

    from kompakt.store.sql.records import SqlRecords, refused
    from kompakt.store.sql.schema import (
        CHUNK,
        HEADS,
        INDEX_ROWS,
        WORDS,
        WRITE,
        cleaned,
        index_names,
        indexed,
        migrate,
        storable,
    )
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a store in SQLite needs {missing.name}, a dependency of kompakt itself; install it with: {install_command()}"
    ) from missing

NEEDS = (greenlet,)
"""Imported here so that a missing package is reported before anything is opened."""

_Value = TypeVar("_Value")

BARE = "kompakt_bare"
"""Execution option of a connection without transactions: each statement is its own."""

CONNECTIONS = 4

_FEW_NAMES = 50
"""Names that are looked up without a pause."""

_FULL, _BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _CANTOPEN, _NOTADB, _CONSTRAINT = 13, 5, 6, 8, 10, 11, 14, 26, 19

_REASONS = {
    _FULL: "the disk is full, nothing of this call was written; free some space and retry",
    _BUSY: "other processes kept it locked for too long; retry",
    _LOCKED: "other processes kept it locked for too long; retry",
    _READONLY: "is read-only; check the permissions of the file and of its directory",
    _IOERR: "the disk reported an I/O error; check the disk and its free space",
    _CANTOPEN: "cannot be opened; check that the directory exists and is writable",
}

_DIALECT = dialect(paramstyle="named")

_HEAD = f"SELECT {', '.join(Head.__struct_fields__)} FROM kompakt_heads WHERE key = ? AND key IN ({{marks}})"
_NAMED = "SELECT name, seq FROM kompakt_rows WHERE key = ? AND name IN ({marks})"
_NOTES = "SELECT name, data FROM kompakt_notes WHERE tenant = ? AND name IN ({marks})"

_ACQUIRE = text(
    "INSERT INTO kompakt_locks (key, name, fence, expires, guarded) VALUES (:key, :name, :first, :until, 0)"
    " ON CONFLICT (key, name) DO UPDATE SET fence = max(fence + 1, excluded.fence), expires = excluded.expires"
    " RETURNING fence"
)
_RENEW = text("UPDATE kompakt_locks SET expires = :until WHERE key = :key AND name = :name AND fence = :fence")
_HELD = text("SELECT fence, expires FROM kompakt_locks WHERE key = :key AND name = :name AND expires > 0")
_HELD_NOW = "SELECT fence, expires FROM kompakt_locks WHERE key = ? AND name IN ({marks}) AND expires > 0"
_MAX_LEASES = 10_000
"""Maximum number of observed leases; a dropped one is observed again."""
_SEARCH = text(
    "SELECT w.seq FROM kompakt_index JOIN kompakt_words AS w ON w.id = kompakt_index.rowid"
    " WHERE kompakt_index MATCH :query AND w.key = :key ORDER BY rank, w.seq DESC LIMIT :limit"
)
_WORDS_PAGE = text(
    "SELECT id, seq, text FROM kompakt_words WHERE key = :key AND seq > :after ORDER BY seq LIMIT :limit"
)
_ADD_WORDS = insert(WORDS)
_UNINDEX = text("INSERT INTO kompakt_index (kompakt_index, rowid, names) VALUES ('delete', :id, :names)")


class _Cursor(aiosqlite.Cursor):
    """A cursor that switches to the connection's thread once per statement; the driver's own switches four times.

    It overrides private members of aiosqlite, so its version is pinned: 0.21 or 0.22.
    """

    _rows: list[Any]
    _running = False
    """Stays true after a statement was cancelled, because only its thread knows when it ends."""

    async def __aenter__(self) -> _Cursor:
        return self

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Wrap the call so that the driver, which logs what it runs, does not log the arguments."""
        return await super()._execute(lambda: fn(*args, **kwargs))

    async def execute(self, sql: str, parameters: Any = ()) -> _Cursor:
        self._running = True
        await self._execute(self._execute_all, sql, parameters)
        self._running = False
        return self

    def _execute_all(self, sql: str, parameters: Any) -> None:
        try:
            self._rows = self._cursor.execute(sql, parameters).fetchall()
        except sqlite3.Error:
            self._running = False
            raise

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def executemany(self, sql: str, parameters: Any) -> _Cursor:
        self._running = True
        await super().executemany(sql, parameters)
        self._running = False
        return self

    async def close(self) -> None:
        if not self._running:
            self._cursor.close()


class _Connection(aiosqlite.Connection):
    """A connection with kompakt's settings, which begins no transactions by itself.

    It is rolled back before it is closed. SQLite keeps a closed connection and its transaction alive while one of its
    statements is referenced, and the exception of a cancelled call references one.
    """

    def __init__(self, path: Path, patience: float) -> None:
        def connect() -> sqlite3.Connection:
            opened = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
            for setting in ("synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY"):
                opened.execute(f"PRAGMA {setting}")
            # One damaged text must not fail the whole query.
            opened.text_factory = lambda data: data.decode("utf-8", "replace")
            return opened

        super().__init__(connect, iter_chunk_size=64)
        self._worker: Thread = getattr(self, "_thread", self)  # type: ignore[assignment]  # itself in aiosqlite 0.21
        self._worker.daemon = True

    def cursor(self) -> Any:
        return _Cursor(self, self._conn.cursor())

    async def call(self, work: Callable[[sqlite3.Connection], _Value]) -> _Value:
        """Call ``work`` on the thread of the connection."""
        return await self._execute(lambda: work(self._conn))

    async def close(self) -> None:
        try:
            if self._running and self._connection is not None:
                with suppress(sqlite3.Error):
                    await self._execute(self._connection.rollback)
        finally:
            await super().close()

    def stop(self) -> asyncio.Future[Any] | None:
        """Close the connection without waiting. Only aiosqlite 0.22 calls it."""
        if self._running and self._connection is not None:
            self._tx.put_nowait((None, self._connection.rollback))
        return super().stop()

    async def ended(self) -> None:
        """Wait for the thread of a connection that failed to open; it still reports to this event loop."""
        await asyncio.to_thread(self._worker.join)


async def _opened(path: Path, patience: float) -> _Connection:
    """Open a connection."""
    connection = _Connection(path, patience)
    async with AsyncExitStack() as unfinished:
        unfinished.push_async_callback(connection.ended)
        await connection
        unfinished.pop_all()
    return connection


class _QuickReader:
    """A connection that reads a few small rows, without the pool and without a thread; opened on first use.

    Handing a call to a connection's thread and back takes milliseconds while the event loop is busy, because the thread
    waits for the interpreter. Three notes take SQLite about 20 microseconds, so they are read on the event loop. The
    connection never waits: in WAL mode a reader does not wait for writers. If the file is busy all the same (exclusive
    lock, recovery after a crash) or anything else fails, ``read`` returns ``None`` and the caller uses the pool, which
    waits and reports errors. Many names are read in steps so that other tasks can run between them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None

    async def read(self, query: str, of: str | bytes, names: Sequence[str | bytes]) -> list[tuple[Any, ...]] | None:
        """Return the rows of a query for these names; ``None`` if the file is busy or the query fails.

        The query has a parameter for ``of`` and ``{marks}`` in place of the parameters for the names.
        """
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(names), _FEW_NAMES):
            if start:
                await asyncio.sleep(0)
            few = names[start : start + _FEW_NAMES]
            try:
                found += self._connection().execute(query.format(marks=",".join("?" * len(few))), (of, *few)).fetchall()
            except sqlite3.Error:
                self.close()
                return None
        return found

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            self._open.execute("PRAGMA query_only=ON")
        return self._open

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()


class _Result(NamedTuple):
    """What ``SqlRecords`` uses of the result of a write."""

    rowcount: int
    row: tuple[Any, ...] | None

    def first(self) -> tuple[Any, ...] | None:
        return self.row

    def scalar(self) -> Any:
        return None if self.row is None else self.row[0]


class _Transaction:
    """What ``SqlRecords`` uses of a connection to write, on the thread of the connection: nothing here waits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def execute(self, statement: Executable, values: dict[str, Any] | list[dict[str, Any]]) -> _Result:
        several = values if isinstance(values, list) else [values]
        sql = _compiled(statement, tuple(several[0]))
        if len(several) > 1:
            return _Result(self._connection.executemany(sql, several).rowcount, None)
        cursor = self._connection.execute(sql, several[0])
        rows = cursor.fetchall()
        return _Result(cursor.rowcount, rows[0] if rows else None)


@lru_cache(100)
def _compiled(statement: Executable, columns: tuple[str, ...]) -> str:
    return str(cast("ClauseElement", statement).compile(dialect=_DIALECT, column_keys=columns))


class _Writer:
    """A connection that writes a whole transaction in one call of its thread; opened on first use."""

    def __init__(self, path: Path, patience: float) -> None:
        self._path, self._patience = path, patience
        self._open: _Connection | None = None
        self._is_synced = True

    async def run(
        self, work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]], *, synced: bool = True
    ) -> _Value:
        """Run ``work`` in a transaction. It is not interrupted if the caller is cancelled."""
        return await (await self.connection()).call(partial(self._transact, work, synced))

    def _transact(
        self,
        work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]],
        synced: bool,
        connection: sqlite3.Connection,
    ) -> _Value:
        if synced != self._is_synced:
            connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
            self._is_synced = synced
        return _transact(work, connection)

    async def connection(self) -> _Connection:
        """Return the connection; called by one task at a time."""
        if self._open is None:
            self._open, self._is_synced = await _opened(self._path, self._patience), True
        return self._open

    async def close(self) -> None:
        """Close the connection after the transactions that are running."""
        connection, self._open = self._open, None
        if connection is not None:
            await connection.close()


def _transact(work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]], connection: sqlite3.Connection) -> _Value:
    connection.execute("BEGIN IMMEDIATE")
    try:
        running = work(cast("AsyncConnection", _Transaction(connection)))
        try:
            running.send(None)
        except StopIteration as done:
            connection.execute("COMMIT")
            return done.value
        running.close()
        raise RuntimeError("a write waited for something other than its connection")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class SqliteRecords(SqlRecords):
    """Records in a SQLite file."""

    _errors = (*SqlRecords._errors, sqlite3.Error, UnicodeDecodeError)
    """``UnicodeDecodeError`` occurs if SQLite's message quotes a damaged schema."""

    def __init__(self, engine: AsyncEngine, path: Path, patience: float) -> None:
        super().__init__(engine, f"sqlite:///{path}")
        self._patience = patience
        self._reader = _QuickReader(path)
        self._writer = _Writer(path, patience)
        self._turn = asyncio.Lock()
        self._leases = _Leases()

    @asynccontextmanager
    async def _connection(self, *, write: bool) -> AsyncGenerator[AsyncConnection]:
        if not write:
            async with self.engine.execution_options(**{BARE: True}).connect() as connection:
                yield connection
            return
        async with self._turn, self.engine.execution_options(**{WRITE: True}).begin() as connection:
            yield connection

    async def close(self) -> None:
        self._reader.close()
        await self._writer.close()
        await super().close()

    async def _write(
        self, work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]], *, synced: bool = True
    ) -> _Value:
        async with self.translate_errors(), self._turn:
            return await self._writer.run(work, synced=synced)

    async def head(self, key: str) -> Head | None:
        found = await self._reader.read(_HEAD, key, [key]) if storable([key]) else []
        if found is None:
            return await super().head(key)
        return self._head(dict(zip(Head.__struct_fields__, found[0], strict=True))) if found else None

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        found = await self._reader.read(_NAMED, key, storable(names))
        return await super().named(key, names) if found is None else dict(found)

    async def _quick_notes(self, tenant: bytes, names: list[bytes]) -> Sequence[tuple[bytes, Any]] | None:
        return cast("list[tuple[bytes, Any]] | None", await self._reader.read(_NOTES, tenant, names))

    def _translate_error(self, error: BaseException) -> StoreError:
        place, code = self.place, getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (_CORRUPT, _NOTADB) or isinstance(error, UnicodeDecodeError):
            what = "is not a SQLite database" if code == _NOTADB else "is damaged"
            return StoreDamaged(f"{place}: the file {what}; restore it from a backup or name another")
        if code == _CONSTRAINT:
            return Conflict(f"{place}: a row, event or reference of this batch exists already; nothing was written")
        if code in _REASONS:
            return refused(place, _REASONS[code])
        if "no such" in str(error):
            return StoreDamaged(f"{place}: a table of the store is missing, or SQLite was built without FTS5")
        return refused(place, f"SQLite refused a statement ({type(error).__name__})")

    async def _write_words(self, connection: AsyncConnection, key: str, rows: list[StoredRow]) -> None:
        words = [{"key": key, "seq": row.seq, "text": cleaned(row.words)} for row in rows]
        await connection.execute(_ADD_WORDS, words)
        await connection.execute(INDEX_ROWS["sqlite"], [indexed("sqlite", key, row.seq, row.words) for row in rows])

    async def _forget_words(self, connection: AsyncConnection, keys: list[str]) -> None:
        for key in keys:
            after = 0
            while page := (await connection.execute(_WORDS_PAGE, {"key": key, "after": after, "limit": CHUNK})).all():
                gone = [{"id": row.id, "names": " ".join(index_names(key, row.text))} for row in page]
                await connection.execute(_UNINDEX, gone)
                after = page[-1].seq

    async def _found(self, connection: AsyncConnection, key: str, words: str, limit: int) -> list[int]:
        names = dict.fromkeys(index_names(key, words))
        if not names:
            return []
        query = {"query": " OR ".join(names), "key": key, "limit": limit}
        return list((await connection.execute(_SEARCH, query)).scalars())

    async def _keep_blobs(self, connection: AsyncConnection, tenants: list[bytes], *, alone: bool) -> None:
        """Nothing to do: there is one writer."""

    async def _lock_heads(self, connection: AsyncConnection, keys: list[str]) -> list[bytes]:
        return list((await connection.execute(select(HEADS.c.tenant).where(HEADS.c.key.in_(keys)))).scalars())

    async def scrub(self) -> None:
        """Rewrite the file from what is still in it, and empty the log beside it."""
        async with self._turn, self._using() as connection:
            await connection.execute(text("INSERT INTO kompakt_index (kompakt_index) VALUES ('optimize')"))
            await connection.execute(text("VACUUM"))
            until = time.monotonic() + self._patience
            while (await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))).one()[0]:
                if time.monotonic() > until:
                    raise refused(
                        self.place, "is being read, so its write-ahead log cannot be truncated; scrub it again later"
                    )
                await asyncio.sleep(0.05)

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        """Try to take a lock; all callers of one lock name use the same lease.

        The fence number starts with the time in milliseconds, so it grows even if the row was deleted with its session.
        """
        if await self._is_held(key, name, lease):
            return None

        async def take(connection: AsyncConnection) -> Fence | None:
            if await self._holder(connection, key, name, lease) is not None:
                return None
            now = time.time()  # inside the transaction, so that waiting for other writers does not use up the lease
            values = {"key": key, "name": name, "until": now + lease, "first": int(now * 1000)}
            number = cast("int", (await connection.execute(_ACQUIRE, values)).scalar())
            self._leases.note(key, name, number, now + lease, lease)
            return Fence(name, number)

        return await self._write(take, synced=False)

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        async def extend(connection: AsyncConnection) -> bool:
            if await self._holder(connection, key, fence.name, lease) != fence.number:
                return False
            until = time.time() + lease
            await connection.execute(_RENEW, {"key": key, "name": fence.name, "fence": fence.number, "until": until})
            self._leases.note(key, fence.name, fence.number, until, lease)
            return True

        return await self._write(extend, synced=False)

    async def release(self, key: str, fence: Fence) -> None:
        values = {"key": key, "name": fence.name, "fence": fence.number, "until": 0.0}
        await self._write(lambda connection: _executed(connection, _RENEW, values), synced=False)

    async def _is_held(self, key: str, name: str, lease: float) -> bool:
        """Return whether a lock is held, without a transaction; false if that cannot be read now."""
        found = await self._reader.read(_HELD_NOW, key, [name]) if storable([key, name]) else []
        return bool(found) and not self._leases.has_ended(key, name, found[0][0], found[0][1], lease)

    async def _holder(self, connection: AsyncConnection, key: str, name: str, lease: float) -> int | None:
        """Return the fence number of a held lock."""
        row = (await connection.execute(_HELD, {"key": key, "name": name})).first()
        if row is None or self._leases.has_ended(key, name, row[0], row[1], lease):
            return None
        return row[0]


async def _executed(connection: AsyncConnection, statement: Executable, values: dict[str, Any]) -> None:
    await connection.execute(statement, values)


class _Leases:
    """Decides when leases end, by the monotonic clock.

    A lock row contains its end in wall-clock time, which can be set forward or back. Therefore wall-clock time is used
    only once per state of a row: when this store writes the row or first reads it. From then on the monotonic clock
    counts, for at most the length of a lease. A living holder renews its row, which is a new state.
    """

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], tuple[int, float, float]] = {}
        """Fence number and stored end of each lock, and its end by the monotonic clock."""

    def note(self, key: str, name: str, fence: int, stated: float, left: float) -> None:
        """Remember a state of a lock and the seconds that remain."""
        if len(self._ends) >= _MAX_LEASES:
            self._ends.pop(next(iter(self._ends)))
        self._ends[key, name] = fence, stated, time.monotonic() + left

    def has_ended(self, key: str, name: str, fence: int, stated: float, lease: float) -> bool:
        """Return whether the lease of a lock in this state has ended."""
        known = self._ends.get((key, name))
        if known is None or known[:2] != (fence, stated):
            self.note(key, name, fence, stated, min(max(stated - time.time(), 0.0), lease))
        return time.monotonic() >= self._ends[key, name][2]


async def open_sqlite(path_or_url: str | Path, *, patience: float = 30.0) -> SqlRecords:
    """Open a SQLite file, ``sqlite:///relative.db`` or ``sqlite:////absolute.db``; it is created if missing.

    ``patience`` is how many seconds to wait for other processes that write.

    Raises:
        StoreUnavailable: the file cannot be opened or created.
        StoreDamaged: it is not a database.
        StoreVersion: a newer kompakt wrote it.
    """
    path = _path(path_or_url)
    place = f"sqlite:///{path}"
    if path.is_dir():
        raise refused(place, "is a directory; name a file in it")
    if not path.parent.is_dir():
        raise refused(place, f"there is no directory {str(path.parent)!r}; create it first")
    _create_private(path)

    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)), async_creator=partial(_opened, path, patience),
        poolclass=AsyncAdaptedQueuePool, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=patience,
        hide_parameters=True,
    )  # fmt: skip
    event.listen(engine.sync_engine, "begin", _begin)
    records = SqliteRecords(engine, path, patience)
    async with AsyncExitStack() as unfinished:
        unfinished.push_async_callback(records.close)
        await _ready(records)
        unfinished.pop_all()
    return records


def _create_private(path: Path) -> None:
    """Create the file readable by its owner only; SQLite uses the same mode for the ``-wal`` and ``-shm`` files."""
    with suppress(OSError):  # it exists and keeps its mode, or SQLite reports why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


async def _ready(records: SqliteRecords) -> None:
    """Switch the file to WAL mode, which is persistent, and migrate its tables."""
    async with records.translate_errors():
        async with records.engine.execution_options(**{BARE: True}).connect() as connection:
            if (await connection.execute(text("PRAGMA journal_mode"))).scalar() != "wal":
                await _enable_wal(connection)
        await migrate(records.engine)


async def _enable_wal(connection: AsyncConnection) -> None:
    """Switch to WAL mode. SQLite does not wait for other connections here, so this retries."""
    for _ in range(100):
        try:
            if (await connection.execute(text("PRAGMA journal_mode=WAL"))).scalar() == "wal":
                return
        except DBAPIError as error:
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in (_BUSY, _LOCKED):
                raise
        await asyncio.sleep(0.05)
    raise StoreUnavailable("the file cannot be switched to WAL mode; move it from a network disk to a local one")


def _path(path_or_url: str | Path) -> Path:
    given = str(path_or_url)
    if given.startswith("sqlite:"):
        if not given.startswith("sqlite:///"):
            raise UsageError(f"{given!r} is not a SQLite URL; use sqlite:///relative.db or sqlite:////absolute.db")
        given = given.removeprefix("sqlite:///")
    if given in ("", ":memory:"):
        raise UsageError("a SQLite store needs a file; use memory: for a store without one")
    return Path(given)


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(BARE):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITE) else "BEGIN")

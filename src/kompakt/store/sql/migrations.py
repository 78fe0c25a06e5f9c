"""The schema of a SQL store, step by step, each with its way back.

A store knows its version. Opening one that is older brings it forward in one transaction, under a lock, so two
processes that open it at once find it done; one that is newer than this kompakt is refused and left as it is. Steps are
never edited once released: a change is a new step.

1   the tables; the words for recall are kept as they were given
2   the full-text index, built from those words
3   notes
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from kompakt.errors import StoreDamaged, StoreVersion, UsageError
from kompakt.store.sql.tables import index_names

WRITE = "kompakt_write"
"""The option of a connection that is going to write; SQLite then waits for its turn when the transaction begins."""

MAX_NAMES = 20_000
"""Words of one row that PostgreSQL's index takes with all their repetitions; of more, each word once."""

MAX_DIFFERENT = 25_000
"""Different words of one row that PostgreSQL's index takes at most: it refuses more than a megabyte."""

_MIGRATING = 0x6B6F6D70
"""The advisory lock on PostgreSQL under which a schema changes."""

_PAGE = 1_000

_TYPES = {
    "sqlite": {"bytes": "BLOB", "int": "INTEGER", "float": "REAL", "key": "TEXT", "id": "id INTEGER PRIMARY KEY,"},
    "postgresql": {"bytes": "BYTEA", "int": "BIGINT", "float": "DOUBLE PRECISION", "key": 'TEXT COLLATE "C"', "id": ""},
}  # fmt: skip

_TABLES = """
CREATE TABLE kompakt_heads (key {key} PRIMARY KEY, tenant {bytes} NOT NULL, id {bytes} NOT NULL, format TEXT NOT NULL,
 envelope {bytes} NOT NULL, created {float} NOT NULL, rows {int} NOT NULL, events {int} NOT NULL, tip {int} NOT NULL,
 turn {int} NOT NULL, chain {bytes} NOT NULL, messages {int} NOT NULL,
 touched {float} NOT NULL);
CREATE INDEX kompakt_heads_tenant ON kompakt_heads (tenant, key);
CREATE TABLE kompakt_rows (key {key} NOT NULL, seq {int} NOT NULL, turn {int} NOT NULL, kind TEXT NOT NULL,
 name TEXT NOT NULL, chain {bytes} NOT NULL, content {bytes} NOT NULL, item {bytes} NOT NULL, note {bytes} NOT NULL,
 blobs TEXT NOT NULL, PRIMARY KEY (key, seq), UNIQUE (key, name));
CREATE INDEX kompakt_rows_turn ON kompakt_rows (key, turn);
CREATE TABLE kompakt_events (key {key} NOT NULL, number {int} NOT NULL, kind TEXT NOT NULL, tip {int} NOT NULL,
 at {float} NOT NULL, data {bytes} NOT NULL, blobs TEXT NOT NULL, PRIMARY KEY (key, number));
CREATE TABLE kompakt_batches (key {key} NOT NULL, id TEXT NOT NULL, PRIMARY KEY (key, id));
CREATE TABLE kompakt_blobs (tenant {bytes} NOT NULL, hash TEXT NOT NULL, data {bytes} NOT NULL,
 PRIMARY KEY (tenant, hash));
CREATE TABLE kompakt_uses (key {key} NOT NULL, hash TEXT NOT NULL, tenant {bytes} NOT NULL, PRIMARY KEY (key, hash));
CREATE INDEX kompakt_uses_hash ON kompakt_uses (tenant, hash);
CREATE TABLE kompakt_words ({id} key {key} NOT NULL, seq {int} NOT NULL, text TEXT NOT NULL, UNIQUE (key, seq));
CREATE TABLE kompakt_locks (key {key} NOT NULL, name TEXT NOT NULL, fence {int} NOT NULL, expires {float} NOT NULL,
 guarded BOOLEAN NOT NULL, PRIMARY KEY (key, name));
"""

_NOTES = """
CREATE TABLE kompakt_notes (tenant {bytes} NOT NULL, name {bytes} NOT NULL, key {key} NOT NULL, data {bytes} NOT NULL,
 PRIMARY KEY (tenant, name));
CREATE INDEX kompakt_notes_key ON kompakt_notes (key);
"""

INDEX_ROWS = {
    "sqlite": text(
        "INSERT INTO kompakt_index (rowid, names) SELECT id, :names FROM kompakt_words WHERE key = :key AND seq = :seq"
    ),
    "postgresql": text(
        "UPDATE kompakt_words SET names = to_tsvector('simple', CAST(:names AS text)) WHERE key = :key AND seq = :seq"
    ),
}
"""How the words of a row get into the index."""


def indexed(dialect: str, key: str, seq: int, words: str) -> dict[str, Any]:
    """Return what ``INDEX_ROWS`` binds for a row."""
    names = index_names(key, words)
    if dialect == "postgresql" and len(names) > MAX_NAMES:
        names = list(dict.fromkeys(names))[:MAX_DIFFERENT]
    return {"key": key, "seq": seq, "names": " ".join(names)}


async def _create(connection: AsyncConnection, tables: str) -> None:
    for statement in tables.format(**_TYPES[connection.dialect.name]).split(";\n"):
        if statement.strip():
            await connection.execute(text(statement))


async def _create_tables(connection: AsyncConnection) -> None:
    await _create(connection, _TABLES)


async def _drop_tables(connection: AsyncConnection) -> None:
    kept = (await connection.execute(text("SELECT count(*) FROM kompakt_heads"))).scalar_one()
    if kept:
        raise UsageError(f"the store still holds {kept} sessions; export and delete them before its tables are dropped")
    for name in re.findall(r"CREATE TABLE (\w+)", _TABLES):
        await connection.execute(text(f"DROP TABLE {name}"))


async def _create_index(connection: AsyncConnection) -> None:
    dialect = connection.dialect.name
    if dialect == "sqlite":
        await connection.execute(text("CREATE VIRTUAL TABLE kompakt_index USING fts5(names, content='')"))
    else:
        await connection.execute(text("ALTER TABLE kompakt_words ADD COLUMN names TSVECTOR"))
    last: tuple[str, int] = ("", 0)
    page = text(
        "SELECT key, seq, text FROM kompakt_words WHERE (key, seq) > (:key, :seq) ORDER BY key, seq LIMIT :limit"
    )
    while found := (await connection.execute(page, {"key": last[0], "seq": last[1], "limit": _PAGE})).all():
        await connection.execute(INDEX_ROWS[dialect], [indexed(dialect, *row) for row in found])
        last = (found[-1].key, found[-1].seq)
    if dialect == "postgresql":
        await connection.execute(text("CREATE INDEX kompakt_words_names ON kompakt_words USING gin (names)"))


async def _drop_index(connection: AsyncConnection) -> None:
    if connection.dialect.name == "sqlite":
        await connection.execute(text("DROP TABLE kompakt_index"))
    else:
        await connection.execute(text("ALTER TABLE kompakt_words DROP COLUMN names"))


async def _create_notes(connection: AsyncConnection) -> None:
    await _create(connection, _NOTES)


async def _drop_notes(connection: AsyncConnection) -> None:
    kept = (await connection.execute(text("SELECT count(*) FROM kompakt_notes"))).scalar_one()
    if kept:
        raise UsageError(f"the store still holds {kept} notes; delete their sessions before the table is dropped")
    await connection.execute(text("DROP TABLE kompakt_notes"))


class Migration(msgspec.Struct, frozen=True):
    """One change of the schema and its way back."""

    up: Callable[[AsyncConnection], Awaitable[None]]
    down: Callable[[AsyncConnection], Awaitable[None]]


STEPS = (
    Migration(_create_tables, _drop_tables),
    Migration(_create_index, _drop_index),
    Migration(_create_notes, _drop_notes),
)
"""What leads from each version to the next, from an empty database on."""

NEWEST = len(STEPS)


async def version_of(connection: AsyncConnection) -> int:
    """Return the version of the schema; 0 for a database that holds nothing of kompakt's."""
    listed = {
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kompakt_schema'",
        "postgresql": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('kompakt_schema')",
    }
    if not (await connection.execute(text(listed[connection.dialect.name]))).scalar_one():
        return 0
    found = (await connection.execute(text("SELECT version FROM kompakt_schema"))).scalars().all()
    if len(found) != 1 or not isinstance(found[0], int) or found[0] < 0:
        raise StoreDamaged("the store does not say which version it is: kompakt_schema should hold one number")
    return found[0]


async def migrate(engine: AsyncEngine, to: int | None = None) -> None:
    """Bring the schema to a version, forward or back, in one transaction; to the newest unless told.

    Raises:
        StoreVersion: the store is newer than this kompakt.
        UsageError: there is no such version, or going back to it would drop sessions or notes.
    """
    goal = NEWEST if to is None else to
    if not 0 <= goal <= NEWEST:
        raise UsageError(f"there is no version {goal} of the schema; this kompakt knows 0 to {NEWEST}")
    async with engine.connect() as connection:
        if await _known(connection) == goal:
            return
    async with engine.execution_options(**{WRITE: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
        now = await _known(connection)
        if now == 0:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS kompakt_schema (version INTEGER NOT NULL)"))
            await connection.execute(text("DELETE FROM kompakt_schema"))
            await connection.execute(text("INSERT INTO kompakt_schema (version) VALUES (0)"))
        for step in STEPS[now:goal]:
            await step.up(connection)
        for step in reversed(STEPS[goal:now]):
            await step.down(connection)
        await connection.execute(text("UPDATE kompakt_schema SET version = :version"), {"version": goal})


async def _known(connection: AsyncConnection) -> int:
    now = await version_of(connection)
    if now > NEWEST:
        raise StoreVersion(
            f"the store's schema is version {now} and this kompakt knows versions up to {NEWEST}; "
            "install a newer kompakt, which wrote it"
        )
    return now

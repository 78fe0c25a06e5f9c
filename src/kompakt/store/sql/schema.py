"""The schema of a SQL store: its tables, the terms of its full-text index, and its migrations.

Session ids, tenants and names of notes are stored as bytes, because they may contain what text columns reject: zero
characters and lone surrogates. All other text is written by kompakt. Values in a query that no column could hold are
dropped, since they cannot match.

A word is indexed as a term made from the session key and a hash of the word. A search therefore reads only entries of
its own session, however many sessions there are, and no query text can be parsed as an operator. The key comes first in
a term, so that the entries of one session are adjacent in the index.

A store has a schema version. Opening an older store migrates it in one transaction under a lock, so two processes can
open it at the same time. A store that is newer than this kompakt is refused and not changed. Released migrations are
never edited; a change is a new migration.

1   the tables, including the words for recall
2   the full-text index, built from those words
3   notes
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Double, LargeBinary, MetaData, Table, Text, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from kompakt.errors import StoreDamaged, StoreVersion, UsageError

CHUNK = 500
"""Maximum number of values bound to one statement; databases allow a few thousand."""

LARGEST = 2**63 - 1
"""The largest integer that a column holds."""

_WORD = re.compile(r"[^\W_]+")

_metadata = MetaData()

HEADS = Table(
    "kompakt_heads", _metadata,
    Column("key", Text, primary_key=True), Column("tenant", LargeBinary), Column("id", LargeBinary),
    Column("format", Text), Column("envelope", LargeBinary), Column("created", Double), Column("rows", BigInteger),
    Column("events", BigInteger), Column("tip", BigInteger), Column("turn", BigInteger), Column("chain", LargeBinary),
    Column("messages", BigInteger), Column("touched", Double),
)  # fmt: skip
ROWS = Table(
    "kompakt_rows", _metadata,
    Column("key", Text, primary_key=True), Column("seq", BigInteger, primary_key=True), Column("turn", BigInteger),
    Column("kind", Text), Column("name", Text), Column("chain", LargeBinary), Column("content", LargeBinary),
    Column("item", LargeBinary), Column("note", LargeBinary), Column("blobs", Text),
)  # fmt: skip
EVENTS = Table(
    "kompakt_events", _metadata,
    Column("key", Text, primary_key=True), Column("number", BigInteger, primary_key=True), Column("kind", Text),
    Column("tip", BigInteger), Column("at", Double), Column("data", LargeBinary), Column("blobs", Text),
)  # fmt: skip
BATCHES = Table(
    "kompakt_batches", _metadata, Column("key", Text, primary_key=True), Column("id", Text, primary_key=True)
)
BLOBS = Table(
    "kompakt_blobs", _metadata,
    Column("tenant", LargeBinary, primary_key=True), Column("hash", Text, primary_key=True),
    Column("data", LargeBinary),
)  # fmt: skip
USES = Table(
    "kompakt_uses", _metadata,
    Column("key", Text, primary_key=True), Column("hash", Text, primary_key=True), Column("tenant", LargeBinary),
)  # fmt: skip
WORDS = Table(
    "kompakt_words", _metadata,
    Column("key", Text, primary_key=True), Column("seq", BigInteger, primary_key=True), Column("text", Text),
)  # fmt: skip
LOCKS = Table(
    "kompakt_locks", _metadata,
    Column("key", Text, primary_key=True), Column("name", Text, primary_key=True), Column("fence", BigInteger),
    Column("expires", Double), Column("guarded", Boolean),
)  # fmt: skip
NOTES = Table(
    "kompakt_notes", _metadata,
    Column("tenant", LargeBinary, primary_key=True), Column("name", LargeBinary, primary_key=True),
    Column("key", Text), Column("data", LargeBinary),
)  # fmt: skip

NAMES = [table.name for table in _metadata.sorted_tables]
"""All tables with data of sessions."""

_Value = TypeVar("_Value")


def chunks(values: Iterable[_Value]) -> Iterator[list[_Value]]:
    """Split values into lists that fit into one statement."""
    listed = list(values)
    return (listed[at : at + CHUNK] for at in range(0, len(listed), CHUNK))


def as_bytes(text: str) -> bytes:
    """Encode a text that may contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def storable(texts: Collection[str]) -> list[str]:
    """Return the distinct texts that a text column can hold, sorted."""
    return sorted(text for text in set(texts) if cleaned(text) == text)


def cleaned(text: str) -> str:
    """Replace characters that text columns reject by a space or a question mark."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def index_names(key: str, text: str) -> list[str]:
    """Return the index terms of the words of a text, in order."""
    known: dict[str, str] = {}
    names: list[str] = []
    salt = key.encode()[:64]
    for word in _WORD.findall(text.casefold()):
        name = known.get(word)
        if name is None:
            digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=7, key=salt).hexdigest()
            name = known[word] = f"k{key[:8]}{digest}"
        names.append(name)
    return names


# --- migrations ---

WRITE = "kompakt_write"
"""Execution option of a connection that will write; SQLite then takes the write lock when the transaction begins."""

MAX_NAMES = 20_000
"""Maximum number of words of a row that PostgreSQL indexes with repetitions; of a longer row each word counts once."""

MAX_DIFFERENT = 25_000
"""Maximum number of distinct words of a row in PostgreSQL, which refuses a tsvector above one megabyte."""

_MIGRATING = 0x6B6F6D70
"""The advisory lock for migrations in PostgreSQL."""

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
"""Statements that index the words of a row."""


def indexed(dialect: str, key: str, seq: int, words: str) -> dict[str, Any]:
    """Return the parameters of ``INDEX_ROWS`` for a row."""
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
    remaining = (await connection.execute(text("SELECT count(*) FROM kompakt_heads"))).scalar_one()
    if remaining:
        raise UsageError(f"the store has {remaining} sessions; export and delete them before dropping its tables")
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
    remaining = (await connection.execute(text("SELECT count(*) FROM kompakt_notes"))).scalar_one()
    if remaining:
        raise UsageError(f"the store has {remaining} notes; delete their sessions before dropping the table")
    await connection.execute(text("DROP TABLE kompakt_notes"))


class Migration(msgspec.Struct, frozen=True):
    """One change of the schema and its reverse."""

    up: Callable[[AsyncConnection], Awaitable[None]]
    down: Callable[[AsyncConnection], Awaitable[None]]


MIGRATIONS = (
    Migration(_create_tables, _drop_tables),
    Migration(_create_index, _drop_index),
    Migration(_create_notes, _drop_notes),
)
"""The migration from each version to the next, starting with an empty database."""

NEWEST = len(MIGRATIONS)


async def version_of(connection: AsyncConnection) -> int:
    """Return the version of the schema; 0 for a database without tables of kompakt."""
    listed = {
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kompakt_schema'",
        "postgresql": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('kompakt_schema')",
    }
    if not (await connection.execute(text(listed[connection.dialect.name]))).scalar_one():
        return 0
    found = (await connection.execute(text("SELECT version FROM kompakt_schema"))).scalars().all()
    if len(found) != 1 or not isinstance(found[0], int) or found[0] < 0:
        raise StoreDamaged("the table kompakt_schema does not hold one version number; restore the store from a backup")
    return found[0]


async def migrate(engine: AsyncEngine, to: int | None = None) -> None:
    """Migrate the schema to a version, forward or back, in one transaction; by default to the newest.

    Raises:
        StoreVersion: the store is newer than this kompakt.
        UsageError: there is no such version, or going back would drop sessions or notes.
    """
    goal = NEWEST if to is None else to
    if not 0 <= goal <= NEWEST:
        raise UsageError(f"there is no schema version {goal}; this kompakt knows versions 0 to {NEWEST}")
    async with engine.connect() as connection:
        if await _checked_version(connection) == goal:
            return
    async with engine.execution_options(**{WRITE: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
        now = await _checked_version(connection)
        if now == 0:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS kompakt_schema (version INTEGER NOT NULL)"))
            await connection.execute(text("DELETE FROM kompakt_schema"))
            await connection.execute(text("INSERT INTO kompakt_schema (version) VALUES (0)"))
        for migration in MIGRATIONS[now:goal]:
            await migration.up(connection)
        for migration in reversed(MIGRATIONS[goal:now]):
            await migration.down(connection)
        await connection.execute(text("UPDATE kompakt_schema SET version = :version"), {"version": goal})


async def _checked_version(connection: AsyncConnection) -> int:
    now = await version_of(connection)
    if now > NEWEST:
        raise StoreVersion(
            f"the store's schema is version {now} and this kompakt knows versions up to {NEWEST}; "
            "install the newer kompakt that wrote it"
        )
    return now

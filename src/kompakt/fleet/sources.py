"""What a fleet job reads: files in a folder, lines of a JSONL file, or sessions of a store.

Listing is cheap: an item names its input and does not contain it. Workers read the input themselves, so on a cluster
every node has to see the files under the same path, or reach the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

import msgspec

from kompakt.errors import UnreadableFile, UsageError
from kompakt.files import SQLITE, opencode_session
from kompakt.fleet.rows import printable
from kompakt.model.json import encode
from kompakt.model.messages import Json, JsonObject
from kompakt.session.store import Store, open_store
from kompakt.store import sqlite_path, store_url
from kompakt.store.records import Head
from kompakt.wire.registry import WIRES
from kompakt.wire.transcripts import decode as decode_lines
from kompakt.wire.transcripts import kind_of

SUFFIXES = frozenset([".db", ".json", ".jsonl", ".ndjson", ".traj"])
"""Files of a folder that are read; others are ignored."""

HEAD_LINES = 5
"""Lines of a JSONL file that are checked for request bodies."""

MESSAGE_KEYS = frozenset(wire.messages_key for wire in WIRES.values())


class FleetItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One input of a job."""

    source: str
    """Its name in the rows: a path relative to the folder, with ``#`` and a line number or session name, or an id."""
    kind: Literal["file", "line", "database", "stored"]
    path: str = ""
    name: str = ""
    """The session in a database or a store."""
    offset: int = 0
    size: int = 0
    digest: str = ""
    """The hash of a stored session. Those of files are computed from what is read."""


class StoreSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of a store: of one tenant, in a range of ids, by the time of the last write."""

    url: str
    tenant: str = ""
    key: bytes | None = None
    """The encryption key of the store."""
    first: str | None = None
    """The smallest id; ids are compared as texts."""
    last: str | None = None
    """The largest id."""
    older_than: float | None = None
    """Only sessions that were last written to at least this many seconds ago."""
    newer_than: float | None = None
    """Only sessions that were last written to at most this many seconds ago."""

    @property
    def label(self) -> str:
        """Return the URL without user, password and query."""
        parts = urlsplit(store_url(self.url))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def is_file(self) -> bool:
        return sqlite_path(self.url) is not None

    def selects(self, head: Head, id: str, now: float) -> bool:
        """Return whether a session is one of the selected."""
        age = now - head.last_write
        return (
            (self.first is None or id >= self.first)
            and (self.last is None or id <= self.last)
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age <= self.newer_than)
        )

    async def open(self) -> Store:
        """Open the store."""
        return await open_store(self.url, tenant=self.tenant, key=self.key)


def hash_of(data: bytes) -> str:
    """Return the hash of an input."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- list --------------------------------------------------------------------------------------------------------


def items_in(source: Path, *, without: Path | None = None) -> list[FleetItem]:
    """List the inputs in a folder or file, sorted by name; the folder ``without`` is skipped.

    Raises:
        UsageError: the path does not exist, or the folder has no readable file.
    """
    if not source.exists():
        raise UsageError(f"{str(source)!r} does not exist; give a folder of sessions, a JSONL file, or a store URL")
    if source.is_file():
        return list(_items_of(source.resolve(), source.name))
    root = source.resolve()
    skipped = without.resolve() if without is not None else None
    found = [item for path in _files(root, skipped) for item in _items_of(path, path.relative_to(root).as_posix())]
    if not found:
        raise UsageError(f"{str(source)!r} has no files that end with {', '.join(sorted(SUFFIXES))}")
    return found


def _files(root: Path, skipped: Path | None) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if here / name != skipped)
        for name in sorted(names):
            if Path(name).suffix.lower() in SUFFIXES and (here / name).is_file():
                yield here / name


def _items_of(path: Path, name: str) -> Iterator[FleetItem]:
    source = printable(name)
    sessions = _database_sessions(path)
    if sessions:
        for session in sessions:
            yield FleetItem(source=f"{source}#{printable(session)}", kind="database", path=str(path), name=session)
    elif path.suffix.lower() in (".jsonl", ".ndjson") and _has_bodies(path):
        yield from _lines(path, source)
    else:
        yield FleetItem(source=source, kind="file", path=str(path), size=path.stat().st_size)


def _database_sessions(path: Path) -> list[str]:
    """List the sessions of an opencode database; none for other files, whose reader reports what is wrong."""
    try:
        with path.open("rb") as file:
            if file.read(len(SQLITE)) != SQLITE:
                return []
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return [str(row[0]) for row in connection.execute("SELECT DISTINCT session_id FROM message ORDER BY 1")]
    except (OSError, sqlite3.Error):
        return []


def _has_bodies(path: Path) -> bool:
    """Return whether a file has one request body per line, and is not a transcript or a list of messages."""
    try:
        with path.open("rb") as file:
            head = [line for _ in range(HEAD_LINES) if (line := file.readline()).strip()]
    except OSError:  # the worker reports it
        return False
    document = decode_lines(head)
    return kind_of(document) is None and any(body_of(line.record) is not None for line in document.lines)


def body_of(record: Json) -> JsonObject | None:
    """Return the request body in a line: the line itself, or the ``body`` of a batch request."""
    if not isinstance(record, dict):
        return None
    inner = record.get("body")
    body = cast("JsonObject", inner if isinstance(inner, dict) and not MESSAGE_KEYS & record.keys() else record)
    return body if any(isinstance(body.get(key), list | str) for key in MESSAGE_KEYS) else None


def _lines(path: Path, source: str) -> Iterator[FleetItem]:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield FleetItem(source=f"{source}#{number}", kind="line", path=str(path), offset=offset, size=len(line))
            offset += len(line)


def items_stored(selection: StoreSelection) -> list[FleetItem]:
    """List the selected sessions of a store, sorted by id.

    Raises:
        UsageError: the store is in memory, or no session is selected.
    """
    if selection.url.lower().startswith("memory"):
        raise UsageError("the workers of a fleet job cannot see a store in memory; use SQLite, PostgreSQL or Redis")
    path = sqlite_path(selection.url)
    if path and not Path(path).exists():
        raise UsageError(f"there is no store {selection.label}")
    now = time.time()

    async def work() -> list[FleetItem]:
        async with await selection.open() as store:
            return [
                FleetItem(source=printable(id), kind="stored", name=id, digest=_digest(store, head), size=head.messages)
                async for head in store.heads()
                if selection.selects(head, id := head.name, now)
            ]

    found = sorted(asyncio.run(work()), key=lambda item: item.source)
    if not found:
        raise UsageError(f"no session of {selection.label} is selected; check tenant, ids and ages")
    return found


def _digest(store: Store, head: Head) -> str:
    """Hash the messages and the envelope of a stored session. A compaction changes neither."""
    envelope = encode(store.value_codec.unpack(head.envelope, where="the envelope of the session"))
    return hash_of(b"\0".join((head.format.encode(), str(head.messages).encode(), head.chain, envelope)))


# --- read --------------------------------------------------------------------------------------------------------


def read_item(item: FleetItem) -> bytes:
    """Read the bytes of an item from a file or an opencode database.

    Raises:
        UnreadableFile: it cannot be read.
    """
    try:
        if item.kind == "database":
            found = opencode_session(item.path, item.name)
            if found is None:
                raise UnreadableFile(f"{item.source}: the session is no longer in the database")
            return encode(found)
        with Path(item.path).open("rb") as file:
            if item.kind == "file":
                return file.read()
            file.seek(item.offset)
            return file.read(item.size)
    except OSError as error:
        raise UnreadableFile(f"{item.source}: {error.strerror or error}") from None


def digest_of(item: FleetItem) -> str:
    """Return the hash of an item; of one that cannot be read, that of no bytes."""
    if item.kind == "stored":
        return item.digest
    try:
        return hash_of(read_item(item))
    except UnreadableFile:
        return hash_of(b"")

"""Append-only histories of many sessions, behind one protocol: in memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import re
from pathlib import Path

from kompakt.errors import UsageError
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Records

ADDRESSES = "memory:, sqlite:///FILE, postgresql://HOST/DATABASE, redis://HOST, unix:///SOCKET"

_SCHEME = re.compile(r"memory:|[a-z][a-z0-9+.-]{1,30}:/", re.IGNORECASE)

_TABLES = frozenset(["kompakt_heads", "kompakt_rows", "kompakt_events"])


def store_url(text: str) -> str:
    """Return the URL of a store that is given by its URL or by the path of a SQLite file, such as ``agent.db``."""
    if _SCHEME.match(text):
        return text
    path = Path(text)
    return f"sqlite:///{text}" if path.suffix or len(path.parts) > 1 or path.is_file() else text


def sqlite_path(store: str) -> str | None:
    """Return the file of a SQLite store that is given by its URL or path; ``None`` for another store."""
    url = store_url(store)
    path = url.removeprefix("sqlite:///")
    return None if path == url else path


def find_store(text: str) -> str | None:
    """Return the URL of a store that is given by its URL or path; ``None`` for a file that is not a store.

    Raises:
        UsageError: there is no such store.
    """
    path = text.removeprefix("sqlite:///")
    if path == text:
        if _SCHEME.match(text):
            return text
        if not _is_kompakt_file(text):
            return None
    if path != ":memory:" and not Path(path).exists():
        raise UsageError(f"there is no store {text}; import a session first with `kompakt session import FILE`")
    return f"sqlite:///{path}"


def _is_kompakt_file(path: str) -> bool:
    """Return whether a file is a SQLite database of kompakt."""
    import sqlite3  # late: only this kind of file needs it
    from contextlib import closing

    try:
        if not Path(path).is_file():
            return False
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except (OSError, ValueError, sqlite3.Error):
        return False
    return names >= _TABLES


async def open_records(url: str) -> Records:
    """Open the store at a URL, or in a SQLite file; the driver is imported on first use.

    Raises:
        UsageError: the scheme is unknown, or the driver is not installed.
    """
    url = store_url(url) if isinstance(url, str) else url  # type: ignore[reportUnnecessaryIsInstance]
    scheme = url.partition(":")[0].partition("+")[0].lower() if isinstance(url, str) else ""  # type: ignore[reportUnnecessaryIsInstance]
    if scheme == "memory":
        return MemoryRecords()
    if scheme == "sqlite":
        from kompakt.store.sql.sqlite import open_sqlite

        return await open_sqlite(url)
    if scheme in ("postgresql", "postgres"):
        from kompakt.store.sql.postgres import open_postgres

        return await open_postgres(url)
    if scheme in ("redis", "rediss", "unix"):
        from kompakt.store.redis.records import open_redis

        return await open_redis(url)
    raise UsageError(f"unknown store {scheme or url!r}; use one of {ADDRESSES}, or the path of a SQLite file")

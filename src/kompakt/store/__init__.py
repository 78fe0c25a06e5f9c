"""Append-only histories of many sessions, behind one protocol: in memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

from kompakt.errors import UsageError
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Records

ADDRESSES = "memory:, sqlite:///FILE, postgresql://HOST/DATABASE, redis://HOST, unix:///SOCKET"


async def open_records(url: str) -> Records:
    """Open the store at a URL; its driver is imported on first use.

    Raises:
        UsageError: the scheme is unknown, or the driver is not installed.
    """
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
    raise UsageError(f"unknown store {scheme or url!r}; use one of {ADDRESSES}")

"""Find the store that an address names."""

from __future__ import annotations

from kompakt.errors import UsageError
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Records

ADDRESSES = "memory:, sqlite:///FILE, postgresql://HOST/DATABASE, redis://HOST, unix:///SOCKET"


async def open_records(url: str) -> Records:
    """Open a store; the driver is imported when it is asked for.

    Raises:
        UsageError: nothing is known under that name, or the driver is not installed.
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
    raise UsageError(f"no store is known under {scheme or url!r}; use one of {ADDRESSES}")

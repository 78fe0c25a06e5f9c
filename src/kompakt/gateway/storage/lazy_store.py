"""A store that is not there when the gateway starts: asked for again until it is, and said to be away until then.

So a replica that is started while the database is down serves, like one for which it went down later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kompakt.errors import StoreError, StoreUnavailable
from kompakt.store import open_records
from kompakt.store.records import Records

_log = logging.getLogger("kompakt.gateway")

PAUSE = 1.0
"""Seconds between two tries."""


class LazyRecords:
    """Records that are opened when somebody first needs them and they are there; does all that ``Records`` can."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._records: Records | None = None
        self._lock = asyncio.Lock()
        self._next = 0.0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any, **named: Any) -> Any:
            return await getattr(await self.opened(), name)(*given, **named)

        return call

    async def opened(self) -> Records:
        """Return the records.

        Raises:
            StoreUnavailable: they are not there yet.
        """
        async with self._lock:
            if self._records is not None:
                return self._records
            now = asyncio.get_running_loop().time()
            if now < self._next:
                raise StoreUnavailable("the store is not there yet")
            try:
                self._records = await open_records(self._url)
            except StoreError as error:
                self._next = asyncio.get_running_loop().time() + PAUSE
                raise StoreUnavailable(f"the store is not there yet: {error}") from None
        _log.info("the store is there")
        return self._records

    async def close(self) -> None:
        """Let go of connections and files, if there are any."""
        if self._records is not None:
            await self._records.close()

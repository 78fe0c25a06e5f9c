"""The gateway's access to ``Records``: a connection that is opened when the store is up, and the codec for notes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from kompakt.errors import StoreDamaged, StoreError, StoreUnavailable
from kompakt.store import open_records
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Records

_log = logging.getLogger("kompakt.gateway")

Value = TypeVar("Value", bound=msgspec.Struct)

PAUSE = 1.0
"""Seconds between two attempts to connect."""


class LazyRecords:
    """Implements ``Records`` for a store that is down when the gateway starts.

    Each call tries to connect, at most once per ``PAUSE``, and raises ``StoreUnavailable`` until that succeeds. A
    replica can so start while the database is down and serve requests without it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._records: Records | None = None
        self._lock = asyncio.Lock()
        self._next = 0.0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(await self.opened(), name)(*args, **kwargs)

        return call

    async def opened(self) -> Records:
        """Return the open records.

        Raises:
            StoreUnavailable: the store is still down.
        """
        async with self._lock:
            if self._records is not None:
                return self._records
            loop = asyncio.get_running_loop()
            if loop.time() < self._next:
                raise StoreUnavailable("the store is still unavailable")
            try:
                self._records = await open_records(self._url)
            except StoreError as error:
                self._next = loop.time() + PAUSE
                raise StoreUnavailable(f"the store is still unavailable: {error}") from None
        _log.info("store connected")
        return self._records

    async def close(self) -> None:
        if self._records is not None:
            await self._records.close()


def encode_note(value: msgspec.Struct, codec: ValueCodec) -> bytes:
    """Encode a value as the bytes of a note."""
    return codec.pack_whole(msgspec.to_builtins(value))


def decode_note(data: bytes, codec: ValueCodec, kind: type[Value]) -> Value:
    """Decode a note.

    Raises:
        StoreDamaged: the bytes are damaged or hold another kind of value.
    """
    where = f"gateway note of type {kind.__name__}"
    try:
        return msgspec.convert(codec.unpack(data, where=where), kind)
    except msgspec.ValidationError as error:
        raise StoreDamaged(f"{where}: not written by this version of kompakt: {error}") from None

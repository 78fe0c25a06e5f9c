"""Parse server-sent events incrementally. Each event keeps its raw bytes, so unchanged events pass on unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from kompakt.model.json import decode, encode
from kompakt.model.messages import Json, JsonObject

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")

DONE = b"[DONE]"
"""Data of the last event of OpenAI's streams."""

_OVERLAP = 3
"""Bytes of an event's terminator that may have arrived with earlier chunks."""

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event that are buffered. A longer event is passed on without being parsed."""


class EventParser:
    """Splits chunks into events. Every byte is searched once, however many chunks an event spans."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._tail = b""
        """The last bytes searched: a terminator may start in them and end in the next chunk."""
        self._is_too_long = False

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the data and the raw bytes of every event that ends in this chunk.

        Parts of an event that exceeds ``MAX_EVENT`` are yielded without data.
        """
        searched, at = self._tail + chunk, 0
        for found in _END.finditer(searched):
            end = found.end() - len(self._tail)
            raw = self._take(chunk[at:end])
            yield b"" if self._is_too_long else _data(raw), raw
            at, self._is_too_long = end, False
        self._hold(chunk[at:])
        self._tail = searched[max(len(searched) - _OVERLAP, at + len(self._tail) if at else 0) :]
        if self._size > MAX_EVENT:
            self._is_too_long = True
            yield b"", self._take(b"")

    def last(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the last event if the stream ended without a blank line after it; drop it if its data is cut off.

        Clients ignore such an event too, and it may belong to a hidden call.
        """
        for data, raw in self.feed(b"\n\n"):
            if data == DONE or read_data(data) is not None:
                yield data, raw

    def _hold(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._size += len(chunk)

    def _take(self, last: bytes) -> bytes:
        raw = b"".join([*self._chunks, last])
        self._chunks, self._size = [], 0
        return raw


def read_data(data: bytes) -> JsonObject | None:
    """Decode the data of an event; ``None`` when it is not a JSON object."""
    try:
        found = decode(data)
    except (ValueError, RecursionError):
        return None
    return cast("JsonObject", found) if isinstance(found, dict) else None


def _data(raw: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(raw) if line.startswith(b"data:")]
    return b"\n".join(lines)


def event(data: Json, name: str | None = None) -> bytes:
    named = b"event: " + name.encode() + b"\n" if name else b""
    return named + b"data: " + encode(data) + b"\n\n"

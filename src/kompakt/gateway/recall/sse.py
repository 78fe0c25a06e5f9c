"""Server-sent events out of pieces, one after the other, each as the bytes that it came as and as its data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from kompakt.model.messages import Json, JsonObject
from kompakt.store.codec import decode, encode

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")

DONE = b"[DONE]"
"""Data with which OpenAI's streams end."""

_OVERLAP = 3
"""Bytes of the end of an event that may have come with earlier pieces."""

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event that are held; a longer one is passed on unread."""


class Events:
    """Takes pieces and gives events. Every byte is searched once, however many pieces an event comes in."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._tail = b""
        """The last bytes that were searched: an event may end with them and the next piece."""
        self._is_too_long = False

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take a piece; yield the data and the bytes of every event that ends in it.

        Parts of an event that is too long to be held are yielded without data.
        """
        searched, at = self._tail + piece, 0
        for found in _END.finditer(searched):
            end = found.end() - len(self._tail)
            raw = self._taken(piece[at:end])
            yield b"" if self._is_too_long else _data(raw), raw
            at, self._is_too_long = end, False
        self._hold(piece[at:])
        self._tail = searched[max(len(searched) - _OVERLAP, at + len(self._tail) if at else 0) :]
        if self._size > MAX_EVENT:
            self._is_too_long = True
            yield b"", self._taken(b"")

    def last(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the event after which the stream ended without a blank line; an event cut off in its data is dropped.

        Clients ignore such an event as well, and half of it may belong to a call that they never see.
        """
        for data, raw in self.feed(b"\n\n"):
            if data == DONE or read_data(data) is not None:
                yield data, raw

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)

    def _taken(self, last: bytes) -> bytes:
        raw = b"".join([*self._pieces, last])
        self._pieces, self._size = [], 0
        return raw


def read_data(data: bytes) -> JsonObject | None:
    """Read the data of an event; ``None`` when it is not a JSON object."""
    try:
        found = decode(data)
    except (ValueError, RecursionError):
        return None
    return cast("JsonObject", found) if isinstance(found, dict) else None


def _data(raw: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(raw) if line.startswith(b"data:")]
    return b"\n".join(lines)


def event(data: Json, name: str | None = None) -> bytes:
    """Write an event."""
    named = b"event: " + name.encode() + b"\n" if name else b""
    return named + b"data: " + encode(data) + b"\n\n"

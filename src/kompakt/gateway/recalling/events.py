"""Server-sent events out of pieces, one behind the other, each as the bytes that it came as and as its data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from kompakt.model.messages import Json, JsonObject
from kompakt.store.packing import decode, encode

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")

DONE = b"[DONE]"
"""Data with which OpenAI's streams end."""

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event; a stream in which none ends is no stream of events."""


class Events:
    """Takes pieces and gives events."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take a piece; yield the data and the bytes of every event that ends in it."""
        self._held += piece
        at = 0
        for found in _END.finditer(self._held):
            raw, at = self._held[at : found.end()], found.end()
            yield _data(raw), raw
        self._held = self._held[at:]
        if len(self._held) > MAX_EVENT:
            raise ValueError("an event of the provider does not end")

    def last(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the event after which the stream ended without a blank line; an event cut off in its data is dropped.

        Clients ignore such an event as well, and half of it may belong to a call that they never see.
        """
        for data, raw in self.feed(b"\n\n"):
            if data == DONE or read_data(data) is not None:
                yield data, raw


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

"""References: short stable names of messages and parts.

The reference of a message is a prefix of a hash over it and all messages before it, so the same history gives the same
names in every pass, fork and replica. If a prefix is taken, the later message gets a longer one: a name never changes.
The hash covers a canonical form: without cache marks, a string equals its single text block, and key order is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from kompakt.model.json import json_text
from kompakt.model.messages import Marker, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

MIN_DIGITS = 4
"""Digits of the shortest reference: enough for a long session, short enough to print everywhere."""

_MIN_BYTES = MIN_DIGITS // 2
_EMPTY = blake2b(digest_size=16)
"""Copied for each hash, which takes a third less time than the constructor."""


class References:
    """Assigns references to messages, in the order of the history."""

    __slots__ = ("_chain", "_given", "_known", "names")

    def __init__(self, messages: Iterable[Message] = (), *, given: Sequence[str] = ()) -> None:
        self.names: list[str] = []
        self._chain = b""
        self._given = given
        """Existing names of the first messages, where the caller knows more of the history."""
        self._known: dict[str, int] = {}
        self.extend(messages)

    def add(self, message: Message) -> str:
        """Assign a reference to the next message."""
        self.extend((message,))
        return self.names[-1]

    def extend(self, messages: Iterable[Message]) -> None:
        """Assign references to the next messages."""
        names, known, given, chain = self.names, self._known, self._given, self._chain
        for number, message in enumerate(messages, len(names)):
            if number < len(given):
                name = given[number]
            else:
                chain = linked(chain, message)
                name = f"m{chain[:_MIN_BYTES].hex()}"
                if name in known:
                    name = next(name for name in candidates(chain) if name not in known)
            known[name] = number
            names.append(name)
        self._chain = chain

    def find(self, reference: str) -> int | None:
        """Return the index of the message of a reference, or of the reference of a part."""
        return self._known.get(reference.partition(".")[0])


def linked(chain: bytes, message: Message) -> bytes:
    """Add a message to a hash chain."""
    hashed = _EMPTY.copy()
    hashed.update(chain + digest(message))
    return hashed.digest()


def candidates(chain: bytes) -> Iterator[str]:
    """Yield the possible names of a message with this chain, shortest first."""
    whole = chain.hex()
    yield from (f"m{whole[:length]}" for length in range(MIN_DIGITS, len(whole) + 1))
    number = 2
    while True:  # the same history twice: equal chains are numbered
        yield f"m{whole}{number:x}"
        number += 1


def digest(message: Message) -> bytes:
    """Hash one message in its canonical form: its role, then each text of its parts after the length in bytes."""
    data = message.role.encode()
    for part in message.parts:
        if type(part) is Text:
            data += _TEXT + _measured(part.text)
        elif type(part) is ToolResult and not part.media:
            data += _RESULT + _measured(part.call_id) + _measured(part.output)
        elif type(part) is ToolCall and type(part.input) is str:
            data += _CALL + _measured(part.id) + _measured(part.name) + _measured(part.input)
        else:
            data += b"".join(map(_measured, _canonical(part)))
    hashed = _EMPTY.copy()
    hashed.update(data)
    return hashed.digest()


def _measured(text: str) -> bytes:
    """Return the bytes of a text after their number."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    length = len(data)
    return (_LENGTHS[length] if length < _MANY else length.to_bytes(8, "big")) + data


_MANY = 1_024
_LENGTHS = [length.to_bytes(8, "big") for length in range(_MANY)]
_TEXT, _RESULT, _CALL = map(_measured, ("text", "result", "call"))


def _canonical(part: Part) -> tuple[str, ...]:
    if type(part) is Text:
        return ("text", part.text)
    if type(part) is ToolResult:
        shown = [text for item in part.media for text in _canonical(item)] if part.media else ()
        return ("result", part.call_id, part.output, *shown)
    if type(part) is ToolCall:
        return ("call", part.id, part.name, part.input if type(part.input) is str else _ordered(part.input))
    if type(part) is Media:
        return ("media", part.media, _ordered(part.data or part.url or ""), _ordered(part.detail or ""))
    if type(part) is Reasoning:
        return ("reasoning", part.text, _ordered(part.blob or ""))
    if type(part) is Marker:
        return ("marker",)
    return ("other", _ordered(part.raw)) if type(part) is Opaque else ()


def _ordered(value: object) -> str:
    """Write a JSON value with sorted keys."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError):
        return json_text(value)

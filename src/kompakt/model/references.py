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
    hashed = _EMPTY.copy()
    hashed.update(_ascii_form(message) or _form(message))
    return hashed.digest()


def _ascii_form(message: Message) -> bytes:
    """Return the canonical form of a message whose parts are plain and in ASCII, as most are; empty for others.

    Putting it together as text and encoding it once is faster than ``_form``, which works for all.
    """
    form: str = message.role
    for part in message.parts:
        if type(part) is Text:
            one = part.text
            if not one.isascii():
                return b""
            length = len(one)
            form = f"{form}{_TEXT}{_LENGTHS[length] if length < _MANY else _length(length)}{one}"
        elif type(part) is ToolResult and not part.media:
            one, two = part.call_id, part.output
            if not (one.isascii() and two.isascii()):
                return b""
            length = len(two)
            number = _LENGTHS[length] if length < _MANY else _length(length)
            form = f"{form}{_RESULT}{_length(len(one))}{one}{number}{two}"
        elif type(part) is ToolCall and type(part.input) is str:
            one, two, three = part.id, part.name, part.input
            if not (one.isascii() and two.isascii() and three.isascii()):
                return b""
            form = f"{form}{_CALL}{_length(len(one))}{one}{_length(len(two))}{two}{_length(len(three))}{three}"
        else:
            return b""
    return form.encode("latin-1")


def _form(message: Message) -> bytes:
    return message.role.encode() + b"".join([_measured(text) for part in message.parts for text in _canonical(part)])


def _measured(text: str) -> bytes:
    """Return the bytes of a text after their number."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data


def _length(length: int) -> str:
    """Return a length in eight characters, one for each byte."""
    return _LENGTHS[length] if length < _MANY else length.to_bytes(8, "big").decode("latin-1")


_MANY = 1_024
_LENGTHS = [length.to_bytes(8, "big").decode("latin-1") for length in range(_MANY)]
_TEXT, _RESULT, _CALL = (f"{_length(len(kind))}{kind}" for kind in ("text", "result", "call"))


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

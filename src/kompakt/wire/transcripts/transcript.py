"""What a transcript file holds once it is read, and the lines it is read from.

One invariant: reading never fails on a line. A line that cannot be used is skipped and reported with its number, so
one torn write does not cost a session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from kompakt.model.messages import Json, JsonObject

Kind: TypeAlias = Literal["claude-code", "codex"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Skipped(msgspec.Struct, frozen=True):
    """A line that adds nothing to the history although it should have."""

    line: int
    reason: str


class Line(msgspec.Struct, frozen=True):
    """One record with the number of its line, counted from 1."""

    number: int
    record: JsonObject


class Lines(msgspec.Struct, frozen=True):
    """All records of a file, in order."""

    lines: tuple[Line, ...]
    skipped: tuple[Skipped, ...]
    mended: tuple[int, ...]


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a transcript file, as the request body that would continue it."""

    kind: Kind
    format: Literal["anthropic", "openai-responses"]
    body: JsonObject
    ids: tuple[str | None, ...]
    """The assistant id of each wire message, where the file knows it: what rounds are counted by."""
    summaries: frozenset[int]
    """Which wire messages are summaries that the agent made of what precedes them."""
    usages: tuple[tuple[int, JsonObject], ...]
    """Assistant wire message to the usage its provider reported."""
    sidechains: tuple[Transcript, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    mended: tuple[int, ...] = ()
    """Lines that were kept although characters in them had to be replaced: half pairs, bytes that are not UTF-8."""
    left_out: dict[str, int] = {}
    """How many records of which type carry no message."""
    records: int = 0


def decode(lines: Iterable[bytes | str]) -> Lines:
    """Decode JSON lines; blank ones count as lines only."""
    found: list[Line] = []
    skipped: list[Skipped] = []
    mended: list[int] = []
    for number, line in enumerate(lines, start=1):
        data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        raw = data.strip().removeprefix(BYTE_ORDER_MARK)
        if not raw:
            continue
        try:
            record, exact = _decode_line(raw)
        except (ValueError, RecursionError) as error:
            skipped.append(Skipped(number, f"not JSON: {error}"))
            continue
        if not isinstance(record, dict):
            skipped.append(Skipped(number, f"not a record but a {type(record).__name__}"))
            continue
        if not exact:
            mended.append(number)
        found.append(Line(number, cast("JsonObject", record)))
    return Lines(tuple(found), tuple(skipped), tuple(mended))


def objects(value: object) -> list[JsonObject]:
    """Take the objects of a list; anything else holds none."""
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _decode_line(raw: bytes) -> tuple[Json, bool]:
    """Decode one line and say whether every character came through.

    Writers that cut text by UTF-16 units leave half of a pair behind. No provider takes one, so it is replaced.
    """
    try:
        return msgspec.json.decode(raw), True
    except (msgspec.DecodeError, UnicodeDecodeError):
        loose = json.loads(raw.decode("utf-8", "replace"))
    text = json.dumps(loose, ensure_ascii=False, allow_nan=False)
    return msgspec.json.decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")), False

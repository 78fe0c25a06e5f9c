"""JSON: first the layout is removed, which loses nothing; then the middle of long arrays and strings.

Only line breaks and indentation are removed. A JSON string contains no line break, so no string, number or key changes.
Cost: one decoding, and one walk through a large value.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from kompakt.engine.admission.failures import Shrunk, cut, is_failure
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.json import decode_text
from kompakt.model.messages import Json
from kompakt.model.phrases import FOLD

_LAYOUT = re.compile(r"(?<![ \t\r])[ \t\r]*+\n[ \t\r\n]*+")
"""A match starts where a run of blanks starts; an attempt at every blank of a long run would take quadratic time."""

_MAX_TEXT = 240
"""Maximum characters of a text inside a record on one line."""

_STYLE = 400
"""Characters from which the style of a JSON text is detected."""

_MAX_RARE, _MAX_ODD = 2, 20
"""Occurrences of a rare value in a long array, and most such values of one key."""

_MAX_DEPTH = 12
"""Values nested deeper are not changed."""


def decoded(text: str) -> Json:
    """Decode a text as a JSON object or array; ``None`` if it is neither."""
    inner = text.strip()
    if inner[:1] + inner[-1:] not in ("{}", "[]"):
        return None
    try:
        return decode_text(inner)
    except ValueError:
        return None


def minify(text: str) -> str:
    """Remove the layout of a JSON text."""
    return _LAYOUT.sub("", text.strip())


def shrink(text: str, settings: AdmissionSettings, value: Json) -> Shrunk:
    """Compress a JSON text."""
    lines = text.count("\n") + 1
    short = minify(text)
    if len(short) <= settings.max_json_tokens * 4:
        return Shrunk(short, 0, lines, ())
    sampled = _encoded(_sample(value, settings, 0), short)
    if len(sampled) >= len(short) * 0.8:
        return Shrunk(short, 0, lines, ())
    share = 1 - len(sampled) / len(short)
    return Shrunk(sampled, max(1, round(lines * share)), lines, ())


def shrink_record(line: str, settings: AdmissionSettings) -> str | None:
    """Cut the long texts of a very long line that is a JSON object; its other values stay."""
    value = decoded(line)
    if value is None:
        return None
    short = _encoded(_sample(value, msgspec.structs.replace(settings, max_line=_MAX_TEXT), 0), line)
    return short if len(short) < len(line) * 0.8 else None


def _encoded(value: Json, like: str) -> str:
    """Write a value with or without a space after colons, like another text."""
    colon = ": " if '": ' in like[:_STYLE] else ":"
    return json.dumps(value, separators=(",", colon), ensure_ascii=False)


def _sample(value: Json, settings: AdmissionSettings, depth: int) -> Json:
    """Shorten long arrays and strings."""
    if isinstance(value, str):
        return cut(value, settings.max_line)
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key: _sample(inner, settings, depth + 1) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return _sample_items(cast("list[Any]", value), settings, depth + 1)
    return value


def _sample_items(items: list[Json], settings: AdmissionSettings, depth: int) -> list[Json]:
    """Keep the first items, the last one, failures and items of another shape; describe the others."""
    limit = settings.max_items
    if len(items) <= limit + 2:
        return [_sample(item, settings, depth) for item in items]
    usual, odd = _shape(items[0]), _odd_items(items)
    out: list[Json] = []
    gone = 0
    for place, item in enumerate(items):
        if (
            place < limit
            or place == len(items) - 1
            or place in odd
            or _shape(item) != usual
            or _reports_failure(item, 0)
        ):
            if gone:
                out.append(_folded_note(gone, items[0]))
                gone = 0
            out.append(_sample(item, settings, depth))
        else:
            gone += 1
    return out


def _odd_items(items: list[Json]) -> set[int]:
    """Find items with a rare value of a key that has few values, such as the one suspended account."""
    columns: dict[str, dict[str, list[int]]] = {}
    for place, item in enumerate(items):
        pairs = cast("dict[str, Any]", item) if isinstance(item, dict) else {"": item}
        for key, value in pairs.items():
            if value is None or isinstance(value, str | int | float):
                columns.setdefault(key, {}).setdefault(repr(value)[:_MAX_TEXT], []).append(place)
    found: set[int] = set()
    for values in columns.values():
        rare = [places for places in values.values() if len(places) <= _MAX_RARE]
        usual = max(map(len, values.values()))
        if usual * 2 > len(items) and len(rare) <= _MAX_ODD:
            found.update(place for places in rare for place in places)
    return found


def _shape(item: Json) -> object:
    """Describe the structure of an item."""
    if isinstance(item, dict):
        return frozenset(cast("dict[str, Any]", item))
    return type(item)


def _folded_note(gone: int, like: Json) -> str:
    keys = f" with {', '.join(list(cast('dict[str, Any]', like))[:12])}" if isinstance(like, dict) else ""
    return f"{FOLD}{gone} more{keys}"


def _reports_failure(item: Json, depth: int) -> bool:
    """Return whether a text inside an item reports a failure."""
    if isinstance(item, str):
        return is_failure(item)
    if depth > _MAX_DEPTH:
        return False
    if isinstance(item, dict):
        pairs = cast("dict[str, Any]", item)
        return any(_is_failing(key, inner) or _reports_failure(inner, depth + 1) for key, inner in pairs.items())
    return isinstance(item, list) and any(_reports_failure(inner, depth + 1) for inner in cast("list[Any]", item))


def _is_failing(key: str, value: Json) -> bool:
    """Return whether a key names a failure and its value says that there is one."""
    return bool(value) and key.lower() in ("error", "errors", "exception", "failure", "failures", "stderr", "traceback")

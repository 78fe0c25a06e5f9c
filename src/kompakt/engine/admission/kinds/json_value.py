"""JSON: layout goes first, which loses nothing; then, when it is still large, the middle of long arrays and strings.

Only line breaks and what indents the next line go: a JSON string holds no line break, so no string changes, no number
is rounded, no key is lost, and ``"key": value`` stays as it was. Cost: one decoding, and one walk when it is large.
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
"""A match begins where a run of blanks begins: tried at each blank of a long run, it would take quadratic time."""

_MAX_TEXT = 240
"""Characters of a text inside a record that stands in one line."""

_STYLE = 400
"""Characters by which the style of a JSON text is told."""

_MAX_RARE, _MAX_ODD = 2, 20
"""Occurrences of a rare value in a long array, and most such values of one key."""

_MAX_DEPTH = 12
"""Values nested deeper are written as they are."""


def decoded(text: str) -> Json:
    """Read a text as a JSON object or array; ``None`` when it is neither."""
    inner = text.strip()
    if inner[:1] + inner[-1:] not in ("{}", "[]"):
        return None
    try:
        return decode_text(inner)
    except ValueError:
        return None


def minify(text: str) -> str:
    """Take the layout out of a JSON text."""
    return _LAYOUT.sub("", text.strip())


def shrink(text: str, settings: AdmissionSettings, value: Json) -> Shrunk:
    """Write a JSON text shorter."""
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
    """Write a very long line that is a JSON object shorter: its long texts are cut, its other values stay."""
    value = decoded(line)
    if value is None:
        return None
    short = _encoded(_sample(value, msgspec.structs.replace(settings, max_line=_MAX_TEXT), 0), line)
    return short if len(short) < len(line) * 0.8 else None


def _encoded(value: Json, like: str) -> str:
    """Write a value with a space behind its colons, or without, as another text has it."""
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
    """Keep the first items, the last one, those that fail and those of another shape; say what the others have."""
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
    """Find items with a value that hardly any other has, for a key whose values are few: the one suspended account."""
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
    """Tell what an item is made of."""
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

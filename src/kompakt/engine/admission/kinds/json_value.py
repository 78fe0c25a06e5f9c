"""JSON values, and JSON lines: first the layout is removed, which loses nothing; then long texts and long arrays.

Only line breaks and indentation are removed, so no string, number or key changes. Fields that all lines share are
written once. Of a value that is too large, texts are cut first, then items of arrays are left out: the first ones, the
last one, and those that fail or differ from the others stay; the rest is described. Cost: one decoding, and a few walks
through a large value.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from kompakt.engine.admission import columns
from kompakt.engine.admission.failures import Shrunk, cut, failures
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.json import decode_text
from kompakt.model.messages import Json
from kompakt.model.phrases import FOLD

_LAYOUT = re.compile(r"(?<![ \t\r])[ \t\r]*+\n[ \t\r\n]*+")
"""A match starts where a run of blanks starts; an attempt at every blank of a long run would take quadratic time."""

_MAX_TEXT = 240
"""Characters to which texts are cut before items are left out."""

_STYLE = 400
"""Characters from which the style of a JSON text is detected."""

_MAX_DEPTH = 12
"""Values nested deeper are not changed."""

_MAX_FLAT = 3
"""Objects inside an item whose values count as values of the item."""

_TEXTS_FIRST = 8
"""A value that is at most this many times too large is tried with all its items and shorter texts."""

_MIN_LINES, _MIN_SHARE = 4, 0.8
"""Fewest JSON lines, and their share of all lines."""

_MIN_SHARED = 8
"""Characters of a field that is worth writing once for all lines."""

_MAX_RARE = 2
"""Occurrences of the keys of an item up to which it has another shape."""


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
    sampled = _fitting(value, settings, settings.max_json_tokens * 4, short)
    if sampled is None or len(sampled) >= len(short) * 0.8:
        return Shrunk(short, 0, lines, ())
    share = 1 - len(sampled) / len(short)
    return Shrunk(sampled, max(1, round(lines * share)), lines, ())


def shrink_record(line: str, settings: AdmissionSettings, limit: int) -> str | None:
    """Write a very long line that is a JSON value in about ``limit`` characters."""
    value = decoded(line)
    if value is None:
        return None
    short = _fitting(value, settings, limit, line)
    return short if short is not None and len(short) < len(line) * 0.8 else None


def _fitting(value: Json, settings: AdmissionSettings, limit: int, like: str) -> str | None:
    """Write as much of a value as fits into a number of characters; ``None`` if all of it does.

    The smallest form has all texts cut and the fewest items; it is returned even if it does not fit.
    """
    if len(like) <= limit:
        return None
    sampler = _Sampler(settings)
    if len(like) <= limit * _TEXTS_FIRST:
        for longest in (settings.max_line, settings.max_line // 2, _MAX_TEXT):
            written = _encoded(sampler.sample(value, longest, None), like)
            if len(written) <= limit:
                return written
    items = settings.max_items
    best = _encoded(sampler.sample(value, _MAX_TEXT, items), like)
    while len(best) < limit:
        items *= 2
        written = _encoded(sampler.sample(value, _MAX_TEXT, items), like)
        if len(written) > limit or len(written) <= len(best):
            break
        best = written
    return best


def _encoded(value: Json, like: str) -> str:
    """Write a value with or without a space after colons, like another text."""
    colon = ": " if '": ' in like[:_STYLE] else ":"
    return json.dumps(value, separators=(",", colon), ensure_ascii=False)


class _Sampler:
    """Shortens one value in several attempts; what is odd in it is found once."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._notable: dict[int, tuple[set[int], str]] = {}

    def sample(self, value: Json, longest: int, items: int | None, depth: int = 0) -> Json:
        """Cut long texts, and the middle of arrays of more than ``items`` items."""
        if isinstance(value, str):
            return cut(value, longest)
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value)
            return {key: self.sample(inner, longest, items, depth + 1) for key, inner in pairs.items()}
        if isinstance(value, list):
            return self._sample_items(cast("list[Any]", value), longest, items, depth + 1)
        return value

    def _sample_items(self, values: list[Json], longest: int, items: int | None, depth: int) -> list[Json]:
        if items is None or len(values) <= items + 2:
            return [self.sample(item, longest, items, depth) for item in values]
        notable, description = self.notable(values)
        shown = {*range(items), len(values) - 1, *notable}
        total = len(values) - len(shown)
        out: list[Json] = []
        gone = 0
        for place, item in enumerate(values):
            if place not in shown:
                gone += 1
                continue
            if gone:
                out.append(_hidden(total, len(values), "items", description) if total else _gap(gone))
                gone = total = 0
            out.append(self.sample(item, longest, items, depth))
        return out

    def notable(self, values: list[Json]) -> tuple[set[int], str]:
        """Find the items that fail, that are odd or of another shape; and describe all items."""
        known = self._notable.get(id(values))
        if known is None:
            found, description = columns.read(_columns(values), len(values), self._settings.max_items)
            shapes = [_shape(item) for item in values]
            counts = Counter(shapes)
            found |= {place for place, shape in enumerate(shapes) if counts[shape] <= _MAX_RARE} | _failing(values)
            known = self._notable[id(values)] = found, description
        return known


def _hidden(gone: int, of: int, what: str, description: str) -> str:
    return f"{FOLD}{gone} of {of} {what} not shown{'; ' if description else ''}{description}"


def _gap(gone: int) -> str:
    return f"{FOLD}{gone} more"


def _columns(items: Sequence[Json]) -> dict[str, dict[int, str]]:
    """Read items as records: the values of each key, also of objects inside."""
    found: dict[str, dict[int, str]] = {}
    for place, item in enumerate(items):
        for key, value in _values(item, "", 0):
            found.setdefault(key, {})[place] = value
    return found


def _values(item: Json, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the texts, numbers and flags of an item, each with its path."""
    if isinstance(item, dict):
        if depth <= _MAX_FLAT:
            for key, inner in cast("dict[str, Any]", item).items():
                yield from _values(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(item, str):
        yield name, item[:_MAX_TEXT]
    elif not isinstance(item, list):
        yield name, _WORDS.get(item, "") if item is None or isinstance(item, bool) else str(item)


_WORDS = {None: "null", True: "true", False: "false"}


def _shape(item: Json) -> object:
    """Describe the structure of an item."""
    if isinstance(item, dict):
        return frozenset(cast("dict[str, Any]", item))
    return type(item)


def _failing(items: Sequence[Json]) -> set[int]:
    """Find the items that report a failure: with the value of a key, or with a line of a text."""
    found: set[int] = set()
    lines: list[str] = []
    owners: list[int] = []
    for place, item in enumerate(items):
        before = len(lines)
        if _collect(item, lines, 0):
            found.add(place)
        owners += [place] * (len(lines) - before)
    return found.union(owners[line] for line in failures("\n".join(lines), lines))


def _collect(item: Json, lines: list[str], depth: int) -> bool:
    """Collect the lines of all texts of an item; return whether the value of a key reports a failure."""
    fails = False
    if isinstance(item, str):
        lines += item.split("\n")
    elif depth <= _MAX_DEPTH and isinstance(item, dict):
        for key, inner in cast("dict[str, Any]", item).items():
            fails |= _is_failing(key, inner)
            fails |= _collect(inner, lines, depth + 1)
    elif depth <= _MAX_DEPTH and isinstance(item, list):
        for inner in cast("list[Any]", item):
            fails |= _collect(inner, lines, depth + 1)
    return fails


_FAILURES = ("error", "errors", "exception", "failure", "failures", "stderr", "traceback")
_LEVELS = ("level", "severity", "levelname", "loglevel", "log.level", "lvl")
_SEVERE = ("error", "err", "fatal", "critical", "crit", "alert", "emergency", "panic", "severe")


def _is_failing(key: str, value: Json) -> bool:
    """Return whether a key names a failure and its value says that there is one."""
    name = key.lower()
    if name in _LEVELS:
        return isinstance(value, str) and value.lower() in _SEVERE
    return bool(value) and name in _FAILURES


def decoded_lines(text: str) -> dict[int, dict[str, Json]] | None:
    """Decode the lines of a text that are JSON objects, by their place; ``None`` if too few are."""
    lines = text.split("\n")
    filled = [place for place, line in enumerate(lines) if line.strip()]
    if len(filled) < _MIN_LINES or not all(lines[place].lstrip().startswith("{") for place in filled[:_MIN_LINES]):
        return None
    found: dict[int, dict[str, Json]] = {}
    others = 0
    for place in filled:
        value = decoded(lines[place])
        if isinstance(value, dict):
            found[place] = value
        elif (others := others + 1) > max(2, len(filled) * (1 - _MIN_SHARE)):
            return None
    return found if len(found) >= _MIN_LINES else None


def shrink_lines(text: str, settings: AdmissionSettings, records: Mapping[int, dict[str, Json]]) -> Shrunk:
    """Compress JSON lines: shared fields are written once, then records are treated as the items of an array."""
    lines = text.split("\n")
    shared = _shared(lines, records)
    values: list[Json] = [
        {key: value for key, value in record.items() if key not in shared} for record in records.values()
    ]
    style = lines[next(iter(records))]
    limit = settings.max_json_tokens * 4
    sampler = _Sampler(settings)
    whole = [
        _encoded(value, style) if shared else lines[place].strip() for place, value in zip(records, values, strict=True)
    ]
    written = dict(enumerate(whole))
    total, description = sum(map(len, whole)), ""
    if limit < total <= limit * _TEXTS_FIRST:
        for longest in (settings.max_line, settings.max_line // 2, _MAX_TEXT):
            short = [_encoded(sampler.sample(value, longest, settings.max_items), style) for value in values]
            written = dict(enumerate(short))
            total = sum(map(len, written.values()))
            if total <= limit:
                break
    if total > limit:
        notable, description = sampler.notable(values)
        chosen = _first_that_fit(written, notable | {len(values) - 1}, settings.max_items, limit)
        written = {
            number: _encoded(sampler.sample(values[number], _MAX_TEXT, settings.max_items), style) for number in chosen
        }
    out: list[str] = [f"{FOLD}every line also has {_encoded(dict(shared), style)}"] if shared else []
    places = {place: number for number, place in enumerate(records)}
    hidden, gone = len(values) - len(written), 0
    for place, line in enumerate(lines):
        number = places.get(place)
        if number is not None and number not in written:
            gone += 1
            continue
        if gone:
            out.append(_hidden(hidden, len(values), "lines", description) if hidden else _gap(gone))
            gone = hidden = 0
        if number is not None:
            out.append(written[number])
        elif line.strip():
            out.append(cut(line, settings.max_line))
    folded = len(values) - sum(FOLD not in text or text == whole[number] for number, text in written.items())
    return Shrunk("\n".join(out), folded, len(lines), ())


_STYLES = tuple((separators, ascii) for separators in ((",", ":"), (", ", ": ")) for ascii in (True, False))


def _shared(lines: Sequence[str], records: Mapping[int, dict[str, Json]]) -> dict[str, Json]:
    """Find the fields that are equal in all records; none if a record would not be written as it came."""
    for separators, ascii in _STYLES:
        if all(
            json.dumps(record, separators=separators, ensure_ascii=ascii) == lines[place].strip()
            for place, record in records.items()
        ):
            break
    else:
        return {}
    first, *others = records.values()
    written = {key: json.dumps(value) for key, value in first.items()}
    return {
        key: first[key]
        for key, value in written.items()
        if len(key) + len(value) >= _MIN_SHARED
        and all(key in record and record[key] == first[key] for record in others)
        and all(json.dumps(record[key]) == value for record in others)
    }


def _first_that_fit(written: Mapping[int, str], keep: set[int], least: int, limit: int) -> set[int]:
    """Choose the records in ``keep``, and of the others the first ones that fit: at least ``least``."""
    room = limit - sum(len(written[number]) for number in keep)
    shown = set(keep)
    for number, text in written.items():
        room -= 0 if number in keep else len(text)
        if room < 0 and number >= least:
            break
        shown.add(number)
    return shown

"""JSON records as rows of a table: many lookups of one kind in the fewest words.

Agents that work with data (bookings, tickets, orders) call the same few tools again and again, and each answer repeats
the same keys. A table names the keys once::

    search_flights → date | flight_number | prices (economy/business); always: status available:
    - 2024-05-21 | HAT028 | 140/274

An answer contains more than the task needs. A row keeps the columns that the conversation mentions ("refund to the
original payment method") and those whose values were given to a call. If these are too few, it keeps all.
Of the many records that a search returns, the one that occurs elsewhere in the session is the one that was sought.

Every record matters more than every detail of one: where the rows take more room than there is, they become narrow.
They keep names, numbers and what was spoken of; lists of people become their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from kompakt.engine.ledger.excerpts import MAX_JSON, harmless, one_line
from kompakt.model.json import decode_text
from kompakt.model.messages import Json

MAX_CELL = 80
"""Characters kept of one plain value."""

MAX_ROW = 600
"""Characters kept of a row."""

MAX_WRAPPER = 3
"""Keys of an object that only wraps a list of records: the list, their number, the next page."""

MIN_ROWS = 2
"""Rows from which a table is shorter than key–value text."""

MIN_COLUMNS = 2
"""Columns that a row has at least, whatever was spoken of."""

MAX_COLUMNS, MAX_INNER = 24, 8

MIN_DATES = 3
"""Dates of a column from which their year is named only once."""

_STEM, _MIN_WORD = 5, 4
"""Characters by which words of keys and of speech are compared: price, prices and pricing are one word."""

Record: TypeAlias = Mapping[str, Json]

_IDENTIFIER = re.compile(
    r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9][\w-]{3,40}(?![\w-])|(?<![\w.:-])\d{5,20}(?![\w.:-])"
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_VALUE = re.compile(r"\w(?:[\w.-]*\w)?")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")
_DATE = re.compile(r"(?<![\w-])(\d{4})-(?=\d\d-\d\d(?![\w:-]))")
"""The year of a date without a time."""
_SEPARATORS = frozenset("|/,;")
_GENERIC = frozenset(
    ["total", "number", "count", "time", "type", "value", "list", "data", "info", "details", "current"]
)
"""Words of keys that occur in any conversation."""

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?$")


def decoded_records(output: str) -> list[Record] | None:
    """Read an answer as records: one object, or a list of objects. ``None`` for anything else."""
    stripped = output.strip()
    if stripped[:1] not in ("{", "[") or len(stripped) > MAX_JSON:
        return None
    try:
        value = decode_text(stripped)
    except ValueError:
        return None
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if _is_records(inner)]
        is_wrapper = len(lists) == 1 and len(value) <= MAX_WRAPPER
        if is_wrapper and all(_is_plain(inner) for inner in value.values() if inner is not lists[0]):
            return cast("list[Record]", lists[0])
        return [value]
    return cast("list[Record]", value) if _is_records(value) else None


def decoded_object(output: str) -> Record | None:
    """Read an answer as one object; ``None`` for anything else."""
    stripped = output.strip()
    if stripped[:1] != "{" or len(stripped) > MAX_JSON:
        return None
    try:
        value = decode_text(stripped)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value else None


def _is_records(value: Json) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(item, dict) and item for item in value)


def _is_plain(value: Json) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def identifiers(text: str) -> set[str]:
    """Return the words of a text that name something: with a letter and a digit, or long numbers; no dates."""
    return {word for word in _IDENTIFIER.findall(text) if not _TIMESTAMP.match(word)}


def without_arguments(record: Record, fields: Mapping[str, Json]) -> Record:
    """Return what a record says beyond the arguments by which it was found."""
    given = {value for value in fields.values() if isinstance(value, str)}
    return {key: value for key, value in record.items() if not (isinstance(value, str) and value in given)}


def with_arguments(record: Record, fields: Mapping[str, Json]) -> Record:
    """Put the plain arguments of the call before a record, as far as the record does not repeat them."""
    own = {value for value in record.values() if isinstance(value, str | int)}
    given = {
        key: value
        for key, value in fields.items()
        if isinstance(value, str | int) and value not in own and key not in record
    }
    return {**given, **record} if given else record


class Focus:
    """What a session is about: the words that were spoken, the values given to calls, and where names occur."""

    def __init__(self, tools: Mapping[str, Sequence[str]], spoken: Sequence[str], given: Sequence[str]) -> None:
        self._stems = {word[:_STEM].lower() for text in spoken for word in _WORD.findall(text)}
        self._spoken = {word for text in spoken for word in _VALUE.findall(text)}
        self._used = {word for text in given for word in _VALUE.findall(text)} | self._spoken
        self._named = set[str]().union(*(identifiers(text) for text in (*spoken, *given)))
        self._tools: dict[str, set[str]] = {}
        """Tools whose answers contain a name."""
        for tool, answers in tools.items():
            for answer in answers:
                for name in identifiers(answer):
                    self._tools.setdefault(name, set()).add(tool)

    def mentions(self, key: str, *, whole: bool = False) -> bool:
        """Return whether the conversation mentions a key; with ``whole``, all its words must occur."""
        words = _CAMEL.sub("_", key).lower().split("_")
        telling = (word for word in words if len(word) >= _MIN_WORD and word not in _GENERIC)
        known = [word[:_STEM] in self._stems for word in telling]
        return bool(known) and (all(known) if whole else any(known))

    def uses(self, value: Json) -> bool:
        """Return whether a value was given to a call or spoken."""
        return isinstance(value, str | int) and not isinstance(value, bool) and str(value) in self._used

    def speaks_of(self, value: Json) -> bool:
        """Return whether somebody mentioned a value."""
        return str(value) in self._spoken

    def links(self, record: Record, tool: str) -> bool:
        """Return whether a record is named elsewhere: in words, in a call, or in the answer of another tool."""
        for value in record.values():
            if isinstance(value, str) and value in self._tools:
                if value in self._named or self._tools[value] - {tool}:
                    return True
        return False


def table(
    records: Sequence[Record], focus: Focus | None = None, *, max_chars: int | None = None
) -> tuple[str, list[str]]:
    """Write records as a table; return its heading and one text for each record.

    Without a focus it has all columns. With ``max_chars``, rows that are longer in total become narrow.
    """
    heading, lines = _table(records, focus)
    if focus is not None and max_chars is not None and sum(map(len, lines)) > max_chars:
        return _table(records, focus, is_narrow=True)
    return heading, lines


def _table(records: Sequence[Record], focus: Focus | None, *, is_narrow: bool = False) -> tuple[str, list[str]]:
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = [_Column(key, [record.get(key) for record in records], focus, is_narrow=is_narrow) for key in keys]
    if focus is not None:
        columns = [column for column in columns if not column.is_empty][:MAX_COLUMNS]
        chosen = [column for number, column in enumerate(columns) if number == 0 or column.is_relevant]
        columns = chosen if len(chosen) >= MIN_COLUMNS else columns
        columns = [column for column in columns if not column.is_repeated_in(columns)]
    constant = [column for column in columns if len(records) >= MIN_ROWS and len(set(column.cells)) == 1]
    varied = [column for column in columns if column not in constant]
    if focus is not None:
        constant = [column for column in constant if not column.is_used]
    heading = " | ".join(column.name for column in varied)
    if constant:
        heading += "; always: " + ", ".join(f"{column.name} {column.cells[0]}" for column in constant)
    lines = (" | ".join(column.cells[number] for column in varied) for number in range(len(records)))
    return harmless(heading), [one_line(harmless(line), MAX_ROW) if focus is not None else line for line in lines]


def whole_table(output: str) -> str | None:
    """Write a JSON list of records as a table with all its values; ``None`` where the table would lose something."""
    records = decoded_records(output)
    if records is None or len(records) < MIN_ROWS or output.lstrip()[:1] != "[":
        return None
    if any(_is_ambiguous(value, 0) for record in records for value in record.values()):
        return None
    heading, lines = table(records)
    return "\n".join([heading, *lines])


def _is_ambiguous(value: Json, depth: int) -> bool:
    """Return whether a value would be cut or be confused with its neighbours."""
    if isinstance(value, str):
        return len(value) > MAX_CELL or not value.isprintable() or not _SEPARATORS.isdisjoint(value)
    if isinstance(value, dict):
        return depth > 1 or any(_is_ambiguous(inner, depth + 1) for inner in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return depth > 1 or any(_is_ambiguous(inner, depth + 1) for inner in cast("list[Any]", value))
    return False


class _Column:
    """The values of one key, as texts."""

    def __init__(self, key: str, values: Sequence[Json], focus: Focus | None, *, is_narrow: bool = False) -> None:
        inner = inner_keys(values)
        self.is_empty = all(value in (None, "", [], {}) for value in values)
        self.is_used = focus is not None and any(map(focus.uses, values))
        self.is_relevant = focus is None or self.is_used
        if focus is not None and not self.is_relevant:
            self.is_relevant = focus.mentions(key) and not any(_TIME.match(str(value)) for value in values)
        if inner and focus is not None:
            is_list = any(isinstance(value, list) for value in values)
            if is_list:
                self.is_relevant |= any(focus.mentions(name, whole=True) for name in inner)
            records = [record for value in values for record in _records_in(value)]
            inner = _focused(inner, records, focus)
            if is_narrow:
                inner = tuple(name for name in inner if _has_digit(record.get(name) for record in records))
                if is_list and not inner:
                    values = [len(value) if isinstance(value, list) else value for value in values]
        elif is_narrow and focus is not None and not _has_digit(values):
            self.is_relevant = any(map(focus.speaks_of, values))
        self.name = f"{key} ({'/'.join(inner)})" if inner else key
        self.cells = [cell_text(value, inner) for value in values]
        if focus is not None:
            self.cells = [", ".join(dict.fromkeys(cell.split(", "))) for cell in self.cells]
            self._name_year()

    def _name_year(self) -> None:
        """Name the year of many dates once."""
        years = {year for cell in self.cells for year in _DATE.findall(cell)}
        if len(years) == 1 and sum(len(_DATE.findall(cell)) for cell in self.cells) >= MIN_DATES:
            (year,) = years
            self.name += f" in {year}"
            self.cells = [_DATE.sub("", cell) for cell in self.cells]

    def is_repeated_in(self, columns: Sequence[_Column]) -> bool:
        """Return whether a longer cell of the same row contains what this column says, in every row."""
        return any(
            other is not self
            and all(
                len(one) < len(cell) and one in _VALUE.findall(cell)
                for one, cell in zip(self.cells, other.cells, strict=True)
            )
            for other in columns
        )


def _has_digit(values: Iterable[Json]) -> bool:
    """Return whether any of some values is a number, a date or a name with a number in it."""
    return any(any(map(str.isdigit, str(value))) for value in values)


def _focused(keys: tuple[str, ...], records: Sequence[Record], focus: Focus) -> tuple[str, ...]:
    """Choose the keys of inner records: those spoken of or used, else all but times."""
    wanted = {key for key in keys if any(focus.uses(record.get(key)) for record in records)}
    spoken = {key for key in keys if focus.mentions(key, whole=True)}
    if not spoken:
        spoken = {key for key in keys if not any(_TIME.match(str(record.get(key))) for record in records)}
    return tuple(key for key in keys if key in wanted or key in spoken) or keys


def inner_keys(values: Sequence[Json]) -> tuple[str, ...] | None:
    """Return the keys that the records inside of a column share; ``None`` when it holds no such records."""
    found: dict[str, None] = {}
    for value in values:
        for record in _records_in(value):
            if any(not _is_plain(inner) for inner in record.values()):
                return None
            found |= dict.fromkeys(record)
    return tuple(found) if 0 < len(found) <= MAX_INNER else None


def _records_in(value: Json) -> Iterator[dict[str, Json]]:
    if isinstance(value, dict):
        if value and all(isinstance(inner, dict) for inner in value.values()):
            yield from cast("list[dict[str, Json]]", list(value.values()))
        else:
            yield value
    elif isinstance(value, list):
        yield from (cast("dict[str, Json]", item) for item in value if isinstance(item, dict))


def cell_text(value: Json, inner: tuple[str, ...] | None) -> str:
    """Write a value on one line; of inner records the values of some keys, without the keys."""
    if inner:
        return ", ".join("/".join(_plain(record.get(key)) for key in inner) for record in _records_in(value)) or "-"
    if isinstance(value, list):
        return ", ".join(map(_plain, cast("list[Any]", value))) or "-"
    return _plain(value)


def _plain(value: Json) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in cast("dict[str, Any]", value).items())
    if isinstance(value, list):
        return "; ".join(map(_plain, cast("list[Any]", value)))
    return one_line(str(value), MAX_CELL)

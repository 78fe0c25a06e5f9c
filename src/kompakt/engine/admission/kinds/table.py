"""Tables: CSV, TSV and columns between bars.

Rows of a table look alike but each one is data, so rows are never folded as alike. The header, the first and the last
rows stay, as do rows that report a failure, that have another number of cells, or that hold a value which hardly any
other row has. One line says how many rows are not shown and the range or the values of each column. Cost: one pass over
the cells.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence

from kompakt.engine.admission.failures import Shrunk, failures
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

_DELIMITERS = ("\t", ",", ";", "|")

_MIN_ROWS = 12
"""Fewer lines are no table worth shortening."""

_MIN_SHARE = 0.9
"""Share of the sampled lines that must have the same number of cells."""

_SAMPLE = 40
"""Lines read at either end to tell what a text is."""

_RULE = re.compile(r"[\s|+:=-]+$")
"""A line that only draws the table."""

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?$")

_DATE = re.compile(r"\d{4}-\d\d-\d\d")

_MAX_RARE = 2
"""Occurrences of a value up to which it is rare, in a column of few different values."""

_FEW_VALUES = 12
"""Most different values of a column that are listed."""

_MAX_ODD = 40
"""Most rows with a rare value that stay; more are not rare."""

_WORDY = 6
"""Words of a cell from which it is prose: commas in sentences make no table."""


def is_table(text: str) -> bool:
    """Return whether a text is a table, judged by its first and last lines."""
    lines = [line for line in text[:16_000].split("\n", _SAMPLE)[:_SAMPLE] if line.strip()]
    lines += [line for line in text[16_000:][-8_000:].rsplit("\n", _SAMPLE // 2)[1:] if line.strip()]
    return len(lines) >= _MIN_ROWS and _delimiter(lines) is not None


def _delimiter(lines: Sequence[str]) -> str | None:
    """Find the delimiter that divides nearly all lines into the same number of cells."""
    rows = [line for line in lines if not _RULE.match(line)]
    for delimiter in _DELIMITERS:
        cells = [_cells(line, delimiter) for line in rows]
        widths = Counter(map(len, cells)).most_common(1)
        if not widths or widths[0][0] < 2 + (delimiter in "|;") or widths[0][1] < len(rows) * _MIN_SHARE:
            continue
        inner = [cell for row in cells[1:] for cell in row]
        if sum(len(cell.split()) >= _WORDY for cell in inner) * 4 < len(inner) and not _is_code(rows):
            return delimiter
    return None


def _is_code(rows: Sequence[str]) -> bool:
    """Return whether most lines end as code does; argument lists have commas too."""
    return sum(row.rstrip()[-1:] in ("{", "}", "(", ")", ";", ":", ",") for row in rows) * 3 > len(rows)


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    if '"' in line:
        return next(csv.reader([line], delimiter=delimiter), [])
    return line.split(delimiter)


def shrink(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Write a table shorter; ``None`` when all rows are shown anyway."""
    lines = text.split("\n")
    delimiter = _delimiter([line for line in lines[:_SAMPLE] if line.strip()])
    limit = settings.max_table_rows
    places = [place for place, line in enumerate(lines) if line.strip() and not _RULE.match(line)]
    if delimiter is None or len(places) <= limit + 2:
        return None
    header, *body = places
    rows = {place: _cells(lines[place], delimiter) for place in body}
    names = _cells(lines[header], delimiter)
    tail = limit // 3
    keep = {*range(body[limit - tail - 1] + 1), *body[len(body) - tail :]}
    keep |= failures(text, lines) | _odd(rows, len(names)) | {at for at, line in enumerate(lines) if not line.strip()}
    gone = [place for place in body if place not in keep]
    if not gone:
        return None
    first, out = gone[0], list[str]()
    for place, line in enumerate(lines):
        if place == first:
            out.append(f"{FOLD}{len(gone)} of {len(body)} rows not shown; {_columns(names, list(rows.values()))}")
        if place in keep or (place not in rows and not (first < place < gone[-1])):
            out.append(line)
    return Shrunk("\n".join(out), len(gone), len(lines), ())


def _odd(rows: dict[int, list[str]], width: int) -> set[int]:
    """Find rows with another number of cells, or with a rare value in a column of few values."""
    found = {place for place, row in rows.items() if len(row) != width}
    for column in range(width):
        counts = Counter(row[column] for row in rows.values() if len(row) == width)
        if len(counts) > min(_MAX_ODD, len(rows) // 4):
            continue
        rare = {value for value, count in counts.items() if count <= _MAX_RARE}
        odd = (
            {place for place, row in rows.items() if len(row) == width and row[column] in rare} if rare else set[int]()
        )
        found |= odd if len(odd) <= _MAX_ODD else set()
    return found


def _columns(names: Sequence[str], rows: Sequence[list[str]]) -> str:
    """Describe each column by its range or its values."""
    described: list[str] = []
    for column, name in enumerate(names):
        values = [row[column].strip() for row in rows if len(row) == len(names) and row[column].strip()]
        numbers = [value for value in values if _NUMBER.match(value)]
        counts = Counter(values)
        label = name.strip() if not _NUMBER.match(name.strip()) else f"column {column + 1}"
        if values and len(numbers) == len(values) and len(counts) > 2:
            described.append(f"{label} {min(numbers, key=float)} to {max(numbers, key=float)}")
        elif values and len(counts) > _FEW_VALUES and all(map(_DATE.match, values)):
            described.append(f"{label} {min(values)} to {max(values)}")
        elif 0 < len(counts) <= _FEW_VALUES:
            described.append(f"{label}: " + ", ".join(f"{value} ({count})" for value, count in counts.most_common()))
        elif values:
            described.append(f"{label}: {len(counts)} values")
    return "; ".join(described)

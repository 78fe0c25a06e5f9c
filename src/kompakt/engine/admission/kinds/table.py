"""Tables: CSV, TSV, columns between bars or lines, and columns aligned with spaces.

Similar rows are not folded, because each row is data. The header, the first and the last rows stay, and so do rows that
report a failure, have another number of cells, or have an outlier in one of their columns. One line states how many
rows are not shown and describes each column. Text before and after the table stays. Cost: one
pass over the cells.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from kompakt.engine.admission import columns
from kompakt.engine.admission.failures import Shrunk, failures
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

Split: TypeAlias = Callable[[str], list[str]]
"""Splits a line into cells."""

_MIN_ROWS = 12
"""Minimum lines of a table that is shortened."""

_MIN_SHARE, _MIN_SHARE_INSIDE = 0.7, 0.9
"""Share of all sampled lines, and of those in the middle, that must have the same number of cells."""

_AT_START, _INSIDE, _AT_END = 20, 40, 20
"""Lines that are sampled."""

_RULE = re.compile(r"[\s|+:=\-─━═│┃║┌┐└┘├┤┬┴┼╔╗╚╝╠╣╦╩╬╞╡╪╭╮╰╯]+$")
"""A line that only draws the table."""

_SPACES = re.compile(r"\s{2,}")

_CAPITALS = re.compile(r"[A-Z%#][A-Z0-9%#()_/:.-]*(?:\s+[A-Z%#][A-Z0-9%#()_/:.-]*){2,}\s*$")
"""The header of columns that are aligned with spaces."""

_WIDTHS = re.compile(r"-{2,}(?: +-{2,})+\s*$")
"""The line under such a header that shows the width of each column."""

_WORDY, _WORDY_PAIR = 6, 3
"""Minimum words of a cell that is prose, in general and in rows of two cells: sentences with commas are not rows."""


def is_table(text: str) -> bool:
    """Return whether a text is a table, judged by its first, middle and last lines."""
    lines = text.split("\n")
    return len(lines) >= _MIN_ROWS and _shape(lines) is not None


def _shape(lines: Sequence[str]) -> tuple[Split, int] | None:
    """Find out how lines are split into cells, and how many cells a row has."""
    filled = [line for line in lines if line.strip() and not _RULE.match(line)]
    if len(filled) < _MIN_ROWS:
        return None
    inside = filled[len(filled) // 4 :][: max(_MIN_ROWS // 2, min(_INSIDE, len(filled) // 2))]
    sample = [*filled[:_AT_START], *inside, *filled[max(_AT_START, len(filled) - _AT_END) :]]
    for split, least in _splits(lines, filled):
        width, count = Counter(len(split(line)) for line in inside).most_common(1)[0]
        if width < least or count < len(inside) * _MIN_SHARE_INSIDE:
            continue
        rows = [cells for line in sample if len(cells := split(line)) == width]
        words = [len(cell.split()) for row in rows for cell in row]
        is_wordy = sum(count >= (_WORDY if width > 2 else _WORDY_PAIR) for count in words) * 4 >= len(words)
        if len(rows) >= len(sample) * _MIN_SHARE and not is_wordy and not _is_code(inside):
            return split, width
    return None


def _splits(lines: Sequence[str], filled: Sequence[str]) -> Iterator[tuple[Split, int]]:
    """Yield the ways to split a line that may apply, each with the minimum number of cells of a table."""
    start = "\n".join(filled[:_AT_START])
    for delimiter, least in (("\t", 2), (",", 2), (";", 3), ("|", 3), ("│", 3)):
        if delimiter in start:
            yield (_between_bars(delimiter) if delimiter in "|│" else _delimited(delimiter)), least
    header = next((line for line in lines if line.strip()), "").strip()
    if _CAPITALS.match(header) or any(map(_WIDTHS.match, lines[:_AT_START])):
        yield (lambda line: _SPACES.split(line.strip())), 3
    if _CAPITALS.match(header):
        count = len(header.split())
        yield (lambda line: line.split(None, count - 1)), 4


def _delimited(delimiter: str) -> Split:
    def split(line: str) -> list[str]:
        return next(csv.reader([line], delimiter=delimiter), []) if '"' in line else line.split(delimiter)

    return split


def _between_bars(bar: str) -> Split:
    return lambda line: [cell.strip() for cell in line.strip().strip(bar).split(bar)]


def _is_code(rows: Sequence[str]) -> bool:
    """Return whether most lines end like code; argument lists have commas too."""
    return sum(row.rstrip()[-1:] in ("{", "}", "(", ")", ";", ":", ",") for row in rows) * 3 > len(rows)


def shrink(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Return a shorter table; ``None`` when all rows are shown anyway."""
    lines = text.split("\n")
    shape = _shape(lines)
    if shape is None:
        return None
    split, width = shape
    cells = {place: split(line) for place, line in enumerate(lines) if line.strip() and not _RULE.match(line)}
    regular = [place for place, row in cells.items() if len(row) == width]
    names = _names(cells[regular[0]], cells[regular[1]])
    rows = regular[1:] if names else regular
    body = [place for place in cells if rows[0] <= place <= rows[-1]]
    limit = settings.max_table_rows
    if len(body) <= limit + 1:
        return None
    values = {f"column {column + 1}": {place: cells[place][column] for place in rows} for column in range(width)}
    odd, description = columns.read(values, len(body), settings.max_items, names)
    tail = limit // 3
    keep = {*body[: limit - tail], *body[len(body) - tail :]} | failures(text, lines)
    keep |= {place for place in body if len(cells[place]) != width}
    keep |= odd
    gone = {place for place in body if place not in keep}
    if not gone:
        return None
    first, end = min(gone), max(gone)
    out: list[str] = []
    for place, line in enumerate(lines):
        if place == first:
            out.append(f"{FOLD}{len(gone)} of {len(body)} rows not shown; {description}")
        if place not in gone and (place in cells or not first < place < end):
            out.append(line)
    return Shrunk("\n".join(out), len(gone), len(lines), ())


def _names(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the column names in the first row; none if it has a number in a column where the second row has one."""
    if any(_is_number(name) and _is_number(cell) for name, cell in zip(first, second, strict=True)):
        return []
    return [name.strip() or f"column {place}" for place, name in enumerate(first, 1)]


def _is_number(cell: str) -> bool:
    return cell.strip().replace(".", "", 1).lstrip("-").isdigit()

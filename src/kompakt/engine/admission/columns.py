"""Columns of records: rows of a table, objects of a list, lines of a structured log.

A record is odd if it has a value that hardly any other record has, or a number far away from the others. Odd records
are what a reader looks for, so they stay; the rest is described by the range or the values of each column. Cost: one
pass over the values, and one sort per column of numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

Columns: TypeAlias = Mapping[str, Mapping[int, str]]
"""The values of each column by the place of their record."""

_NUMBER = re.compile(r"\s*[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\s*$")

_DATE = re.compile(r"\d{4}-\d\d-\d\d")

_MAX_RARE = 2
"""Occurrences of a value up to which it is rare."""

_MAX_ODD = 40
"""Most records that are odd because of one column; more are not odd."""

_MAX_USUAL = 20
"""Most rare values of a column in which one value is usual."""

_MIN_NUMBERS = 12
"""Fewest numbers of a column whose distribution means something."""

_FAR = 3.0
"""Distance from the middle half of the numbers, in widths of that half, from which a number is far away."""

_FEW_VALUES = 12
"""Most different values of a column that are listed."""

_MAX_VALUE = 40
"""Characters of a value that is listed."""


def read(columns: Columns, total: int, limit: int, names: Sequence[str] = ()) -> tuple[set[int], str]:
    """Find the odd records, and describe each column.

    Odd are records with a rare value, and up to ``limit`` records with a number that stands out. ``names`` replaces the
    labels of the columns.
    """
    odd: set[int] = set()
    outliers: list[int] = []
    ends: list[tuple[int, int]] = []
    said: list[str] = []
    for place, (label, values) in enumerate(columns.items()):
        name = names[place] if place < len(names) else label
        counts = Counter(values.values())
        numbers = _numbers(values) if len(counts) > 2 else None
        odd |= _with_rare_value(values, counts, total)
        if numbers is not None:
            far, extremes = _by_distance(numbers)
            outliers += far
            ends += extremes
        said.append(_description(name, counts, numbers))
    standing_out = [*outliers, *(high for _, high in ends), *(low for low, _ in ends)]
    chosen = [place for place in dict.fromkeys(standing_out) if place not in odd]
    return odd | set(chosen[:limit]), "; ".join(filter(None, said))


def far_records(columns: Columns, limit: int) -> set[int]:
    """Find up to ``limit`` records with a number that is far away from the others of its column."""
    found = (_numbers(values) for values in columns.values())
    far = [place for numbers in found if numbers is not None for place in _by_distance(numbers)[0]]
    return set(list(dict.fromkeys(far))[:limit])


def _numbers(values: Mapping[int, str]) -> dict[int, float] | None:
    """Read the values of a column as numbers; ``None`` if one is none."""
    if not all(map(_NUMBER.match, values.values())):
        return None
    return dict(zip(values, map(float, values.values()), strict=True))


def _with_rare_value(values: Mapping[int, str], counts: Counter[str], total: int) -> set[int]:
    """Find the records with a rare value, in a column of few values or with one usual value."""
    is_few = len(counts) <= min(_MAX_ODD, total // 4)
    if not is_few and counts.most_common(1)[0][1] * 2 <= total:
        return set()
    rare = {value for value, count in counts.items() if count <= _MAX_RARE}
    if not rare or not (is_few or len(rare) <= _MAX_USUAL):
        return set()
    odd = {place for place, value in values.items() if value in rare}
    return odd if len(odd) <= _MAX_ODD else set()


def _by_distance(numbers: Mapping[int, float]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the places of numbers that are far away, farthest first, and those of the least and the greatest.

    A column in which every number is greater than the one before is a counter or a time; no number of it stands out.
    """
    in_order = list(numbers.values())
    if len(in_order) < _MIN_NUMBERS or all(first < second for first, second in pairwise(in_order)):
        return [], []
    by_size = sorted(numbers, key=numbers.__getitem__)
    low, high = (numbers[by_size[len(by_size) * quarter // 4]] for quarter in (1, 3))
    reach = _FAR * (high - low)
    below, above = low - reach, high + reach
    far = [place for place in by_size if reach and not below <= numbers[place] <= above]
    far.sort(key=lambda place: max(low - numbers[place], numbers[place] - high), reverse=True)
    return far, [(by_size[0], by_size[-1])]


def _description(name: str, counts: Counter[str], numbers: Mapping[int, float] | None) -> str:
    """Describe a column by its range, its values, or their number."""
    if numbers is not None:
        return f"{name} {min(counts, key=float).strip()} to {max(counts, key=float).strip()}"
    values = [value for value in map(str.strip, counts) if value]
    if not values:
        return ""
    if len(values) > _FEW_VALUES and all(map(_DATE.match, values)):
        return f"{name} {min(values)} to {max(values)}"
    if len(counts) <= _FEW_VALUES and max(map(len, values)) <= _MAX_VALUE:
        common = [(value.strip(), count) for value, count in counts.most_common()]
        return f"{name}: " + ", ".join(f"{value} ({count})" for value, count in common if value)
    return f"{name}: {len(values)} values"

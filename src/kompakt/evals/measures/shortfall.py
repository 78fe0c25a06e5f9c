"""What would be needed where a goal is missed: how many more, and what became of those that are not told.

Three things can be wrong: the budget lies below what has to stay, so nothing can be told; there was no room; or a name
or key stands there without the words that make it known. Each wants another remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import msgspec

from kompakt.evals.reports.results import GOALS
from kompakt.evals.reports.row import Row

UNFIT = "does not fit"
"""Begins the note of a row whose budget could not be kept."""

ALONE = "stands alone"
"""Ends the reason of a miss whose key is there."""


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """A goal that is missed."""

    name: str
    told: int
    asked: int
    more: int
    """How many more would reach it."""
    unfit: int
    """Misses in cases whose budget lies below the floor."""
    alone: int
    """Misses whose key stands in the context, but not with its words."""
    absent: int
    """Misses there was no room for."""
    worst: tuple[str, ...]
    """Where most of those are that could have been told."""


def shortfalls(rows: Sequence[Row]) -> Iterator[Shortfall]:
    """Go through the goals on what a projection tells that are missed."""
    for name, measure, mode, kind, goal in GOALS:
        found = [row for row in rows if (row.measure, row.mode) == (measure, mode) and kind in row.asked]
        asked, told = (sum(counts.get(kind, 0) for counts in of) for of in _counts(found))
        if measure == "told" and asked and told < goal * asked:
            unfit = _missing((row for row in found if row.note.startswith(UNFIT)), kind)
            fit = [row for row in found if not row.note.startswith(UNFIT)]
            alone = sum(one.kind == kind and one.why.endswith(ALONE) for row in fit for one in row.missed)
            yield Shortfall(
                name=name,
                told=told,
                asked=asked,
                more=ceil(goal * asked) - told,
                unfit=unfit,
                alone=alone,
                absent=asked - told - unfit - alone,
                worst=_worst(fit, kind),
            )


def _counts(rows: Sequence[Row]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    return [row.asked for row in rows], [row.told for row in rows]


def _missing(rows: Iterable[Row], kind: str) -> int:
    return sum(row.asked[kind] - row.told.get(kind, 0) for row in rows)


def _worst(rows: Sequence[Row], kind: str) -> tuple[str, ...]:
    most = sorted(rows, key=lambda row: (-_missing([row], kind), row.session, row.at))[:3]
    return tuple(f"{row.session}@{row.at}: {_missing([row], kind)} in {row.budget} tokens" for row in most)

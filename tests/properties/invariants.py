"""Invariants for every payload, valid or broken: each function returns, or raises an error of kompakt.

Used by a test on a few thousand mutated bodies and by the soak test on 100,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.histories.mutations import mutated

import kompakt
from kompakt.errors import AmbiguousFormat, KompaktError

BUDGETS = (120, 600, 4_000)


def faults(format: str, number: int) -> list[str]:
    """Run one mutated body through every function and return the faults."""
    payload = mutated(format, number)
    found = list(_faults(payload, format, number))
    if not same(payload, mutated(format, number)):
        found.append("the payload given was changed")
    return found


def _faults(payload: Any, format: str, number: int) -> Iterator[str]:
    named = None if number % 4 == 0 else format
    try:
        named = named or _detected(payload)
        history = kompakt.parse(payload, named)
    except KompaktError:
        history = None
    if history is None:
        yield from _refused(payload, named)
        return
    named = history.format
    if not same(kompakt.render(history), kompakt.render(kompakt.parse(kompakt.render(history), named))):
        yield "render: not what was parsed"
    kompakt.check(payload, named)
    kompakt.count(payload, format=named)
    kompakt.recall(payload, "read_file ok", format=named)
    for strict in (False, True):
        for resting in (False, True):
            yield from _repairs(payload, named, strict, resting)
    yield from _compactions(payload, named, BUDGETS[number % len(BUDGETS)])


def _detected(payload: Any) -> str | None:
    """Return the first format that plain texts could have: only ``parse`` needs it, the other functions do not."""
    try:
        kompakt.parse(payload)
    except AmbiguousFormat as error:
        return error.candidates[0]
    return None


def _refused(payload: Any, named: str | None) -> Iterator[str]:
    """A payload that cannot be parsed is rejected by every function."""
    doors = {
        "check": lambda: kompakt.check(payload, named),
        "repair": lambda: kompakt.repair(payload, named),
        "count": lambda: kompakt.count(payload, format=named),
        "compact": lambda: kompakt.compact(payload, 1_000, format=named),
    }
    for name, door in doors.items():
        try:
            door()
        except KompaktError:
            continue
        yield f"{name}: takes what parse refuses"


def _repairs(payload: Any, named: str, strict: bool, resting: bool) -> Iterator[str]:
    """One pass is enough and leaves nothing repairable."""
    name = f"repair, {strict=}, {resting=}"
    once = kompakt.repair(payload, named, strict=strict, resting=resting)
    left = [problem for problem in once.remaining if problem.repairable]
    if left:
        yield f"{name}: leaves {left[0]}"
    if kompakt.check(once.payload, named, strict=strict, resting=resting) != list(once.remaining):
        yield f"{name}: what remains is not what check finds"
    twice = kompakt.repair(once.payload, named, strict=strict, resting=resting)
    if twice.changes or not same(twice.payload, once.payload):
        yield f"{name}: a second pass does {list(map(str, twice.changes))[:2]}"


def _compactions(payload: Any, named: str, budget: int) -> Iterator[str]:
    """A result that fits is not changed by a second compaction and is valid."""
    try:
        once = kompakt.compact(payload, budget, format=named)
    except KompaktError:
        return
    left = [problem for problem in kompakt.check(once.payload, named) if problem.repairable]
    if left:
        yield f"compact: leaves {left[0]}"
    twice = kompakt.compact(once.payload, budget, format=named)
    if not same(twice.payload, once.payload):
        yield f"compact: a second pass changes it: {twice.report.reason}, {list(twice.report.repairs)[:2]}"
    once.recall("read_file ok")


def same(one: Any, other: Any) -> bool:
    """Compare values iteratively, so that depth does not matter; NaN equals itself, a tuple is not a list."""
    level = [(one, other)]
    while level:
        deeper: list[tuple[Any, Any]] = []
        for left, right in level:
            if left is right:
                continue
            if type(left) is not type(right):
                return False
            if isinstance(left, dict):
                if left.keys() != right.keys():
                    return False
                deeper += [(left[key], right[key]) for key in left]
            elif isinstance(left, list | tuple):
                if len(left) != len(right):
                    return False
                deeper += zip(left, right, strict=True)
            elif left != right and not (isinstance(left, float) and math.isnan(left) and math.isnan(right)):
                return False
        level = deeper
    return True

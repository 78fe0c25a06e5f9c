"""Rows gathered into numbers: totals, distributions, worst sessions, and whether a goal is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

import msgspec

from kompakt.evals.facts import KINDS
from kompakt.evals.measures.attack import ATTACKS
from kompakt.evals.measures.bills import CLAIRVOYANT, ECONOMIC, READS, SAVED, UNTOUCHED_READS, WORST
from kompakt.evals.measures.chains import PASSES
from kompakt.evals.measures.context import SUMMARY, TENTH
from kompakt.evals.reports.row import Row


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: the share that held over all, its distribution over sessions, and where it was worst."""

    measure: str
    mode: str
    kind: str
    told: int
    asked: int
    share: float
    median: float
    p10: float
    least: float
    worst: tuple[str, ...] = ()
    """Sessions and cuts, the worst first."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A goal beside what was measured."""

    name: str
    goal: str
    found: str
    reached: bool | None
    """Nothing where it was not measured."""


GOALS: tuple[tuple[str, str, str, str, float], ...] = (
    *((f"{kind}, {TENTH}", "told", f"kompakt, {TENTH}", kind, 1.0 if kind in ("modified", "constraint") else 0.95)
      for kind in KINDS),
    *((f"{kind}, {SUMMARY}", "told", f"kompakt, {SUMMARY}", kind, 1.0 if kind in ("modified", "constraint") else 0.95)
      for kind in KINDS),
    (f"forward need, {TENTH}", "told", f"kompakt, {TENTH}", "need", 0.90),
    (f"forward need, {SUMMARY}", "told", f"kompakt, {SUMMARY}", "need", 0.80),
    (f"precision, {TENTH}", "told", f"kompakt, {TENTH}", "precision", 0.99),
    (f"precision, {SUMMARY}", "told", f"kompakt, {SUMMARY}", "precision", 0.99),
    ("valid", "told", f"kompakt, {TENTH}", "valid", 1.0),
    ("fits", "told", f"kompakt, {TENTH}", "fits", 1.0),
    ("reachable", "told", f"kompakt, {TENTH}", "reachable", 0.99),
    ("restored", "told", f"kompakt, {TENTH}", "restored", 1.0),
    ("evidence", "evidence", "kompakt", "evidence", 0.85),
    *((f"constraints, {mode}", "attack", mode, "constraint", 1.0) for mode in ATTACKS),
)  # fmt: skip

FLAT = 0.02
LATENCY = 0.150
COMPRESSION = 0.50
FACTS_KEPT = 0.95
LONG = 100_000
"""Tokens of a session whose bill is to be halved."""
BILL_SAVED, BILL_WORST, BILL_FORESEEN, CACHE_KEPT = 0.50, -0.01, 1.1, 0.97


def numbers(rows: Iterable[Row]) -> list[Number]:
    """Gather rows by measure, mode and kind, in the order they came."""
    gathered: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        for kind in row.asked:
            gathered.setdefault((row.measure, row.mode, kind), []).append(row)
    return [_number(*name, found) for name, found in gathered.items()]


def _number(measure: str, mode: str, kind: str, rows: list[Row]) -> Number:
    told = sum(row.told.get(kind, 0) for row in rows)
    asked = sum(row.asked[kind] for row in rows)
    shares = sorted(
        (row.told.get(kind, 0) / row.asked[kind], f"{row.session}@{row.at}") for row in rows if row.asked[kind]
    )
    values = [share for share, _ in shares]
    return Number(
        measure=measure,
        mode=mode,
        kind=kind,
        told=told,
        asked=asked,
        share=told / asked if asked else 0.0,
        median=median(values) if values else 0.0,
        p10=values[len(values) // 10] if values else 0.0,
        least=values[0] if values else 0.0,
        worst=tuple(f"{name} {share:.0%}" for share, name in shares[:3] if share < 1),
    )


def goals(found: Sequence[Number], rows: Sequence[Row]) -> list[Goal]:
    """Hold what was measured against every goal."""
    by_name = {(one.measure, one.mode, one.kind): one for one in found}
    judged = [_at_least(name, by_name.get((measure, mode, kind)), goal) for name, measure, mode, kind, goal in GOALS]
    judged.append(_flat("chains, facts", lambda kind: kind in KINDS, found))
    judged.append(_flat("chains, constraints", lambda kind: kind == "constraint", found))
    judged.append(_flat("chains, forward need", lambda kind: kind == "need", found))
    seconds = [row.seconds for row in rows if row.measure == "latency"]
    judged.append(_at_most("latency of 200,000 tokens", median(seconds) if seconds else None, LATENCY))
    removed = [share for row in rows if row.measure == "compression" if (share := _removed(row)) is not None]
    found_share = f"median {median(removed):.1%}" if removed else "not measured"
    reached = median(removed) >= COMPRESSION if removed else None
    judged.append(Goal(name="compression", goal=f"≥ {COMPRESSION:.0%}", found=found_share, reached=reached))
    return [*judged, *_bill_goals(rows)]


def _bill_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Hold bills against sending everything and against the clairvoyant, and the cache against untouched sessions."""
    priced = {(row.mode, row.session): row for row in rows if row.measure == "bill"}
    mine = [row for (mode, _), row in priced.items() if mode == ECONOMIC]
    long = [row for row in mine if row.tokens > LONG]
    fitting = [row for row in mine if row.tokens <= row.budget]
    saved = [row.share(SAVED) or 0.0 for row in long]
    yield _middle("bill, saved on long sessions", saved, BILL_SAVED, lowest=True)
    worst = [row.share(WORST) or 0.0 for row in fitting]
    found = f"{min(worst):+.1%}" if worst else "not measured"
    reached = min(worst) >= BILL_WORST if worst else None
    yield Goal(name="bill, least saved at any moment", goal=f"≥ {BILL_WORST:.0%}", found=found, reached=reached)
    over = [_left(row) / max(1, _left(priced[CLAIRVOYANT, row.session])) for row in long]
    yield _middle("bill, of the clairvoyant's", over, BILL_FORESEEN, lowest=False)
    kept = [(row.share(READS) or 0.0) / whole for row in long if (whole := row.share(UNTOUCHED_READS))]
    yield _middle("cache, of the untouched share", kept, CACHE_KEPT, lowest=True)


def _left(row: Row) -> int:
    return row.asked[SAVED] - row.told[SAVED]


def _middle(name: str, values: Sequence[float], goal: float, *, lowest: bool) -> Goal:
    """Judge a median that is to be at least, or at most, so much."""
    sign, worst = ("≥", min) if lowest else ("≤", max)
    if not values:
        return Goal(name=name, goal=f"{sign} {goal:.0%}", found="not measured", reached=None)
    middle = median(values)
    found = f"median {middle:.1%}, worst {worst(values):.1%}"
    reached = middle >= goal if lowest else middle <= goal
    return Goal(name=name, goal=f"{sign} {goal:.0%}", found=found, reached=reached)


def _removed(row: Row) -> float | None:
    """Return how much admission removed; nothing counts as removed where facts were lost."""
    facts = row.share("facts")
    return row.share("tokens removed") if facts is None or facts >= FACTS_KEPT else 0.0


def _at_least(name: str, number: Number | None, goal: float) -> Goal:
    if number is None:
        return Goal(name=name, goal=f"≥ {goal:.0%}", found="not measured", reached=None)
    found = f"{number.share:.1%} ({number.told}/{number.asked}), p10 {number.p10:.0%}, least {number.least:.0%}"
    return Goal(name=name, goal=f"≥ {goal:.0%}", found=found, reached=number.share >= goal)


def _at_most(name: str, seconds: float | None, goal: float) -> Goal:
    if seconds is None:
        return Goal(name=name, goal=f"≤ {goal * 1000:.0f} ms", found="not measured", reached=None)
    return Goal(name=name, goal=f"≤ {goal * 1000:.0f} ms", found=f"{seconds * 1000:.0f} ms", reached=seconds <= goal)


def _flat(name: str, wanted: Callable[[str], bool], found: Sequence[Number]) -> Goal:
    """Tell whether what is told after every number of passes is within two points of what one pass tells."""
    shares = {passes: share for passes in PASSES if (share := chain_share(found, passes, wanted)) is not None}
    if 1 not in shares:
        return Goal(name=name, goal=f"flat within {FLAT:.0%}", found="not measured", reached=None)
    drop = shares[1] - min(shares.values())
    said = ", ".join(f"{passes}: {share:.1%}" for passes, share in shares.items())
    return Goal(name=name, goal=f"flat within {FLAT:.0%}", found=said, reached=drop <= FLAT)


def chain_share(found: Sequence[Number], passes: int, wanted: Callable[[str], bool]) -> float | None:
    """Return what is told after a number of passes, over the kinds that are wanted."""
    chosen = [one for one in found if one.measure == "chains" and one.mode == f"after {passes}" and wanted(one.kind)]
    asked = sum(one.asked for one in chosen)
    return sum(one.told for one in chosen) / asked if asked else None

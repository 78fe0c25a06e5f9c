"""Metrics computed from rows: totals, distributions, worst sessions, goals and shortfalls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from statistics import median

import msgspec

from kompakt.evals.facts import KINDS
from kompakt.evals.measures.attack import ATTACKS
from kompakt.evals.measures.bills import CLAIRVOYANT, ECONOMIC, READS, SAVED, UNTOUCHED_READS, WORST
from kompakt.evals.measures.retention import PASSES, SUMMARY, TENTH, UNFIT
from kompakt.evals.measures.score import KEY_ONLY, ResultRow


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its total share, its distribution over sessions, and its worst sessions."""

    measure: str
    mode: str
    kind: str
    passed: int
    total: int
    share: float
    median: float
    p10: float
    least: float
    worst: tuple[str, ...] = ()
    """Sessions and cuts, the worst first."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A goal and the measured value."""

    name: str
    goal: str
    found: str
    reached: bool | None
    """``None`` when it was not measured."""


def _goal(kind: str) -> float:
    return 1.0 if kind in ("modified", "constraint", "refusal") else 0.95


GOALS: tuple[tuple[str, str, str, str, float], ...] = (
    *((f"{kind}, {TENTH}", "retention", f"kompakt, {TENTH}", kind, _goal(kind))
      for kind in KINDS),
    *((f"{kind}, {SUMMARY}", "retention", f"kompakt, {SUMMARY}", kind, _goal(kind))
      for kind in KINDS),
    (f"forward need, {TENTH}", "retention", f"kompakt, {TENTH}", "need", 0.90),
    (f"forward need, {SUMMARY}", "retention", f"kompakt, {SUMMARY}", "need", 0.80),
    (f"precision, {TENTH}", "retention", f"kompakt, {TENTH}", "precision", 0.99),
    (f"precision, {SUMMARY}", "retention", f"kompakt, {SUMMARY}", "precision", 0.99),
    ("valid", "retention", f"kompakt, {TENTH}", "valid", 1.0),
    ("fits", "retention", f"kompakt, {TENTH}", "fits", 1.0),
    ("reachable", "retention", f"kompakt, {TENTH}", "reachable", 0.99),
    ("restored", "retention", f"kompakt, {TENTH}", "restored", 1.0),
    ("evidence", "evidence", "kompakt", "evidence", 0.85),
    *((f"constraints, {mode}", "attack", mode, "constraint", 1.0) for mode in ATTACKS),
)  # fmt: skip

FLAT = 0.02
LATENCY = 0.150
COMPRESSION = 0.50
FACTS_KEPT = 0.95
LONG = 100_000
"""Sessions with more tokens than this should cost half."""
BILL_SAVED, BILL_WORST, BILL_FORESEEN, CACHE_KEPT = 0.50, -0.01, 1.1, 0.97


def metrics(rows: Iterable[ResultRow]) -> list[Metric]:
    """Group rows by measure, mode and kind, in order of appearance."""
    gathered: dict[tuple[str, str, str], list[ResultRow]] = {}
    for row in rows:
        for kind in row.total:
            gathered.setdefault((row.measure, row.mode, kind), []).append(row)
    return [_metric(*name, found) for name, found in gathered.items()]


def _metric(measure: str, mode: str, kind: str, rows: list[ResultRow]) -> Metric:
    passed = sum(row.passed.get(kind, 0) for row in rows)
    total = sum(row.total[kind] for row in rows)
    shares = sorted(
        (row.passed.get(kind, 0) / row.total[kind], f"{row.session}@{row.at}") for row in rows if row.total[kind]
    )
    values = [share for share, _ in shares]
    return Metric(
        measure=measure,
        mode=mode,
        kind=kind,
        passed=passed,
        total=total,
        share=passed / total if total else 0.0,
        median=median(values) if values else 0.0,
        p10=values[len(values) // 10] if values else 0.0,
        least=values[0] if values else 0.0,
        worst=tuple(f"{name} {share:.0%}" for share, name in shares[:3] if share < 1),
    )


def goals(found: Sequence[Metric], rows: Sequence[ResultRow]) -> list[Goal]:
    """Compare the metrics with every goal."""
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


def _bill_goals(rows: Sequence[ResultRow]) -> Iterator[Goal]:
    """Compare bills with sending everything and with the clairvoyant, and cache reads with untouched sessions."""
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


def _left(row: ResultRow) -> int:
    return row.total[SAVED] - row.passed[SAVED]


def _middle(name: str, values: Sequence[float], goal: float, *, lowest: bool) -> Goal:
    """Compare a median with a lower or an upper bound."""
    sign, worst = ("≥", min) if lowest else ("≤", max)
    if not values:
        return Goal(name=name, goal=f"{sign} {goal:.0%}", found="not measured", reached=None)
    middle = median(values)
    found = f"median {middle:.1%}, worst {worst(values):.1%}"
    reached = middle >= goal if lowest else middle <= goal
    return Goal(name=name, goal=f"{sign} {goal:.0%}", found=found, reached=reached)


def _removed(row: ResultRow) -> float | None:
    """Return the share that admission removed, or 0 where facts were lost."""
    facts = row.share("facts")
    return row.share("tokens removed") if facts is None or facts >= FACTS_KEPT else 0.0


def _at_least(name: str, metric: Metric | None, goal: float) -> Goal:
    if metric is None:
        return Goal(name=name, goal=f"≥ {goal:.0%}", found="not measured", reached=None)
    found = f"{metric.share:.1%} ({metric.passed}/{metric.total}), p10 {metric.p10:.0%}, least {metric.least:.0%}"
    return Goal(name=name, goal=f"≥ {goal:.0%}", found=found, reached=metric.share >= goal)


def _at_most(name: str, seconds: float | None, goal: float) -> Goal:
    if seconds is None:
        return Goal(name=name, goal=f"≤ {goal * 1000:.0f} ms", found="not measured", reached=None)
    return Goal(name=name, goal=f"≤ {goal * 1000:.0f} ms", found=f"{seconds * 1000:.0f} ms", reached=seconds <= goal)


def _flat(name: str, wanted: Callable[[str], bool], found: Sequence[Metric]) -> Goal:
    """Compare every number of passes with one pass: retention may fall by two points at most."""
    shares = {passes: share for passes in PASSES if (share := chain_share(found, passes, wanted)) is not None}
    if 1 not in shares:
        return Goal(name=name, goal=f"flat within {FLAT:.0%}", found="not measured", reached=None)
    drop = shares[1] - min(shares.values())
    listed = ", ".join(f"{passes}: {share:.1%}" for passes, share in shares.items())
    return Goal(name=name, goal=f"flat within {FLAT:.0%}", found=listed, reached=drop <= FLAT)


def chain_share(found: Sequence[Metric], passes: int, wanted: Callable[[str], bool]) -> float | None:
    """Return the retention of some kinds after a number of passes."""
    chosen = [one for one in found if one.measure == "chains" and one.mode == f"after {passes}" and wanted(one.kind)]
    total = sum(one.total for one in chosen)
    return sum(one.passed for one in chosen) / total if total else None


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """A missed goal, with its misses by cause: each cause needs another remedy."""

    name: str
    passed: int
    total: int
    more: int
    """How many more items would reach the goal."""
    unfit: int
    """Misses in cases whose budget is below the floor."""
    key_only: int
    """Misses whose key is in the context without its relation."""
    absent: int
    """Misses that are not in the context at all."""
    worst: tuple[str, ...]
    """The cases with most of the avoidable misses."""


def shortfalls(rows: Sequence[ResultRow]) -> Iterator[Shortfall]:
    """Yield the missed goals on retention."""
    for name, measure, mode, kind, goal in GOALS:
        found = [row for row in rows if (row.measure, row.mode) == (measure, mode) and kind in row.total]
        total, passed = sum(row.total[kind] for row in found), sum(row.passed.get(kind, 0) for row in found)
        if measure == "retention" and total and passed < goal * total:
            unfit = _missing((row for row in found if row.note.startswith(UNFIT)), kind)
            fit = [row for row in found if not row.note.startswith(UNFIT)]
            key_only = sum(one.kind == kind and one.why.endswith(KEY_ONLY) for row in fit for one in row.missed)
            yield Shortfall(
                name=name,
                passed=passed,
                total=total,
                more=ceil(goal * total) - passed,
                unfit=unfit,
                key_only=key_only,
                absent=total - passed - unfit - key_only,
                worst=_worst(fit, kind),
            )


def _missing(rows: Iterable[ResultRow], kind: str) -> int:
    return sum(row.total[kind] - row.passed.get(kind, 0) for row in rows)


def _worst(rows: Sequence[ResultRow], kind: str) -> tuple[str, ...]:
    most = sorted(rows, key=lambda row: (-_missing([row], kind), row.session, row.at))[:3]
    return tuple(f"{row.session}@{row.at}: {_missing([row], kind)} in {row.budget} tokens" for row in most)

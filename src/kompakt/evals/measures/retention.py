"""Retention: what a compaction still states at each cut, compared with baselines.

One compaction per case serves facts, needs, precision, validity, reachability and restoring. Recorded summaries are
measured at their own cut and size; kompakt and the baselines get the same room there, plus the first and the newest
request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.evals.case import BUDGET_SHARE, EvalCase, Recording, cases, summary_cases
from kompakt.evals.measures.baselines import projections
from kompakt.evals.measures.precision import assertions
from kompakt.evals.measures.recall import add_reachable, add_restored
from kompakt.evals.measures.score import Miss, ResultRow, Score, ShownText, read, score, with_score

TENTH = "10 %"
SUMMARY = "summary size"

UNFIT = "does not fit"
"""Start of the note of a row whose budget is below the floor."""


def measure_retention(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Measure a session at its cuts and at its recorded summaries."""
    session = recording.session
    for case in cases(recording):
        blank = ResultRow(measure="retention", mode=TENTH, session=session.name, source=session.source, at=case.cut.at)
        yield compact_case(blank, case, case.cut.budget(BUDGET_SHARE), policy)
        yield from _baselines(blank, case, case.cut.budget(BUDGET_SHARE))
    for one in summary_cases(recording) if session.source == "claude-code" else ():
        case = one.case
        blank = ResultRow(
            measure="retention", mode=SUMMARY, session=session.name, source=session.source, at=case.cut.at
        )
        row = msgspec.structs.replace(blank, mode=f"real summary, {SUMMARY}", tokens=one.tokens)
        yield with_score(row, score(case, ShownText(one.text)))
        yield compact_case(blank, case, one.tokens + case.cut.requests, policy)
        yield from _baselines(blank, case, one.tokens)


def compact_case(blank: ResultRow, case: EvalCase, budget: int, policy: str) -> ResultRow:
    """Compact a case and score it. A case that does not fit scores zero."""
    row = msgspec.structs.replace(blank, mode=f"kompakt, {blank.mode}", budget=budget)
    began = time.perf_counter()
    try:
        result = api.compact(case.prefix, budget=budget, policy=policy)
    except DoesNotFit as error:
        found = score(case, None)
        found.add("compacted", False, case.name, str(error))
        for need in case.needs:
            found.add("reachable", False, need.key, UNFIT)
        return msgspec.structs.replace(with_score(row, found), note=f"{UNFIT}: {error}")
    seconds = time.perf_counter() - began
    shown = read(result.payload, case, case.prefix.format)
    found = score(case, shown)
    tokens = api.count(result.payload, format=case.prefix.format).total
    found.add("compacted", True)
    found.add("fits", tokens <= budget, case.name, f"{tokens} tokens in {budget}")
    problems = api.check(result.payload, format=case.prefix.format)
    found.add("valid", not problems, case.name, "; ".join(map(str, problems[:3])))
    for one in assertions(case, shown.fresh):
        found.add("precision", one.true, one.text, one.kind)
    add_reachable(found, case, shown, result)
    add_restored(found, case, shown, result)
    return msgspec.structs.replace(with_score(row, found), tokens=tokens, seconds=seconds)


def _baselines(blank: ResultRow, case: EvalCase, tokens: int) -> Iterator[ResultRow]:
    """Measure the baselines in the same room, without storing their misses."""
    for name, shown in projections(case, tokens):
        row = msgspec.structs.replace(blank, mode=f"{name}, {blank.mode}", tokens=tokens)
        found = score(case, shown)
        none: list[Miss] = []
        yield with_score(row, Score(found.passed, found.total, none))

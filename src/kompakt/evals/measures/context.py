"""What a compaction tells at each cut: facts, needs, precision, validity, reach and restoring, beside the baselines.

One compaction a case serves all of them. Real summaries are measured at their true cut and their own size; kompakt and
the baselines get the same room there, plus the first and the newest request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.evals.measures.baselines import projections
from kompakt.evals.measures.cuts import BUDGET_SHARE
from kompakt.evals.measures.measure import Missed, Projection, Score, read, score
from kompakt.evals.measures.precision import assertions
from kompakt.evals.measures.recall import add_reachable, add_restored
from kompakt.evals.reports.row import Row, scored
from kompakt.evals.sources.case import Case, Recording, cases, summarized

TENTH = "10 %"
SUMMARY = "summary size"


def told(recording: Recording, policy: str) -> Iterator[Row]:
    """Measure a session at its cuts and at its real summaries."""
    session = recording.session
    for case in cases(recording):
        blank = Row(measure="told", mode=TENTH, session=session.name, source=session.source, at=case.cut.at)
        yield compacted(blank, case, case.cut.budget(BUDGET_SHARE), policy)
        yield from _beside(blank, case, case.cut.budget(BUDGET_SHARE))
    for one in summarized(recording) if session.source == "claude-code" else ():
        case = one.case
        blank = Row(measure="told", mode=SUMMARY, session=session.name, source=session.source, at=case.cut.at)
        row = msgspec.structs.replace(blank, mode=f"real summary, {SUMMARY}", tokens=one.tokens)
        yield scored(row, score(case, Projection(one.text)))
        yield compacted(blank, case, one.tokens + case.cut.requests, policy)
        yield from _beside(blank, case, one.tokens)


def compacted(blank: Row, case: Case, budget: int, policy: str) -> Row:
    """Compact a case and ask for everything; one that does not fit has missed everything."""
    row = msgspec.structs.replace(blank, mode=f"kompakt, {blank.mode}", budget=budget)
    began = time.perf_counter()
    try:
        result = api.compact(case.prefix, budget=budget, policy=policy)
    except DoesNotFit as error:
        found = score(case, None)
        found.add("compacted", False, case.name, str(error))
        for need in case.needs:
            found.add("reachable", False, need.key, "does not fit")
        return msgspec.structs.replace(scored(row, found), note=f"does not fit: {error}")
    seconds = time.perf_counter() - began
    projection = read(result.payload, case, case.prefix.format)
    found = score(case, projection)
    tokens = api.count(result.payload, format=case.prefix.format).total
    found.add("compacted", True)
    found.add("fits", tokens <= budget, case.name, f"{tokens} tokens in {budget}")
    problems = api.check(result.payload, format=case.prefix.format)
    found.add("valid", not problems, case.name, "; ".join(map(str, problems[:3])))
    for one in assertions(case, projection.fresh):
        found.add("precision", one.true, one.text, one.kind)
    add_reachable(found, case, projection, result)
    add_restored(found, case, projection, result)
    return msgspec.structs.replace(scored(row, found), tokens=tokens, seconds=seconds)


def _beside(blank: Row, case: Case, tokens: int) -> Iterator[Row]:
    """Measure the baselines in the same room; what they miss is not kept."""
    for name, projection in projections(case, tokens):
        row = msgspec.structs.replace(blank, mode=f"{name}, {blank.mode}", tokens=tokens)
        found = score(case, projection)
        nothing: list[Missed] = []
        yield scored(row, Score(found.told, found.asked, nothing))

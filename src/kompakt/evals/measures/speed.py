"""Latency of one full compaction, and what admission alone saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.evals.measures.cuts import BUDGET_SHARE, cut_at
from kompakt.evals.measures.measure import Score, read
from kompakt.evals.reports.row import Row, scored
from kompakt.evals.sources.case import Recording, case

TOKENS = 200_000
RUNS = 5


def latency(recordings: Sequence[Recording], policy: str) -> Iterator[Row]:
    """Time compactions of the longest session, cut where it has 200,000 tokens (or whole, where it has fewer)."""
    if not recordings:
        return
    longest = max(recordings, key=lambda one: sum(one.weight))
    reached, at = 0, 0
    while at < len(longest.weight) and reached < TOKENS:
        reached += longest.weight[at]
        at += 1
    cut = cut_at(longest.history, longest.weight, at)
    prefix = longest.history.with_messages(longest.history[:at])
    session = longest.session
    for run in range(RUNS):
        began = time.perf_counter()
        try:
            api.compact(prefix, budget=cut.budget(BUDGET_SHARE), policy=policy)
            note = ""
        except DoesNotFit as error:
            note = str(error)
        seconds = time.perf_counter() - began
        yield Row(
            measure="latency", mode=f"run {run + 1}", session=session.name, source=session.source,
            at=at, tokens=cut.tokens, seconds=seconds, note=note,
        )  # fmt: skip


def compression(recording: Recording, admission: str) -> Iterator[Row]:
    """Measure what a policy removes from a whole session without pressure, and whether the facts are still told."""
    cut = cut_at(recording.history, recording.weight, len(recording.history))
    whole = case(recording, cut)
    result = api.compact(whole.prefix, budget=cut.tokens, policy=admission)
    projection = read(result.payload, whole, recording.history.format)
    found = Score({}, {}, [])
    for fact in whole.facts:
        found.add("facts", fact.told(projection.text, projection.whole), fact.key, fact.kind)
    found.told["tokens removed"] = max(0, result.tokens_before - result.tokens_after)
    found.asked["tokens removed"] = result.tokens_before
    session = recording.session
    row = Row(measure="compression", mode=admission, session=session.name, source=session.source, at=cut.at)
    yield scored(row, found)

"""Latency of a full compaction, and the savings of admission alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.evals.case import BUDGET_SHARE, Recording, case_at, cut_at
from kompakt.evals.measures.score import ResultRow, Score, read, with_score

TOKENS = 200_000
RUNS = 5


def measure_latency(recordings: Sequence[Recording], policy: str) -> Iterator[ResultRow]:
    """Time compactions of the longest session, cut at 200,000 tokens."""
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
        yield ResultRow(
            measure="latency", mode=f"run {run + 1}", session=session.name, source=session.source,
            at=at, tokens=cut.tokens, seconds=seconds, note=note,
        )  # fmt: skip


def measure_compression(recording: Recording, admission: str) -> Iterator[ResultRow]:
    """Measure what a policy removes from a session that fits, and whether its facts are still stated."""
    cut = cut_at(recording.history, recording.weight, len(recording.history))
    whole = case_at(recording, cut)
    result = api.compact(whole.prefix, budget=cut.tokens, policy=admission)
    shown = read(result.payload, whole, recording.history.format)
    found = Score({}, {}, [])
    for fact in whole.facts:
        found.add("facts", fact.stated_in(shown.text, shown.unchanged), fact.key, fact.kind)
    found.passed["tokens removed"] = max(0, result.tokens_before - result.tokens_after)
    found.total["tokens removed"] = result.tokens_before
    session = recording.session
    row = ResultRow(measure="compression", mode=admission, session=session.name, source=session.source, at=cut.at)
    yield with_score(row, found)

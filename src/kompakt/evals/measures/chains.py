"""Chains: what remains of a prefix after it was compacted once or many times on the way.

Prefix and budget are the same for every number of passes. The prefix is divided into one stretch per pass, and each
compaction starts from the result of the previous one, so any decay is caused by the chain alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kompakt import api
from kompakt.evals.case import BUDGET_SHARE, EvalCase, Recording, case_at, compact_at_least, cuts
from kompakt.evals.measures.score import ResultRow, read, score, with_score
from kompakt.model.messages import History, Json

PASSES = (1, 2, 4, 8, 16)
CUT = 0.85
FEWEST_ROUNDS = 20
FEWEST_TOKENS = 20_000


def measure_chains(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Compact a long session 1 to 16 times on the way; skip short sessions."""
    session = recording.session
    if sum(recording.weight) < FEWEST_TOKENS or len(api.rounds(recording.history)) < FEWEST_ROUNDS:
        return
    for cut in cuts(recording.history, recording.weight, (CUT,)):
        whole = case_at(recording, cut)
        for passes in PASSES:
            row = ResultRow(
                measure="chains", mode=f"after {passes}", session=session.name, source=session.source, at=cut.at
            )
            budget = cut.budget(BUDGET_SHARE)
            payload = walk(recording, whole, passes, budget, policy)
            shown = read(payload, whole, recording.history.format)
            yield msgspec.structs.replace(with_score(row, score(whole, shown)), budget=budget)


def walk(recording: Recording, whole: EvalCase, passes: int, budget: int, policy: str) -> Json:
    """Compact at the end of each stretch and return the last payload."""
    history = recording.history
    at = 0
    payload: Json = None
    for stop in _stops(recording, whole.cut.at, passes):
        stretch = history[at:stop]
        before = () if payload is None else tuple(api.parse(payload, history.format))
        given: History = history.with_messages((*before, *stretch))
        payload = compact_at_least(given, budget, policy).payload
        at = stop
    return payload


def _stops(recording: Recording, end: int, passes: int) -> list[int]:
    """Return the ends of the stretches: equal shares of the tokens, at round boundaries."""
    starts = [one.start for one in api.rounds(recording.history) if 0 < one.start < end]
    total = sum(recording.weight[:end])
    reached = 0
    stops: list[int] = []
    for index, tokens in enumerate(recording.weight[:end]):
        if index in starts and reached >= total * (len(stops) + 1) / passes and len(stops) < passes - 1:
            stops.append(index)
        reached += tokens
    return [*stops, end]

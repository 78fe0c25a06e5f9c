"""Chains: what is left of a prefix when it was compacted on the way, once or many times.

The prefix is the same for every number of passes, and so is the budget: it is walked in as many stretches as there are
passes, each compaction starting from what the one before it left. What decays is the fault of the chain alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kompakt import api
from kompakt.evals.measures.cuts import BUDGET_SHARE, cuts
from kompakt.evals.measures.floor import compacted
from kompakt.evals.measures.measure import read, score
from kompakt.evals.reports.row import Row, scored
from kompakt.evals.sources.case import Case, Recording, case
from kompakt.model.messages import History, Json

PASSES = (1, 2, 4, 8, 16)
CUT = 0.85
FEWEST_ROUNDS = 20
FEWEST_TOKENS = 20_000


def chains(recording: Recording, policy: str) -> Iterator[Row]:
    """Compact a long session along the way, 1 to 16 times; short ones have no way to speak of."""
    session = recording.session
    if sum(recording.weight) < FEWEST_TOKENS or len(api.rounds(recording.history)) < FEWEST_ROUNDS:
        return
    for cut in cuts(recording.history, recording.weight, (CUT,)):
        whole = case(recording, cut)
        for passes in PASSES:
            row = Row(measure="chains", mode=f"after {passes}", session=session.name, source=session.source, at=cut.at)
            budget = cut.budget(BUDGET_SHARE)
            payload = walk(recording, whole, passes, budget, policy)
            projection = read(payload, whole, recording.history.format)
            yield msgspec.structs.replace(scored(row, score(whole, projection)), budget=budget)


def walk(recording: Recording, whole: Case, passes: int, budget: int, policy: str) -> Json:
    """Compact at the end of each stretch; the last payload comes back."""
    history = recording.history
    at = 0
    payload: Json = None
    for stop in _stops(recording, whole.cut.at, passes):
        stretch = history[at:stop]
        before = () if payload is None else tuple(api.parse(payload, history.format))
        given: History = history.with_messages((*before, *stretch))
        payload = compacted(given, budget, policy).payload
        at = stop
    return payload


def _stops(recording: Recording, end: int, passes: int) -> list[int]:
    """Return where the stretches end: equal shares of the prefix's tokens, at round boundaries."""
    starts = [one.start for one in api.rounds(recording.history) if 0 < one.start < end]
    total = sum(recording.weight[:end])
    reached = 0
    stops: list[int] = []
    for index, tokens in enumerate(recording.weight[:end]):
        if index in starts and reached >= total * (len(stops) + 1) / passes and len(stops) < passes - 1:
            stops.append(index)
        reached += tokens
    return [*stops, end]

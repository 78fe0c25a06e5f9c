"""Operational facts of a history, found by the shapes of calls and lines.

The extraction is independent of the engine, which is the thing being measured.
"""

from __future__ import annotations

from kompakt.evals.facts.constraints import constraint_facts, refusal_facts
from kompakt.evals.facts.fact import KINDS, FactKind, OperationalFact, merge_facts
from kompakt.evals.facts.outcomes import command_facts, error_facts, test_facts
from kompakt.evals.facts.paths import path_facts
from kompakt.evals.facts.values import id_facts, number_facts, task_facts
from kompakt.evals.history_events import HistoryEvent, pair_calls

__all__ = ["KINDS", "FactKind", "OperationalFact", "facts_of"]


def facts_of(events: list[HistoryEvent]) -> list[OperationalFact]:
    """List every fact of a history once."""
    pairs = pair_calls(events)
    return merge_facts(
        [
            *path_facts(pairs),
            *command_facts(pairs),
            *error_facts(pairs),
            *test_facts(pairs),
            *number_facts(events, pairs),
            *id_facts(events),
            *task_facts(pairs),
            *constraint_facts(events),
            *refusal_facts(pairs),
        ]
    )

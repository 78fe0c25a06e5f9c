"""Operational facts of a history, one module a kind; ``facts_of`` gathers them.

Taken by shapes of calls and lines, with code of its own: the engine is measured, not asked.
"""

from __future__ import annotations

from kompakt.evals.facts.commands import command_facts
from kompakt.evals.facts.constraints import constraint_facts
from kompakt.evals.facts.errors import error_facts, test_facts
from kompakt.evals.facts.fact import KINDS, Fact, Kind, merged
from kompakt.evals.facts.names import id_facts, number_facts
from kompakt.evals.facts.paths import path_facts
from kompakt.evals.facts.tasks import task_facts
from kompakt.evals.sources.trail import Event, calls

__all__ = ["KINDS", "Fact", "Kind", "facts_of"]


def facts_of(trail: list[Event]) -> list[Fact]:
    """List every fact that a history bears out, each once."""
    pairs = calls(trail)
    return merged(
        [
            *path_facts(pairs),
            *command_facts(pairs),
            *error_facts(pairs),
            *test_facts(pairs),
            *number_facts(trail, pairs),
            *id_facts(trail),
            *task_facts(pairs),
            *constraint_facts(trail),
        ]
    )

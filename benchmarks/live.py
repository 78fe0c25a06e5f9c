"""A live run on a context: what an agent loop does at every step, and nothing else.

New messages are appended, the budget is asked, compaction runs when it is due, and only what is new in the projection
is written as wire items. Everything a step costs is in ``Run.step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kompakt
from kompakt.engine.compaction.compact import rewrite, run_sync
from kompakt.engine.compaction.fit import fit
from kompakt.engine.compaction.policies import policy_named
from kompakt.engine.compaction.report import Step
from kompakt.model.messages import History, Message


class Run:
    """A context under a budget, and the request as it would be sent now."""

    def __init__(self, history: History, budget: int, *, policy: str = "default") -> None:
        self.context = kompakt.Context(history, counter=kompakt.Counter())
        self.budget = kompakt.Budget.of(budget)
        self.policy = policy_named(policy)
        self.request: list[Any] = []
        """Wire items, extended while nothing is rewritten."""
        self.rewritten: list[Step] = []
        self._format = history.format
        self._shown: Sequence[Message] = ()
        self._render()

    def step(self, messages: Sequence[Message]) -> list[Any]:
        """Add messages and return the request."""
        context = self.context
        context.extend(messages)
        if self.budget.due(context.tokens):
            self._compact()
        self._render()
        return self.request

    def _compact(self) -> None:
        work = rewrite(self.context, self.policy, self.budget, self.rewritten)
        run_sync(work, may_wait=self.policy.awaits)
        limit = self.budget.trigger
        if self.context.projected_tokens > limit and not fit(self.context, limit):
            raise kompakt.DoesNotFit(floor=self.context.projected_tokens, budget=limit, largest=[])

    def _render(self) -> None:
        shown = self.context.project()
        done = len(self.request) if shown is self._shown else 0
        new: Any = kompakt.render(shown[done:], self._format)
        if done:
            self.request += new
        else:
            self.request, self._shown = new, shown

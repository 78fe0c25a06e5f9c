"""When compacting a prompt that still fits saves money.

``engine.compaction.cost`` has the rule. This module feeds it with what a run knows: the tokens that are shown, those
that would be shown without any compaction, and those that were sent. Saving money must not cost the task: unless the
user opts in, nothing is compacted below half of the window, and never further down than an ordinary compaction goes.
"""

from __future__ import annotations

import time

from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.engine.context.context import Context
from kompakt.model.budget import Budget
from kompakt.model.limits import price_of

MIN_SHARE = 0.5
"""Share of the usable window below which nothing is compacted to save money, unless the user opts in."""


class CostTrigger:
    """Tracks what a run has sent and decides whether a compaction would make it cheaper."""

    def __init__(self, model: str, *, economic: bool | None) -> None:
        self._economy = Economy(Prices.of(price_of(model))) if economic is not False else None
        self._opted_in = economic is True
        self._hidden = 0
        self._rewritten = False
        self._sent = 0

    def begin(self, context: Context) -> None:
        """Start a run. The model may have seen the history, but no prompt cache holds it."""
        if self._economy is not None:
            shown = context.projected_tokens
            self._economy.take_up(shown, shown)

    def goal(self, context: Context, budget: Budget) -> int | None:
        """Return the tokens to compact to now, or ``None`` if continuing as is costs less."""
        shown = context.projected_tokens
        if self._economy is None:
            return None
        least = 0
        if not self._opted_in:
            if shown <= budget.limit * MIN_SHARE or not budget.limit:
                return None
            least = budget.goal(context.step_tokens, fixed=context.required_tokens)
        total, shared = shown + self._hidden, context.fixed_tokens
        if not self._economy.due(shown, total=total, now=time.monotonic(), after=least, shared=shared):
            return None
        return max(self._economy.goal(shown), least)

    def rewrote(self, before: int, after: int) -> None:
        """Record a compaction of the prompt."""
        self._hidden += max(0, before - after)
        self._rewritten = True

    def sending(self, context: Context) -> None:
        """Record the prompt of a request."""
        self._sent = context.projected_tokens

    def answered(self, output: int) -> None:
        """Record the output tokens of the answer to that request."""
        if self._economy is not None:
            record = self._economy.rewrote if self._rewritten else self._economy.sent
            record(self._sent, total=self._sent + self._hidden, now=time.monotonic(), output=output)
        self._rewritten = False


def reason_for(goal: int, shown: int) -> str:
    """Return the reason to report for compacting a prompt that fits."""
    return f"cheaper by {max(0, shown - goal) / max(1, shown):.0%} at each later step"

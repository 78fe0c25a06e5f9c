"""The books of a run: whether rewriting its prompt pays now, though it would still fit.

``engine.cost`` knows the rule; this knows what a run has to tell it: what is shown, what would be shown had nothing
ever been left out, and what was sent. Saving money must not cost the task: unless the user asks for more, nothing is
rewritten below half of the window, and no further down than a compaction that is due would go.
"""

from __future__ import annotations

import time

from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.engine.context.context import Context
from kompakt.model.budget import Budget
from kompakt.model.limits import price_of

QUIET_SHARE = 0.5
"""Share of the usable window below which nothing is rewritten to save money, unless the user asks for it."""


class Saving:
    """What a run has paid, and what a rewriting would save."""

    def __init__(self, model: str, *, economic: bool | None) -> None:
        self._economy = Economy(Prices.of(price_of(model))) if economic is not False else None
        self._asked_for = economic is True
        self._hidden = 0
        self._rewrote = False
        self._sent = 0

    def begin(self, context: Context) -> None:
        """Begin with what is there: the model may know it, no cache does."""
        if self._economy is not None:
            shown = context.projected_tokens
            self._economy.take_up(shown, shown)

    def goal(self, context: Context, budget: Budget) -> int | None:
        """Return what to come down to now; ``None`` when continuing is cheaper."""
        shown = context.projected_tokens
        if self._economy is None:
            return None
        least = 0
        if not self._asked_for:
            if shown <= budget.limit * QUIET_SHARE or not budget.limit:
                return None
            least = budget.goal(context.step_tokens, fixed=context.required_tokens)
        total, shared = shown + self._hidden, context.fixed_tokens
        if not self._economy.due(shown, total=total, now=time.monotonic(), after=least, shared=shared):
            return None
        return max(self._economy.goal(shown), least)

    def rewrote(self, before: int, after: int) -> None:
        """Note that the prompt was rewritten."""
        self._hidden += max(0, before - after)
        self._rewrote = True

    def sending(self, context: Context) -> None:
        """Note the prompt that is sent."""
        self._sent = context.projected_tokens

    def answered(self, output: int) -> None:
        """Note that it was answered."""
        if self._economy is not None:
            note = self._economy.rewrote if self._rewrote else self._economy.sent
            note(self._sent, total=self._sent + self._hidden, now=time.monotonic(), output=output)
        self._rewrote = False


def reason_for(goal: int, shown: int) -> str:
    """Say why a prompt that fits is compacted."""
    return f"cheaper by {max(0, shown - goal) / max(1, shown):.0%} at each later step"

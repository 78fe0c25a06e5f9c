"""The books of a run: whether rewriting its prompt pays now, though it would still fit.

``engine.cost`` knows the rule; this knows what a run has to tell it: what is shown, what would be shown had nothing
ever been left out, and what was sent.
"""

from __future__ import annotations

import time

from kompakt.engine.context import Context
from kompakt.engine.cost import Economy, Prices
from kompakt.model.budget import Budget
from kompakt.model.limits import price_of


class Saving:
    """What a run has paid, and what a rewriting would save."""

    def __init__(self, model: str, *, wanted: bool) -> None:
        self._economy = Economy(Prices.of(price_of(model))) if wanted else None
        self._hidden = 0
        self._rewrote = False
        self._sent = 0

    def begin(self, context: Context) -> None:
        """Begin with what is there: the model may know it, no cache does."""
        if self._economy is not None:
            shown = context.projected_tokens
            self._economy.take_up(shown, shown)

    def goal(self, context: Context) -> int | None:
        """Say what to come down to now; ``None`` when going on is cheaper."""
        shown = context.projected_tokens
        if self._economy is None:
            return None
        total, shared = shown + self._hidden, context.fixed_tokens
        if not self._economy.due(shown, total=total, now=time.monotonic(), shared=shared):
            return None
        return self._economy.goal(shown)

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


def down_to(budget: Budget, goal: int, shown: int) -> Budget:
    """Make a budget that a prompt of so many tokens exceeds, and that aims for the goal."""
    trigger = max(goal + 1, min(budget.trigger or shown - 1, shown - 1))
    return Budget(window=budget.window, reserve=budget.reserve, trigger=trigger, target=goal)

"""Undo an overflow where it came from, with the least rewriting that makes a request fit. Cost: the history, once."""

from __future__ import annotations

from kompakt.engine.context import Context
from kompakt.engine.strategies.shortening import shorten_results
from kompakt.engine.strategies.strategy import Deterministic
from kompakt.model.groups import rounds

_SMALLEST = 200
"""Tokens a result of the guilty round is shortened to at the least, before older rounds pay for it."""


class OverflowByRounds(Deterministic):
    """Shorten what the round that brought the overflow added; only then leave out rounds, oldest first.

    ``guilty`` names the round found, for logs and errors.
    """

    guilty: str | None = None

    def apply(self, context: Context) -> bool:
        """Come down to the goal; pairs stay whole at each step."""
        changed = self._shorten_guilty(context)
        for group in context.droppable():
            if self.excess(context) <= 0:
                break
            changed |= context.exclude(group, reason=f"overflow brought by {self.guilty}")
        return changed

    def _shorten_guilty(self, context: Context) -> bool:
        """Find the round in which the total crossed the goal and shorten its results just enough."""
        goal = self.goal(context)
        total = context.tokens - sum(group.tokens for group in context.live)
        for one in rounds(context.messages):
            indices = [i for i in range(one.start, one.start + len(one)) if context.group_at(i).excluded is None]
            size = sum(context.message_tokens(i) for i in indices)
            total += size
            if total > goal:
                self.guilty = one.name
                return self._shorten(context, indices)
        return False

    def _shorten(self, context: Context, indices: list[int]) -> bool:
        changed = False
        for index in sorted(indices, key=context.message_tokens, reverse=True):
            excess = self.excess(context)
            if excess <= 0:
                break
            if context.group_at(index).pinned:
                continue
            limit = max(_SMALLEST, context.message_tokens(index) - excess - 50)
            changed |= shorten_results(context, index, limit)
        return changed

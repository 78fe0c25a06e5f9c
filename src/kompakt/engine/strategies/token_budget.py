"""Run strategies top-down until the goal is reached. Cost: that of the strategies run."""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.engine.context import Context
from kompakt.engine.strategies.strategy import Strategy
from kompakt.engine.triggers import Trigger


class TokenBudget:
    """Compose strategies: each runs while the context is above the target, gentlest first."""

    def __init__(
        self,
        strategies: Sequence[Strategy],
        *,
        target: int | None = None,
        when: Trigger | None = None,
        early_stop: bool = True,
    ) -> None:
        self.strategies = tuple(strategies)
        self.target = target
        self.when = when
        self.early_stop = early_stop

    @property
    def awaits(self) -> bool:
        """Tell whether one of the strategies may await something."""
        return any(getattr(strategy, "awaits", True) for strategy in self.strategies)

    async def __call__(self, context: Context) -> bool:
        """Run the strategies; a nested goal is put back afterwards."""
        goal = context.goal
        context.goal = self.target if self.target is not None else goal
        try:
            if not (self.when(context) if self.when is not None else context.tokens > context.goal):
                return False
            changed = False
            for strategy in self.strategies:
                changed |= await strategy(context)
                if self.early_stop and context.tokens <= context.goal:
                    break
            return changed
        finally:
            context.goal = goal

"""Run strategies top-down until the goal is reached. Cost: that of the strategies run."""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.engine.compaction.triggers import Target, Trigger, aim_of
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Strategy, checked_target


class TokenBudget:
    """Compose strategies: each runs while the context is above the target, gentlest first."""

    def __init__(
        self,
        strategies: Sequence[Strategy],
        *,
        target: int | Target | None = None,
        when: Trigger | None = None,
        early_stop: bool = True,
    ) -> None:
        self.strategies = tuple(strategies)
        self.target = checked_target(target, ("tokens",), type(self).__name__)
        self.when = when
        self.decides = when is not None or target is not None
        self.early_stop = early_stop

    @property
    def awaits(self) -> bool:
        """Tell whether one of the strategies may await something."""
        return any(getattr(strategy, "awaits", True) for strategy in self.strategies)

    def is_due(self, context: Context) -> bool:
        """Tell in constant time whether there is anything to do."""
        return self.when(context) if self.when is not None else not self._aim(context).reached(context)

    def _aim(self, context: Context) -> Target:
        return aim_of(context, self.when, self.target, ("tokens",))

    async def __call__(self, context: Context) -> bool:
        """Run the strategies; a nested goal is put back afterwards."""
        if not self.is_due(context):
            return False
        target, (goal, aim) = self._aim(context), (context.goal, context.aim)
        context.goal, context.aim = target.tokens or 0, None
        try:
            changed = False
            for strategy in self.strategies:
                changed |= await strategy(context)
                if self.early_stop and target.reached(context):
                    break
            return changed
        finally:
            context.goal, context.aim = goal, aim
            context.note_run()

"""Drop the oldest groups until the target is reached. Cost: the groups shown."""

from __future__ import annotations

from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic


class Truncation(Deterministic):
    """Leave out the oldest groups; system, first and newest request, pins and the open round always stay."""

    def apply(self, context: Context) -> bool:
        """Exclude from the oldest on until the target is reached."""
        aim = self.aim(context)
        changed = False
        for group in context.droppable():
            if aim.reached(context):
                break
            changed |= context.exclude(group, reason="truncation")
        return changed

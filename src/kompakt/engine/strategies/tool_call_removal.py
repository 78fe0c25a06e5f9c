"""Drop old tool calls with their results, keep the talk. Cost: the groups shown."""

from __future__ import annotations

from kompakt.engine.context import Context
from kompakt.engine.strategies.strategy import Deterministic
from kompakt.engine.triggers import Trigger


class ToolCallRemoval(Deterministic):
    """Leave out tool groups, oldest first, but for the newest ones."""

    def __init__(self, *, min_keep_groups: int = 3, when: Trigger | None = None, target: int | None = None) -> None:
        super().__init__(when=when, target=target)
        self.min_keep_groups = min_keep_groups

    def apply(self, context: Context) -> bool:
        """Exclude old tool groups until the goal is reached."""
        tools = [group for group in context.droppable() if group.kind == "tool"]
        changed = False
        for group in tools[: len(tools) - self.min_keep_groups] if self.min_keep_groups < len(tools) else []:
            if self.excess(context) <= 0:
                break
            changed |= context.exclude(group, reason="tool-call removal")
        return changed

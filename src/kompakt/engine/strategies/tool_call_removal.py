"""Drop old tool calls with their results, keep the talk. Cost: the groups shown."""

from __future__ import annotations

from collections.abc import Iterable

from kompakt.engine.compaction.triggers import Target, Trigger, whole_number
from kompakt.engine.context.context import Context
from kompakt.engine.context.values import ContextGroup
from kompakt.engine.strategies.strategy import Deterministic, ToolChoice


class ToolCallRemoval(Deterministic):
    """Leave out tool groups, oldest first, but for the newest ones.

    With ``tools`` or ``sources`` only groups go whose calls are all of these; with ``protect_tools`` none that has a
    call of one of those.
    """

    def __init__(
        self,
        *,
        min_keep_groups: int = 3,
        tools: str | Iterable[str] | None = None,
        sources: str | Iterable[str] | None = None,
        protect_tools: str | Iterable[str] = (),
        when: Trigger | None = None,
        target: int | Target | None = None,
    ) -> None:
        whole_number("min_keep_groups", min_keep_groups)
        super().__init__(when=when, target=target)
        self.min_keep_groups = min_keep_groups
        self.choice = ToolChoice.of(tools=tools, sources=sources, protected=protect_tools)

    def apply(self, context: Context) -> bool:
        """Exclude old tool groups until the target is reached."""
        aim = self.aim(context)
        tools = [group for group in context.droppable() if group.kind == "tool" and self._takes(context, group)]
        changed = False
        for group in tools[: max(0, len(tools) - self.min_keep_groups)]:
            if aim.reached(context):
                break
            changed |= context.exclude(group, reason="tool-call removal")
        return changed

    def _takes(self, context: Context, group: ContextGroup) -> bool:
        calls = [(index, call.id) for index in group.indices for call in context.messages[index].calls]
        return all(self.choice.takes(context, index, id) for index, id in calls)

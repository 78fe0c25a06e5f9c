"""Reduce old tool outputs to their first line. Cost: the messages shown."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kompakt.engine.compaction.triggers import Target, Trigger, whole_number
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic, ToolChoice, results_of
from kompakt.model.phrases import collapsed_placeholder

_FIRST_LINE = 160
"""Characters kept of the first line: enough for a verdict or a path."""


class OutputCollapsing(Deterministic):
    """Show old tool outputs as one line with a reference, oldest first, where that saves anything.

    With ``tools`` or ``sources`` only the outputs of these; never those of ``protect_tools``.
    """

    measures = ("tokens", "bytes")

    def __init__(
        self,
        *,
        min_keep_groups: int = 4,
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
        """Collapse outputs until the target is reached."""
        aim = self.aim(context)
        tools = [group for group in context.droppable() if group.kind == "tool"]
        changed = False
        for group in tools[: max(0, len(tools) - self.min_keep_groups)]:
            for index in group.indices:
                changed |= self._collapse(context, index)
            if aim.reached(context):
                break
        return changed

    def _collapse(self, context: Context, index: int) -> bool:
        changed = False
        for part, result in list(results_of(context, index)):
            if result.pruned_at is not None or not self.choice.takes(context, index, result.call_id):
                continue
            lines = result.output.splitlines()
            first = next((line.strip() for line in lines if line.strip()), "")[:_FIRST_LINE]
            text = collapsed_placeholder(context.reference(index, part), first, len(lines))
            short = msgspec.structs.replace(result, output=text, media=(), edited=True, pruned_at=0.0)
            if context.counter.part(short) < context.counter.part(result):
                context.show(index, part, short, what="shortened", why="old tool output collapsed")
                changed = True
        return changed

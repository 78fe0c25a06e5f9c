"""Drop the oldest groups until the target is reached. Cost: the groups shown."""

from __future__ import annotations

from collections.abc import Iterable

from kompakt.engine.context.archive import ContextGroup
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic, Target, ToolChoice, Trigger, names_of, whole_number


class Truncation(Deterministic):
    """Leave out the oldest groups; system, first and newest request, pins and the open round always stay."""

    def apply(self, context: Context) -> bool:
        """Exclude the oldest groups until the target is reached."""
        aim = self.aim(context)
        changed = False
        for group in context.droppable():
            if aim.reached(context):
                break
            changed |= context.exclude(group, reason="truncation")
        return changed


class SlidingWindow(Deterministic):
    """Keep the newest groups; pinned, system and first-request groups always stay.

    Due when twice as many are there, so that the window moves rarely and what is shown stays a prefix in between.
    """

    def __init__(self, *, min_keep_groups: int, when: Trigger | None = None) -> None:
        whole_number("min_keep_groups", min_keep_groups, least=1)
        super().__init__(when=when)
        self.min_keep_groups = min_keep_groups
        self.decides = True

    def is_due(self, context: Context) -> bool:
        """Return whether the window has to move; takes constant time."""
        return self.when(context) if self.when is not None else context.shown_groups > 2 * self.min_keep_groups

    def apply(self, context: Context) -> bool:
        """Exclude all but the newest groups."""
        return context.exclude_all(context.droppable()[: -self.min_keep_groups], reason="sliding window")


class ToolCallRemoval(Deterministic):
    """Leave out tool groups, oldest first, except for the newest ones.

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


class SourceAttribution(Deterministic):
    """Leave out messages of ephemeral sources, oldest first; retrieved documents and the user's own words stay.

    A source is what added a message (``source_id``). Without ``ephemeral`` every source but those in ``keep`` counts.
    """

    def __init__(
        self,
        *,
        ephemeral: str | Iterable[str] | None = None,
        keep: str | Iterable[str] = ("rag",),
        when: Trigger | None = None,
        target: int | Target | None = None,
    ) -> None:
        super().__init__(when=when, target=target)
        self.ephemeral = None if ephemeral is None else names_of(ephemeral)
        self.keep = names_of(keep)

    def apply(self, context: Context) -> bool:
        """Exclude ephemeral groups until the target is reached."""
        aim = self.aim(context)
        changed = False
        for group in context.live:
            if group.source_id is None or not self._is_ephemeral(group.source_id) or context.is_protected(group):
                continue
            if aim.reached(context):
                break
            changed |= context.exclude(group, reason=f"ephemeral source {group.source_id}")
        return changed

    def _is_ephemeral(self, source: str) -> bool:
        return source not in self.keep if self.ephemeral is None else source in self.ephemeral

"""Keep the newest groups. Cost: the groups shown."""

from __future__ import annotations

from kompakt.engine.compaction.triggers import Trigger, whole_number
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic


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
        """Tell in constant time whether the window has to move."""
        return self.when(context) if self.when is not None else context.shown_groups > 2 * self.min_keep_groups

    def apply(self, context: Context) -> bool:
        """Exclude all but the newest groups."""
        return context.exclude_all(context.droppable()[: -self.min_keep_groups], reason="sliding window")

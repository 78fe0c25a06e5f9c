"""Drop what ephemeral sources added before anything else. Cost: the groups shown."""

from __future__ import annotations

from collections.abc import Iterable

from kompakt.engine.compaction.triggers import Target, Trigger
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic, names_of


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

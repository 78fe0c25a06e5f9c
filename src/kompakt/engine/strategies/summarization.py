"""Let a summary stand for old groups. Cost: the groups shown, plus what the summariser costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kompakt.engine import outline
from kompakt.engine.context import Context
from kompakt.engine.inheritance import adopt_pivots
from kompakt.engine.state import ContextGroup
from kompakt.engine.summary import Material, Summarizer
from kompakt.engine.triggers import Trigger

SUMMARY_SHARE = 0.2
"""Largest share of the goal that the summary may take."""


class Summarization:
    """Replace the oldest groups by a summary and keep a tail; earlier summaries are folded in."""

    def __init__(
        self,
        summarizer: Summarizer = outline.summarize,
        *,
        share: float = SUMMARY_SHARE,
        when: Trigger | None = None,
        target: int | None = None,
    ) -> None:
        self.summarizer = summarizer
        self.share = share
        self.when = when
        self.target = target

    async def __call__(self, context: Context) -> bool:
        """Summarise when due; a summary that is empty or saves nothing changes nothing."""
        goal = self.target if self.target is not None else context.goal
        if not (self.when(context) if self.when is not None else context.tokens > goal):
            return False
        before = context.snapshot()
        room = int(goal * self.share)
        earlier = self._earlier(context)
        groups = self._oldest(context, goal - room)
        rehearses = context.is_replay and self.awaits
        write = outline.summarize if rehearses else self.summarizer
        text = await _written(write, self._material(context, groups, earlier, room)) if groups else ""
        if not text:
            context.rollback(before)
            return False
        context.replace(groups, text, reason="summarized")
        if rehearses:
            context.rehearsed = partial(self._reword, room=room)
        return True

    def _earlier(self, context: Context) -> str | None:
        """Return what earlier summaries say: the present one, and a pivot of an earlier pass not yet folded into it."""
        known, inherited = context.inherited, adopt_pivots(context)
        if context.summary_text is None:
            return inherited
        return "\n".join([*([inherited] if inherited and inherited != known else []), context.summary_text.text])

    @property
    def awaits(self) -> bool:
        """Tell whether the summariser may take its time; the outline does not."""
        return self.summarizer is not outline.summarize

    async def _reword(self, context: Context, *, room: int) -> bool:
        """Replace what the outline said during a replay by the summariser's own words, for everything at once."""
        material = self._material(context, context.covered_groups(), adopt_pivots(context), room)
        text = await _written(self.summarizer, material)
        if text:
            context.reword(text)
        return bool(text)

    def _oldest(self, context: Context, goal: int) -> list[ContextGroup]:
        """Take groups from the oldest on until the rest fits; no message before the last one taken is left over."""
        over = context.tokens - goal - (context.summary_text.tokens if context.summary_text else 0)
        taken: list[ContextGroup] = []
        for group in context.droppable():
            if over <= 0:
                break
            taken.append(group)
            over -= group.tokens
        return taken

    def _material(self, context: Context, groups: Sequence[ContextGroup], earlier: str | None, room: int) -> Material:
        """Gather what is new to the summary; what it stood for before is in the earlier one, so input stays bounded."""
        indices = sorted(index for group in groups for index in group.indices)
        return Material(
            messages=tuple(context.messages[index] for index in indices),
            references=tuple(context.reference(index) for index in indices),
            earlier=earlier,
            max_tokens=room,
            count=lambda text: context.counter.scaled(context.counter.text(text)),
            instructions=context.instructions,
        )


async def _written(write: Summarizer, material: Material) -> str:
    """Ask for the summary; an empty or inflated one counts as none."""
    made = write(material)
    text = (made if isinstance(made, str) else await made).strip()
    return text if material.count(text) <= material.max_tokens else ""

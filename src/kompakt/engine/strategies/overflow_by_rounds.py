"""Resolve an overflow in the round that caused it, with little rewriting. Cost: one pass over the history."""

from __future__ import annotations

import msgspec

from kompakt.engine.context.context import Context
from kompakt.engine.pivot import pivot
from kompakt.engine.strategies.shortened_results import shorten_calls, shorten_results, shortened
from kompakt.engine.strategies.strategy import Deterministic
from kompakt.engine.strategies.summarization import Summarization
from kompakt.model.groups import Round, rounds
from kompakt.model.messages import Text

_SMALLEST = 200
"""Least tokens that a part of the round is shortened to before older rounds are shortened."""


class OverflowByRounds(Deterministic):
    """Shorten the round that caused the overflow: its results, what its calls were given, the assistant's answer.

    Only when that is not enough are the oldest groups replaced by a pivot, which describes them. ``guilty`` names
    the round for logs, errors and reports.
    """

    guilty: str | None = None
    measures = ("tokens",)

    @property
    def reason(self) -> str:
        """Why the history was rewritten."""
        return f"too long for the provider; the overflow came with {self.guilty or 'the whole history'}"

    async def __call__(self, context: Context) -> bool:
        """Shorten until the goal is reached; pairs stay whole."""
        if not self.is_due(context):
            return False
        goal = self.goal(context)
        changed = self.apply(context)
        if context.tokens > goal:
            changed |= await Summarization(target=goal)(context)
        for group in context.droppable():
            if context.tokens <= goal:
                break
            changed |= context.exclude(group, reason=self.reason)
        return changed

    def apply(self, context: Context) -> bool:
        """Shorten the rounds beyond the goal, the largest first, just enough."""
        goal, changed = self.goal(context), False
        for one in self._beyond(context, goal):
            if self.guilty is None:
                self.guilty = f"{one.name} at {context.reference(one.start)}"
            changed |= self._shorten(context, _shown(context, one), goal)
            if context.tokens <= goal:
                break
        return changed

    def _beyond(self, context: Context, goal: int) -> list[Round]:
        """Return the round in which the total exceeded the goal and those after it, the largest first."""
        found: list[Round] = []
        total = context.tokens - sum(group.tokens for group in context.live)
        for one in rounds(context.messages):
            total += _size(context, one)
            if total > goal:
                found.append(one)
        return sorted(found, key=lambda one: _size(context, one), reverse=True)

    def _shorten(self, context: Context, indices: list[int], goal: int) -> bool:
        changed = False
        for shorten in (shorten_results, shorten_calls, _shorten_answer):
            for index in sorted(indices, key=context.message_tokens, reverse=True):
                excess = context.tokens - goal
                if excess <= 0:
                    return changed
                if not context.group_at(index).pinned:
                    limit = max(_SMALLEST, context.message_tokens(index) - excess - 50)
                    changed |= shorten(context, index, limit)
        return changed


def _shown(context: Context, one: Round) -> list[int]:
    return [i for i in range(one.start, one.start + len(one)) if context.group_at(i).excluded is None]


def _size(context: Context, one: Round) -> int:
    return sum(context.message_tokens(index) for index in _shown(context, one))


def _shorten_answer(context: Context, index: int, limit: int) -> bool:
    """Shorten the texts of an assistant message to head, tail and a reference; pivots stay as they are."""
    if context.messages[index].role != "assistant":
        return False
    changed = False
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is not Text or pivot.unseal(part.text, context.seal_key) is not None:
            continue
        tokens = context.counter.part(part)
        if tokens <= limit:
            continue
        text = shortened(part.text, limit, context.counter, reference=context.reference(index, place))
        short = msgspec.structs.replace(part, text=text, edited=True)
        if context.counter.part(short) < tokens:
            context.show(index, place, short, what="shortened", why=f"over {limit} tokens")
            changed = True
    return changed

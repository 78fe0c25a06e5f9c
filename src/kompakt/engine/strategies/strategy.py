"""What a strategy is, and the little that the built-in ones have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

from kompakt.engine.context import Context
from kompakt.engine.triggers import Trigger
from kompakt.model.messages import ToolCall, ToolResult

Strategy: TypeAlias = Callable[[Context], Awaitable[bool]]
"""Changes a context through its methods; returns whether it changed anything."""


class Deterministic:
    """A strategy that awaits nothing: say in ``apply`` what it does.

    Used alone it runs when ``when`` says so, else whenever the context is above its goal. The goal is ``target`` when
    given, else what the policy that runs it aims for.
    """

    awaits = False

    def __init__(self, *, when: Trigger | None = None, target: int | None = None) -> None:
        self.when = when
        self.target = target

    async def __call__(self, context: Context) -> bool:
        """Run when due."""
        return self.is_due(context) and self.apply(context)

    def is_due(self, context: Context) -> bool:
        """Tell in constant time whether there is anything to do."""
        return self.when(context) if self.when is not None else self.excess(context) > 0

    def goal(self, context: Context) -> int:
        """Return the tokens to come down to; 0 when nobody said."""
        return self.target if self.target is not None else context.goal

    def excess(self, context: Context) -> int:
        """Return how many tokens the context is above the goal."""
        return context.tokens - self.goal(context)

    def apply(self, context: Context) -> bool:
        """Change the context; return whether anything changed."""
        raise NotImplementedError


def results_of(context: Context, index: int) -> Iterator[tuple[int, ToolResult]]:
    """Go through the tool results of a message as it is shown, with their places."""
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolResult and not part.hosted and not part.fixed:
            yield place, part


def answered_calls(context: Context, index: int) -> Iterator[tuple[int, ToolCall]]:
    """Go through the calls of a message that were carried out, with their places; nobody needs their input any more."""
    group = context.group_at(index)
    answers = {result.call_id for other in group.indices for result in context.messages[other].results}
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolCall and not part.hosted and not part.fixed and part.id in answers:
            yield place, part

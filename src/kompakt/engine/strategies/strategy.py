"""What a strategy is, and the little that the built-in ones have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import ClassVar, TypeAlias

import msgspec

from kompakt.engine.compaction.triggers import Measure, Target, Trigger, aim_of, whole_number
from kompakt.engine.context.context import Context
from kompakt.errors import UsageError
from kompakt.model.messages import ToolCall, ToolResult

Strategy: TypeAlias = Callable[[Context], Awaitable[bool]]
"""Changes a context through its methods; returns whether it changed anything."""


class Deterministic:
    """A strategy that awaits nothing: say in ``apply`` what it does.

    Used alone it runs when ``when`` says so, else whenever the context is above its target. Without ``target`` it comes
    down as far as its trigger or the policy that runs it says; see ``aim_of``.
    """

    awaits = False
    measures: ClassVar[tuple[Measure, ...]] = ("tokens", "messages", "groups", "bytes")
    """What its target may be given in: a strategy that removes no message reaches no number of messages."""

    def __init__(self, *, when: Trigger | None = None, target: int | Target | None = None) -> None:
        self.when = when
        self.target = checked_target(target, self.measures, type(self).__name__)
        self.decides = when is not None or target is not None
        """Whether it knows by itself when it is due; else the budget says."""

    async def __call__(self, context: Context) -> bool:
        """Run when due."""
        if not self.is_due(context):
            return False
        changed = self.apply(context)
        context.note_run()
        return changed

    def is_due(self, context: Context) -> bool:
        """Tell in constant time whether there is anything to do."""
        return self.when(context) if self.when is not None else not self.aim(context).reached(context)

    def aim(self, context: Context) -> Target:
        """Say how far to come down; asked once, before anything is changed."""
        return aim_of(context, self.when, self.target, self.measures)

    def goal(self, context: Context) -> int:
        """Say how many tokens to come down to; 0 where the target is in another measure."""
        return self.aim(context).tokens or 0

    def apply(self, context: Context) -> bool:
        """Change the context; return whether anything changed."""
        raise NotImplementedError


class ToolChoice(msgspec.Struct, frozen=True):
    """Whose tool results a strategy takes: all, or those of some tools or sources, and never protected ones."""

    tools: frozenset[str] | None
    sources: frozenset[str] | None
    protected: frozenset[str]

    @classmethod
    def of(
        cls,
        *,
        tools: str | Iterable[str] | None = None,
        sources: str | Iterable[str] | None = None,
        protected: str | Iterable[str] = (),
    ) -> ToolChoice:
        """Read the names; a single text is one name."""
        return cls(
            None if tools is None else names_of(tools),
            None if sources is None else names_of(sources),
            names_of(protected),
        )

    def takes(self, context: Context, index: int, call_id: str) -> bool:
        """Tell whether the result of a call, in this message, is among them."""
        if self.sources is not None and context.messages[index].source_id not in self.sources:
            return False
        if self.tools is None and not self.protected:
            return True
        name = tool_of(context, index, call_id)
        return name not in self.protected and (self.tools is None or name in self.tools)


def checked_target(target: int | Target | None, measures: tuple[Measure, ...], name: str) -> Target | None:
    """Read a target: a number is one of tokens.

    Raises:
        UsageError: it is negative, or in a measure that the strategy does not change.
    """
    if target is None:
        return None
    if not isinstance(target, Target):
        whole_number("target", target)
        return Target(tokens=target)
    wrong = [measure for measure in target.measures if measure not in measures]
    if wrong:
        raise UsageError(f"{name} does not change the number of {wrong[0]}; give its target in {' or '.join(measures)}")
    return target


def names_of(given: str | Iterable[str]) -> frozenset[str]:
    """Read names; a single text is one name, not its letters."""
    return frozenset([given]) if isinstance(given, str) else frozenset(given)


def tool_of(context: Context, index: int, call_id: str) -> str:
    """Find the name of the tool whose result this is, among the calls of its group."""
    for place in context.group_at(index).indices:
        for part in context.messages[place].parts:
            if type(part) is ToolCall and part.id == call_id:
                return part.name
    return ""


def results_of(context: Context, index: int) -> Iterator[tuple[int, ToolResult]]:
    """Go through the tool results of a message as it is shown, with their places."""
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolResult and not part.hosted and not part.fixed:
            yield place, part


def answered_calls(context: Context, index: int) -> Iterator[tuple[int, ToolCall]]:
    """Go through the calls of a message that were carried out, with their places; their input is no longer needed."""
    group = context.group_at(index)
    answers = {result.call_id for other in group.indices for result in context.messages[other].results}
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolCall and not part.hosted and not part.fixed and part.id in answers:
            yield place, part

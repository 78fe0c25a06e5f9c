"""Strategies: the protocol, when one is due, how far it reduces the context, and how several are composed.

A trigger is any predicate on a context. The triggers made here also state why they fired, and those with a limit reduce
to half of it unless a target is given. Triggers and targets read totals that the context maintains, so a check takes
constant time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from kompakt.engine.context.context import Context
from kompakt.errors import UsageError
from kompakt.model.messages import ToolCall, ToolResult

Trigger: TypeAlias = Callable[[Context], bool]
"""Returns whether a strategy is due. Any predicate will do; it should take constant time."""

Measure: TypeAlias = Literal["tokens", "messages", "groups", "bytes"]
"""What is measured: tokens of the whole request; messages and groups shown, the pivot's included; bytes shown of the
history, text and media."""

MEASURES: tuple[Measure, ...] = ("tokens", "messages", "groups", "bytes")

HALF = 2
"""What a limit, or the present size, is divided by where no target is given: the gap keeps a trigger from firing again
with the next step."""


PIVOT_MESSAGES = 2
"""What a pivot takes: its question and its answer."""


def measured(context: Context, measure: Measure) -> int:
    """Return one measure of what is visible; the context maintains all of them."""
    match measure:
        case "tokens":
            return context.tokens
        case "messages":
            return context.shown_messages + (PIVOT_MESSAGES if context.summary_text else 0)
        case "groups":
            return context.shown_groups + (1 if context.summary_text else 0)
        case "bytes":
            return context.bytes


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The size to reach; every given measure has to be met."""

    tokens: int | None = None
    messages: int | None = None
    groups: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        """Reject a target without a measure or with a negative one."""
        if not self.measures:
            raise UsageError("this target names no measure; give tokens, messages, groups or bytes")
        for measure in self.measures:
            whole_number(f"target {measure}", getattr(self, measure))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures it names."""
        return tuple(measure for measure in MEASURES if getattr(self, measure) is not None)

    def reached(self, context: Context) -> bool:
        """Return whether what is visible is small enough; takes constant time."""
        return all(measured(context, measure) <= getattr(self, measure) for measure in self.measures)


class Over(msgspec.Struct, frozen=True):
    """Due when what is shown is larger than a limit."""

    measure: Measure
    limit: int

    def __post_init__(self) -> None:
        """Reject an unknown measure or a negative limit."""
        if self.measure not in MEASURES:
            raise UsageError(f"{self.measure!r} cannot be measured; use one of {', '.join(map(repr, MEASURES))}")
        whole_number(f"over_{self.measure}", self.limit)

    def __call__(self, context: Context) -> bool:
        """Compare the measure with the limit."""
        return measured(context, self.measure) > self.limit

    @property
    def reason(self) -> str:
        """Why it fired."""
        return f"over {self.limit} {self.measure}"

    @property
    def target(self) -> Target:
        """The target if none is given: half of the limit."""
        return Target(**{self.measure: self.limit // HALF})


class Every(msgspec.Struct, frozen=True):
    """Due after a number of answers of the model since the last rewriting."""

    steps: int

    def __post_init__(self) -> None:
        """Reject a number below 1."""
        whole_number("every", self.steps, least=1)

    def __call__(self, context: Context) -> bool:
        """Count the steps since the last rewriting."""
        return context.rounds - context.rewritten_at >= self.steps

    @property
    def reason(self) -> str:
        """Why it fired."""
        return f"every {self.steps} steps"


def over_tokens(tokens: int) -> Over:
    """Make a trigger that is due when the request shown has more tokens than this."""
    return Over("tokens", tokens)


def over_messages(messages: int) -> Over:
    """Make a trigger that is due when more messages than this are shown, the pivot's included."""
    return Over("messages", messages)


def over_groups(groups: int) -> Over:
    """Make a trigger that is due when more groups than this are shown, the pivot's included."""
    return Over("groups", groups)


def over_bytes(size: int) -> Over:
    """Make a trigger that is due when text and media shown have more bytes than this."""
    return Over("bytes", size)


def every(steps: int) -> Every:
    """Return a trigger that is due after a number of answers of the model since the last rewriting."""
    return Every(steps)


def always(context: Context) -> bool:
    """Be due whenever asked."""
    del context
    return True


def reason_of(trigger: Trigger) -> str:
    """Return why a trigger fired: its reason, or the name of the predicate."""
    said = getattr(trigger, "reason", None)
    name = said if isinstance(said, str) else getattr(trigger, "__name__", type(trigger).__name__)
    return "a predicate was true" if name == "<lambda>" else name


def aim_of(
    context: Context,
    when: Trigger | None,
    target: int | Target | None,
    measures: tuple[Measure, ...] = MEASURES,
) -> Target:
    """Return the target that applies to a strategy now.

    Its own target counts first, then that of its trigger and that of its policy's trigger, where it can change that
    measure, then the goal of the policy that runs it. Where none of them asks for less than there is, half of what is
    shown is kept.
    """
    if target is not None:
        return target if isinstance(target, Target) else Target(tokens=target)
    own = getattr(when, "target", None)
    if isinstance(own, Target) and set(own.measures) <= set(measures):
        return own
    if context.aim is not None and set(context.aim.measures) <= set(measures):
        return context.aim
    if context.goal and (when is None or context.tokens > context.goal):
        return Target(tokens=context.goal)
    return Target(tokens=context.tokens // HALF)


def whole_number(name: str, value: object, *, least: int = 0) -> None:
    """Reject a value that is not a whole number of at least ``least``.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} is not a count; use a whole number, {least} or more")


Strategy: TypeAlias = Callable[[Context], Awaitable[bool]]
"""Changes a context through its methods; returns whether it changed anything."""


class Deterministic:
    """A strategy that awaits nothing: say in ``apply`` what it does.

    Used alone it runs when ``when`` says so, else whenever the context is above its target. Without ``target`` it comes
    down as far as its trigger or the policy that runs it says; see ``aim_of``.
    """

    awaits = False
    measures: ClassVar[tuple[Measure, ...]] = ("tokens", "messages", "groups", "bytes")
    """Measures that its target may use. A strategy that removes no messages cannot reach a number of messages."""

    def __init__(self, *, when: Trigger | None = None, target: int | Target | None = None) -> None:
        self.when = when
        self.target = checked_target(target, self.measures, type(self).__name__)
        self.decides = when is not None or target is not None
        """Whether it decides itself when it is due; otherwise the budget decides."""

    async def __call__(self, context: Context) -> bool:
        """Run when due."""
        if not self.is_due(context):
            return False
        changed = self.apply(context)
        context.note_run()
        return changed

    def is_due(self, context: Context) -> bool:
        """Return whether there is anything to do; takes constant time."""
        return self.when(context) if self.when is not None else not self.aim(context).reached(context)

    def aim(self, context: Context) -> Target:
        """Return the target; called once, before anything is changed."""
        return aim_of(context, self.when, self.target, self.measures)

    def goal(self, context: Context) -> int:
        """Return the target in tokens; 0 if the target has another measure."""
        return self.aim(context).tokens or 0

    def apply(self, context: Context) -> bool:
        """Change the context; return whether anything changed."""
        raise NotImplementedError


class ToolChoice(msgspec.Struct, frozen=True):
    """Selects tool results: all, or those of some tools or sources, and never protected ones."""

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
        """Return whether the result of a call in this message is selected."""
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
    """Yield the tool results that a message shows, with their positions."""
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolResult and not part.hosted and not part.fixed:
            yield place, part


def answered_calls(context: Context, index: int) -> Iterator[tuple[int, ToolCall]]:
    """Yield the answered calls of a message, with their positions; their input is no longer needed."""
    group = context.group_at(index)
    answers = {result.call_id for other in group.indices for result in context.messages[other].results}
    for place, part in enumerate(context.shown(index).parts):
        if type(part) is ToolCall and not part.hosted and not part.fixed and part.id in answers:
            yield place, part


class TokenBudget:
    """Compose strategies: each runs while the context is above the target, gentlest first."""

    def __init__(
        self,
        strategies: Sequence[Strategy],
        *,
        target: int | Target | None = None,
        when: Trigger | None = None,
        early_stop: bool = True,
    ) -> None:
        self.strategies = tuple(strategies)
        self.target = checked_target(target, ("tokens",), type(self).__name__)
        self.when = when
        self.decides = when is not None or target is not None
        self.early_stop = early_stop

    @property
    def awaits(self) -> bool:
        """Whether one of the strategies may await something."""
        return any(getattr(strategy, "awaits", True) for strategy in self.strategies)

    def is_due(self, context: Context) -> bool:
        """Return whether there is anything to do; takes constant time."""
        return self.when(context) if self.when is not None else not self._aim(context).reached(context)

    def _aim(self, context: Context) -> Target:
        return aim_of(context, self.when, self.target, ("tokens",))

    async def __call__(self, context: Context) -> bool:
        """Run the strategies, and restore an outer goal afterwards."""
        if not self.is_due(context):
            return False
        target, (goal, aim) = self._aim(context), (context.goal, context.aim)
        context.goal, context.aim = target.tokens or 0, None
        try:
            changed = False
            for strategy in self.strategies:
                changed |= await strategy(context)
                if self.early_stop and target.reached(context):
                    break
            return changed
        finally:
            context.goal, context.aim = goal, aim
            context.note_run()

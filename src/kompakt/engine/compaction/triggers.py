"""When a strategy is due and how far it comes down: questions to a context that take constant time.

Any predicate on a context serves as a trigger. The ones made here also say in words why they fired, and those with a
limit come down to half of it where nobody names a target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from kompakt.engine.context.context import Context
from kompakt.errors import UsageError

Trigger: TypeAlias = Callable[[Context], bool]
"""Tells whether a strategy is due. Any predicate serves; keep it constant in time."""

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
    """Read one measure of what is shown; each is kept up to date, none is computed."""
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
    """How far to come down; every measure that is given has to be met."""

    tokens: int | None = None
    messages: int | None = None
    groups: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a target that says nothing, or less than nothing."""
        if not self.measures:
            raise UsageError("this target names no measure; give tokens, messages, groups or bytes")
        for measure in self.measures:
            whole_number(f"target {measure}", getattr(self, measure))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures it names."""
        return tuple(measure for measure in MEASURES if getattr(self, measure) is not None)

    def reached(self, context: Context) -> bool:
        """Tell in constant time whether what is shown is small enough."""
        return all(measured(context, measure) <= getattr(self, measure) for measure in self.measures)


class Over(msgspec.Struct, frozen=True):
    """Due when what is shown is larger than a limit."""

    measure: Measure
    limit: int

    def __post_init__(self) -> None:
        """Refuse a limit that is none."""
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
        """How far to come down where nobody says."""
        return Target(**{self.measure: self.limit // HALF})


class Every(msgspec.Struct, frozen=True):
    """Due when the model has answered so many times since the last rewriting."""

    steps: int

    def __post_init__(self) -> None:
        """Refuse a number of steps that is none."""
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
    """Make a trigger that is due when the model has answered so many times since the last rewriting."""
    return Every(steps)


def always(context: Context) -> bool:
    """Be due whenever asked."""
    del context
    return True


def reason_of(trigger: Trigger) -> str:
    """Say in words why a trigger fired; one that has no words is called by its name, where it has one."""
    said = getattr(trigger, "reason", None)
    name = said if isinstance(said, str) else getattr(trigger, "__name__", type(trigger).__name__)
    return "a predicate was true" if name == "<lambda>" else name


def aim_of(
    context: Context,
    when: Trigger | None,
    target: int | Target | None,
    measures: tuple[Measure, ...] = MEASURES,
) -> Target:
    """Say how far a strategy comes down now.

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
    """Refuse what is not a whole number, or less than the least.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} is not a count; use a whole number, {least} or more")

"""Budget, output reserve, trigger and target of a request, all computed here.

A compaction can change only a part of a request. System prompt, tools, the task and unanswered messages are fixed, so
the target is computed on the rest (``Budget.goal``). Every token is counted once, whatever the provider's convention.
Invariant: a ``Budget`` is consistent. Its target is below its trigger, and its trigger within the usable window.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kompakt.errors import UsageError
from kompakt.model.limits import Limits

OUTPUT_CAP = 32_000
"""Most tokens kept free for the answer: models that may write 128,000 rarely do, and the prompt needs the room."""

MIN_ANSWER = 1_000
"""Tokens left for an answer where the reserve gives way to the prompt: enough for a tool call."""

MAX_IMPLIED_RESERVE = 0.25
"""Largest share of the variable part kept free for an answer whose length the request does not state."""

TRIGGER_SHARE = 0.9
"""Share of the usable window at which a compaction is due: counts are estimates until the provider reports usage, and a
tool result may arrive in between.
"""

TARGET_SHARE = 0.5
"""Share of the variable part that a compaction leaves: the gap prevents another one at the next step."""

STEADY_STEPS = 8
"""Average steps that fit between target and trigger where there is room: each compaction breaks the prompt cache and
loses detail.
"""

LEAST_SHARE = 0.2
"""Smallest share of the variable part that a compaction aims for when these steps do not fit."""

FEW_STEPS = 3
"""A budget for a single call that holds at most this many steps is used nearly completely."""

SINGLE_SHARE = 0.67
"""Share of the variable part that a budget for a single call leaves: its reader gets more, at the price of a few more
compactions if the caller sends a growing history step by step.
"""

FULL_SHARE = 0.95
"""Share of the variable part that is used then, because no further step needs the room."""

LEAST_ROOM = 1_000
"""Tokens of the variable part that an absolute target leaves, where it is below the fixed part."""

READ_MARGIN = 0.95
"""Share of the provider's limit that is used, because its count and ours differ."""

REFUSED_SHARE = 0.8
"""Share of a rejected request to try next, when the provider does not state its limit."""


class Usage(Struct, frozen=True):
    """Tokens of one finished step, each counted once."""

    input: int = 0
    """Everything not read from the cache, cache writes included."""
    cache_read: int = 0
    cache_write: int = 0
    """Part of `input`."""
    output: int = 0
    reasoning: int = 0
    """Part of `output`."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
        )

    @property
    def prompt(self) -> int:
        """Return the tokens that were sent."""
        return self.input + self.cache_read

    @property
    def total(self) -> int:
        """Return the tokens in the window at the end of the step."""
        return self.input + self.cache_read + self.output


class Budget(Struct, frozen=True, kw_only=True):
    """The tokens that a request may have: compact above `trigger`, down to `target`.

    A window of 0 is unlimited; a trigger of 0 (with an unlimited window only) never fires.
    """

    window: int
    reserve: int = 0
    """Part of the window kept free for the answer; it gives way before unread messages are cut."""
    trigger: int
    target: int
    relative: bool = False
    """Whether `target` is a share of the trigger, applied to the variable part, and not a number of tokens."""
    steady: bool = True
    """Whether a goal leaves room for further steps of a running agent; a budget for a single call uses the room."""

    def __post_init__(self) -> None:
        """Reject inconsistent numbers."""
        for name in ("window", "reserve", "trigger", "target"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"{name}={value!r} is not a count of tokens; use a whole number, 0 or more")
        if self.window == 0 and self.reserve:
            raise UsageError(f"reserve={self.reserve!r} needs a window; set window=… or leave the reserve at 0")
        if 0 < self.window <= self.reserve:
            raise UsageError(f"reserve={self.reserve!r} leaves nothing of window={self.window!r}; lower the reserve")
        self._check_order()

    def _check_order(self) -> None:
        if self.window == self.trigger == self.target == 0:
            return
        if self.trigger == 0:
            raise UsageError(f"trigger={self.trigger!r} never fires; set it to 1 or more")
        if self.window and self.trigger > self.usable:
            raise UsageError(f"trigger={self.trigger!r} lies beyond the usable {self.usable!r} tokens; lower it")
        if self.target >= self.trigger:
            raise UsageError(
                f"target={self.target!r} is not below trigger={self.trigger!r}: each step would compact again; lower it"
            )

    # --- make -----------------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, tokens: int, *, steady: bool = True) -> Budget:
        """Create a budget of this many tokens with a target of half of the variable part.

        Pass ``steady=False`` for a single call: two thirds are used, and more the fewer steps the budget holds.
        """
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"budget={tokens!r} is not a number of tokens; use a whole number above 0")
        share = TARGET_SHARE if steady else SINGLE_SHARE
        return cls(window=tokens, trigger=tokens, target=_share(tokens, share), relative=True, steady=steady)

    @classmethod
    def for_model(
        cls,
        limits: Limits,
        *,
        output_cap: int = OUTPUT_CAP,
        trigger_share: float = TRIGGER_SHARE,
        target_share: float = TARGET_SHARE,
    ) -> Budget:
        """Create the budget of a model: trigger as a share of the usable window, target of the variable part."""
        room = usable(limits, output_cap=output_cap)
        # The limit of the prompt is the provider's own: no reserve can yield beyond it.
        window = room if limits.input else max(limits.context, room)
        return cls._within_window(window, window - room, trigger_share=trigger_share, target_share=target_share)

    @classmethod
    def for_request(
        cls,
        limits: Limits,
        *,
        output: int | None = None,
        fixed: int = 0,
        output_counts: bool = False,
        trigger_share: float = TRIGGER_SHARE,
    ) -> Budget:
        """Create the budget of one request with `fixed` tokens of system prompt and tools.

        ``output`` is the length of the answer that the request states. It is reserved, but at most half of what the
        fixed part leaves, unless the provider rejects requests that exceed the window together with it
        (``output_counts``). If the request does not state it, the provider uses what remains, and less is reserved.
        """
        if limits.context == 0:
            return cls(window=0, trigger=0, target=0, relative=True)
        if limits.input:
            return cls._within_window(min(limits.input, limits.context), 0, trigger_share=trigger_share)
        left = max(0, limits.context - fixed)
        if output is None:
            reserve = min(limits.output or OUTPUT_CAP, OUTPUT_CAP, int(left * MAX_IMPLIED_RESERVE))
        else:
            stated = min(output, limits.output or output) if limits.known else output
            reserve = stated if output_counts and stated < left else min(stated, left // 2)
        return cls._within_window(limits.context, reserve, trigger_share=trigger_share)

    @classmethod
    def _within_window(
        cls, window: int, reserve: int, *, trigger_share: float = TRIGGER_SHARE, target_share: float = TARGET_SHARE
    ) -> Budget:
        for name, share in (("trigger_share", trigger_share), ("target_share", target_share)):
            if not 0 < share <= 1:
                raise UsageError(f"{name}={share!r} is not a share; use a number above 0 and up to 1")
        if window == 0:
            return cls(window=0, trigger=0, target=0, relative=True)
        trigger = max(1, _share(window - reserve, trigger_share))
        target = min(_share(trigger, target_share), trigger - 1)
        return cls(window=window, reserve=reserve, trigger=trigger, target=target, relative=True)

    # --- ask ------------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> int:
        """Return the tokens that a request may have; 0 is unlimited."""
        return self.window - self.reserve

    @property
    def limit(self) -> int:
        """Return the tokens that a compacted request may have; 0 is unlimited."""
        return max(self.trigger, self.usable)

    @property
    def ceiling(self) -> int:
        """Return the tokens that a request may have when the reserve gives way to it; 0 is unlimited."""
        return max(self.limit, self.window - min(self.reserve, MIN_ANSWER))

    def due(self, tokens: int) -> bool:
        """Return whether a request of this size needs a compaction."""
        return 0 < self.trigger < tokens

    def overflows(self, usage: Usage) -> bool:
        """Return whether a finished step left more in the window than is usable."""
        return 0 < self.limit < usage.total

    def mark(self, share: float, *, fixed: int = 0) -> int:
        """Return the size at which this share of the variable part below the trigger is used."""
        return max(1, min(self.trigger, fixed + _share(max(0, self.trigger - fixed), share)))

    def goal(self, step: float, *, fixed: int = 0, share: float | None = None) -> int:
        """Return the size to compact to, with `fixed` tokens that cannot change and an average step of `step`; 0 is
        unlimited.

        It is a share of the variable part: less where that leaves no room for the next steps, more where few steps fit
        and none follow. A target given as a number of tokens is used literally, as far as it leaves some of the
        variable part.
        """
        if not self.trigger:
            return 0
        room = max(0, self.trigger - fixed)
        least = _share(room, LEAST_SHARE)
        if share is None and not self.relative:
            return max(self.target, min(fixed + min(least, LEAST_ROOM), self.trigger - 1))
        usual = _share(room, share if share is not None else self.target / max(1, self.trigger))
        if not self.steady and share is None:
            fitting = min(max((room - usual) / max(1.0, step), FEW_STEPS), STEADY_STEPS)
            full = max(usual, _share(room, FULL_SHARE))
            return fixed + usual + int((full - usual) * (STEADY_STEPS - fitting) / (STEADY_STEPS - FEW_STEPS))
        return fixed + max(least, min(usual, int(room - STEADY_STEPS * step)))

    def steps_between(self, step: float, *, fixed: int) -> float:
        """Return how many average steps fit between the smallest goal and the trigger."""
        return max(0.0, self.trigger - fixed) * (1 - LEAST_SHARE) / max(1.0, step)

    # --- change ---------------------------------------------------------------------------------------------------

    def scaled(self, ratio: float) -> Budget:
        """Return the budget in tokens of our counter, where the provider counts `ratio` for each."""
        if ratio <= 1.0 or not self.trigger:
            return self
        trigger, reserve = max(1, int(self.trigger / ratio)), int(self.reserve / ratio)
        window = max(int(self.window / ratio), reserve + trigger) if self.window else 0
        target = min(int(self.target / ratio), trigger - 1)
        return msgspec.structs.replace(self, window=window, reserve=reserve, trigger=trigger, target=target)

    def within(self, read: int) -> Budget:
        """Return the budget for a provider that accepted at most this many tokens; at least a quarter remains."""
        return self.triggered_at(max(1, self.trigger // 4, min(self.trigger, int(read * READ_MARGIN))))

    def down_to(self, goal: int, *, shown: int) -> Budget:
        """Return a budget that a request of `shown` tokens exceeds, with the goal as its target."""
        trigger = max(goal + 1, min(self.trigger or shown - 1, shown - 1))
        return msgspec.structs.replace(self, trigger=trigger, target=goal, relative=False)

    def triggered_at(self, trigger: int) -> Budget:
        """Return the budget with a lower trigger; a relative target keeps its share."""
        target = int(self.target * trigger / max(1, self.trigger)) if self.relative else self.target
        return msgspec.structs.replace(self, trigger=trigger, target=min(target, trigger - 1))


def size_after_refusal(
    sent: int, *, limit: int | None, actual: int | None = None, output: int | None = None, reserve: int = 0
) -> tuple[int, float]:
    """Return the size to try after a request of `sent` tokens was rejected as too long, and the provider's ratio.

    ``limit``, ``actual`` (the prompt) and ``output`` are the provider's numbers where it states them. The size is in
    tokens of our counter; the ratio is the provider's tokens per token of ours.
    """
    if not limit:
        return max(2, int(sent * REFUSED_SHARE)), 1.0
    ratio = max(1.0, (actual or 0) / max(1, sent))
    room = limit - (output if output is not None else min(reserve, limit // 2))
    return max(2, min(int(sent * REFUSED_SHARE), int(room / ratio * READ_MARGIN))), ratio


def usable(limits: Limits, *, output_cap: int = OUTPUT_CAP) -> int:
    """Return the tokens that a model leaves for prompt and history; 0 is unlimited."""
    if output_cap < 0:
        raise UsageError(f"output_cap={output_cap!r} is negative; use 0 to keep nothing free")
    if limits.context == 0:
        return 0
    if limits.input:
        return limits.input
    rest = limits.context - min(limits.output or output_cap, output_cap)
    # Small models often list an output limit as large as their window (gpt-4: 8,192 of 8,192). Nothing would be left,
    # every step would overflow, and 0 would read as unlimited; half the window is what can still be worked with.
    return rest if rest > 0 else max(1, limits.context // 2)


def _share(tokens: int, share: float) -> int:
    return int(tokens * share)

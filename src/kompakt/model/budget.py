"""How much may be sent: one value for window, reserve, trigger and target, and the rule for overflow.

Everything that asks "is it full?" asks here, with tokens counted once whatever the provider's convention.
Invariant: a Budget that exists is consistent — its target lies below its trigger, its trigger within the usable window.
"""

from __future__ import annotations

from msgspec import Struct

from kompakt.errors import UsageError
from kompakt.model.limits import Limits

OUTPUT_CAP = 32_000
"""Tokens kept free for the answer at most: models that may write 128,000 rarely do, and the room is worth more to the
prompt."""

TRIGGER_SHARE = 0.9
"""Share of the usable window at which compaction is due: counts are estimates until the provider reports usage, and a
tool result may arrive in between."""

TARGET_SHARE = 0.5
"""Share of the trigger that a compaction aims for: the gap is what keeps it from firing again at the next step."""

STEADY_STEPS = 12
"""Steps that should fit between target and trigger, so that a prefix holds a while."""

HASTY_STEPS = 3
"""Where no more than these fit, the prefix breaks all the time whatever is done."""

TIGHT_SHARE = 0.9
"""Share of the trigger that is aimed for there: the room is worth more than the next step's prefix."""


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

    @property
    def prompt(self) -> int:
        """Count what was sent."""
        return self.input + self.cache_read

    @property
    def total(self) -> int:
        """Count what the window held at the end of the step."""
        return self.input + self.cache_read + self.output


class Budget(Struct, frozen=True, kw_only=True):
    """Tokens a request may take: compact above `trigger`, down to `target`.

    A window of 0 is unlimited; a trigger of 0 (with an unlimited window only) never fires.
    """

    window: int
    reserve: int = 0
    """Part of the window kept free for the answer."""
    trigger: int
    target: int

    def __post_init__(self) -> None:
        """Refuse numbers that contradict one another, once."""
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

    @classmethod
    def of(cls, tokens: int) -> Budget:
        """Make a plain budget of so many tokens, aiming for half of them."""
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"budget={tokens!r} is not a number of tokens; use a whole number above 0")
        return cls(window=tokens, trigger=tokens, target=_share(tokens, TARGET_SHARE))

    @classmethod
    def for_model(
        cls,
        limits: Limits,
        *,
        output_cap: int = OUTPUT_CAP,
        trigger_share: float = TRIGGER_SHARE,
        target_share: float = TARGET_SHARE,
    ) -> Budget:
        """Make the budget of a model: trigger as a share of what is usable, target as a share of the trigger."""
        for name, share in (("trigger_share", trigger_share), ("target_share", target_share)):
            if not 0 < share <= 1:
                raise UsageError(f"{name}={share!r} is not a share; use a number above 0 and up to 1")
        room = usable(limits, output_cap=output_cap)
        if room == 0:
            return cls(window=0, trigger=0, target=0)
        trigger = max(1, _share(room, trigger_share))
        target = min(_share(trigger, target_share), trigger - 1)
        window = max(limits.context, room)
        return cls(window=window, reserve=window - room, trigger=trigger, target=target)

    @property
    def usable(self) -> int:
        """Count what a request may take; 0 is unlimited."""
        return self.window - self.reserve

    def goal(self, step: float) -> int:
        """Say what to come down to when a step takes so many tokens on the average.

        The target, as a rule. A plain budget that holds few steps is rewritten often whatever is done, so the fewer it
        holds, the more of it is used.
        """
        fitting = (self.trigger - self.target) / max(1.0, step)
        if fitting >= STEADY_STEPS or self.target != _share(self.trigger, TARGET_SHARE):
            return self.target
        haste = min(1.0, (STEADY_STEPS - fitting) / (STEADY_STEPS - HASTY_STEPS))
        return _share(self.trigger, TARGET_SHARE + haste * (TIGHT_SHARE - TARGET_SHARE))

    def due(self, tokens: int) -> bool:
        """Say whether so many tokens call for a compaction."""
        return 0 < self.trigger < tokens


def usable(limits: Limits, *, output_cap: int = OUTPUT_CAP) -> int:
    """Count the tokens a model leaves for prompt and history; 0 is unlimited."""
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


def overflows(usage: Usage, limits: Limits, *, output_cap: int = OUTPUT_CAP) -> bool:
    """Say whether a finished step left more in the window than is usable."""
    room = usable(limits, output_cap=output_cap)
    return 0 < room < usage.total


def _share(tokens: int, share: float) -> int:
    return int(tokens * share)

"""What a compaction did, why, and what it saved: values for people, logs and tests."""

from __future__ import annotations

import msgspec

from kompakt.engine.context.annotation import Action


class Step(msgspec.Struct, frozen=True):
    """What one strategy did at one rewriting."""

    strategy: str
    tokens_before: int
    tokens_after: int
    at_message: int
    """How many messages there were."""
    failed: str | None = None
    """What it raised; the run went on with the state before it."""


def balanced(steps: tuple[Step, ...], before: int, after: int, at_message: int) -> tuple[Step, ...]:
    """Add a step for what no strategy did, so that the steps add up to the whole.

    That is what pins and placeholders add, what stripped reasoning and the exact fit at the end take away.
    """
    rest = before - after - sum(step.tokens_before - step.tokens_after for step in steps)
    return (*steps, Step("fitting", after + rest, after, at_message)) if rest else steps


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one compaction."""

    policy: str
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    budget: int
    steps: tuple[Step, ...] = ()
    actions: tuple[Action, ...] = ()
    repairs: tuple[str, ...] = ()
    """What had to be mended before anything else."""
    problems: tuple[str, ...] = ()
    """What no repair could mend: the provider will refuse it still."""
    told: str = ""
    """What the pivot says of what was left out: the ledger, behind a summariser's words if there were any."""
    failures: tuple[str, ...] = ()
    """What went wrong on the way: summaries that could not be used, strategies that raised."""
    recoverable: str = "only the payload that was given can restore what was left out: no store was"
    seconds: float = 0.0
    session: str | None = None
    """The session that was compacted, where there is one."""

    @property
    def saved(self) -> int:
        """Tokens the compaction saved."""
        return self.tokens_before - self.tokens_after

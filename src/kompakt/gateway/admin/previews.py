"""What a compaction of a session would do, worked out without writing or logging one."""

from __future__ import annotations

import msgspec

from kompakt.engine.compaction import compact as engine
from kompakt.engine.compaction.compact import CompactionOrder, run_sync
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.pivot.text import retell
from kompakt.model.budget import Budget
from kompakt.model.messages import History
from kompakt.model.tokens import counter_for
from kompakt.wire.registry import WIRES


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction would do."""

    due: bool
    """Whether the gateway would compact now, at this budget."""
    budget: int
    """Tokens above which a compaction is due."""
    target: int
    policy: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    strategies: list[str]
    text: str
    """What the model would read in the place of what left."""


def preview(history: History, tokens: int, budget: Budget, policy: Policy) -> Preview:
    """Compact what a session shows, for a look.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
        UsageError: the policy has to wait for a model.
    """
    order = CompactionOrder(
        budget=budget,
        policy=policy,
        counter=counter_for(history.model).own(),
        manual_thinking=WIRES[history.format].manual_thinking(history.body),
    )
    due = budget.due(tokens)
    if not due:
        return _made(history, tokens, budget, policy, due=False)
    outcome = run_sync(engine.compact(history, order), may_wait=False)
    context = outcome.context
    return msgspec.structs.replace(
        _made(history, tokens, budget, policy, due=True),
        tokens_after=context.projected_tokens,
        messages_after=len(context.project()),
        strategies=list(dict.fromkeys(step.strategy for step in outcome.steps)),
        text=retell(context) if context.summary_text else "",
    )


def _made(history: History, tokens: int, budget: Budget, policy: Policy, *, due: bool) -> Preview:
    return Preview(
        due=due,
        budget=budget.trigger,
        target=budget.target,
        policy=policy.name,
        tokens_before=tokens,
        tokens_after=tokens,
        messages_before=len(history),
        messages_after=len(history),
        strategies=[],
        text="",
    )

"""A policy that is not sufficient is supplemented, not retried without end."""

from __future__ import annotations

from tests.histories import plain

import kompakt
from kompakt.strategies import OutputPruning


class TestWeakPolicy:
    def test_a_policy_that_does_nothing_is_not_run_at_every_step(self) -> None:
        """The oldest groups go when the policy alone does not come down, so it is due as rarely as a good one."""
        asked: list[int] = []

        async def idle(context: kompakt.Context) -> bool:
            asked.append(len(context.messages))
            return False

        body = plain.build("openai-chat", messages=400, seed=5)
        total = kompakt.count(body).total
        done = kompakt.compact(body, total // 4, policy=kompakt.Policy("idle", (idle,)))
        assert done.tokens_after <= total // 4
        assert len(asked) < 20

    def test_pruning_alone_still_gives_a_history_that_fits(self) -> None:
        """Pruning that spares more than the budget allows is followed by truncation."""
        body = plain.build("openai-chat", messages=200, seed=6)
        budget = kompakt.count(body).total // 5
        done = kompakt.compact(body, budget, policy=kompakt.Policy("prune", (OutputPruning(),)))
        assert done.tokens_after <= budget
        assert {step.strategy for step in done.report.steps} - {"fitting"} == {"Truncation"}

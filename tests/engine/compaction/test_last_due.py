"""A call without state finds its last compaction from token counts and compacts once, from the original messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.histories import plain

import kompakt
from kompakt.engine.compaction.compact import CompactionOrder, Outcome, Required, compact, last_due
from kompakt.engine.compaction.policies import Policy, policy_named
from kompakt.engine.strategies import OutputPruning, Shortening, Summarization, Truncation
from kompakt.engine.strategies.strategy import over_messages
from kompakt.model.budget import Budget
from kompakt.model.messages import History, Message, Text, ToolCall, ToolResult
from kompakt.model.tokens import Counter

BUDGET = 20_000


def session(messages: int = 600) -> History:
    return kompakt.parse(plain.build("openai-chat", messages=messages, seed=5, mean_chars=1000))


def compacted(history: History, policy: str | Policy = "default", **more: Any) -> Outcome:
    order = CompactionOrder(budget=Budget.of(BUDGET), policy=policy_named(policy), counter=Counter(), **more)
    return asyncio.run(compact(history, order))


def boundary(history: History, budget: Budget, *, surplus: int = 0) -> int:
    counter = Counter()
    counts = [counter.message(message) for message in history]
    required = Required(history, counts, counter=counter, fixed=0)
    return last_due(history, counts, budget, required, surplus=surplus)


class TestOneCompaction:
    @pytest.mark.parametrize("policy", ["default", "conservative", "window"])
    def test_a_long_history_is_rewritten_once(self, policy: str) -> None:
        """Many compactions were due; only the last one is done, and none follows it."""
        outcome = compacted(session(), policy)
        assert outcome.steps and len({step.at_message for step in outcome.steps}) == 1
        assert outcome.context.projected_tokens <= BUDGET

    @pytest.mark.parametrize("policy", ["default", "window"])
    def test_the_result_depends_on_the_messages_before_the_boundary_only(self, policy: str) -> None:
        """The projection is that of the history up to the boundary, followed by the other messages as they are."""
        history = session()
        outcome = compacted(history, policy)
        at = outcome.steps[0].at_message
        before = compacted(history.with_messages(history[:at]), policy)
        assert at < len(history)
        assert list(outcome.context.project()) == [*before.context.project(), *history[at:]]

    def test_only_results_that_may_stay_are_shortened(self) -> None:
        """Results before those that fill the target are hidden unchanged: only visible results are shortened."""
        history = kompakt.parse(plain.build("openai-chat", messages=600, seed=5, mean_chars=6_000))
        context = compacted(history).context
        assert context.visibility.replacements
        assert min(context.visibility.replacements) > 0.9 * len(history)


class TestPoliciesThatCannotBeForeseen:
    @pytest.mark.parametrize(
        "policy",
        [
            Policy("pruning", (OutputPruning(),)),
            Policy("own target", (Shortening(), Summarization(target=5_000))),
            Policy("trigger", (Summarization(when=over_messages(50)),)),
            policy_named("aggressive"),
            policy_named("admission"),
        ],
        ids=lambda policy: policy.name,
    )
    def test_they_are_checked_at_each_answer(self, policy: Policy) -> None:
        """The size after a run of these policies does not follow from token counts."""
        assert not policy.ends_at_goal
        outcome = compacted(session(), policy)
        assert len({step.at_message for step in outcome.steps}) > 1
        assert outcome.context.projected_tokens <= BUDGET

    def test_others_end_at_their_goal(self) -> None:
        """A step without a target of its own that drops the oldest groups ends at the goal."""
        assert policy_named("default").ends_at_goal and policy_named("window").ends_at_goal
        assert Policy("mine", (OutputPruning(), Truncation())).ends_at_goal


class TestLastDue:
    def test_a_history_within_its_budget_is_never_due(self) -> None:
        history = session()
        assert boundary(history, Budget.of(10_000_000)) == len(history)

    def test_a_boundary_holds_until_the_next_compaction_is_due(self) -> None:
        """A history that grew by one step has the boundary of the shorter one, or a new one at its end."""
        history = session()
        budget = Budget.of(BUDGET)
        answers = [i for i in range(1, len(history)) if history[i].role == "assistant"]
        found = [boundary(history.with_messages(history[:at]), budget) for at in answers]
        assert len(set(found)) < len(answers) / 2
        for earlier, later, at in zip(found, found[1:], answers[1:], strict=False):
            assert later in (earlier, at)

    def test_a_compaction_leaves_its_goal(self) -> None:
        """The next one is due when the messages after it fill the room between goal and trigger."""
        history = session()
        budget = Budget(window=0, trigger=BUDGET, target=10_000)
        counter = Counter()
        at = boundary(history, budget)
        rest = sum(counter.message(message) for message in history[at:])
        assert 0 < rest <= BUDGET - 10_000

    def test_what_is_not_answered_yet_has_to_stay(self) -> None:
        """Instructions, task, newest request and unread results count; the input of an answered call does not."""
        history = History(
            [
                Message("user", (Text("the task"),)),
                Message("assistant", (Text("old answer"),)),
                Message("user", (Text("newest request"),)),
                Message("assistant", (ToolCall("1", "read", {"path": "a" * 400}),)),
                Message("tool", (ToolResult("1", "unread " * 50),)),
            ],
            format="openai-chat",
        )
        counter = Counter()
        counts = [counter.message(message) for message in history]
        required = Required(history, counts, counter=counter, fixed=7)
        call = counter.part(history[3].parts[0])
        assert required.among(5) == 7 + counts[0] + counts[2] + counts[3] - call + counts[4]
        assert required.among(3) == 7 + counts[0] + counts[2]
        assert required.among(1) == 7 + counts[0]

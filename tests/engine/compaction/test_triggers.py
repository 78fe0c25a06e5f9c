"""Triggers and targets: what is due without a budget, how far it compacts, and that checks are cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.sessions import LONG, chat, outputs, rounds, run, session
from tests.histories.messages import assistant, user

import kompakt
from kompakt.engine.compaction.policies import policy_named
from kompakt.engine.context.context import Context
from kompakt.errors import UsageError
from kompakt.strategies import (
    OutputCollapsing,
    OutputPruning,
    Shortening,
    SlidingWindow,
    Strategy,
    Summarization,
    TokenBudget,
    ToolCallRemoval,
    Truncation,
)
from kompakt.triggers import Target, Trigger, always, every, over_bytes, over_groups, over_messages, over_tokens

TALK = [message for n in range(30) for message in (user(f"Request {n}."), assistant(f"Answer {n}.", id=f"a{n}"))]

TRIGGERS: dict[str, Callable[[], Trigger]] = {
    "over 20 messages": lambda: over_messages(20),
    "over 20 groups": lambda: over_groups(20),
    "over 200 bytes": lambda: over_bytes(200),
    "over 150 tokens": lambda: over_tokens(150),
    "every 10 steps": lambda: every(10),
    "a predicate was true": lambda: lambda context: context.shown_messages > 20,
}


class TestCompact:
    @pytest.mark.parametrize("reason", TRIGGERS)
    @pytest.mark.parametrize("make", [Truncation, Summarization])
    def test_every_trigger_fires_far_below_the_budget(self, make: Callable[..., Strategy], reason: str) -> None:
        """Within a budget of a million tokens the trigger still compacts, and the report gives the reason."""
        done = kompakt.compact(chat(*TALK), 1_000_000, strategy=make(when=TRIGGERS[reason]()), format="openai-chat")
        assert done.changed and done.report.reason == reason
        assert len(done.payload) < len(TALK) / 2

    @pytest.mark.parametrize("reason", TRIGGERS)
    def test_a_request_extends_the_one_before_until_the_trigger_fires_again(self, reason: str) -> None:
        """A caller with a growing history and no state gets a stable prefix, as with a budget."""
        strategy = Truncation(when=TRIGGERS[reason]())
        previous: list[Any] = []
        extended = calls = 0
        for count in range(21, len(TALK) + 1, 2):
            now: Any = kompakt.compact(chat(*TALK[:count]), strategy=strategy, format="openai-chat").payload
            extended += now[: len(previous)] == previous
            previous, calls = now, calls + 1
        assert extended >= calls - 8

    def test_a_policy_may_have_a_trigger(self) -> None:
        """All steps of a policy run when its trigger fires, as far as the trigger says."""
        policy = kompakt.Policy("short", (Truncation(),), when=over_messages(10))
        done = kompakt.compact(chat(*TALK), 1_000_000, policy=policy, format="openai-chat")
        assert done.report.policy == "short" and len(done.payload) <= 10
        few = kompakt.compact(chat(*TALK[:9]), 1_000_000, policy=policy, format="openai-chat")
        assert not few.changed and few.report.reason == "nothing due"

    def test_steps_without_a_trigger_wait_for_the_budget(self) -> None:
        """One step's trigger runs that step and no other."""
        policy = kompakt.Policy("mixed", (OutputCollapsing(min_keep_groups=1, when=over_messages(10)), Truncation()))
        done = kompakt.compact(chat(*session(2, 8)), 1_000_000, policy=policy)
        assert [step.strategy for step in done.report.steps if step.tokens_after < step.tokens_before]
        assert {step.strategy for step in done.report.steps} == {"OutputCollapsing"}
        assert len(done.payload) == len(chat(*session(2, 8)))

    def test_the_budget_still_holds(self) -> None:
        """A trigger that never fires does not keep the budget from being met."""
        payload = chat(*session(3, 8))
        done = kompakt.compact(payload, 3_000, strategy=Truncation(when=lambda _: False))
        assert done.tokens_after <= 3_000 and done.report.reason == "over 3000 tokens"

    def test_a_trigger_that_raises_is_not_due(self, caplog: pytest.LogCaptureFixture) -> None:
        """The run continues, and the exception is logged."""

        def broken(context: Context) -> bool:
            raise ZeroDivisionError(context.tokens)

        done = kompakt.compact(chat(*TALK), 1_000_000, strategy=Truncation(when=broken), format="openai-chat")
        assert not done.changed and "ZeroDivisionError" in caplog.text

    def test_a_function_of_ones_own_is_asked_each_time(self) -> None:
        """A bare async function decides for itself whether there is anything to do."""
        asked: list[int] = []

        async def mine(context: Context) -> bool:
            asked.append(context.shown_messages)
            return context.exclude_all(context.droppable()[:4], reason="mine")

        done = kompakt.compact(chat(*TALK), strategy=mine, format="openai-chat")
        assert asked == [len(TALK)] and len(done.payload) == len(TALK) - 4
        assert done.report.reason == "mine was due"

    def test_neither_budget_nor_model_is_needed(self) -> None:
        """A strategy with its own trigger needs no budget; without one it does."""
        assert kompakt.compact(chat(*TALK), strategy=SlidingWindow(min_keep_groups=3), format="openai-chat").changed
        with pytest.raises(UsageError, match="no budget"):
            kompakt.compact(chat(*TALK), strategy=Truncation(), format="openai-chat")
        with pytest.raises(UsageError, match="only one of them"):
            kompakt.compact(chat(*TALK), policy="window", strategy=Truncation(), format="openai-chat")

    @pytest.mark.parametrize("wrong", [3, Truncation, None, ["default"]])
    def test_what_is_no_policy_is_refused(self, wrong: Any) -> None:
        """A class, a number, a list: none of them compacts anything."""
        with pytest.raises(UsageError, match="neither the name of a policy"):
            policy_named(wrong)


class TestTargets:
    @pytest.mark.parametrize("make", [Truncation, Summarization])
    @pytest.mark.parametrize("measure", ["messages", "groups"])
    def test_messages_and_groups(self, make: Callable[..., Strategy], measure: str) -> None:
        """As many messages stay as the target allows, including the pivot."""
        context = Context(TALK)
        assert run(make(target=Target(**{measure: 12})), context)
        shown = context.shown_groups + bool(context.summary_text) if measure == "groups" else len(context.project())
        assert 12 - 2 < shown <= 12
        assert not run(make(target=Target(**{measure: 12})), context)

    def test_tool_calls_until_a_number_of_messages_is_left(self) -> None:
        """Tool groups go one after another and no more than needed."""
        context = Context(session(1, 10))
        assert run(ToolCallRemoval(min_keep_groups=0, target=Target(messages=9)), context)
        assert context.shown_messages == 9

    def test_all_measures_of_a_target_have_to_be_met(self) -> None:
        """The tightest one decides."""
        context = Context(TALK)
        assert run(Truncation(target=Target(tokens=10_000, messages=50, groups=9)), context)
        assert context.shown_groups == 9

    def test_a_number_is_one_of_tokens(self) -> None:
        assert Truncation(target=500).target == Target(tokens=500)

    @pytest.mark.parametrize("make", [Shortening, OutputPruning, OutputCollapsing, lambda **g: TokenBudget([], **g)])
    def test_a_measure_that_a_strategy_does_not_change_is_refused(self, make: Callable[..., Strategy]) -> None:
        """A strategy that hides outputs never reaches a number of messages."""
        with pytest.raises(UsageError, match="does not change the number of messages; give its target in tokens"):
            make(target=Target(messages=5))

    @pytest.mark.parametrize("wrong", [{}, {"tokens": -1}, {"messages": 1.5}, {"groups": True}])
    def test_an_empty_target_is_rejected(self, wrong: dict[str, Any]) -> None:
        """No measure, or a number that is none."""
        with pytest.raises(UsageError):
            Target(**wrong)


class TestNoTarget:
    def test_a_trigger_comes_down_to_half_of_its_limit(self) -> None:
        """So it does not fire again at the next step."""
        context = Context(TALK)
        assert run(Truncation(when=over_messages(20)), context)
        assert context.shown_messages == 10

    @pytest.mark.parametrize("when", [always, every(1), lambda context: context.shown_messages > 3])
    def test_a_trigger_without_a_limit_keeps_half(self, when: Trigger) -> None:
        """Without a target the context is not emptied."""
        context = Context(session(1, 20))
        before = context.tokens
        assert run(Truncation(when=when), context)
        assert before * 0.4 < context.tokens <= before // 2

    def test_nor_is_it_emptied_without_a_trigger(self) -> None:
        """A plain truncation on a context that no policy runs keeps half, too."""
        context = Context(session(1, 20))
        before = context.tokens
        assert run(Truncation(), context) and context.tokens > before * 0.4

    def test_a_limit_in_messages_does_not_limit_outputs(self) -> None:
        """A strategy that cannot change the trigger's measure comes down in its own."""
        context = Context([user("Task."), *rounds(8, output=LONG * 3)])
        assert run(Shortening(when=over_messages(4)), context)
        assert all(len(text) > 500 for text in outputs(context.project()))


class TestCost:
    def test_asking_looks_at_no_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """While nothing is due, a guard reads totals and lists neither groups nor messages."""
        context = Context(TALK)
        limit = 10**9
        policy = kompakt.Policy(
            "guarded",
            (
                Truncation(when=over_messages(limit)),
                Summarization(when=over_groups(limit)),
                OutputPruning(when=over_bytes(limit)),
                TokenBudget([Truncation()], when=over_tokens(limit)),
                SlidingWindow(min_keep_groups=limit, when=every(limit)),
            ),
            when=over_messages(limit),
        )

        def refuse(*_: object) -> Any:
            raise AssertionError("a guard walked through the history")

        monkeypatch.setattr("kompakt.engine.context.projection.Visibility._listed", refuse)
        monkeypatch.setattr("kompakt.engine.context.archive.Archive.protected", refuse)
        assert policy.due(context) is None
        for strategy in (
            *policy.steps,
            SlidingWindow(min_keep_groups=limit),
            Truncation(target=Target(messages=limit)),
            Summarization(target=Target(groups=limit)),
        ):
            assert not policy_named(strategy).due(context)


class TestWrongNumbers:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: over_tokens(-1),
            lambda: over_messages(1.5),  # type: ignore[arg-type]
            lambda: every(0),
            lambda: every(-3),
            lambda: Truncation(target=-1),
            lambda: Summarization(target=-1),
            lambda: TokenBudget([], target=-1),
            lambda: SlidingWindow(min_keep_groups=-1),
            lambda: ToolCallRemoval(min_keep_groups=-1),
            lambda: OutputCollapsing(min_keep_groups=-2),
            lambda: OutputPruning(keep_tokens=-1),
            lambda: OutputPruning(min_tokens=-1),
            lambda: OutputPruning(keep_turns=-1),
            lambda: Shortening(max_tokens=-1),
        ],
    )
    def test_are_refused_when_they_are_given(self, make: Callable[[], object]) -> None:
        """Not at the first compaction, far from where they were written."""
        with pytest.raises(UsageError, match="is not a count"):
            make()

"""Each built-in strategy alone: what it removes, what it keeps, what it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.sessions import LONG, REFERENCE, exact, outputs, resolve, rounds, run, session
from tests.histories.messages import assistant, call, result, system, tool, user

import kompakt
from kompakt.engine.context.context import Context
from kompakt.engine.strategies import (
    OutputCollapsing,
    OutputPruning,
    OverflowByRounds,
    Shortening,
    SlidingWindow,
    SourceAttribution,
    Summarization,
    TokenBudget,
    ToolCallRemoval,
    Truncation,
)
from kompakt.engine.strategies.strategy import always, every, over_bytes, over_groups, over_messages, over_tokens
from kompakt.errors import UsageError
from kompakt.model.messages import Message

ALL: dict[str, Callable[..., Any]] = {
    "truncation": Truncation,
    "sliding window": lambda **given: SlidingWindow(min_keep_groups=2, **_only(given, "when")),
    "tool-call removal": ToolCallRemoval,
    "output pruning": lambda **given: OutputPruning(keep_tokens=0, min_tokens=0, keep_turns=1, **given),
    "output collapsing": OutputCollapsing,
    "shortening": lambda **given: Shortening(max_tokens=200, **given),
    "source attribution": SourceAttribution,
    "summarization": Summarization,
    "overflow by rounds": OverflowByRounds,
    "token budget": lambda **given: TokenBudget([Truncation()], **given),
}


def _only(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {name: given[name]} if name in given else {}


def mixed() -> list[Message]:
    """Make a session in which every strategy finds something to do."""
    noon = Message("user", (kompakt.Text("It is noon. " * 30),), source_id="clock")
    return [
        system(),
        user("Task."),
        noon,
        *rounds(6),
        user("More."),
        *rounds(6, start=6),
        user("Newest."),
        *rounds(2, start=20),
    ]


@pytest.mark.parametrize("name", ALL)
class TestEveryStrategy:
    def test_saves_tokens_and_keeps_what_must_stay(self, name: str) -> None:
        """Run as a step of a policy: fewer tokens, counted right; system, task, newest request and open round stay."""
        history = mixed()
        context = Context(history)
        context.goal = 2000
        before = context.tokens
        pinned = context.group_at(5)
        context.pin(pinned)
        assert run(ALL[name](), context)
        assert exact(context) == context.projected_tokens == context.tokens < before
        shown = list(context.project())
        assert [history[i] in shown for i in (0, 1, 5, 6, -5, -2)] == [True] * 6
        called = {part.id for message in shown for part in message.calls}
        assert called == {part.call_id for message in shown for part in message.results}
        assert context.messages == history
        assert context.actions() or context.summary_text

    def test_waits_for_its_trigger(self, name: str) -> None:
        """With ``when=`` it runs when that says so and not otherwise."""
        context = Context(mixed())
        context.goal = 2000
        assert not run(ALL[name](when=lambda _: False), context)
        assert not context.is_rewritten
        assert run(ALL[name](when=always), context)
        assert context.is_rewritten

    def test_leaves_a_context_below_its_goal_alone(self, name: str) -> None:
        """Nothing is due, nothing is done."""
        context = Context([user("Task."), *rounds(1, output="short")])
        context.goal = 100_000
        assert not run(ALL[name](), context)
        assert not context.is_rewritten

    def test_names_resolve(self, name: str) -> None:
        """Every reference that is shown names something in the history."""
        history = mixed()
        context = Context(history)
        context.goal = 2000
        run(ALL[name](), context)
        for message in context.project():
            for text in [message.text, *outputs([message])]:
                for reference in REFERENCE.findall(text):
                    assert resolve(history, reference) is not None


class TestTriggers:
    def test_triggers_are_due_just_above_their_limit(self) -> None:
        """Tokens, messages, bytes and steps: each is due just above its number."""
        context = Context([user("go"), *rounds(4)])
        assert over_tokens(context.tokens - 1)(context) and not over_tokens(context.tokens)(context)
        assert over_messages(8)(context) and not over_messages(9)(context)
        assert over_bytes(context.bytes - 1)(context) and not over_bytes(context.bytes)(context)
        assert over_groups(4)(context) and not over_groups(5)(context)
        assert every(3)(context) and every(4)(context) and not every(5)(context) and not every(1)(Context())

    def test_steps_are_counted_from_the_last_run(self) -> None:
        """A strategy that is due every few steps runs once and then waits for as many again."""
        context = Context([user("go")])
        ran: list[int] = []
        for step in range(10):
            context.extend(rounds(1, start=step))
            if run(Truncation(when=every(4)), context):
                ran.append(context.rounds)
        assert ran == [4, 8]


class TestTruncation:
    def test_drops_the_oldest_until_the_target(self) -> None:
        """Only as many as needed are removed, oldest first."""
        context = Context(session(1, 10))
        target = context.tokens - 2 * context.group_at(1).tokens
        assert run(Truncation(target=target), context)
        hidden = [group.indices[0] for group in context.groups if group.excluded]
        assert hidden == [1, 3] or hidden == [1, 3, 5]
        assert context.tokens <= target


class TestSlidingWindow:
    def test_keeps_the_newest_groups(self) -> None:
        """At least a number of groups stay besides those that always do; the window moves only when twice as full."""
        context = Context(session(1, 10))
        assert not run(SlidingWindow(min_keep_groups=11), context)
        assert run(SlidingWindow(min_keep_groups=3), context)
        assert [group.indices[0] for group in context.live] == [0, 13, 15, 17, 19]

    def test_refuses_an_empty_window(self) -> None:
        """A window of nothing cannot be meant."""
        with pytest.raises(UsageError, match="min_keep_groups=0"):
            SlidingWindow(min_keep_groups=0)


class TestToolCallRemoval:
    def test_keeps_talk_and_the_newest_calls(self) -> None:
        """Only tool groups go, but for the newest ones."""
        context = Context([user("Task."), assistant("I will.", id="t"), *rounds(5), user("And?"), *rounds(1, start=8)])
        assert run(ToolCallRemoval(min_keep_groups=2, target=0), context)
        assert {group.kind for group in context.groups if group.excluded} == {"tool"}
        assert [group.indices[0] for group in context.groups if group.excluded] == [2, 4, 6]


class TestOutputPruning:
    def test_keeps_newest_tokens_and_turns(self) -> None:
        """The last turns are unchanged, then a number of tokens is kept, and everything older is hidden."""
        history = session(4, 2)
        one = Context(history).counter.part(history[2].parts[0])
        context = Context(history)
        assert run(OutputPruning(keep_tokens=one * 2, min_tokens=0, keep_turns=2, target=0), context)
        assert [index for index in range(len(history)) if index in context.visibility.replacements] == [2, 4]

    def test_does_nothing_for_too_little(self) -> None:
        """If less than the minimum would be removed, nothing is removed."""
        context = Context(session(3, 2))
        some = sum(context.counter.part(context.messages[i].parts[0]) for i in (2, 4))
        assert not run(OutputPruning(keep_tokens=0, min_tokens=some, keep_turns=2, target=0), context)
        assert run(OutputPruning(keep_tokens=0, min_tokens=some - 1, keep_turns=2, target=0), context)

    def test_has_the_numbers_of_the_promise(self) -> None:
        """40,000 kept, 20,000 at least, two turns, skills never."""
        plain = OutputPruning()
        assert (plain.keep_tokens, plain.min_tokens, plain.keep_turns) == (40_000, 20_000, 2)
        assert plain.protect_tools == {"skill"}

    def test_spares_protected_tools(self) -> None:
        """The output of a protected tool stays at any age."""
        history = [
            user("Task."),
            *rounds(1, name="skill"),
            *rounds(2, start=1),
            user("a"),
            user("b"),
            *rounds(1, start=5),
        ]
        context = Context(history)
        assert run(OutputPruning(keep_tokens=0, min_tokens=0, target=0), context)
        assert sorted(context.visibility.replacements) == [4, 6]

    def test_takes_the_results_of_one_tool_or_source(self) -> None:
        """Each source has its own numbers: the others are neither hidden nor counted."""
        searched, read = rounds(3, name="search"), rounds(3, name="read", start=3)
        looked_up = [Message(one.role, one.parts, source_id="crm") for one in rounds(2, name="lookup", start=6)]
        history = [user("Task."), *searched, *read, *looked_up, user("a"), user("b"), *rounds(1, start=9)]
        numbers: dict[str, Any] = {"keep_tokens": 0, "min_tokens": 0, "target": 0}
        for choice, hidden in (({"tools": "search"}, [2, 4, 6]), ({"sources": ["crm"]}, [14, 16])):
            context = Context(history)
            assert run(OutputPruning(**numbers, **choice), context)
            assert sorted(context.visibility.replacements) == hidden
            one = Context(history)
            assert run(OutputCollapsing(min_keep_groups=0, target=0, **choice), one)
            assert sorted(one.visibility.replacements) == hidden
            gone = Context(history)
            assert run(ToolCallRemoval(min_keep_groups=0, target=0, **choice), gone)
            assert [index for index in range(len(history)) if gone.group_at(index).excluded] == [
                place for at in hidden for place in (at - 1, at)
            ]

    def test_stops_at_results_pruned_before(self) -> None:
        """Walking back ends at the first output that is hidden already."""
        history = session(4, 2)
        context = Context(history)
        context.prune(4, 0)
        assert run(OutputPruning(keep_tokens=0, min_tokens=0, keep_turns=2, target=0), context)
        assert sorted(context.visibility.replacements) == [4, 7, 9]


class TestOutputCollapsing:
    def test_the_reported_saving_is_exact(self) -> None:
        """Old outputs become their first line and a reference; more than nine tenths of them are saved."""
        history = [user("Task."), *rounds(8, output="verdict: fine\n" + LONG)]
        context = Context(history)
        before = context.tokens
        assert run(OutputCollapsing(min_keep_groups=1, target=0), context)
        saved = sum(action.tokens for action in context.actions())
        assert saved == before - context.tokens > 0.6 * before
        shown = outputs(context.project())
        assert all(text.startswith(f"{n} verdict: fine\n") and len(text) < 150 for n, text in enumerate(shown[:6]))
        assert shown[6:] == outputs(history)[6:]

    def test_skips_results_that_would_not_shrink(self) -> None:
        """A short output is left as it is."""
        context = Context([user("Task."), *rounds(8, output="ok")])
        assert not run(OutputCollapsing(min_keep_groups=1, target=0), context)


class TestShortening:
    def test_cuts_only_oversized_results_to_head_and_tail(self) -> None:
        """One result over the limit keeps its beginning, its end and a reference; the open round is no exception."""
        big = "BEGIN " + LONG + "\n" + LONG + " END"
        context = Context([user("Task."), *rounds(2), assistant(call("x")), tool(result("x", big))])
        limit = context.message_tokens(2) + 50
        assert run(Shortening(max_tokens=limit, when=always), context)
        shown = outputs(context.project())
        assert shown[:2] == outputs(context.messages)[:2]
        assert shown[2].startswith("BEGIN") and shown[2].endswith("END")
        assert context.counter.text(shown[2]) <= limit
        assert resolve(context.messages, REFERENCE.findall(shown[2])[0]) == big


class TestSourceAttribution:
    def test_ephemeral_sources_go_first_and_oldest_first(self) -> None:
        """The output of a clock is removed; retrieved documents and the user's own words stay."""
        context = Context([user("Task.")])
        for number in range(6):
            context.append(user(f"{number} " + "tick " * 50), source_id="clock" if number % 2 else "rag")
            context.append(assistant("Noted.", id=f"a{number}"))
        context.append(user("Newest."))
        clocks = [group for group in context.groups if group.source_id == "clock"]
        target = context.tokens - clocks[0].tokens - 1
        assert run(SourceAttribution(target=target), context)
        assert [group.excluded for group in clocks] == ["ephemeral source clock"] * 2 + [None]
        assert run(SourceAttribution(target=0), context)
        assert {group.source_id for group in context.groups if group.excluded} == {"clock"}

    def test_names_select_ephemeral_tools(self) -> None:
        """With ``ephemeral`` only those sources go."""
        context = Context([user("Task.")])
        for source in ("clock", "news", "rag"):
            context.append(user("tick " * 50), source_id=source)
        context.append(user("Newest."))
        assert run(SourceAttribution(ephemeral=["rag"], target=0), context)
        assert [group.source_id for group in context.groups if group.excluded] == ["rag"]


class TestTokenBudget:
    def test_stops_early_and_puts_the_goal_back(self) -> None:
        """Strategies run top-down while above the target; the goal of whoever runs it stays what it was."""
        seen: list[tuple[str, int]] = []

        async def gentle(context: Context) -> bool:
            seen.append(("gentle", context.goal))
            return context.exclude(context.droppable()[0], reason="gentle")

        async def rough(context: Context) -> bool:
            seen.append(("rough", context.goal))
            return False

        context = Context(session(1, 6))
        context.goal = 7
        target = context.tokens - 10
        inner = TokenBudget([gentle, rough], target=target)
        assert run(TokenBudget([inner, rough], target=target + 5), context)
        assert seen == [("gentle", target)] and context.goal == 7
        assert not run(TokenBudget([rough], target=10**6), context)
        assert run(TokenBudget([gentle, rough], when=always, target=10**6, early_stop=False), context)
        assert [name for name, _ in seen] == ["gentle", "gentle", "rough"]

    def test_puts_the_goal_back_when_a_strategy_raises(self) -> None:
        """An error inside restores the previous target."""

        async def broken(context: Context) -> bool:
            raise RuntimeError(f"at {context.goal}")

        context = Context(session(1, 6))
        context.goal = 7
        with pytest.raises(RuntimeError, match="at 9"):
            run(TokenBudget([broken], target=9), context)
        assert context.goal == 7


class TestOverflowByRounds:
    def test_touches_only_the_guilty_round_when_that_suffices(self) -> None:
        """The round that brought the overflow is named and shortened; all others stay byte-equal."""
        history = [
            user("Task."),
            *rounds(3),
            assistant(call("x", "grep")),
            tool(result("x", LONG * 6)),
            *rounds(1, start=7),
        ]
        context = Context(history)
        goal = context.tokens - context.message_tokens(8) // 2
        overflow = OverflowByRounds(target=goal)
        assert run(overflow, context)
        assert overflow.guilty is not None and "round 4" in overflow.guilty and "grep" in overflow.guilty
        assert context.tokens <= goal
        changed = [i for i, (one, other) in enumerate(zip(history, context.project(), strict=True)) if one != other]
        assert changed == [8]

    def test_then_drops_the_oldest(self) -> None:
        """If shortening is not enough, a pivot replaces rounds, oldest first; the reason names the cause."""
        context = Context([user("Task."), *rounds(12)])
        overflow = OverflowByRounds(target=3000)
        assert run(overflow, context)
        assert context.tokens <= 3000
        gone = [group for group in context.groups if group.excluded]
        assert [group.indices[0] for group in gone] == list(range(1, 2 * len(gone), 2))
        assert overflow.guilty is not None and overflow.guilty in overflow.reason
        assert context.summary_text is not None and all(group.summarized_by is not None for group in gone)

    def test_spares_a_pinned_round(self) -> None:
        """A pinned result is not shortened, though its round is the guilty one."""
        history = [
            user("Task."),
            assistant(call("x", "grep")),
            tool(result("x", LONG * 6)),
            *rounds(2),
            user("Newest."),
        ]
        context = Context(history)
        context.pin(context.group_at(2))
        overflow = OverflowByRounds(target=500)
        assert run(overflow, context)
        assert overflow.guilty is not None and "grep" in overflow.guilty
        assert history[2] in context.project()

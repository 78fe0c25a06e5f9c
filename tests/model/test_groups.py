"""Rounds, turns and groups: what may be cut where, on histories that anyone would write and on any others."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories.messages import assistant, call, malformed, result, system, tool, user

import kompakt
from kompakt.errors import UsageError
from kompakt.model.groups import (
    Grouping,
    groups,
    is_request,
    pair,
    rounds,
    safe_cuts,
    sides,
    split_at,
    turn_cuts,
    turns,
    without_last,
)
from kompakt.model.messages import Message, Reasoning

CHAT = [
    user("one"),
    assistant(call("a")),
    tool(result("a")),
    assistant("first answer"),
    user("two"),
    assistant(call("b"), call("c")),
    tool(result("c")),
    tool(result("b")),
    assistant("second answer"),
]


def indices(messages: list[Message]) -> list[tuple[int, ...]]:
    """Return the groups of a history as positions."""
    return [group.indices for group in groups(messages)]


class TestRounds:
    """A1 to A6: the unit of retry."""

    def test_a_new_assistant_id_opens_a_round(self) -> None:
        """A1: an id that differs from the last one opens a round; messages before the first are a separate round."""
        history = [user(), assistant(call("a"), id="1"), tool(result("a")), assistant("done", id="2")]
        found = rounds(history)
        assert [(one.start, len(one), one.assistant_id) for one in found] == [(0, 1, None), (1, 2, "1"), (3, 1, "2")]

    def test_users_do_not_open_rounds(self) -> None:
        """A1: never by user turn."""
        history = [user(), assistant("a", id="1"), user(), user(), assistant("b", id="2")]
        assert [len(one) for one in rounds(history)] == [1, 3, 1]

    def test_nothing_buffered_opens_no_empty_round(self) -> None:
        """A1: an assistant that comes first opens the first round."""
        assert [len(one) for one in rounds([assistant("a", id="1"), user()])] == [2]

    def test_messages_without_ids_get_derived_ones(self) -> None:
        """A1: each assistant message is a round, directly adjacent ones share it."""
        history = [user(), assistant("a"), assistant(call("a")), tool(result("a")), assistant("b")]
        found = rounds(history)
        assert [len(one) for one in found] == [1, 3, 1]
        assert len({one.assistant_id for one in found}) == 3

    @pytest.mark.parametrize("length", range(1, len(CHAT) + 1))
    def test_the_last_round_is_emitted(self, length: int) -> None:
        """A2: also when it is unfinished."""
        assert list(chain.from_iterable(one.messages for one in rounds(CHAT[:length]))) == CHAT[:length]

    def test_chunks_of_one_answer_stay_together(self) -> None:
        """A3: results between the chunks of one assistant id do not split its round."""
        history = [
            user(),
            *(part for n in "abc" for part in (assistant(call(n), id="1"), tool(result(n)))),
            assistant("done", id="1"),
            assistant("next", id="2"),
        ]
        assert [len(one) for one in rounds(history)] == [1, 7, 1]

    def test_a_dangling_call_stays_in_its_round(self) -> None:
        """A4: grouping neither pairs nor drops it."""
        history = [user(), assistant(call("a"), id="1"), assistant("on we go", id="2")]
        assert [one.messages for one in rounds(history)] == [(history[0],), (history[1],), (history[2],)]

    @pytest.mark.parametrize(
        "history",
        [[], [user(), user()], [tool(result("a")), user(), system()], [tool(result("a")), tool(result("a"))]],
    )
    def test_without_an_assistant_there_is_at_most_one_round(self, history: list[Message]) -> None:
        """A5: a malformed history falls through into fewer rounds."""
        assert len(rounds(history)) == bool(history)

    def test_every_round_has_a_name(self) -> None:
        """A6: index, assistant id and what opened it, the same each time."""
        history = [user(), assistant(call("a", "grep"), id="m1"), tool(result("a")), assistant("done", id="m2")]
        assert [one.name for one in rounds(history)] == [
            "round 0 (no assistant yet, opened by the start of the history)",
            "round 1 (m1, opened by a call of grep)",
            "round 2 (m2, opened by an answer)",
        ]

    @given(malformed)
    def test_boundaries_are_never_invented(self, history: list[Message]) -> None:
        """A1, A5: rounds always concatenate to the history, and each but the first is opened by an assistant."""
        found = rounds(history)
        assert list(chain.from_iterable(one.messages for one in found)) == history
        assert [one.index for one in found] == list(range(len(found)))
        assert all(one.messages[0].role == "assistant" for one in found[1:])
        assert all(one.start == sum(map(len, found[: one.index])) for one in found)

    @given(malformed)
    def test_ids_decide_where_all_have_one(self, history: list[Message]) -> None:
        """A1: with an id on every assistant message the rounds are what the rule spells out."""
        named = [m if m.role != "assistant" or m.id else assistant(*m.parts, id="z") for m in history]
        starts, last = [0] if named else [], None
        for i, message in enumerate(named):
            if message.role == "assistant" and message.id != last:
                last = message.id
                starts += [i] if i else []
        assert [one.start for one in rounds(named)] == starts


class TestTurns:
    """A turn starts at a real user message and ends before the next one."""

    def test_results_in_a_user_message_open_no_turn(self) -> None:
        """If results are in user messages, only text of the user starts a turn."""
        answer = Message("user", (result("a"),))
        assert [len(turn) for turn in turns([user(), assistant(call("a")), answer, assistant("b"), user()])] == [4, 1]
        assert not is_request(answer)

    def test_messages_before_the_first_request_belong_to_its_turn(self) -> None:
        """System and stray messages at the start do not make a turn of their own."""
        found = turns([system(), assistant("hello"), user("one"), user("two")])
        assert [len(turn) for turn in found] == [3, 1]
        assert found[0].request == user("one")
        assert turns([assistant("hello")])[0].request is None

    @given(malformed)
    def test_turns_join_to_the_history(self, history: list[Message]) -> None:
        """The turns contain every message, and each but the first starts with a request."""
        found = turns(history)
        assert list(chain.from_iterable(turn.messages for turn in found)) == history
        assert all(is_request(turn.messages[0]) for turn in found[1:])
        assert all(sum(map(is_request, turn.messages)) <= 1 for turn in found)


class TestGroups:
    """D2: groups are atomic."""

    def test_each_kind_is_recognised(self) -> None:
        """System, user, assistant text, calls with their results, summaries."""
        history = [
            system(),
            user(),
            assistant("hm"),
            user(),
            assistant(call("a")),
            tool(result("a")),
            assistant("so far", is_summary=True),
        ]
        assert [group.kind for group in groups(history)] == [
            "system",
            "user",
            "assistant",
            "user",
            "tool",
            "summary",
        ]

    def test_parallel_results_stay_with_their_call(self) -> None:
        """Results of parallel calls join the group of the message that made the calls."""
        history = [user("go"), assistant(call("a"), call("b")), tool(result("b")), tool(result("a"))]
        assert [len(group) for group in groups(history)] == [1, 3]

    def test_reasoning_stays_with_its_call(self) -> None:
        """A message of pure reasoning binds the call that follows it."""
        history = [user(), assistant(Reasoning("hm")), assistant(call("a")), tool(result("a"))]
        assert indices(history) == [(0,), (1, 2, 3)]

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_developer_messages_count_as_system(self, role: str) -> None:
        """Both names of the role give a system group."""
        found = kompakt.groups([{"role": role, "content": "x"}, {"role": "user", "content": "go"}], "openai-chat")
        assert [group.kind for group in found] == ["system", "user"]

    @given(malformed)
    def test_groups_partition_the_history(self, history: list[Message]) -> None:
        """Each message is in exactly one group, and the group has the same object."""
        found = groups(history)
        assert sorted(chain.from_iterable(group.indices for group in found)) == list(range(len(history)))
        assert all(history[i] is m for group in found for i, m in zip(group.indices, group.messages, strict=True))
        assert [group.indices[0] for group in found] == sorted(group.indices[0] for group in found)
        assert all(list(group.indices) == sorted(group.indices) for group in found)

    @given(malformed)
    def test_pairs_are_whole(self, history: list[Message]) -> None:
        """Every call and its result are in one group, at any distance. A result before its call is a fault: repair
        moves it, and only then do they belong together.
        """
        owner = {index: group.indices for group in groups(history) for index in group.indices}
        for made, answered in pair(history).answers.items():
            assert owner[made.message] == owner[answered.message] or answered < made

    @given(malformed)
    def test_calls_and_results_are_in_tool_groups(self, history: list[Message]) -> None:
        """A group with a call has the kind tool, for any role of the call."""
        for group in groups(history):
            if any(message.calls for message in group.messages):
                assert group.kind == "tool"

    @given(malformed)
    def test_adding_one_by_one_gives_the_same_groups(self, history: list[Message]) -> None:
        """The incremental grouping equals the batch at every length."""
        grouping = Grouping()
        for length, message in enumerate(history, 1):
            grouping.add(message)
            members: dict[int, list[int]] = {}
            for index, owner in enumerate(grouping.owners):
                members.setdefault(grouping.root(owner), []).append(index)
            batch = groups(history[:length])
            assert [tuple(found) for found in members.values()] == [group.indices for group in batch]
            assert [grouping.kinds[number] for number in members] == [group.kind for group in batch]


class TestCuts:
    """Every slice uses the same boundary functions."""

    @given(malformed)
    def test_safe_cuts_are_safe(self, history: list[Message]) -> None:
        """No group is on both sides of a cut, and no safe position is missed."""
        found = groups(history)
        safe = [
            at
            for at in range(len(history) + 1)
            if not any(group.indices[0] < at <= group.indices[-1] for group in found)
        ]
        assert safe_cuts(history) == safe
        assert set(turn_cuts(history)) <= set(safe)

    @given(malformed, st.integers(0, 16))
    def test_a_split_keeps_at_least_the_tail(self, history: list[Message], keep: int) -> None:
        """C1, C2: the tail may be longer than requested, never shorter; it starts a turn."""
        at = split_at(history, min_keep_tail=keep)
        head, tail = sides(history, at)
        assert [*head, *tail] == history
        assert len(tail) >= min(keep, len(history))
        assert at in safe_cuts(history)
        if at:
            assert is_request(tail[0])

    def test_a_split_walks_left_to_a_turn(self) -> None:
        """C1: from the naive cut to the user message before it."""
        assert [split_at(CHAT, min_keep_tail=keep) for keep in (1, 4, 5, 6)] == [4, 4, 4, 0]

    def test_one_unbroken_turn_has_an_empty_head(self) -> None:
        """C1: there is nothing to cut in a single turn."""
        assert split_at(CHAT[:4], min_keep_tail=1) == 0

    def test_a_negative_tail_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="min_keep_tail=-1"):
            split_at(CHAT, min_keep_tail=-1)

    def test_the_front_door_splits_wire_messages(self) -> None:
        """The caller gets the very objects that were put in, on the side they belong to."""
        body = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 3
        head, tail = kompakt.split(body, min_keep_tail=3, format="openai-chat")
        assert (len(head), len(tail)) == (2, 4)
        assert [id(item) for item in (*head, *tail)] == [id(item) for item in body]

    def test_a_line_added_at_the_end_is_removed_again(self) -> None:
        """Also when a repair merged it into the message before; other content stays."""
        added = user("Continue.")
        assert list(without_last([*CHAT, added], added)) == CHAT
        merged = CHAT[4].with_parts([*CHAT[4].parts, *added.parts])
        assert without_last([merged], added)[0].parts == CHAT[4].parts
        assert list(without_last(CHAT, added)) == CHAT

"""Known failures of grouping in other libraries, one test each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.histories import FORMATS, plain
from tests.histories.messages import assistant, call, result, tool, user

import kompakt
from kompakt.model.groups import groups, pair, safe_cuts, split_at

Item = dict[str, Any]

USER: Item = {"role": "user", "content": "go"}
THOUGHT: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
ASK: Item = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "q", "server_label": "db", "arguments": "{}"}
YES: Item = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}


def indices(history: list[kompakt.Message]) -> list[tuple[int, ...]]:
    """Return the groups of a history as positions."""
    return [group.indices for group in groups(history)]


def wire_groups(*items: Item) -> list[tuple[int, ...]]:
    """Return the groups of Responses items as positions."""
    return [group.indices for group in kompakt.groups(list(items), "openai-responses")]


class TestStructure:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("keep", range(1, 40))
    def test_a_cut_by_message_count_never_lands_inside_a_turn(self, format: str, keep: int) -> None:
        """Bindu, openclaw#8525: for any number, the tail is a request that the provider accepts."""
        body = plain.build(format, messages=60, parallel=2)
        head, tail = kompakt.split(body, min_keep_tail=keep, format=format)
        if head:
            assert tail[0]["role"] == "user"
        history = kompakt.parse(tail, format)
        matched = pair(history)
        assert len(tail) >= keep
        assert matched.orphans == matched.open == []

    def test_adjacency_only_pairing_does_not_orphan_late_results(self) -> None:
        """agent-framework#7212: pairing is by id, at any distance."""
        history = [
            user(),
            assistant(call("a")),
            user("meanwhile"),
            assistant("still waiting"),
            tool(result("a")),
            assistant("done"),
        ]
        assert indices(history) == [(0,), (1, 4), (2,), (3,), (5,)]
        assert safe_cuts(history) == [0, 1, 5, 6]

    def test_reused_ids_pair_by_occurrence(self) -> None:
        """agent-framework#5237: the second use of an id is a separate group."""
        history = [user()]
        for _ in range(3):
            history += [assistant(call("call_0")), tool(result("call_0"))]
        assert indices(history) == [(0,), (1, 2), (3, 4), (5, 6)]

    def test_a_reused_id_with_an_open_call_before_it(self) -> None:
        """agent-framework#5237: a result answers the call just before it, not an older open one."""
        history = [user(), assistant(call("a")), user(), assistant(call("a")), tool(result("a"))]
        assert indices(history) == [(0,), (1,), (2,), (3, 4)]
        assert [place.message for place in pair(history).open] == [1]

    def test_empty_ids_do_not_join_unrelated_rounds(self) -> None:
        """Gemini and old servers send none: calls without ids pair by occurrence as well."""
        history = [user(), assistant(call("")), tool(result("")), assistant(call("")), tool(result(""))]
        assert indices(history) == [(0,), (1, 2), (3, 4)]

    def test_a_duplicate_result_stays_with_its_call(self) -> None:
        """A result given twice does not become a group that could stay alone."""
        history = [user(), assistant(call("a")), tool(result("a")), tool(result("a", "again"))]
        assert indices(history) == [(0,), (1, 2, 3)]
        assert [place.message for place in pair(history).duplicates] == [2]

    def test_an_orphan_is_reported_and_not_guessed(self) -> None:
        """A result without a call is a separate group, so it may be removed alone."""
        history = [user(), tool(result("a")), assistant(call("b")), tool(result("b"))]
        assert indices(history) == [(0,), (1,), (2, 3)]
        assert [place.message for place in pair(history).orphans] == [1]

    def test_trailing_open_calls_keep_their_group(self) -> None:
        """pi: a call at the end of the list is a tool group that waits; its result joins it later."""
        history = [user(), assistant(call("a"), call("b")), tool(result("a"))]
        assert indices(history) == [(0,), (1, 2)]
        assert indices([*history, tool(result("b"))]) == [(0,), (1, 2, 3)]
        assert split_at([user(), *history], min_keep_tail=1) == 1

    def test_a_message_that_answers_two_rounds_joins_them(self) -> None:
        """Results of two answers in one message make one group: no cut can tear them apart."""
        history = [user(), assistant(call("a")), user(), assistant(call("b")), tool(result("a"), result("b"))]
        assert indices(history) == [(0,), (1, 3, 4), (2,)]
        assert safe_cuts(history) == [0, 1, 5]


class TestHosted:
    """agent-framework#6074, #6883: MCP, hosted and approval calls are groups too."""

    def test_an_approval_is_one_group_with_what_it_approves(self) -> None:
        """Reasoning, request, answer and the call that follows live or die together."""
        done = {
            "type": "mcp_call",
            "id": "mcp_1",
            "approval_request_id": "mcpr_1",
            "name": "q",
            "server_label": "db",
            "arguments": "{}",
            "output": "3 rows",
        }
        assert wire_groups(USER, THOUGHT, ASK, YES, done) == [(0,), (1, 2, 3, 4)]

    def test_a_function_call_keeps_its_reasoning(self) -> None:
        """Reasoning stays with the call that follows it and with the output of the call."""
        call_item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "1"}
        assert wire_groups(USER, THOUGHT, call_item, output, USER) == [(0,), (1, 2, 3), (4,)]

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            ("custom_tool_call", {"name": "f", "input": "x"}),
            ("local_shell_call", {"action": {"type": "exec", "command": ["ls"]}, "status": "completed"}),
            ("shell_call", {"action": {"commands": ["ls"]}, "status": "completed"}),
            ("computer_call", {"action": {"type": "screenshot"}, "status": "completed"}),
            ("apply_patch_call", {"operation": {"type": "delete_file", "path": "a"}, "status": "completed"}),
        ],
    )
    def test_every_kind_of_call_is_grouped_with_its_output(self, kind: str, fields: Item) -> None:
        """Not only functions have results."""
        made = {"type": kind, "call_id": "c", "id": "x_c", **fields}
        answered = {"type": f"{kind}_output", "call_id": "c", "id": "x_c", "output": "1"}
        assert wire_groups(USER, made, answered, USER) == [(0,), (1, 2), (3,)]

    @pytest.mark.parametrize(
        ("use", "answer"), [("server_tool_use", "web_search_tool_result"), ("mcp_tool_use", "mcp_tool_result")]
    )
    def test_a_hosted_call_is_one_tool_group_with_its_result(self, use: str, answer: str) -> None:
        """Call and result in one assistant message, or in two that were streamed apart."""
        made = {"type": use, "id": "srvtoolu_1", "name": "web_search", "input": {}}
        response = {"type": answer, "tool_use_id": "srvtoolu_1", "content": []}
        body = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [made]},
            {"role": "assistant", "content": [response, {"type": "text", "text": "so"}]},
            {"role": "user", "content": "on"},
        ]
        found = kompakt.groups(body, "anthropic")
        assert [(group.kind, group.indices) for group in found] == [("user", (0,)), ("tool", (1, 2)), ("user", (3,))]

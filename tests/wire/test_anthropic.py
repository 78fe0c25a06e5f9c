"""Anthropic Messages: repairs that the shared property tests do not reach."""

from __future__ import annotations

from typing import Any

import pytest

import kompakt

Body = dict[str, Any]

SEARCH: Body = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
USER: Body = {"role": "user", "content": "hi"}


def request(*messages: Body, **fields: Any) -> Body:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "tools": tools, "messages": list(messages), **fields}


def test_a_model_with_a_very_long_number_is_read() -> None:
    """Python refuses to read integers of more than 4,300 digits."""
    body = request(USER, {"role": "system", "content": "Be brief."}, model=f"claude-{'9' * 5_000}")
    assert kompakt.check(body, "anthropic") is not None


class TestEmptiedMessages:
    def test_a_resting_history_drops_an_answer_that_is_only_an_open_server_call(self) -> None:
        """When the user writes next, the open call is dropped, and no assistant message without content remains."""
        body = request(USER, {"role": "assistant", "content": [SEARCH]})
        repaired = kompakt.repair(body, "anthropic", resting=True)
        assert repaired.payload["messages"] == [USER]
        assert [change.code for change in repaired.changes] == ["AN-8"]
        assert kompakt.check(repaired.payload, "anthropic", resting=True) == []

    def test_a_paused_answer_is_kept_when_it_is_sent_back(self) -> None:
        """The API continues a paused answer, so the open call at the end is valid."""
        body = request(USER, {"role": "assistant", "content": [SEARCH]})
        assert not kompakt.repair(body, "anthropic").changed

    @pytest.mark.parametrize("content", ["  ", [{"type": "text", "text": " \n"}], [{"type": "text", "text": ""}]])
    def test_an_assistant_message_of_white_space_is_dropped(self, content: Any) -> None:
        """No message remains with the empty content that the repair left."""
        body = request(USER, {"role": "assistant", "content": content}, USER)
        assert kompakt.repair(body, "anthropic").payload["messages"] == [USER, USER]

    def test_an_empty_assistant_message_is_kept(self) -> None:
        """The API accepts it, so repair does not touch it."""
        empty: Body = {"role": "assistant", "content": []}
        body = request(USER, empty, {"role": "user", "content": ""})
        assert kompakt.repair(body, "anthropic").payload["messages"] == [USER, empty]

    def test_an_open_server_call_that_a_repair_makes_the_last_is_dropped_at_once(self) -> None:
        """The message after it had no content, so the user writes next."""
        body = request(USER, {"role": "assistant", "content": [SEARCH]}, {"role": "user", "content": []})
        once = kompakt.repair(body, resting=True)
        assert once.remaining == () and kompakt.repair(once.payload, resting=True).changes == ()
        assert kompakt.check(once.payload, resting=True) == []


class TestThinkingAtRest:
    def test_thinking_is_disabled_when_the_repair_ends_in_results(self) -> None:
        """The result moves after the last answer, so the turn is open and lacks its thinking block."""
        call: Body = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
        result: Body = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = request(USER, result, {"role": "assistant", "content": [call]}, thinking=thinking)
        repaired = kompakt.repair(body, "anthropic", resting=True)
        assert repaired.remaining == ()
        assert repaired.payload["thinking"] == {"type": "disabled"}
        assert not kompakt.repair(repaired.payload, "anthropic", resting=True).changed

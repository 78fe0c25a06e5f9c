"""System messages inside the conversation stay system messages, once each, even if the client repeats them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.judges import judge

import kompakt

OUTPUT = "the writer waits for the index and the index waits for the queue\n" * 40
RULE = "Answer in French from here on."


def session(rounds: int, format: str = "anthropic") -> dict[str, Any]:
    """Make a request like Claude Code's: each tool result is followed by a count of tokens from the system."""
    items: list[Any] = [{"role": "user", "content": "Find out why the queue stalls."}]
    for at in range(rounds):
        id, given = f"call_{at:03d}", {"path": f"src/part_{at}.py"}
        if format == "anthropic":
            call = {"type": "tool_use", "id": id, "name": "read", "input": given}
            items.append({"role": "assistant", "content": [{"type": "text", "text": f"Part {at}."}, call]})
            result = {"type": "tool_result", "tool_use_id": id, "content": f"{OUTPUT} {at}"}
            items.append({"role": "user", "content": [result]})
        else:
            function = {"name": "read", "arguments": json.dumps(given)}
            calls = [{"id": id, "type": "function", "function": function}]
            items.append({"role": "assistant", "content": f"Part {at}.", "tool_calls": calls})
            items.append({"role": "tool", "tool_call_id": id, "content": f"{OUTPUT} {at}"})
        said = RULE if at == 3 else f"<total_tokens>{900_000 - at} tokens left</total_tokens>"
        items.append({"role": "system", "content": said})
    schema = {"type": "object"}
    if format == "anthropic":
        tools: list[Any] = [{"name": "read", "input_schema": schema}]
    else:
        tools = [{"type": "function", "function": {"name": "read", "parameters": schema}}]
    return {"model": "claude-opus-5", "max_tokens": 500, "messages": items, "tools": tools}


def instructions(payload: dict[str, Any]) -> list[str]:
    """Return the texts of all system messages."""
    contents = [item["content"] for item in payload["messages"] if item["role"] == "system"]
    return [text for one in contents for text in ([one] if isinstance(one, str) else [block["text"] for block in one])]


class TestRepeated:
    @pytest.mark.parametrize("format", ["anthropic", "openai-chat"])
    def test_only_the_newest_of_those_that_left_is_shown(self, format: str) -> None:
        """Before the messages that stay as they came there is one copy at most."""
        body = session(60, format)
        payload = kompakt.compact(body, budget=12_000, format=format).payload
        kept = sum(item in body["messages"] for item in payload["messages"] if item["role"] == "assistant")
        counts = [text for text in instructions(payload) if "total_tokens" in text]
        assert len(counts) <= kept + 1
        assert counts[-1] == "<total_tokens>899941 tokens left</total_tokens>"
        assert judge(format, payload) == []

    def test_user_messages_never_carry_them(self) -> None:
        """The user's words are the user's alone."""
        payload = kompakt.compact(session(60), budget=12_000, format="anthropic").payload
        said = [item for item in payload["messages"] if item["role"] == "user"]
        assert "total_tokens" not in json.dumps(said) and RULE not in json.dumps(said)

    def test_an_instruction_with_other_content_stays(self) -> None:
        """Nothing repeats it, so nothing replaces it."""
        assert RULE in instructions(kompakt.compact(session(60), budget=12_000, format="anthropic").payload)

    def test_a_chain_of_calls_keeps_one_copy(self) -> None:
        """A client that sends compacted histories again has the same number of copies after many passes."""
        body, whole = session(20), session(120)["messages"]
        for at in range(20, 120, 10):
            body["messages"] = kompakt.compact(body, budget=12_000, format="anthropic").payload["messages"]
            body["messages"] += whole[1 + 3 * at : 1 + 3 * (at + 10)]
        payload = kompakt.compact(body, budget=12_000, format="anthropic").payload
        first = next(at for at, item in enumerate(payload["messages"]) if item["role"] == "assistant")
        assert json.dumps(payload["messages"][: first + 2]).count("total_tokens") <= 1
        assert judge("anthropic", payload) == []

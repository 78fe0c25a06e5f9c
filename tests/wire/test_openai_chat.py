"""OpenAI Chat Completions: what the other tests, which cover every format, do not show."""

from __future__ import annotations

from typing import Any

import pytest

import kompakt


def step(id: str, **fields: Any) -> list[dict[str, Any]]:
    """Make a call with its result."""
    call = {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": id, "content": "ok"},
    ]


class TestReasoning:
    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_an_edited_message_keeps_the_field_of_its_reasoning(self, field: str) -> None:
        """Servers read one of two fields; a renamed call does not add the other."""
        body: list[Any] = [{"role": "user", "content": "Go."}, *step("a-long-id", **{field: "So."})]
        repaired = kompakt.repair(body, "openai-chat", strict=True)
        answer = repaired.payload[1]
        assert {"reasoning", "reasoning_content"} & answer.keys() == {field} and answer[field] == "So."
        assert kompakt.repair(repaired.payload, "openai-chat", strict=True).changes == ()

    def test_reasoning_is_repeated_where_the_other_field_is_required(self) -> None:
        """In thinking mode; its text is not replaced by an empty one."""
        body: list[Any] = [{"role": "user", "content": "Go."}, *step("abcdefgh1", reasoning="So."), *step("abcdefgh2")]
        given: dict[str, Any] = {"model": "deepseek-v4", "messages": body}
        repaired = kompakt.repair(given, "openai-chat", strict=True)
        answers = [one for one in repaired.payload["messages"] if one["role"] == "assistant"]
        assert [one["reasoning_content"] for one in answers] == ["So.", ""]
        assert repaired.remaining == ()

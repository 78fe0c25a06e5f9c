"""Search skips earlier recall results, because they repeat what the search finds anyway."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kompakt


def history(name: str, given: dict[str, Any]) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
    return [
        {"role": "user", "content": "The lock at Hull opens at seven."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": "The lock at Hull opens at seven, says the copy.",
        },
        {"role": "assistant", "content": "Good."},
    ]


@pytest.mark.parametrize(
    ("name", "given", "is_skipped"),
    [
        ("recall", {"query": "lock Hull"}, True),
        ("kompakt_recall", {"query": "lock Hull"}, True),
        ("mcp__kompakt__recall", {"query_or_reference": "lock Hull", "tokens": 500}, True),
        ("recall", {"order": "lock Hull"}, False),
        ("read_file", {"query": "lock Hull"}, False),
    ],
)
def test_results_of_the_recall_tool_are_not_searched(name: str, given: dict[str, Any], is_skipped: bool) -> None:
    found = kompakt.recall(history(name, given), "lock Hull", format="openai-chat").text
    assert "opens at seven." in found
    assert ("says the copy" not in found) is is_skipped


def test_a_reference_still_restores_them() -> None:
    payload = history("recall", {"query": "lock Hull"})
    context = kompakt.Context(kompakt.parse(payload, format="openai-chat"))
    assert "says the copy" in kompakt.recall(payload, context.reference(2), None, format="openai-chat").text

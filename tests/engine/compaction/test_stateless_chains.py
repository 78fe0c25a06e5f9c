"""Stateless chains: a caller repeatedly sends back what ``compact`` returned, with new messages appended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.sessions import texts
from tests.histories.messages import assistant, call, result, tool, user
from tests.judges import judge

import kompakt
from kompakt.model.messages import History, Message

ROUNDS = 80
BUDGET = 2_000
OUTPUT = " ".join(f"line{number}" for number in range(60))
FIRST = "Request 0: port the importer to the new schema. Never touch the migration files."
KEYS = {"gemini": "contents"}


def request(number: int) -> str:
    """Say what the user asks in one turn."""
    return FIRST if number == 0 else f"Request {number}: now handle case {number} as well, with care, and report."


def turn(number: int, steps: int = 6) -> list[Message]:
    """Make one turn: a request and tool rounds that alone nearly fill the budget."""
    made = [user(request(number))]
    for step in range(steps):
        id = f"c{number}x{step}"
        made += [assistant(f"Step {number}.{step}.", call(id)), tool(result(id, f"{number}.{step} {OUTPUT}"))]
    return made


def listed(payload: Any, format: str) -> list[Any]:
    """Return the messages of a list or of a body."""
    return payload if isinstance(payload, list) else payload[KEYS.get(format, "messages")]


class TestFormerRequests:
    @pytest.mark.parametrize("format", ["anthropic", "gemini", "bedrock"])
    def test_the_first_message_does_not_grow(self, format: str) -> None:
        """Former newest requests are history like any other; the first one stays word for word and alone."""
        messages: list[Any] = []
        largest = 0
        for number in range(ROUNDS):
            new = kompakt.render(History(turn(number), format="openai-chat"), format)
            messages = listed(kompakt.compact(messages + listed(new, format), BUDGET, format=format).payload, format)
            said = list(texts(messages[0]))
            assert FIRST in said
            largest = max(largest, kompakt.count([messages[0]], format=format).total)
        assert judge(format, messages) == []
        assert largest < 100
        assert request(ROUNDS - 1) in list(texts(messages))
        shown = [number for number in range(1, ROUNDS) if request(number) in list(texts(messages))]
        assert len(shown) <= 4

    def test_a_conversation_that_has_to_be_one_message_does_not_grow(self) -> None:
        """With manual thinking everything is in one message; the requests in it are still distinguished."""
        body: Any = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1000,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [],
        }
        thought = {"type": "thinking", "thinking": "hm", "signature": "x" * 40}
        for number in range(12):
            said: Any = kompakt.render(History(turn(number), format="openai-chat"), "anthropic")
            new = listed(said, "anthropic")
            for message in new:
                if message["role"] == "assistant":
                    message["content"].insert(0, thought)
            body = {**body, "messages": [*body["messages"], *new]}
            body = kompakt.compact(body, 4_000, format="anthropic").payload
            assert FIRST in list(texts(body["messages"][0]))
            requests = [text for text in texts(body["messages"][0]) if text.startswith("Request ")]
            assert len(requests) <= 3  # the first, and those of the turns that are shown
            done = {"role": "assistant", "content": [thought, {"type": "text", "text": "Done."}]}
            body = {**body, "messages": [*body["messages"], done]}
        joined = "\n".join(texts(body["messages"]))
        assert all(f"Request {number}:" in joined for number in range(12))

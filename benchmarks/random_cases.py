"""Random histories, and the checks of a shortened one: valid, fits, requests of the user present.

Nothing here uses kompakt: validity is decided by the tests' own judge of OpenAI Chat and by a plain look at the ids,
size by OpenAI's published rule of counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from tests.histories.plain import build
from tests.judges.openai_chat import judge

from benchmarks.peers import Item, neutral_tokens


class Case(msgspec.Struct, frozen=True):
    """A valid history and a budget for it."""

    messages: list[Item]
    budget: int
    task: str
    newest: str

    @property
    def is_feasible(self) -> bool:
        """Whether system prompt, first and newest user message fit together."""
        system = [message for message in self.messages if message["role"] == "system"]
        words = dict.fromkeys((self.task, self.newest))
        return neutral_tokens([*system, *({"role": "user", "content": text} for text in words)]) <= self.budget


def draw(number: int) -> Case:
    """Make the case of a number: sizes, parallel calls, turns, the end of the history and the budget vary."""
    random = Random(number)
    body = build(
        "openai-chat",
        messages=random.randint(4, 120),
        seed=number,
        mean_chars=random.choice((30, 200, 800, 2_000)),
        parallel=random.randint(1, 4),
    )
    messages = _with_turns(random, body["messages"])
    assert judge(messages) == []
    users = [message["content"] for message in messages if message["role"] == "user"]
    budget = max(1, int(neutral_tokens(messages) * random.uniform(0.05, 0.9)))
    return Case(messages, budget, users[0], users[-1])


def _with_turns(random: Random, messages: Sequence[Item]) -> list[Item]:
    """Make each request a text of its own; a third has one turn, a third shuffled results, others a new request."""
    single = random.random() < 1 / 3
    shuffles = random.random() < 1 / 3
    kept: list[Item] = []
    results: list[Item] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        kept += random.sample(results, len(results)) if shuffles else results
        results = []
        if message["role"] == "user":
            asked = sum(one["role"] == "user" for one in kept)
            if asked and single:
                continue
            message = {**message, "content": f"Request {asked + 1}. {message['content']}"}
        kept.append(message)
    kept += random.sample(results, len(results)) if shuffles else results
    if not single and random.random() < 1 / 3:
        kept.append({"role": "assistant", "content": "Done with that part."})
        kept.append({"role": "user", "content": "Last request. Now write the release note."})
    return kept


def is_valid(messages: Any) -> bool:
    """Return whether a provider accepts the messages and has something to answer."""
    if not isinstance(messages, list) or judge(messages):
        return False
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    answers = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    return sorted(calls) == sorted(answers) and any(message["role"] != "system" for message in messages)


def has_words(messages: Sequence[Item], words: str) -> bool:
    """Return whether a user message still has the text verbatim."""
    return any(message["role"] == "user" and words in (message["content"] or "") for message in messages)


def starts_with_user(messages: Sequence[Item]) -> bool:
    """Return whether the first message after the system prompt is the user's."""
    return next((message["role"] for message in messages if message["role"] != "system"), "") == "user"

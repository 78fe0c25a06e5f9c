"""A model with planned answers, and what the client and the provider saw of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.client_sessions import Talk, breaks, result_of
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.upstreams import KEYS, Raw, Recorded
from tests.provider import Answer, Call
from tests.provider.answer import Seen
from tests.provider.script import PREFIX

each_case = pytest.mark.parametrize(
    ("format", "stream"),
    [("openai-chat", False), ("openai-responses", True), ("anthropic", False), ("gemini", True)],
    ids=["chat-whole", "responses-streamed", "anthropic-whole", "gemini-streamed"],
)
"""Every format once, half of them streamed, for tests that do not depend on the combination."""


class Model:
    """Answers with planned texts and calls in order; a call is a pair of name and arguments."""

    def __init__(self, *plan: tuple[str, list[tuple[str, dict[str, Any]]]], thinking: bool = False) -> None:
        self.plan, self.thinking, self.at = list(plan), thinking, 0

    def __call__(self, seen: Seen) -> Answer:
        text, wanted = self.plan[min(self.at, len(self.plan) - 1)]
        self.at += 1
        stem = f"{PREFIX[seen.format]}abcdef01_{self.at:05d}"
        calls = tuple(Call(f"{stem}_{place}", *call) for place, call in enumerate(wanted))
        return Answer(text=text, calls=calls, thinking=f"Thought {self.at}." if self.thinking else "")


def recall(query: str, name: str = "recall") -> tuple[str, dict[str, Any]]:
    return name, {"query": query}


def read(path: str = "src/a.py") -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path}


@contextmanager
def recalling(model: Any, folder: Path, *, window: int = 64_000, **changes: Any) -> Iterator[tuple[Recorded, Gate]]:
    """Run a model with a gateway, which offers recall by default."""
    settings = {"context_window": window, **changes}
    with (
        Recorded(model, window=window) as provider,
        gateway(provider.url, store=f"sqlite:///{folder / 'k.db'}", **settings) as gate,
    ):
        yield provider, gate


@contextmanager
def talking(gate: Gate, format: str, *, joined: bool = True, **options: Any) -> Iterator[Talk]:
    """Talk to a gateway; ``joined`` starts with a history that is too long for the window."""
    talk = Talk(gate.url, format, **options)
    talk.items = opening(format) if joined else []
    try:
        yield talk
    finally:
        talk.close()


def opening(format: str, *, rounds: int = 60, lines: int = 70) -> list[Any]:
    """Return a long history, as of a client that joins in the middle: the first request already needs a pivot."""
    ids = [f"{PREFIX[format]}0penin9_{number:05d}_0" for number in range(rounds)]
    made: list[Any] = [_said(format, "user", "List what is in the old repository.")]
    for id in ids:
        made += _read_round(format, id, result_of(id, lines))
    return [*made, _said(format, "assistant", "The old repository is listed.")]


def _said(format: str, role: str, text: str) -> dict[str, Any]:
    if format == "gemini":
        return {"role": "user" if role == "user" else "model", "parts": [{"text": text}]}
    return {"role": role, "content": text}


def _read_round(format: str, id: str, result: str) -> list[Any]:
    given = {"path": f"old/{id[-7:]}.py"}
    if format == "openai-chat":
        function = {"name": "read_file", "arguments": json.dumps(given)}
        call = {"id": id, "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": result},
        ]
    if format == "openai-responses":
        return [
            {"type": "function_call", "call_id": id, "name": "read_file", "arguments": json.dumps(given)},
            {"type": "function_call_output", "call_id": id, "output": result},
        ]
    if format == "anthropic":
        return [
            {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "read_file", "input": given}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]},
        ]
    response = {"id": id, "name": "read_file", "response": {"output": result}}
    return [
        {"role": "model", "parts": [{"functionCall": {"id": id, "name": "read_file", "args": given}}]},
        {"role": "user", "parts": [{"functionResponse": response}]},
    ]


Shared = tuple[Recorded, Gate]


@contextmanager
def sharing(folder: Path, **options: Any) -> Iterator[Shared]:
    """Run one provider and one gateway for the tests of a file; each test is a separate tenant."""
    with recalling(Model(), folder, tenant_header="x-tenant", **options) as made:
        yield made


@contextmanager
def held(
    shared: Shared, model: Any, format: str, *, stream: bool = False, lines: int = 8, joined: bool = True
) -> Iterator[tuple[Talk, Recorded, Gate]]:
    """Talk to a model through a gateway that offers recall; what was before is forgotten."""
    provider, gate = shared
    provider.script = model
    del provider.raw[:], provider.requests[:]
    provider._faults.clear()
    tenant = f"tenant-{os.urandom(4).hex()}"
    with talking(gate, format, joined=joined, stream=stream, lines=lines, headers={"x-tenant": tenant}) as talk:
        yield talk, provider, gate


def sound(provider: Recorded, format: str) -> None:
    """Assert that the provider accepted everything, and that each request starts with the previous one."""
    assert [record.refusal for record in provider.refusals] == []
    assert breaks(provider.asked, format) == []


def text_of(last: Any, format: str) -> str:
    """Return what the client's last answer says."""
    if format == "openai-chat":
        return last.choices[0].message.content or ""
    if format == "openai-responses":
        return "|".join(part.text for item in last.output if item.type == "message" for part in item.content)
    if format == "anthropic":
        return "|".join(block.text for block in last.content if block.type == "text")
    return last.text or ""


def said(talk: Talk) -> str:
    """Return the conversation as the client has it."""
    return json.dumps(talk.items)


def words(raw: Raw, format: str) -> str:
    """Return the messages of a request as one text."""
    return json.dumps(raw.json[KEYS[format]])


def prompt_of(last: Any, format: str) -> int:
    """Return the total input tokens that the client saw."""
    if format == "openai-chat":
        return last.usage.prompt_tokens
    if format == "openai-responses":
        return last.usage.input_tokens
    if format == "anthropic":
        usage = last.usage
        return usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return last.usage_metadata.prompt_token_count


def output_of(last: Any, format: str) -> int:
    """Return the total output tokens that the client saw."""
    if format == "openai-chat":
        return last.usage.completion_tokens
    if format == "gemini":
        usage = last.usage_metadata
        return usage.candidates_token_count + (usage.thoughts_token_count or 0)
    return last.usage.output_tokens


def id_of(last: Any, format: str) -> str:
    """Return the id of the client's last answer."""
    return str(last.response_id if format == "gemini" else last.id)

"""Shared by the session tests: stores in memory and small conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.histories.faults import listed
from tests.judges import judge

import kompakt
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.store.memory import MemoryRecords

KEYS = {"openai-responses": "input", "gemini": "contents"}
FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")
Body = dict[str, Any]
Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop."""
    return asyncio.run(work)


def text(value: Any) -> str:
    """Write a value as the exact JSON it is sent as."""
    return json.dumps(value)


async def fresh(records: MemoryRecords | None = None, id: str = "s", **options: Any) -> Session:
    """Return a session of a store in memory; the same records give the same session to another object."""
    return await Store(records or MemoryRecords(), **options).session(id)


def items_of(format: str, body: Body) -> list[Any]:
    """Return the messages of a body."""
    return listed(format, body)


def with_items(format: str, body: Body, items: list[Any]) -> Body:
    """Return a body with other messages."""
    return {**body, KEYS.get(format, "messages"): items}


def total(format: str, body: Body) -> int:
    """Count a body."""
    return kompakt.count(body, format=format).total


def faults(format: str, payload: Any) -> list[str]:
    """Return what the independent validator objects to."""
    return judge(format, payload)


# --- conversations -----------------------------------------------------------------------------------------------


def asked(text: str) -> Body:
    """Make a request of the user's."""
    return {"role": "user", "content": text}


def said(text: str) -> Body:
    """Make an answer."""
    return {"role": "assistant", "content": text}


def called(id: str, name: str = "run_command", **input: Any) -> Body:
    """Make a step with one call."""
    function = {"name": name, "arguments": json.dumps(input)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def answered(id: str, output: str = "done") -> Body:
    """Make a tool's answer."""
    return {"role": "tool", "tool_call_id": id, "content": output}


def turn(number: int, *, chars: int = 400, steps: int = 2) -> list[Body]:
    """Make a whole turn: a request, steps with outputs, an answer."""
    made = [asked(f"Request {number}: look at part {number}.")]
    for step in range(steps):
        id = f"c{number}_{step}"
        made += [called(id, command=f"pytest tests/part_{number}.py -k step_{step}"), answered(id, filler(id, chars))]
    return [*made, said(f"Part {number} is done.")]


def turns(count: int, **options: Any) -> list[Body]:
    """Make turns."""
    return [message for number in range(1, count + 1) for message in turn(number, **options)]


def filler(name: str, chars: int) -> str:
    """Make an output of some length that nothing else has."""
    return "".join(f"{name} line {n}\n" for n in range(chars // 12 + 1))[:chars]

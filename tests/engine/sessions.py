"""Small sessions and helpers that the engine's tests share; equal arguments give equal values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from tests.histories.messages import assistant, call, result, tool, user

import kompakt
from kompakt.engine.context.context import Context
from kompakt.model.messages import Message, ToolResult
from kompakt.model.references import References

REFERENCE = re.compile(r"\bm[0-9a-f]{4,32}(?:\.\d+)?\b")

LONG = " ".join(f"line{number}" for number in range(400))


def rounds(count: int, *, output: str = LONG, name: str = "read", start: int = 0) -> list[Message]:
    """Make tool rounds: a call and its result each."""
    made: list[Message] = []
    for number in range(start, start + count):
        made += [
            assistant(f"Step {number}.", call(f"c{number}", name)),
            tool(result(f"c{number}", f"{number} {output}")),
        ]
    return made


def session(turns: int, count: int, *, output: str = LONG) -> list[Message]:
    """Return turns of a number of rounds each; the last one is open."""
    made: list[Message] = []
    for turn in range(turns):
        made += [user(f"Request {turn}."), *rounds(count, output=output, start=turn * count)]
    return made


def run(strategy: Callable[[Context], Awaitable[bool]], context: Context) -> bool:
    """Run one strategy on a context."""

    async def work() -> bool:
        return await strategy(context)

    return asyncio.run(work())


def outputs(messages: Sequence[Message]) -> list[str]:
    """List the tool outputs that are shown."""
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResult)]


def texts(value: Any) -> Iterator[str]:
    """Go through every string of a payload."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def resolve(messages: Sequence[Message], reference: str) -> str:
    """Find the output or the text that a reference names in the full history."""
    index = References(messages).find(reference)
    assert index is not None, f"{reference} names nothing"
    part = messages[index].parts[int(reference.partition(".")[2] or 0)]
    return part.output if isinstance(part, ToolResult) else getattr(part, "text", "")


def exact(context: Context) -> int:
    """Count the projection from nothing, as a request would be counted."""
    counted = sum(context.counter.message(message) for message in context.project())
    return counted + context.fixed_tokens


def chat(*messages: Message) -> list[dict[str, Any]]:
    """Write messages as an OpenAI Chat payload."""
    return kompakt.render(list(messages), "openai-chat")


def ends_well(format: str, payload: Any) -> bool:
    """Return whether a payload ends with something that the model has to answer."""
    return kompakt.parse(payload, format)[-1].role != "assistant"

"""AG2's compaction verifier on kompakt and on AG2's own strategy.

    .venv-integrations/ag2/bin/python -m benchmarks.compaction_verifier     (pip install ag2==1.2.1 kompakt)

The verifier resumes an agent from the raw and from the compacted history of recorded runs, in a restored environment,
and counts wasted actions: calls that fail (blocked) and calls that were made before (refetch). It is not our code.

The agent is a program instead of a model, so that the run is free, offline and repeatable: it reads the text in its
context as a model would and decides by what it finds there. It has to read the pages of a report in order, and to close
each chapter with a code that stands on the first page. What it cannot find any more, it has to fetch again, and a
wrong code is refused. A program does not reason, so the result says what information is still there, not how well a
model uses it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from ag2 import Agent
from ag2.compact import TailWindowCompact
from ag2.events import (
    BaseEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextInput,
    ToolCallEvent,
    ToolCallsEvent,
    ToolResult,
    ToolResultEvent,
    ToolResultsEvent,
)
from ag2.extensions.compaction_verifier import CompactionVerifier, IdentityCompact, Recording, ReplayEnvironment
from ag2.stream import MemoryStream
from ag2.testing import TestConfig

from kompakt.integrations.conversation import AdapterOptions, Converter, LiveConversation, RequestFrame
from kompakt.model.budget import Budget

RESULT = Path(__file__).parent / "results" / "compaction_verifier.json"
PAGES, CHAPTER, REPORTS = 30, 10, 3
BUDGET = 4_000
"""Tokens above which kompakt compacts; about as much as the last ten steps have."""


def page(report: int, number: int) -> str:
    """Return a page; the first has the code."""
    rows = "\n".join(f"row {number}-{row}: {row * number % 97} units at {row + number} each" for row in range(24))
    code = f"The closing code of this report is K{report * 7919}.\n" if number == 1 else ""
    return f"report {report}, page {number}\n{code}{rows}"


def world(report: int) -> dict[str, Callable[..., Any]]:
    """Return the tools of a fresh environment."""

    def read_page(number: int) -> str:
        """Read one page."""
        return page(report, number)

    def close_chapter(chapter: int, code: str) -> str:
        """Close a chapter with the code of the report."""
        if code != f"K{report * 7919}":
            raise ValueError(f"{code!r} is not the closing code")
        return f"chapter {chapter} is closed"

    return {"read_page": read_page, "close_chapter": close_chapter}


class Reader:
    """Decides the next action by the text in the context."""

    async def __call__(self, messages: Sequence[BaseEvent], context: Any, **_: Any) -> ModelResponse:
        text = "\n".join(one["content"] or "" for event in messages for one in as_chat(event))
        calls = [call for event in messages if isinstance(event, ModelResponse) for call in event.tool_calls.calls]
        text += "".join(f"\n{call.name} {call.arguments}" for call in calls)
        read = {int(one) for one in re.findall(r"\bpage (\d+)", text)}
        read |= {int(one) for one in re.findall(r'read_page\W+"?number"?\W+(\d+)', text)}
        closed = {int(one) for one in re.findall(r"chapter (\d+) is closed", text)}
        closed |= {int(one) for one in re.findall(r'close_chapter\W+"?chapter"?\W+(\d+)', text)}
        done = max((number for number in read if number <= PAGES), default=0)
        chapter = done // CHAPTER
        if done % CHAPTER == 0 and chapter and chapter not in closed:
            found = re.findall(r"closing code of this report is (K\d+)", text)
            if not found:
                return self._call("read_page", number=1)
            return self._call("close_chapter", chapter=chapter, code=found[-1])
        if done == PAGES:
            return ModelResponse(ModelMessage("All pages are read."))
        return self._call("read_page", number=done + 1)

    def _call(self, name: str, **arguments: Any) -> ModelResponse:
        call = ToolCallEvent(name, arguments=json.dumps(arguments), id=uuid4().hex)
        return ModelResponse(tool_calls=ToolCallsEvent([call]))


class ReaderConfig(TestConfig):
    """Gives the program to AG2 in place of a model."""

    def create(self) -> Any:
        """Return the program."""
        return Reader()


def as_chat(event: BaseEvent) -> list[dict[str, Any]]:
    """Return an event as messages of OpenAI Chat."""
    if isinstance(event, ModelRequest):
        return [{"role": "user", "content": "\n".join(getattr(one, "content", "") for one in event.parts)}]
    if isinstance(event, ModelResponse):
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in event.tool_calls.calls
        ]
        text = event.message.content if event.message else None
        return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]
    if isinstance(event, ToolResultsEvent):
        return [
            {
                "role": "tool",
                "tool_call_id": one.parent_id,
                "content": "\n".join(getattr(part, "content", "") for part in one.result.parts),
            }
            for one in event.results
        ]
    return []


class EventConverter(Converter[BaseEvent]):
    """Events of AG2 as messages of OpenAI Chat."""

    format = "openai-chat"

    def to_wire(self, item: BaseEvent) -> list[dict[str, Any]]:
        """Return the messages of an event."""
        return as_chat(item)

    def rebuild(self, original: BaseEvent, parts: Mapping[int, Any]) -> list[BaseEvent]:
        """Shorten results."""
        if not isinstance(original, ToolResultsEvent):
            return list(super().rebuild(original, parts))
        shown: list[ToolResultEvent] = []
        for at, new in parts.items():
            one = original.results[at]
            result = one.result if new is None else ToolResult(TextInput(new["content"]))
            shown.append(one if new is None else ToolResultEvent(parent_id=one.parent_id, name=one.name, result=result))
        return [ToolResultsEvent(shown)]

    def from_wire(self, item: dict[str, Any], original: BaseEvent | None) -> BaseEvent:
        """Return an event for a message that kompakt wrote."""
        if item["role"] == "assistant":
            calls = [
                ToolCallEvent(one["function"]["name"], arguments=one["function"]["arguments"], id=one["id"])
                for one in item.get("tool_calls") or ()
            ]
            message = ModelMessage(item["content"]) if item["content"] else None
            return ModelResponse(message, tool_calls=ToolCallsEvent(calls))
        return ModelRequest([TextInput(str(item["content"]))])


class EventStrategy:
    """kompakt as a strategy of AG2."""

    def __init__(self, budget: int) -> None:
        limit = budget + budget // 4
        self._options = AdapterOptions(budget=Budget(window=limit, trigger=budget, target=budget * 3 // 4))

    async def compact(self, events: list[BaseEvent], context: Any, store: Any) -> list[BaseEvent]:
        """Return the events that the model should see."""
        conversation = LiveConversation("verifier", EventConverter(), self._options)
        given = [one for one in events if as_chat(one)]
        view = await conversation.aview(given, RequestFrame())
        same = len(view) == len(given) and all(one is other for one, other in zip(view, given, strict=True))
        return events if same else view


async def record(report: int) -> Recording:
    """Let the program do the whole task once."""
    environment = ReplayEnvironment(lambda: world(report))
    stream = MemoryStream()
    agent: Agent[Any] = Agent("reader", config=ReaderConfig(), tools=list(await environment.restore(())))
    await agent.ask(f"Read all {PAGES} pages of report {report} in order; close each chapter.", stream=stream)
    return Recording(list(await stream.history.get_events()), environment)


async def measure() -> dict[str, Any]:
    """Run the verifier."""
    recordings = [await record(number) for number in range(1, REPORTS + 1)]
    strategies: dict[str, Any] = {
        "none (control)": IdentityCompact(),
        "kompakt, 4,000 tokens": EventStrategy(BUDGET),
        "kompakt, 6,000 tokens": EventStrategy(6_000),
        "AG2 TailWindowCompact(20)": TailWindowCompact(20),
        "AG2 TailWindowCompact(40)": TailWindowCompact(40),
    }
    agent: Agent[Any] = Agent("reader", config=ReaderConfig())
    report = await CompactionVerifier(agent, horizon=5, samples=1).verify(recordings, strategies, every=4)
    sys.stdout.write(report.summary() + "\n")
    rows: dict[str, Any] = {}
    for name, one in report.strategies.items():
        last = one.horizons[-1]
        rows[name] = {
            "boundaries": len(one.boundaries),
            "unchanged": one.unchanged_boundaries,
            "failed_compactions": one.failed_compactions,
            "failed_rollouts": one.failed_rollouts,
            "wasted": round(last.wasted.mean, 3),
            "blocked": round(last.blocked.mean, 3),
            "refetch": round(last.refetch.mean, 3),
            "stopped": round(last.stopped.mean, 3),
            "kept_tokens": round(one.median_token_ratio, 3),
        }
    return {"ag2": "1.2.1", "horizon": report.horizon, "recordings": REPORTS, "pages": PAGES, "strategies": rows}


def main() -> None:
    """Measure and write the result."""
    RESULT.write_text(json.dumps(asyncio.run(measure()), indent=1) + "\n")


if __name__ == "__main__":
    main()

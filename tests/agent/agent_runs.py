"""Shared helpers of agent tests: tools, clients of the strict provider, and checks after every run."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

from tests.agent.clients.client_servers import client_of
from tests.provider import Provider, Script

import kompakt
from kompakt.agent.agent import Agent
from kompakt.events import Result
from kompakt.session.store import Store

FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini")
MODELS = {"anthropic": "claude-opus-4-5", "gemini": "gemini-3-pro"}
RULE = "Never touch the migrations folder."
TASK = f"Go through the repository and write down what you find. {RULE}"
SYSTEM = "You work on a repository."
WINDOW = 16_000
STEPS = int(os.environ.get("KOMPAKT_STEPS", "150"))


def client_for(format: str, provider: Provider, **options: Any) -> Any:
    """Return a client of the provider with a small window."""
    given = {"model": MODELS.get(format, "gpt-5"), "context_window": WINDOW, "output_limit": 1000, **options}
    return client_of(format, provider.url, **given)


class Desk:
    """Two tools that count their calls by arguments."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def read_file(self, path: str, lines: int = 10) -> str:
        """Read a file."""
        self.calls[f"read_file {path} {lines}"] += 1
        return "\n".join(f"{at}: {path} value_{at} = compute(total, {at})" for at in range(40))

    async def run_tests(self, path: str = ".", lines: int = 3) -> str:
        """Run tests."""
        self.calls[f"run_tests {path} {lines}"] += 1
        await asyncio.sleep(0)
        return f"{lines} passed in {path}"

    @property
    def tools(self) -> list[Any]:
        return [self.read_file, self.run_tests]


class Watched:
    """The events of a run."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def count(self, kind: type) -> int:
        return sum(type(event) is kind for event in self.events)

    @property
    def result(self) -> Result:
        assert type(self.events[-1]) is Result
        return self.events[-1]


async def watched(agent: Agent, text: str | None, **options: Any) -> Watched:
    """Stream a run and collect its events."""
    seen = Watched()
    async for event in agent.stream(text, **options):
        seen.events.append(event)
    return seen


async def said_in(store: Store, id: str, *, whole: bool = True) -> list[kompakt.Message]:
    """Return all messages of a session, and check that the session is valid."""
    session = await store.session(id)
    assert await session.verify() == []
    exported = await session.export(view="full")
    format = (await session.head()).format
    assert not whole or kompakt.check(exported, format, resting=True) == []
    return list(kompakt.parse(exported, format=format))


def clean(provider: Provider, *, breaks: int | None = None) -> None:
    """Assert that the provider rejected nothing and found no violation."""
    assert [record.refusal for record in provider.refusals] == []
    assert provider.violations == []
    if breaks is not None:
        assert len(provider.prefix_breaks) <= breaks, (len(provider.prefix_breaks), breaks)


def scripted(steps: int, **options: Any) -> Script:
    return Script(steps=steps, **{"seed": 3, "constraints": (RULE,), **options})


def made_calls(script: Script) -> list[str]:
    """Return the ids of all calls of a script."""
    return [call.id for known in script.conversations.values() for calls in known.calls.values() for call in calls]


def ids(messages: list[kompakt.Message]) -> tuple[list[str], list[str]]:
    """Return the ids of calls and of results."""
    calls = [call.id for message in messages for call in message.calls]
    results = [result.call_id for message in messages for result in message.results]
    return calls, results

"""The clients with the strict provider: a run of tool calls without violations, through every fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.agent.clients.client_servers import client_of
from tests.agent.clients.test_clients import each_format
from tests.provider import Provider, Script

import kompakt
from kompakt.agent.client import ToolSpec
from kompakt.agent.clients import base as calling
from kompakt.errors import Overflowed
from kompakt.wire.registry import WIRES

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FAULTS = ("429", "500", "503", "closed", "cut", "garbage", "stream-error")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "FIRST_PAUSE", 0.001)


def results(format: str, item: kompakt.Message) -> list[Any]:
    """Return results for the calls of an answer, in a format."""
    if format == "openai-chat":
        return [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in item.calls]
    if format == "openai-responses":
        return [{"type": "function_call_output", "call_id": call.id, "output": "seen"} for call in item.calls]
    if format == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": "seen"} for call in item.calls]
        return [{"role": "user", "content": blocks}]
    parts = []
    for call in item.calls:
        named = {"id": call.raw["functionCall"]["id"]} if "id" in call.raw["functionCall"] else {}
        parts.append({"functionResponse": {**named, "name": call.name, "response": {"output": "seen"}}})
    return [{"role": "user", "parts": parts}]


async def run(provider: Provider, format: str, task: str, on_delta: Callable[..., None] | None) -> list[Any]:
    """Send requests until there are no more calls."""
    client = client_of(format, provider.url, model="test-model", context_window=provider.window, output_limit=800)
    spec = ToolSpec("look", "Looks at a file.", SCHEMA)
    body = client.envelope(system="Be brief.", tools=[spec])
    if format == "openai-responses":
        body |= {"store": False, "include": ["reasoning.encrypted_content"]}
    said = {"parts": [{"text": task}]} if format == "gemini" else {"content": task}
    items = [*client.opening("Be brief."), {"role": "user", **said}]
    try:
        while True:
            reply = await client.send({**body, WIRES[format].messages_key: items}, on_delta=on_delta)
            items += reply.items
            spoken = [message for message in kompakt.parse(list(reply.items), format=format) if message.calls]
            if reply.stop != "tools":
                assert not spoken
                return items
            answers = [result for message in spoken for result in results(format, message)]
            items += answers
    finally:
        await client.close()


@each_format
def test_a_run_of_calls_is_valid_streamed_or_not(format: str) -> None:
    histories = []
    for on_delta in (None, lambda delta: None):
        script = Script(steps=6, seed=3, thinking=True, parallel=0.5)
        with Provider(script) as provider:
            histories.append(asyncio.run(run(provider, format, script.task("Do it all."), on_delta)))
            assert len(provider.requests) == 7
            assert not provider.refusals and not provider.violations and not provider.prefix_breaks
    assert histories[0] == histories[1]


def texts_of(format: str, items: list[Any]) -> list[Any]:
    """Return texts and calls without the signatures and ids that the provider generates for each request."""
    found = []
    for message in kompakt.parse(items, format=format):
        calls = [(call.name, call.input) for call in message.calls]
        thoughts = [part.text for part in message.parts if isinstance(part, kompakt.Reasoning)]
        found.append((message.role, message.text, thoughts, calls))
    return found


@each_format
def test_faults_do_not_change_the_result(format: str) -> None:
    histories = []
    for faults in ((), FAULTS):
        script = Script(steps=9, seed=5, thinking=True)
        with Provider(script) as provider:
            for nth, fault in enumerate(faults):
                provider.fault(2 * nth + 2, fault)
            items = asyncio.run(run(provider, format, script.task("Do it all."), lambda delta: None))
            histories.append(texts_of(format, items))
            assert len(provider.requests) == 10 + len(faults)
            assert not provider.violations
    assert histories[0] == histories[1]


@each_format
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_a_request_that_is_too_long_raises_overflowed(format: str, streams: bool) -> None:
    script = Script(steps=2)
    with Provider(script, window=2_000) as provider:
        on_delta = (lambda delta: None) if streams else None
        with pytest.raises(Overflowed):
            asyncio.run(run(provider, format, script.task("word " * 3_000), on_delta))
        assert len(provider.requests) == 1

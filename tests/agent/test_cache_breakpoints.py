"""Cache breakpoints: few, useful, moved with the conversation, and never on stored messages."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.agent_runs import SYSTEM, TASK, WINDOW, Desk, clean, client_for, scripted
from tests.agent.clients.client_servers import asked_of, whole
from tests.judges.anthropic_shapes import blocks_of
from tests.provider import Provider
from tests.provider.signatures import unmarked

from kompakt.agent.agent import Agent
from kompakt.agent.clients.anthropic import CACHE_CONTROL, with_breakpoints
from kompakt.agent.config import CompactionConfig

TOOLS = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}}]
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": content[0] if len(content) == 1 else list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def marks(body: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the positions of the breakpoints."""
    found = [("tools", at, 0) for at, tool in enumerate(body.get("tools") or []) if "cache_control" in tool]
    system = body.get("system")
    found += [
        ("system", at, 0)
        for at, block in enumerate(system or [])
        if isinstance(block, dict) and CACHE_CONTROL in block.values()
    ]
    for at, message in enumerate(body["messages"]):
        found += [("messages", at, n) for n, block in enumerate(blocks_of(message)) if "cache_control" in block]
    return found


LONG = [
    said("user", "Go."),
    said("assistant", "Yes."),
    said("user", text("On."), text("And on.")),
    said("assistant", "So."),
    said("user", "End."),
]


def test_breakpoints_at_the_prefix_the_last_request_and_this_one() -> None:
    body = {"system": "You work.", "tools": TOOLS, "messages": LONG}
    assert marks(with_breakpoints(body)) == [("system", 0, 0), ("messages", 2, 1), ("messages", 4, 0)]
    del body["system"]
    assert marks(with_breakpoints(body)) == [("tools", 1, 0), ("messages", 2, 1), ("messages", 4, 0)]
    assert marks(with_breakpoints({"tools": TOOLS, "messages": LONG[:1]})) == [("tools", 1, 0), ("messages", 0, 0)]
    asked = with_breakpoints({"messages": LONG, "compaction": {"type": "summarize"}})
    assert marks(asked) == [("messages", 2, 1)], "a summary is asked for once: reading the cache is all that pays"


def test_a_single_request_is_not_cached() -> None:
    body = {"system": "You summarise.", "messages": [said("user", "A long record.")]}
    assert with_breakpoints(body) is body


def test_reasoning_and_empty_texts_get_no_breakpoint() -> None:
    messages = [said("user", "Go."), said("assistant", text("Hm."), THOUGHT), said("user", text("On."), text(""))]
    assert marks(with_breakpoints({"messages": messages})) == [("messages", 0, 0), ("messages", 2, 0)]
    assert marks(with_breakpoints({"messages": [*LONG[:2], said("user", [])]})) == [("messages", 0, 0)]


@pytest.mark.parametrize("place", ["top", "system", "tools", "messages"])
def test_a_request_with_its_own_breakpoints_is_unchanged(place: str) -> None:
    body: dict[str, Any] = {
        "system": [text("You work.")],
        "tools": copy.deepcopy(TOOLS),
        "messages": copy.deepcopy(LONG),
    }
    at = {
        "top": body,
        "system": body["system"][0],
        "tools": body["tools"][0],
        "messages": body["messages"][2]["content"][0],
    }
    at[place]["cache_control"] = CACHE_CONTROL
    assert with_breakpoints(body) is body


CONTENT = st.one_of(
    st.text(max_size=4),
    st.lists(st.sampled_from([text("a"), text(""), THOUGHT, {"type": "tool_result", "tool_use_id": "t"}]), max_size=4),
)
MESSAGES = st.lists(st.builds(said, st.sampled_from(["user", "assistant"]), CONTENT), max_size=8)


@given(messages=MESSAGES, tools=st.booleans(), system=st.sampled_from([None, "", "s", [text("s"), text("t")]]))
def test_nothing_else_and_no_input_changes(messages: Any, tools: bool, system: Any) -> None:
    body = {
        "messages": messages,
        **({"tools": TOOLS} if tools else {}),
        **({} if system is None else {"system": system}),
    }
    before = copy.deepcopy(body)
    out = with_breakpoints(body)
    assert body == before and len(marks(out)) <= 4
    plain = unmarked(out)
    assert [blocks_of(message) for message in plain["messages"]] == [blocks_of(message) for message in messages]
    assert blocks_of({"content": plain.get("system")}) == blocks_of({"content": system})


@pytest.mark.parametrize("cache", [True, False])
def test_a_run_reads_its_prompts_from_the_cache(cache: bool) -> None:
    async def main() -> None:
        script = scripted(60)
        with Provider(script, window=WINDOW) as provider:
            client = client_for("anthropic", provider, cache=cache)
            config = CompactionConfig(economic=False)
            async with Agent(client, tools=Desk().tools, system=SYSTEM, compaction=config) as agent:
                result = await agent.run(script.task(TASK), session="s")
                stored = await (await agent.session("s")).export(view="full")
            clean(provider, breaks=4)
            share = result.usage.cache_read / result.usage.prompt
            assert share > 0.75 if cache else share == 0
            assert "cache_control" not in str(stored)

    asyncio.run(main())


def test_cache_false_adds_no_breakpoints() -> None:
    async def main() -> None:
        body = {"model": "m", "messages": LONG}
        answer = whole({"content": [text("Yes.")], "stop_reason": "end_turn"})
        _, server = await asked_of("anthropic", answer, body=body, cache=False)
        assert server.asked[0].json == body
        _, server = await asked_of("anthropic", answer, body=body)
        assert len(marks(server.asked[0].json)) == 2

    asyncio.run(main())

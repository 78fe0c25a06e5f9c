"""Strategies of valid Anthropic Messages bodies.

They cover thinking, client, server and MCP tools, mid-conversation system messages and cache breakpoints; the one
invariant is that no key is drawn that the provider does not know, since it rejects extras.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.histories.ingredients import (
    PNG,
    TOOL_NAMES,
    Draw,
    Ids,
    blobs,
    inputs,
    outputs,
    rarely,
    reordered,
    schema,
    shuffled,
    texts,
    tool_names,
)

Message = dict[str, Any]
Block = dict[str, Any]
MODELS = ("claude-opus-5-5", "claude-fable-5-1", "claude-opus-4-8")
IMAGE: Block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
DOCUMENT: Block = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "A short paper."},
    "title": "paper.txt",
}
UNMARKED = ("thinking", "redacted_thinking", "fallback", "mcp_tool_listing")


@st.composite
def bodies(draw: Draw, *, max_turns: int, max_steps: int, max_batch: int) -> dict[str, Any]:
    """Draw a whole request body."""
    ids = Ids(draw(st.sampled_from(("{prefix}01{n:020d}", "{prefix}{n}", "call_{n}-x"))))
    thinking = draw(st.sampled_from(("none", "adaptive", "enabled")))
    messages = _compacted(draw) if rarely(draw, one_in=12) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages += _turn(draw, ids, thinking, max_steps, max_batch)
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": _answer(draw, ids, thinking)})
    messages += _ending(draw, ids, thinking, messages)
    body = _request(draw, messages, thinking)
    _mark(draw, body)
    return reordered(draw, body)


def _request(draw: Draw, messages: list[Message], thinking: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": draw(st.sampled_from(MODELS)), "max_tokens": 4096, "messages": messages}
    system = draw(st.sampled_from(("none", "string", "blocks")))
    if system == "string":
        body["system"] = draw(texts)
    elif system == "blocks":
        body["system"] = [{"type": "text", "text": draw(texts)} for _ in range(draw(st.integers(1, 3)))]
    body["tools"] = [_tool(name) for name in TOOL_NAMES]
    body["tools"].append({"type": "web_search_20250305", "name": "web_search"})
    if thinking == "enabled":
        body["thinking"] = {"type": "enabled", "budget_tokens": 2048}
    elif thinking == "adaptive":
        body["thinking"] = {"type": "adaptive"}
    if rarely(draw):
        body |= {"stream": True, "metadata": {"user_id": "u1"}, "stop_sequences": ["END"]}
    return body


def _tool(name: str) -> dict[str, Any]:
    described = schema(name)
    return {"name": name, "description": described["description"], "input_schema": described["parameters"]}


def _compacted(draw: Draw) -> list[Message]:
    """Open with the signed block of an on-demand compaction: the first block, in an assistant message."""
    block = {"type": "compaction", "content": draw(texts), "signature": draw(blobs)}
    return [{"role": "assistant", "content": [block]}]


def _text(draw: Draw) -> Block:
    return reordered(draw, {"type": "text", "text": draw(texts)})


def _user(draw: Draw) -> Message:
    if draw(st.booleans()):
        return {"role": "user", "content": draw(texts)}
    blocks = [_text(draw) for _ in range(draw(st.integers(1, 2)))]
    if rarely(draw, one_in=3):
        blocks.insert(draw(st.integers(0, len(blocks))), dict(draw(st.sampled_from((IMAGE, DOCUMENT)))))
    return {"role": "user", "content": blocks}


def _turn(draw: Draw, ids: Ids, thinking: str, max_steps: int, max_batch: int) -> list[Message]:
    messages = [_user(draw) for _ in range(1 + rarely(draw))]
    for _ in range(draw(st.integers(0, max_steps))):
        if rarely(draw, one_in=8):
            messages.append({"role": "system", "content": draw(texts)})
        messages += _round(draw, ids, thinking, max_batch)
    return messages


def _thoughts(draw: Draw, thinking: str) -> list[Block]:
    """Draw the head of an assistant message; under manual thinking there always is one."""
    if thinking == "none" or (thinking == "adaptive" and draw(st.booleans())):
        return []
    blocks: list[Block] = [{"type": "thinking", "thinking": draw(texts), "signature": draw(blobs)}]
    if rarely(draw):
        blocks[0]["thinking"] = ""
    if rarely(draw):
        blocks.insert(draw(st.integers(0, 1)), {"type": "redacted_thinking", "data": draw(blobs)})
    return blocks


def _round(draw: Draw, ids: Ids, thinking: str, max_batch: int) -> list[Message]:
    content = _thoughts(draw, thinking)
    if draw(st.booleans()):
        content.append({"type": "text", "text": draw(st.sampled_from(("Looking.", "\n\n", "見てみます")))})
    if rarely(draw):
        content += _served(draw, ids)
    size = 1 if draw(st.booleans()) else draw(st.integers(1, max_batch))
    calls = [_call(draw, ids) for _ in range(size)]
    results: list[Block] = [_result(draw, call) for call in shuffled(draw, calls)]
    if rarely(draw):
        results.append(_text(draw))
    return [{"role": "assistant", "content": content + calls}, {"role": "user", "content": results}]


def _call(draw: Draw, ids: Ids) -> Block:
    call = {"type": "tool_use", "id": ids.new("toolu_"), "name": draw(tool_names), "input": draw(inputs)}
    if rarely(draw, one_in=15):
        call["toolset_name"] = "computer"
    return reordered(draw, call)


def _result(draw: Draw, call: Block) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": call["id"]}
    shape = draw(st.sampled_from(("string", "blocks", "image", "empty", "nothing", "absent")))
    if shape == "string":
        result["content"] = draw(outputs)
    elif shape == "blocks":
        result["content"] = [_text(draw), {"type": "text", "text": draw(outputs)}]
    elif shape == "image":
        result["content"] = [_text(draw), dict(IMAGE)]
    elif shape != "absent":
        result["content"] = "" if shape == "empty" else []
    if rarely(draw):
        result["is_error"] = True
    if "toolset_name" in call:
        result["toolset_name"] = call["toolset_name"]
    return reordered(draw, result)


def _served(draw: Draw, ids: Ids) -> list[Block]:
    """Draw a hosted call and its result, which are in one assistant message."""
    if draw(st.booleans()):
        id_ = ids.new("mcptoolu_")
        call = {"type": "mcp_tool_use", "id": id_, "name": "query", "server_name": "db", "input": draw(inputs)}
        text = [{"type": "text", "text": draw(outputs)}]
        return [call, {"type": "mcp_tool_result", "tool_use_id": id_, "is_error": False, "content": text}]
    id_ = ids.new("srvtoolu_")
    found = {"type": "web_search_result", "title": "T", "url": "https://example.com", "encrypted_content": draw(blobs)}
    return [_search(id_), {"type": "web_search_tool_result", "tool_use_id": id_, "content": [found]}]


def _search(id_: str) -> Block:
    return {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {"query": "weather"}}


def _answer(draw: Draw, ids: Ids, thinking: str) -> str | list[Block]:
    thoughts = _thoughts(draw, thinking)
    if not thoughts and draw(st.booleans()):
        text: str = draw(texts)
        return text
    served = _served(draw, ids) if rarely(draw, one_in=8) else []
    return [*thoughts, *served, _text(draw)]


def _ending(draw: Draw, ids: Ids, thinking: str, messages: list[Message]) -> list[Message]:
    """At times end on a closing system message, or on a turn that the server paused."""
    last = messages[-1]
    if last["role"] != "user" or not rarely(draw, one_in=10):
        return []
    if draw(st.booleans()):
        return [{"role": "system", "content": [{"type": "text", "text": draw(texts)}]}]
    paused = [*_thoughts(draw, thinking), _search(ids.new("srvtoolu_"))]
    return [{"role": "assistant", "content": paused}]


def _mark(draw: Draw, body: dict[str, Any]) -> None:
    """Set up to four cache breakpoints on blocks that may carry one."""
    system = body.get("system")
    places = [*body["tools"], *(system if isinstance(system, list) else [])]
    for message in body["messages"]:
        if isinstance(message["content"], list):
            places += [block for block in message["content"] if block["type"] not in UNMARKED]
    for at in draw(st.sets(st.integers(0, len(places) - 1), max_size=4)):
        places[at]["cache_control"] = {"type": "ephemeral"}

"""Strict judge of Anthropic Messages requests.

It reads a body exactly as the documents describe it; the one invariant is that a body without faults
here breaks no documented rule that can be seen without the earlier requests of the same session.

Not decidable from one body, and so left to ``prefix``: AN-11, AN-13 (tampering), AN-14, AN-15, AN-16, AN-27.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from tests.judges.anthropic_shapes import blocks_of, shape_faults

Message: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

ID = re.compile(r"[a-zA-Z0-9_-]+")
MAX_BREAKPOINTS = 4
MAX_MESSAGES = 100_000
MAX_BYTES = 32 * 1024 * 1024
MAX_MEDIA = 600
THINKING = ("thinking", "redacted_thinking")
SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
MID_SYSTEM_MODELS = re.compile(r"claude-(opus-4-8|opus-[5-9]|fable-[5-9]|mythos-[5-9])")
# AN-19 withdraws prefill from 4.6 on. The newer rule applies to a request without a model.
PREFILL_MODELS = re.compile(r"claude-(instant|2|3|(opus|sonnet|haiku)-4-(0|1|5|20\d{6}))")


def judge(payload: Body | list[Any]) -> list[str]:
    """Return every fault of a Messages request; an empty list means accepted."""
    body: Body = payload if isinstance(payload, dict) else {"messages": payload}
    shape = list(shape_faults(body))
    if shape:
        return shape
    return [fault for check in CHECKS for fault in check(body)]


def judge_alternation(payload: Body | list[Any]) -> list[str]:
    """Return a fault for each pair of adjacent messages of one role; the provider combines them, older ones reject
    them.
    """
    messages = payload["messages"] if isinstance(payload, dict) else payload
    pairs = enumerate(pairwise(m["role"] for m in messages if m["role"] != "system"), start=1)
    return [f"AN-20 messages.{i}: two {a} messages in a row" for i, (a, b) in pairs if a == b]


def _ids(message: Message, *types: str) -> list[str]:
    return [block["id"] for block in blocks_of(message) if block["type"] in types]


def _result_ids(message: Message) -> list[str]:
    return [block["tool_use_id"] for block in blocks_of(message) if block["type"] == "tool_result"]


def _only_results(message: Message) -> bool:
    blocks = blocks_of(message)
    return bool(blocks) and all(block["type"] == "tool_result" for block in blocks)


def _check_client_calls(body: Body) -> Iterator[str]:
    messages = body["messages"]
    for index, message in enumerate(messages):
        following = messages[index + 1] if index + 1 < len(messages) else None
        answered = _result_ids(following) if following else []
        for call in _ids(message, "tool_use"):
            if call in answered:
                continue
            rest = messages[index + 1 : index + 3]
            split = all(m["role"] == "user" for m in rest) and any(call in _result_ids(m) for m in rest)
            yield f"{'AN-4' if split else 'AN-1'} messages.{index}: {call!r} has no result in the next message"


def _check_client_results(body: Body) -> Iterator[str]:
    previous: Message | None = None
    for index, message in enumerate(body["messages"]):
        expected = _ids(previous, "tool_use") if previous else []
        for call, count in Counter(_result_ids(message)).items():
            if call not in expected:
                yield f"AN-2 messages.{index}: result {call!r} has no call in the previous message"
            if count > 1:
                yield f"AN-5 messages.{index}: {count} results for {call!r}"
        kinds = [block["type"] == "tool_result" for block in blocks_of(message)]
        if any(later and not earlier for earlier, later in pairwise(kinds)):
            yield f"AN-3 messages.{index}: results must come before other content"
        previous = message


def _check_toolsets(body: Body) -> Iterator[str]:
    uses = {b["id"]: b for m in body["messages"] for b in blocks_of(m) if b["type"] == "tool_use"}
    for index, message in enumerate(body["messages"]):
        for block in blocks_of(message):
            if block["type"] != "tool_result":
                continue
            wanted = uses.get(block["tool_use_id"], {}).get("toolset_name")
            if block.get("toolset_name") != wanted:
                yield f"AN-10 messages.{index}: result must echo toolset_name {wanted!r}"
            content = block.get("content")
            kinds = {part["type"] for part in content} if isinstance(content, list) else set()
            if wanted and kinds - {"text", "image", "browser_state"}:
                yield f"AN-10 messages.{index}: a toolset result may hold only text and images"


def _check_ids(body: Body) -> Iterator[str]:
    calls = [id_ for message in body["messages"] for id_ in _ids(message, "tool_use", *SERVER_CALLS)]
    for id_, count in Counter(calls).items():
        if count > 1:
            yield f"AN-6 messages: call id {id_!r} is used {count} times"
        if not ID.fullmatch(id_):
            yield f"AN-7 messages: call id {id_!r} has characters outside [a-zA-Z0-9_-]"


def _result_type(call: dict[str, Any]) -> str:
    if call["type"] == "mcp_tool_use":
        return "mcp_tool_result"
    name = call["name"]
    return "tool_search_tool_result" if name.startswith("tool_search_tool") else f"{name}_tool_result"


def _check_server_calls(body: Body) -> Iterator[str]:
    """Follow server calls through the list; one may stay open over one message of client results (AN-8)."""
    opened: dict[str, tuple[int, dict[str, Any]]] = {}
    messages = body["messages"]
    for index, message in enumerate(messages):
        if opened and message["role"] != "assistant":
            stale = any(at != index - 1 for at, _ in opened.values())
            if stale or not _only_results(message):
                yield f"AN-8 messages.{index}: server calls {sorted(opened)} are still open"
        for block in blocks_of(message):
            if block["type"] in SERVER_CALLS:
                opened[block["id"]] = (index, block)
            elif block["type"].endswith("_tool_result"):
                call = opened.pop(block["tool_use_id"], None)
                if call is None or _result_type(call[1]) != block["type"]:
                    yield f"AN-9 messages.{index}: {block['type']} has no matching server call before it"
    declared = {tool.get("name") for tool in body.get("tools") or []}
    for at, call in opened.values():
        if call["type"] == "server_tool_use" and "model" in body and call["name"] not in declared:
            yield f"AN-8 messages.{at}: {call['name']} is open but no such tool was provided"


def _check_thinking_start(body: Body) -> Iterator[str]:
    """Manual thinking: the assistant turn that is still open must start with thinking (AN-12).

    Choice: the rule binds only while the turn is open, that is when the list ends in tool results or in
    the assistant itself; a later plain user message closes the turn. The turn starts after the last user
    message that holds anything but results; results plus text at the very end do not start one.
    """
    messages = body["messages"]
    last = messages[-1]
    open_turn = last["role"] == "assistant" or bool(_result_ids(last))
    if (body.get("thinking") or {}).get("type") != "enabled" or not open_turn:
        return
    inner = messages[:-1] if last["role"] != "assistant" else messages
    start = max((i for i, m in enumerate(inner) if m["role"] == "user" and not _only_results(m)), default=-1) + 1
    first = next((m for m in inner[start:] if m["role"] == "assistant"), None)
    if first is None or (blocks_of(first) or [{"type": "nothing"}])[0]["type"] not in THINKING:
        yield f"AN-12 messages.{start}: with manual thinking the open turn must start with a thinking block"


def _check_empty(body: Body) -> Iterator[str]:
    """Apply the probe table of AN-17: empty assistant content passes, blank user content does not."""
    for index, message in enumerate(body["messages"]):
        blocks = blocks_of(message)
        if message["role"] != "assistant" and not blocks and not message.get("output_config"):
            yield f"AN-17 messages.{index}: {message['role']} content is empty"
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if "" in texts:
            yield f"AN-17 messages.{index}: empty text block"
        if blocks and len(texts) == len(blocks) and not "".join(texts).strip():
            yield f"AN-17 messages.{index}: only whitespace"
    system = body.get("system")
    if isinstance(system, str) and system and not system.strip():
        yield "AN-17 system: only whitespace"
    if isinstance(system, list) and any(not block["text"].strip() for block in system):
        yield "AN-17 system: blank text block"


def _check_ends(body: Body) -> Iterator[str]:
    messages = body["messages"]
    first, last = messages[0], messages[-1]
    # AN-21 against on-demand compaction: its signed block comes first, in an assistant message.
    compacted = bool(blocks_of(first)) and blocks_of(first)[0]["type"] == "compaction"
    if first["role"] == "assistant" and not compacted:
        yield "AN-21 messages.0: the first message must be from the user"
    if last["role"] != "assistant":
        return
    # A paused turn is sent back as it came, so it may end the list while a server call is open.
    blocks = blocks_of(last)
    results = {block.get("tool_use_id") for block in blocks}
    paused = any(block["type"] in SERVER_CALLS and block["id"] not in results for block in blocks)
    if not paused and not PREFILL_MODELS.match(body.get("model", "")):
        yield f"AN-19 messages.{len(messages) - 1}: the list must end with a user message"
    if blocks and blocks[-1]["type"] == "text" and blocks[-1]["text"] != blocks[-1]["text"].rstrip():
        yield f"AN-18 messages.{len(messages) - 1}: the final assistant text ends with whitespace"


def _check_system_messages(body: Body) -> Iterator[str]:
    messages = body["messages"]
    for index, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if "model" in body and not MID_SYSTEM_MODELS.match(body["model"]):
            yield f"AN-22 messages.{index}: role 'system' is not supported on this model"
        before = messages[index - 1] if index else {"role": "none", "content": []}
        served = before["role"] == "assistant" and (blocks_of(before) or [{"type": ""}])[-1]["type"].endswith("_result")
        if before["role"] != "user" and not served:
            yield f"AN-22 messages.{index}: a system message must follow a user turn or a server tool result"
        if index + 1 < len(messages) and messages[index + 1]["role"] != "assistant":
            yield f"AN-22 messages.{index}: a system message must precede an assistant turn or end the list"


def _check_tool_changes(body: Body) -> Iterator[str]:
    declared = {tool.get("name") for tool in body.get("tools") or []}
    for index, message in enumerate(body["messages"]):
        for block in blocks_of(message):
            if block["type"] not in ("tool_addition", "tool_removal"):
                continue
            if message["role"] != "system":
                yield f"AN-23 messages.{index}: {block['type']} belongs in a system message"
            name = block["tool"].get("name")
            if "tools" in body and name is not None and name not in declared:
                yield f"AN-23 messages.{index}: tool {name!r} is not declared"


def _marked(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the blocks that carry a breakpoint; tool inputs and schemas are data, not blocks."""
    if isinstance(value, list):
        for item in value:
            yield from _marked(item)
    elif isinstance(value, dict):
        if value.get("cache_control"):
            yield value
        yield from _marked(value.get("content"))
        yield from _marked((value.get("source") or {}).get("content") if value.get("type") == "document" else None)


def _check_breakpoints(body: Body) -> Iterator[str]:
    places = [body.get("tools"), body.get("system"), body["messages"]]
    marked = [block for place in places for block in _marked(place)]
    count = len(marked) + bool(body.get("cache_control"))
    if count > MAX_BREAKPOINTS:
        yield f"AN-24 messages: {count} cache breakpoints, at most {MAX_BREAKPOINTS}"
    for block in marked:
        if block.get("type") in THINKING or (block.get("type") == "text" and not block["text"]):
            yield f"AN-24 messages: a {block['type']} block may not carry this breakpoint"


def _check_compaction(body: Body) -> Iterator[str]:
    """Section 3c: an unsigned block may be anywhere, a signed one is the first and only block."""
    found = [
        (index, at, block)
        for index, message in enumerate(body["messages"])
        for at, block in enumerate(blocks_of(message))
        if block["type"] == "compaction"
    ]
    for index, at, block in found:
        if block.get("content") == "":
            yield f"AN-3c messages.{index}: compaction content may not be an empty string"
        if block.get("signature") and ((index, at) != (0, 0) or len(found) > 1):
            yield f"AN-3c messages.{index}: a signed compaction block must be the first block and the only one"


def _check_size(body: Body) -> Iterator[str]:
    if len(body["messages"]) > MAX_MESSAGES:
        yield f"AN-26 messages: more than {MAX_MESSAGES}"
    media = sum(b["type"] in ("image", "document") for m in body["messages"] for b in blocks_of(m))
    if media > MAX_MEDIA:
        yield f"AN-26 messages: {media} images and documents, at most {MAX_MEDIA}"
    if len(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MAX_BYTES:
        yield f"AN-26 body: more than {MAX_BYTES} bytes"


CHECKS = (
    _check_client_calls,
    _check_client_results,
    _check_toolsets,
    _check_ids,
    _check_server_calls,
    _check_thinking_start,
    _check_empty,
    _check_ends,
    _check_system_messages,
    _check_tool_changes,
    _check_breakpoints,
    _check_compaction,
    _check_size,
)

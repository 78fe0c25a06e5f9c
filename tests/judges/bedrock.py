"""Strict judge of Bedrock Converse requests.

The one invariant: in a list without faults, user and assistant alternate, start and end with the user, and each
assistant turn's tool uses are answered, all of them and once, at the head of the next user message.

Not decidable from one body, and so left to ``prefix``: BR-8. Choices where the documents are silent: the limits
that Claude enforces on Bedrock (unique ids, four cache points, thinking first under manual thinking) hold here too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

TOOL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_CACHE_POINTS = 4
CONVERSATION = frozenset(
    ["text", "image", "document", "video", "audio", "guardContent", "searchResult", "citationsContent"]
)
USER = CONVERSATION | {"toolResult", "cachePoint"}
ASSISTANT = frozenset(["text", "image", "toolUse", "toolResult", "reasoningContent", "citationsContent", "cachePoint"])
SYSTEM = frozenset(["text", "toolAddition", "toolRemoval", "cachePoint"])
ALLOWED = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
RESULT_BLOCKS = frozenset(["json", "text", "image", "document", "video", "searchResult"])
# BR-5 holds for "some models"; these take text beside results.
MIXING_MODELS = re.compile(r"anthropic|claude|amazon\.nova")
SIGNING_MODELS = re.compile(r"anthropic|claude")


def judge(payload: Body | list[Any]) -> list[str]:
    """Return every fault of a Converse request; an empty list means accepted."""
    # A bare list says nothing about the rest of the request, so it is given the tools it may need.
    body: Body = payload if isinstance(payload, dict) else {"messages": payload, "toolConfig": {"tools": [{}]}}
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["BR-4 messages: at least one message is needed"]
    shape = [fault for index, message in enumerate(messages) for fault in _shape(f"messages.{index}", message)]
    shape += _system_shape(body.get("system"))
    if shape:
        return shape
    return [fault for check in CHECKS for fault in check(body)]


def _model(body: Body) -> str:
    return str(body.get("modelId") or "")


def _shape(path: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or message.get("role") not in ALLOWED:
        yield f"BR-7 {path}.role: expected one of {tuple(ALLOWED)}"
        return
    yield from (f"BR-7 {path}.{key}: unknown parameter" for key in message.keys() - {"role", "content"})
    content = message.get("content")
    if not isinstance(content, list) or not content:
        yield f"BR-6 {path}.content: at least one block is needed"
        return
    for at, block in enumerate(content):
        yield from _block_shape(f"{path}.content.{at}", block, message["role"])
    if all(isinstance(block, dict) and "cachePoint" in block for block in content):
        yield f"BR-6 {path}.content: a cache point alone is no content"


def _block_shape(path: str, block: Any, role: str) -> Iterator[str]:
    if not isinstance(block, dict) or len(block) != 1 or next(iter(block)) not in ALLOWED[role]:
        found = sorted(block) if isinstance(block, dict) else block
        yield f"BR-7 {path}: expected exactly one block that a {role} may send, got {found}"
        return
    ((kind, value),) = block.items()
    if kind == "text" and (not isinstance(value, str) or not value.strip()):
        yield f"BR-6 {path}.text: must be non-empty"
    elif kind == "toolUse":
        yield from _use_shape(path, value)
    elif kind == "toolResult":
        yield from _result_shape(path, value)
    elif kind == "reasoningContent":
        yield from _reasoning_shape(path, value)


def _use_shape(path: str, use: Any) -> Iterator[str]:
    if not TOOL_ID.fullmatch(str(use.get("toolUseId", ""))):
        yield f"BR-7 {path}.toolUse.toolUseId: expected 1 to 64 of [a-zA-Z0-9_.:-]"
    if not TOOL_NAME.fullmatch(str(use.get("name", ""))):
        yield f"BR-7 {path}.toolUse.name: expected 1 to 64 of [a-zA-Z0-9_-]"
    if not isinstance(use.get("input"), dict):
        yield f"BR-7 {path}.toolUse.input: expected an object"
    yield from (
        f"BR-7 {path}.toolUse.{key}: unknown parameter" for key in use.keys() - {"toolUseId", "name", "input", "type"}
    )


def _result_shape(path: str, result: Any) -> Iterator[str]:
    if not TOOL_ID.fullmatch(str(result.get("toolUseId", ""))):
        yield f"BR-7 {path}.toolResult.toolUseId: expected 1 to 64 of [a-zA-Z0-9_.:-]"
    if result.get("status", "success") not in ("success", "error"):
        yield f"BR-7 {path}.toolResult.status: expected success or error"
    unknown = result.keys() - {"toolUseId", "content", "status", "type"}
    yield from (f"BR-7 {path}.toolResult.{key}: unknown parameter" for key in unknown)
    content = result.get("content")
    if not isinstance(content, list):
        yield f"BR-7 {path}.toolResult.content: required"
        return
    if not content and result.get("status") == "error":
        yield f"BR-6 {path}.toolResult.content: cannot be empty when status is error"
    for at, block in enumerate(content):
        if not isinstance(block, dict) or len(block) != 1 or not block.keys() <= RESULT_BLOCKS:
            yield f"BR-7 {path}.toolResult.content.{at}: expected exactly one of {sorted(RESULT_BLOCKS)}"
        elif "text" in block and not str(block["text"]).strip():
            yield f"BR-6 {path}.toolResult.content.{at}.text: must be non-empty"


def _reasoning_shape(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"reasoningText", "redactedContent"}:
        yield f"BR-7 {path}.reasoningContent: expected reasoningText or redactedContent"
    elif not value.get("redactedContent") and not isinstance((value.get("reasoningText") or {}).get("text"), str):
        yield f"BR-7 {path}.reasoningContent: expected text or redacted bytes"


def _system_shape(system: Any) -> Iterator[str]:
    for index, block in enumerate(system or []):
        if not isinstance(block, dict) or len(block) != 1:
            yield f"BR-7 system.{index}: expected exactly one block"
        elif "text" in block and not str(block["text"]).strip():
            yield f"BR-6 system.{index}.text: must be non-empty"


def _values(message: Message, kind: str) -> list[Any]:
    return [block[kind] for block in message["content"] if kind in block]


def _client_uses(message: Message) -> list[str]:
    return [use["toolUseId"] for use in _values(message, "toolUse") if use.get("type") != "server_tool_use"]


def _results(message: Message) -> list[str]:
    return [result["toolUseId"] for result in _values(message, "toolResult")]


def _only_results(message: Message) -> bool:
    return all(block.keys() <= {"toolResult", "cachePoint"} for block in message["content"])


def _check_turns(body: Body) -> Iterator[str]:
    """Check alternation; a mid-conversation system message (BR-7) keeps the places that AN-22 gives it."""
    messages = body["messages"]
    spoken = [(index, message["role"]) for index, message in enumerate(messages) if message["role"] != "system"]
    if not spoken or spoken[0][1] != "user" or spoken[-1][1] != "user":
        yield "BR-4 messages: the conversation must start and end with a user message"
    for (_, earlier), (index, later) in pairwise(spoken):
        if earlier == later:
            yield f"BR-4 messages.{index}: two {later} messages in a row"
    for index, message in enumerate(messages):
        if message["role"] != "system":
            continue
        after = messages[index + 1]["role"] if index + 1 < len(messages) else "assistant"
        if not index or messages[index - 1]["role"] != "user" or after != "assistant":
            yield f"BR-4 messages.{index}: a system message must be between a user and an assistant turn"


def _check_pairs(body: Body) -> Iterator[str]:
    previous: list[str] = []
    for index, message in enumerate(body["messages"]):
        results = _results(message) if message["role"] == "user" else []
        for id_ in previous:
            if id_ not in results:
                yield f"BR-1 messages.{index}: expected a toolResult for {id_!r}"
        for id_, count in Counter(results).items():
            if id_ not in previous or count > 1:
                yield f"BR-2 messages.{index}: toolResult {id_!r} exceeds the toolUses of the previous turn"
        kinds = ["toolResult" in block for block in message["content"]]
        if message["role"] == "user" and any(later and not earlier for earlier, later in pairwise(kinds)):
            yield f"BR-1 messages.{index}: toolResult blocks must be at the beginning"
        previous = _client_uses(message)
    if previous:
        yield f"BR-1 messages: no toolResult at the end for {previous}"


def _check_server_uses(body: Body) -> Iterator[str]:
    """A server tool use is answered inside its own assistant message."""
    for index, message in enumerate(body["messages"]):
        if message["role"] != "assistant":
            continue
        opened: set[str] = set()
        for block in message["content"]:
            if block.get("toolUse", {}).get("type") == "server_tool_use":
                opened.add(block["toolUse"]["toolUseId"])
            elif "toolResult" in block:
                if block["toolResult"]["toolUseId"] not in opened:
                    yield f"BR-2 messages.{index}: server toolResult without its toolUse before it"
                opened.discard(block["toolResult"]["toolUseId"])
        if opened:
            yield f"BR-1 messages.{index}: server toolUse without result: {sorted(opened)}"


def _check_ids(body: Body) -> Iterator[str]:
    ids = Counter(use["toolUseId"] for message in body["messages"] for use in _values(message, "toolUse"))
    for id_, count in ids.items():
        if count > 1:
            yield f"BR-7 messages: toolUseId {id_!r} is used {count} times"


def _check_tool_config(body: Body) -> Iterator[str]:
    tools = any(_values(message, "toolUse") or _results(message) for message in body["messages"])
    if tools and not (body.get("toolConfig") or {}).get("tools"):
        yield "BR-3 toolConfig: must be defined when using toolUse and toolResult blocks"


def _check_mixing(body: Body) -> Iterator[str]:
    model = _model(body)
    for index, message in enumerate(body["messages"]):
        mixed = _results(message) and not _only_results(message) and message["role"] == "user"
        if mixed and model and not MIXING_MODELS.search(model):
            yield f"BR-5 messages.{index}: conversation and tool result blocks in one turn"


def _check_reasoning(body: Body) -> Iterator[str]:
    if _model(body) and not SIGNING_MODELS.search(_model(body)):
        return
    for index, message in enumerate(body["messages"]):
        for value in _values(message, "reasoningContent"):
            if "reasoningText" in value and not value["reasoningText"].get("signature"):
                yield f"BR-8 messages.{index}: reasoningText without its signature"


def _check_thinking_start(body: Body) -> Iterator[str]:
    """Manual thinking on an open tool round: the turn must start with reasoning, as on Claude's own API (AN-12)."""
    thinking = (body.get("additionalModelRequestFields") or {}).get("thinking") or {}
    messages = body["messages"]
    if thinking.get("type") != "enabled" or not _results(messages[-1]):
        return
    inner = messages[:-1]
    start = max((i for i, m in enumerate(inner) if m["role"] == "user" and not _only_results(m)), default=-1) + 1
    first = next((m for m in inner[start:] if m["role"] == "assistant"), None)
    if first is None or "reasoningContent" not in first["content"][0]:
        yield f"BR-8 messages.{start}: with manual thinking the open turn must start with reasoningContent"


def _check_cache_points(body: Body) -> Iterator[str]:
    places = [body.get("system") or [], (body.get("toolConfig") or {}).get("tools") or []]
    places += [message["content"] for message in body["messages"]]
    count = sum("cachePoint" in block for place in places for block in place)
    if count > MAX_CACHE_POINTS:
        yield f"BR-8 messages: {count} cache points, at most {MAX_CACHE_POINTS}"


CHECKS = (
    _check_turns,
    _check_pairs,
    _check_server_uses,
    _check_ids,
    _check_tool_config,
    _check_mixing,
    _check_reasoning,
    _check_thinking_start,
    _check_cache_points,
)

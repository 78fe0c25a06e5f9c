"""Judge of rewritten histories: is every signed blob still where its signature is valid?

A single body cannot show this, so the original is needed too; the one invariant is that a blob is byte-identical to
one in the original or is reported.

Rules by format. Anthropic and Bedrock bind a block to everything before it, so what is kept must be one unbroken run
of the original blocks, each after an unchanged prefix (AN-14, AN-15, BR-8). OpenAI drops reasoning silently when the
prefix changed, so there only the pairing with the produced item counts. Gemini signatures bind their own part alone.

Choice: joining two user messages into one counts as a change, though the provider combines them itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from tests.judges import gemini
from tests.judges.openai_responses import is_model_item, type_of

Body: TypeAlias = dict[str, Any]
Payload: TypeAlias = Body | list[Any]

BLOB_KEYS = frozenset(["signature", "encrypted_content", "thoughtSignature", "redactedContent"])
# Arguments and results of tools are the user's data, for any names of their keys.
DATA_KEYS = frozenset(["input", "args", "response", "json", "arguments", "tools"])
SENTINELS = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
LISTS = {"openai-responses": "input", "gemini": "contents"}
EDITED = {"openai-chat": "DS-1", "openai-responses": "OR-6", "anthropic": "AN-13", "gemini": "GE-5", "bedrock": "BR-8"}


class Bound(NamedTuple):
    """A thinking block as text, its message index, and a digest of everything before it except thinking."""

    at: int
    block: str
    prefix: str


def judge_rewrite(before: Payload, after: Payload, format: str) -> list[str]:
    """Return a fault for each signed blob in ``after`` that the original ``before`` does not bear out."""
    key = LISTS.get(format, "messages")
    old: Body = before if isinstance(before, dict) else {key: before}
    new: Body = after if isinstance(after, dict) else {key: after}
    known = {*_blobs(old.get(key)), *SENTINELS}
    edited = [blob for blob in _blobs(new.get(key)) if blob not in known]
    faults = [f"{EDITED[format]} {key}: blob {blob[:24]!r} is not in the original" for blob in edited]
    return faults + list(RULES[format](old, new))


def _blobs(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _blobs(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            opaque = key in BLOB_KEYS or (key == "data" and value.get("type") == "redacted_thinking")
            if opaque and isinstance(inner, str):
                yield inner
            elif key not in DATA_KEYS:
                yield from _blobs(inner)


def _is_thinking(block: Any) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking") or "reasoningContent" in block


def _plain(content: Any) -> list[Any]:
    """Return content as blocks without cache marks, so that moving a breakpoint is no change (section 3b)."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    kept = [block for block in content or [] if "cachePoint" not in block]
    return [_unmarked(block) for block in kept]


def _unmarked(block: Body) -> Body:
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    if bare.get("type") in ("tool_result", "mcp_tool_result"):
        bare["content"] = _plain(bare.get("content"))
    return bare


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _bound(body: Body) -> list[Bound]:
    found: list[Bound] = []
    passed = sha256()
    for index, message in enumerate(body["messages"]):
        passed.update(f"\n{message['role']}:".encode())
        for block in _plain(message.get("content")):
            if _is_thinking(block):
                found.append(Bound(index, _text(block), passed.hexdigest()))
            else:
                passed.update(_text(block).encode())
    return found


def _judge_bound(old: Body, new: Body) -> Iterator[str]:
    """Check a format that binds thinking to its prefix."""
    yield from _latest_turn(old, new)
    kept, original = _bound(new), _bound(old)
    if not kept or _drops_mismatches(new):
        return
    for name in ("system", "tools", "toolConfig"):
        if _head(old.get(name)) != _head(new.get(name)):
            yield f"AN-14 {name}: changed while thinking is kept"
    known = {bound.block for bound in original}
    placed = {(bound.block, bound.prefix) for bound in original}
    for bound in kept:
        if bound.block not in known:
            yield f"AN-13 messages.{bound.at}: a thinking block was edited"
        elif (bound.block, bound.prefix) not in placed:
            yield f"AN-14 messages.{bound.at}: a thinking block follows a changed prefix"
    blocks, all_blocks = [bound.block for bound in kept], [bound.block for bound in original]
    starts = range(len(all_blocks) - len(blocks) + 1)
    if not any(all_blocks[at : at + len(blocks)] == blocks for at in starts):
        yield "AN-15 messages: the kept thinking blocks are not an unbroken run of the original"


def _drops_mismatches(body: Body) -> bool:
    thinking = body.get("thinking") or (body.get("additionalModelRequestFields") or {}).get("thinking") or {}
    return (thinking.get("block_binding") or {}).get("prefix_mismatch_behavior") == "drop_block"


def _head(value: Any) -> Any:
    """Return system or tools as far as they count for binding; deferred tools may come and go."""
    if isinstance(value, dict):
        return _head(value.get("tools"))
    if value is None or isinstance(value, str):
        return _plain(value or [])
    return [block for block in _plain(value) if not block.get("defer_loading")]


def _latest_turn(old: Body, new: Body) -> Iterator[str]:
    """The thinking of the latest assistant message is kept or removed as a whole (AN-11)."""
    latest = [next((m for m in reversed(body["messages"]) if m["role"] == "assistant"), None) for body in (old, new)]
    if latest[0] is None or latest[1] is None:
        return
    was, now = (_plain(message["content"]) for message in latest if message)
    if [b for b in was if not _is_thinking(b)] != [b for b in now if not _is_thinking(b)]:
        return
    if any(_is_thinking(block) for block in now) and now != was:
        yield "AN-11 messages: thinking of the latest assistant message was modified"


def _runs(items: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Yield each model item with its index and the last reasoning before it in its run."""
    reasoning = None
    for index, item in enumerate(items):
        if not is_model_item(item):
            reasoning = None
        elif type_of(item) == "reasoning":
            reasoning = item
        else:
            yield index, item, reasoning


def _produced(item: Any) -> Any:
    """Return what identifies an item after its server id may have been stripped."""
    return item.get("call_id") or {key: value for key, value in item.items() if key not in ("id", "status", "type")}


def _judge_responses(old: Body, new: Body) -> Iterator[str]:
    if isinstance(old["input"], str) or isinstance(new["input"], str):
        return
    needs = {item["id"]: reasoning for _, item, reasoning in _runs(old["input"]) if item.get("id")}
    for index, item, reasoning in _runs(new["input"]):
        wanted = needs.get(item.get("id"))
        if wanted is not None and type_of(item) in ("message", "function_call") and reasoning != wanted:
            yield f"OR-3 input[{index}]: {item['id']!r} has lost its reasoning item"
    made = {item["id"]: _produced(following) for item, following in _followed(old["input"]) if following}
    original = {_text(item) for item in old["input"]}
    for item, following in _followed(new["input"]):
        if item["id"] in made and (following is None or _produced(following) != made[item["id"]]):
            yield f"OR-4 input: reasoning {item['id']!r} is not followed by the item it produced"
        if _text(item) not in original:
            yield f"OR-6 input: reasoning {item['id']!r} was edited"


def _followed(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    following = None
    for item in reversed(items):
        if type_of(item) == "reasoning":
            yield item, following
        else:
            following = item


def _judge_gemini(old: Body, new: Body) -> Iterator[str]:
    """A signed part is unchanged: it is neither merged with another part nor refilled (GE-5)."""
    signed = {_text(part) for content in old["contents"] for part in content["parts"] if "thoughtSignature" in part}
    for index, content in enumerate(new["contents"]):
        for part in content["parts"]:
            signature = part.get("thoughtSignature")
            if signature is not None and signature not in SENTINELS and _text(part) not in signed:
                yield f"GE-5 contents[{index}]: a signed part was changed"
    yield from (fault for fault in gemini.judge(new) if fault.startswith("GE-4"))


def _judge_chat(old: Body, new: Body) -> Iterator[str]:
    """Chat reasoning is not signed, but it must be sent back unchanged or as an empty string (DS-1)."""
    said = {message.get("reasoning_content") for message in old["messages"]} | {""}
    for index, message in enumerate(new["messages"]):
        if "reasoning_content" in message and message["reasoning_content"] not in said:
            yield f"DS-1 messages[{index}]: reasoning_content was edited"


RULES: dict[str, Callable[[Body, Body], Iterator[str]]] = {
    "openai-chat": _judge_chat,
    "openai-responses": _judge_responses,
    "anthropic": _judge_bound,
    "gemini": _judge_gemini,
    "bedrock": _judge_bound,
}

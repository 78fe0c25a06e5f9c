"""Features of Anthropic requests that interact with compaction: cache marks and the ``clear_tool_uses`` edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from kompakt.gateway.request.body import RequestBody, decode_item, parse_items
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.json import encode
from kompakt.model.messages import Json, JsonObject

_MARK = b'"cache_control"'

# --- Cache marks ---


def move_cache_mark(chain: HashChain, at: int, sent: Sequence[bytes]) -> Sequence[bytes]:
    """Move the newest cache mark of the first ``at`` items to the last of the items ``sent`` in their place.

    Anthropic accepts at most four marks, so the gateway never adds one. A mark is not part of the cached content, so
    moving it does not change the prefix.
    """
    request = chain.request
    start, end = request.spans[chain.lead][0], request.spans[at - 1][1]
    if request.format != "anthropic" or not sent or request.body.find(_MARK, start, end) < 0:
        return sent
    for index in range(at - 1, chain.lead - 1, -1):
        if _MARK in request.item(index):
            mark = _mark_of(decode_item(request.item(index)))
            if mark is not None:
                return [*sent[:-1], encode(_with_mark(decode_item(sent[-1]), mark))]
    return sent


def without_cache_marks(item: Json) -> Json:
    """Copy an item without its cache marks."""
    if not isinstance(item, dict):
        return item
    copy = {name: value for name, value in item.items() if name != "cache_control"}
    if isinstance(copy.get("content"), list):
        copy["content"] = [without_cache_marks(block) for block in copy["content"]]
    return copy


def _blocks(item: Json) -> list[Json]:
    content = cast("JsonObject", item).get("content") if isinstance(item, dict) else None
    return cast("list[Json]", content) if isinstance(content, list) else []


def _mark_of(item: Json) -> Json:
    """Return the newest mark on an item's blocks."""
    for block in reversed(_blocks(item)):
        if isinstance(block, dict) and block.get("cache_control"):
            return block["cache_control"]
    return None


def _with_mark(item: JsonObject, mark: Json) -> JsonObject:
    content = item.get("content")
    if isinstance(content, str):
        return {**item, "content": [{"type": "text", "text": content, "cache_control": mark}]} if content else item
    blocks = _blocks(item)
    if not blocks or not isinstance(blocks[-1], dict) or blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        return item
    return {**item, "content": [*blocks[:-1], {**blocks[-1], "cache_control": mark}]}


# --- The clear_tool_uses edit ---
# https://platform.claude.com/docs/en/build-with-claude/context-editing

CLEARS_AT = 100_000
"""Input tokens at which the edit starts when it names no trigger."""

KEEPS = 3
"""Tool uses that the edit keeps when it names no number."""


class ToolClearing(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a ``clear_tool_uses`` edit."""

    tokens: int | None
    """Input tokens above which it starts; ``None`` when the number of tool uses decides."""
    uses: int
    """Tool uses above which it starts."""
    keep: int
    excluded: frozenset[str]


def tool_clearing(request: RequestBody) -> ToolClearing | None:
    """Return the ``clear_tool_uses`` edit of a request, if it has one."""
    context = request.field("context_management")
    edits = cast("JsonObject", context).get("edits") if isinstance(context, dict) else None
    for edit in cast("list[Json]", edits) if isinstance(edits, list) else ():
        fields = cast("JsonObject", edit) if isinstance(edit, dict) else {}
        if str(fields.get("type")).startswith("clear_tool_uses_"):
            kind, at = _counted(fields.get("trigger"), CLEARS_AT)
            names = fields.get("exclude_tools")
            return ToolClearing(
                tokens=None if kind == "tool_uses" else at,
                uses=at if kind == "tool_uses" else 0,
                keep=_counted(fields.get("keep"), KEEPS)[1],
                excluded=frozenset(map(str, cast("list[Json]", names))) if isinstance(names, list) else frozenset(),
            )
    return None


def _counted(value: Json, default: int) -> tuple[str, int]:
    fields = cast("JsonObject", value) if isinstance(value, dict) else {}
    number = fields.get("value")
    return str(fields.get("type")), number if isinstance(number, int) else default


def cleared_tokens(chain: HashChain, start: int, sent: int, clearing: ToolClearing) -> int:
    """Count the tokens that the provider clears from the items after ``start`` of a request of ``sent`` tokens.

    Raises:
        InputError: an item is not a message.
    """
    indices = range(start, chain.length)
    messages = parse_items([decode_item(chain.request.item(index)) for index in indices], chain.request.format)
    names = {call.id: call.name for message in messages for call in message.calls}
    results = [
        (names.get(result.call_id, ""), chain.cost(index, index + 1) // len(message.parts))
        for index, message in zip(indices, messages, strict=True)
        for result in message.results
    ]
    if sent <= clearing.tokens if clearing.tokens is not None else len(results) <= clearing.uses:
        return 0
    old = results[: max(0, len(results) - clearing.keep)]
    return sum(tokens for name, tokens in old if name not in clearing.excluded)

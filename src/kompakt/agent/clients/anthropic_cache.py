"""Cache breakpoints: without them Anthropic caches nothing, and every step pays for the whole prompt again.

At most three of the four that a request may carry: the end of what never changes, the end of the last request, which is
where its cache was written, and the end of this one. They move with the conversation and are on no stored message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from kompakt.agent.clients.base import fields, objects
from kompakt.model.messages import Json, JsonObject

MARK = {"type": "ephemeral"}
_NEVER = ("thinking", "redacted_thinking")
"""Blocks that carry no breakpoint (AN-24); nor does an empty text."""


def with_breakpoints(body: JsonObject) -> JsonObject:
    """Mark where the cache is read and written; a request that says so itself is left as it is.

    A request with one message and no tools is not gone on with, so caching it would only cost.
    """
    messages = objects(body.get("messages"))
    if not messages or (len(messages) == 1 and not body.get("tools")) or _is_marked(body, messages):
        return body
    marked = {**body, "messages": _marked(messages, asks_only=body.get("compaction") is not None)}
    if body.get("system"):
        return {**marked, "system": _at_end(body["system"]) or body["system"]}
    return {**marked, "tools": _last_marked(objects(body["tools"]))} if body.get("tools") else marked


def _marked(messages: list[JsonObject], *, asks_only: bool) -> list[JsonObject]:
    """Mark the last message of the user's and the one before the last answer; to ask only, the earlier alone."""
    ends = list(_ends(messages))
    wanted = set(ends[1:] if asks_only else ends)
    out = list(messages)
    for at in wanted:
        content = _at_end(messages[at].get("content"))
        if content is not None:
            out[at] = {**messages[at], "content": content}
    return out


def _ends(messages: list[JsonObject]) -> Iterator[int]:
    """Find where this request ends, and where the one before it did."""
    at = len(messages) - 1
    yield at
    while at >= 0 and messages[at].get("role") != "assistant":
        at -= 1
    while at >= 0 and messages[at].get("role") == "assistant":
        at -= 1
    if at >= 0:
        yield at


def _at_end(content: Json) -> list[JsonObject] | None:
    """Mark the last block of some content that can be marked; a text counts as its single block."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)
    able = [n for n, block in enumerate(blocks) if block.get("type") not in _NEVER and block.get("text") != ""]
    return _last_marked(blocks, able[-1]) if able else None


def _last_marked(blocks: list[JsonObject], at: int = -1) -> list[JsonObject]:
    out = list(blocks)
    out[at] = {**blocks[at], "cache_control": MARK}
    return out


def _is_marked(body: JsonObject, messages: list[JsonObject]) -> bool:
    if body.get("cache_control"):
        return True
    listed = [*objects(body.get("tools")), *objects(body.get("system"))]
    inner = (block for message in messages for block in _blocks(message))
    return any("cache_control" in block for block in listed) or any("cache_control" in block for block in inner)


def _blocks(message: JsonObject) -> list[Any]:
    content = message.get("content")
    return [fields(block) for block in cast("list[Any]", content)] if isinstance(content, list) else []

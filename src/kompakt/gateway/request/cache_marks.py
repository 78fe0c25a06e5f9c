"""Cache marks stay as many as the client set: those on messages that a pivot replaces move to the pivot's end.

Anthropic takes at most four. A mark is no part of what is cached, so moving one breaks no prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kompakt.gateway.request.digests import decode_item
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.messages import Json, JsonObject
from kompakt.store.codec import encode

_MARK = b'"cache_control"'


def move_cache_mark(chain: HashChain, at: int, sent: Sequence[bytes]) -> Sequence[bytes]:
    """Put the newest mark of the replaced items on the last of those that are sent instead."""
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

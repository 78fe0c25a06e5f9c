"""Anthropic's ``clear_tool_uses`` edit: how much of a request the provider clears by itself.

The edit removes old outputs of tools and nothing else, so it keeps some histories within the window and not others.
Only what it leaves counts against the trigger.
"""

from __future__ import annotations

from typing import cast

import msgspec

from kompakt.gateway.request.body import RequestBody
from kompakt.gateway.request.digests import decode_item, parse_items
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.messages import Json, JsonObject

CLEARS_AT = 100_000
"""Input tokens at which the edit starts when it names no trigger."""

KEEPS = 3
"""Tool uses that it keeps when it does not say how many."""


class ToolClearing(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit asks for."""

    tokens: int | None
    """Input tokens above which it starts; ``None`` when the number of tool uses decides."""
    uses: int
    """Tool uses above which it starts."""
    keep: int
    excluded: frozenset[str]


def tool_clearing(request: RequestBody) -> ToolClearing | None:
    """Read the edit of a request; ``None`` when there is none."""
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
    """Count the tokens of tool results, from an item on, that the provider clears from a request of this size.

    Raises:
        InputError: an item is no message.
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

"""Translate a history into another provider's format.

Parts that the target cannot express are left out and listed as ``Drop`` values, so the caller can decide whether the
loss matters. Reasoning is always dropped: no provider accepts another provider's signature.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kompakt.model.messages import (
    History,
    Json,
    JsonObject,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from kompakt.wire.wire import Wire


class Drop(msgspec.Struct, frozen=True):
    """Something a conversion left out."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def translate(history: History, wire: Wire) -> tuple[Json, list[Drop]]:
    """Return a payload in the target's format and what was left out."""
    drops: list[Drop] = []
    system = _neutral(history.system, drops)
    messages = _neutral(history, drops)
    if wire.contract.system_in_messages:
        messages = [*system, *messages]
    else:
        system += [message for message in messages if message.role == "system"]
        messages = [message for message in messages if message.role != "system"]
    items = [item for message in messages for item in wire.render(message)]
    if history.tools:
        drops.append(Drop("tools", f"{len(history.tools)} tool definitions, which have another shape there"))
    if history.body is None and not system:
        return items, drops
    body: JsonObject = {wire.model_key: history.model} if history.model else {}
    prompt = "\n\n".join(message.text for message in system if message.text)
    if prompt and not wire.contract.system_in_messages:
        body |= wire.system_fields(prompt)
    return {**body, wire.messages_key: items}, drops


def _neutral(messages: Iterable[Message], drops: list[Drop]) -> list[Message]:
    """Remove the wire form from messages, so that any provider's module can render them."""
    converted: list[Message] = []
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        names.update((call.id, call.name) for call in message.calls)
        parts = [_neutral_part(part, names, f"messages[{i}].parts[{j}]", drops) for j, part in enumerate(message.parts)]
        kept = tuple(part for part in parts if part is not None)
        if kept or not message.parts:
            converted.append(msgspec.structs.replace(message, parts=kept, raw=None, edited=False))
    return converted


def _neutral_part(part: Part, names: dict[str, str], path: str, drops: list[Drop]) -> Part | None:
    if type(part) is Reasoning:
        drops.append(Drop(path, "reasoning, which only its own provider accepts"))
        return None
    if type(part) is Opaque:
        drops.append(Drop(path, f"a part of type {part.type!r}, which has no equivalent"))
        return None
    if type(part) is ToolCall and part.hosted:
        drops.append(Drop(path, f"a call of {part.name!r} that the provider itself ran"))
        return None
    if type(part) is ToolResult:
        if part.hosted:
            drops.append(Drop(path, "a result of a tool that the provider itself ran"))
            return None
        media = tuple(msgspec.structs.replace(item, raw=None) for item in part.media)
        name = part.name or names.get(part.call_id)
        return msgspec.structs.replace(part, raw=None, edited=False, media=media, name=name)
    if isinstance(part, Text | Media | ToolCall):
        return msgspec.structs.replace(part, raw=None)
    return part

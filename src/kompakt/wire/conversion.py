"""Say a history in another provider's words.

What the target has no word for is left out and listed, never silently: a caller decides whether the loss matters.
Reasoning does not travel: no provider accepts another's proof of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kompakt.model.messages import Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult


class Drop(msgspec.Struct, frozen=True):
    """Something a conversion left out."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def neutral(messages: Iterable[Message], drops: list[Drop]) -> list[Message]:
    """Free messages of their wire form, so that any provider's module can write them."""
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

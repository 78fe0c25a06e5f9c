"""Translate a whole request: its messages in another provider's words, in that provider's body."""

from __future__ import annotations

from kompakt.model.messages import History, Json, JsonObject
from kompakt.wire.conversion import Drop, neutral
from kompakt.wire.wire import Wire


def translate(history: History, wire: Wire) -> tuple[Json, list[Drop]]:
    """Say a history in the words of another wire; return what that has no words for beside it."""
    drops: list[Drop] = []
    system = neutral(history.system, drops)
    spoken = neutral(history, drops)
    if wire.contract.system_in_messages:
        spoken = [*system, *spoken]
    else:
        system += [message for message in spoken if message.role == "system"]
        spoken = [message for message in spoken if message.role != "system"]
    items = [item for message in spoken for item in wire.render(message)]
    if history.tools:
        drops.append(Drop("tools", f"{len(history.tools)} tool definitions, which have another shape there"))
    if history.body is None and not system:
        return items, drops
    return _envelope(wire, items, [message.text for message in system], history.model), drops


def _envelope(wire: Wire, items: list[Json], system: list[str], model: str | None) -> JsonObject:
    """Put translated messages into the target's body."""
    body: JsonObject = {}
    if model:
        body["modelId" if wire.format == "bedrock" else "model"] = model
    text = "\n\n".join(filter(None, system))
    if text and not wire.contract.system_in_messages:
        shapes: dict[str, tuple[str, Json]] = {
            "anthropic": ("system", text),
            "gemini": ("systemInstruction", {"parts": [{"text": text}]}),
            "bedrock": ("system", [{"text": text}]),
        }
        key, value = shapes[wire.format]
        body[key] = value
    return {**body, wire.messages_key: items}

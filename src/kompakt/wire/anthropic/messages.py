"""Parse and render Anthropic messages.

Invariant: parts and content blocks correspond one to one, so the index of a part is that of its block. Thinking stays
byte-equal or is removed as a whole; nothing here edits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from kompakt.errors import MalformedPayload
from kompakt.model.contract import Contract, IdRule
from kompakt.model.messages import (
    History,
    Json,
    JsonObject,
    Marker,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    text_of,
)
from kompakt.model.phrases import MARKER_QUESTION
from kompakt.wire.fields import an_object, blocks_at, input_object, model_of, text_at

FORMAT = "anthropic"

MAX_BREAKPOINTS = 4
"""Cache breakpoints in tools, system and messages together (AN-24)."""

CONTRACT = Contract(
    format=FORMAT,
    results="next-user-message",
    alternates=True,
    prefix_rule="strip-all",
    # AN-7 documents the characters but no length; Bedrock accepts 64 for the same ids.
    ids=IdRule(pattern=r"[a-zA-Z0-9_-]+", max_length=64, scope="request"),
    system_in_messages=False,
    max_messages=100_000,
)

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_MEDIA = {"image": "image", "document": "document"}
HOSTED_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})

# --- parse -------------------------------------------------------------------------------------------------------


def parse(items: Sequence[Json], body: JsonObject | None) -> History:
    """Parse a list of messages and the request body around it.

    Raises:
        MalformedPayload: a value has a type that no message can have there.
    """
    messages = [_parse_message(raw, index) for index, raw in enumerate(items)]
    system = (body or {}).get("system")
    prompt: list[Message] = []
    if isinstance(system, str):
        prompt = [Message("system", (Text(system),))]
    elif system is not None:
        blocks = blocks_at(body or {}, "system", "body")
        prompt = [Message("system", tuple(parse_block(block, f"system[{j}]") for j, block in enumerate(blocks)))]
    tools = blocks_at(body or {}, "tools", "body")
    return History(
        messages, format=FORMAT, body=body, system=prompt, tools=tools, model=model_of(body), contract=CONTRACT
    )


def _parse_message(raw: Json, index: int) -> Message:
    path = f"messages[{index}]"
    an_object(raw, path)
    name = raw.get("role")
    if type(name) is not str:
        raise MalformedPayload(f"{path}.role", "a string", name)
    role = ROLES.get(name)
    if role is None:
        return Message("user", (Opaque(f"role {name}", raw),), None, raw)
    content = raw.get("content")
    if type(content) is str:
        return Message(role, (Text(content),) if content else (), None, raw)
    blocks = blocks_at(raw, "content", path)
    parts = tuple([parse_block(block, f"{path}.content[{j}]") for j, block in enumerate(blocks)])
    return Message(role, parts, None, raw)


def parse_block(block: JsonObject, path: str) -> Part:
    """Parse one content block."""
    kind = text_at(block, "type", path)
    if kind == "text":
        return Text(text_at(block, "text", path), block)
    if kind == "tool_use" or kind in HOSTED_CALLS:
        call_id, name = text_at(block, "id", path), text_at(block, "name", path)
        caller = block.get("caller")
        fixed = type(caller) is dict and caller.get("type") != "direct"  # called by code that runs on the server
        return ToolCall(call_id, name, block.get("input"), kind != "tool_use", raw=block, fixed=fixed)
    if kind.endswith("tool_result"):
        return _parse_result(block, path)
    if kind == "thinking":
        return Reasoning(text_at(block, "thinking", path), text_at(block, "signature", path) or None, raw=block)
    if kind == "redacted_thinking":
        return Reasoning("", text_at(block, "data", path) or None, True, block)
    if kind in _MEDIA and type(block.get("source")) is dict:
        return _parse_media(block)
    return Opaque(kind, block)


def _is_media(block: JsonObject) -> bool:
    kind = block.get("type")
    return type(kind) is str and kind in _MEDIA and type(block.get("source")) is dict


def _parse_result(block: JsonObject, path: str) -> ToolResult:
    content = block.get("content")
    if content is not None and not isinstance(content, str | list | dict):
        raise MalformedPayload(f"{path}.content", "a string or an array", content)
    output = text_of(content)
    media = ()
    if type(content) is list:
        inner = blocks_at(block, "content", path)
        media = tuple([_parse_media(b) for b in inner if _is_media(b)])
    hosted = block["type"] != "tool_result"
    return ToolResult(
        text_at(block, "tool_use_id", path),
        output,
        is_error=block.get("is_error") is True,
        media=media,
        hosted=hosted,
        raw=block,
    )


def _parse_media(block: JsonObject) -> Media:
    source: JsonObject = block["source"]
    data, url, mime = source.get("data"), source.get("url"), source.get("media_type")
    return Media(
        "image" if block["type"] == "image" else "document",
        mime if type(mime) is str else None,
        data if type(data) is str else None,
        url if type(url) is str else None,
        raw=block,
    )


# --- render ------------------------------------------------------------------------------------------------------


def render(message: Message) -> list[Json]:
    """Render one message; an unedited one is returned as it was parsed."""
    if message.raw is not None and not message.edited:
        return [message.raw]
    shell: JsonObject = message.raw if type(message.raw) is dict else {}
    role = "user" if message.role == "tool" else message.role
    blocks = [block for part in message.parts if (block := build_block(part)) is not None]
    plain = len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and type(shell.get("content")) is not list
    return [{**shell, "role": role, "content": blocks[0]["text"] if plain else blocks}]


def build_block(part: Part) -> JsonObject | None:
    """Render one content block; ``None`` for reasoning that this provider did not sign."""
    match part:
        case Text(text, raw, edited):
            kept: JsonObject = raw if type(raw) is dict else {}
            return kept if kept and not edited else {**kept, "type": "text", "text": text}
        case ToolCall():
            return part.raw if part.raw is not None and not part.edited else _build_call(part)
        case ToolResult():
            return part.raw if part.raw is not None and not part.edited else _build_result(part)
        case Reasoning():
            return part.raw
        case Media():
            return part.raw if part.raw is not None else _build_media(part)
        case Marker():
            return {"type": "text", "text": MARKER_QUESTION}
        case Opaque():
            return part.raw
        case _:
            assert_never(part)


def _build_call(call: ToolCall) -> JsonObject:
    shell: JsonObject = call.raw if type(call.raw) is dict else {"type": "tool_use"}
    return {**shell, "id": call.id, "name": call.name, "input": input_object(call.input)}


def _build_result(result: ToolResult) -> JsonObject:
    shell: JsonObject = result.raw if type(result.raw) is dict else {"type": "tool_result"}
    block = {**shell, "tool_use_id": result.call_id}
    if shell is not result.raw or text_of(shell.get("content")) != result.output:
        media = [_build_media(part) for part in result.media] if result.raw is None else []
        block["content"] = [{"type": "text", "text": result.output}, *media] if media else result.output
    if result.is_error:
        block["is_error"] = True
    return block


def _build_media(part: Media) -> JsonObject:
    if part.raw is not None:
        return part.raw
    kind = "image" if part.media == "image" else "document"
    if part.url is not None:
        return {"type": kind, "source": {"type": "url", "url": part.url}}
    return {"type": kind, "source": {"type": "base64", "media_type": part.mime, "data": part.data}}

"""Parse and render Bedrock Converse messages; the only key of each block names its kind.

Invariant: an unedited message renders as the object it was parsed from. Signed and redacted reasoning stays whole or
is dropped. Binary data is base64 text in JSON and bytes in boto3; both are accepted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec

from kompakt.errors import MalformedPayload
from kompakt.model.contract import Contract, IdRule
from kompakt.model.json import spaced_json
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
)
from kompakt.model.phrases import MARKER_QUESTION, NO_OUTPUT
from kompakt.wire.fields import an_object, blocks_at, input_object, model_of, text_at

FORMAT = "bedrock"

MAX_ID = 64
"""Characters of a toolUseId and of a tool name (BR-7)."""

MAX_CACHE_POINTS = 4
"""Cache points per request that Claude and Nova accept; Converse itself sets no limit."""

CONTRACT = Contract(
    format=FORMAT,
    results="next-user-message",
    alternates=True,
    prefix_rule="strip-all",
    ids=IdRule(pattern=r"[a-zA-Z0-9_.:-]+", max_length=MAX_ID, scope="request"),
    system_in_messages=False,
)

_APART = msgspec.structs.replace(CONTRACT, merges_results=False)

_MIXES = re.compile(r"anthropic|claude|amazon\.nova")
"""Models that accept other content beside tool results; which others do is not documented (BR-5)."""


def mixes(model: str | None) -> bool:
    """Return whether a model accepts other content beside tool results."""
    return model is None or bool(_MIXES.search(model))


ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

HOSTED = "server_tool_use"
"""The type of a toolUse that Bedrock runs itself; its result is in the same message."""

_MIMES = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "html": "text/html",
    "md": "text/markdown",
    "txt": "text/plain",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

_MediaKind = Literal["image", "audio", "video", "document"]
_MEDIA: dict[str, _MediaKind] = {"image": "image", "audio": "audio", "video": "video", "document": "document"}


# --- parse -------------------------------------------------------------------------------------------------------


def parse(items: Sequence[Json], body: JsonObject | None) -> History:
    """Parse a list of messages and the request body around it.

    Raises:
        MalformedPayload: a value has a type that no message can have there.
    """
    messages = [_parse_message(raw, index) for index, raw in enumerate(items)]
    given: JsonObject = body or {}
    system = [
        Message("system", (_parse_block(block, f"system[{i}]", None),), None, block)
        for i, block in enumerate(blocks_at(given, "system", "body"))
    ]
    tools = blocks_at(an_object(given.get("toolConfig") or {}, "toolConfig"), "tools", "toolConfig")
    model = model_of(body, "modelId", "model")
    contract = CONTRACT if mixes(model) else _APART
    return History(messages, format=FORMAT, body=body, system=system, tools=tools, model=model, contract=contract)


def _parse_message(raw: Json, index: int) -> Message:
    if type(raw) is not dict:
        an_object(raw, f"messages[{index}]")
    name = raw.get("role")
    if type(name) is not str:
        raise MalformedPayload(f"messages[{index}].role", "a string", name)
    role = ROLES.get(name)
    if role is None:
        return Message("user", (Opaque(f"role {name}", raw),), None, raw)
    hosted: set[str] | None = set() if role == "assistant" else None
    path = f"messages[{index}]"
    blocks = blocks_at(raw, "content", path)
    return Message(
        role, tuple([_parse_block(block, f"{path}.content[{j}]", hosted) for j, block in enumerate(blocks)]), None, raw
    )


def kind_of(block: JsonObject) -> str:
    """Return the kind of a block, empty when it has none; some versions of boto3 write unused kinds as null."""
    for key, value in block.items():
        if value is not None:
            return key
    return ""


def _parse_block(block: JsonObject, path: str, hosted: set[str] | None) -> Part:
    """Parse one block; ``hosted`` collects the tool uses of this message that Bedrock runs itself."""
    kind = kind_of(block)
    value: Any = block.get(kind)
    if kind == "text":
        if type(value) is not str:
            raise MalformedPayload(f"{path}.text", "a string", value)
        return Text(value, block)
    if kind == "toolUse":
        return _parse_use(block, an_object(value, f"{path}.toolUse"), f"{path}.toolUse", hosted)
    if kind == "toolResult":
        return _parse_result(block, an_object(value, f"{path}.toolResult"), f"{path}.toolResult", hosted)
    if kind == "reasoningContent":
        return _parse_reasoning(block, an_object(value, f"{path}.reasoningContent"), f"{path}.reasoningContent")
    if kind in _MEDIA:
        return _parse_media(block, kind, an_object(value, f"{path}.{kind}"))
    return Opaque(kind, block)


def _parse_use(block: JsonObject, use: JsonObject, path: str, hosted: set[str] | None) -> ToolCall:
    call_id = text_at(use, "toolUseId", path)
    served = use.get("type") == HOSTED
    if served and hosted is not None:
        hosted.add(call_id)
    return ToolCall(call_id, text_at(use, "name", path), use.get("input"), hosted=served, raw=block)


def _parse_result(block: JsonObject, result: JsonObject, path: str, hosted: set[str] | None) -> ToolResult:
    call_id = text_at(result, "toolUseId", path)
    content = blocks_at(result, "content", path)
    status = result.get("status")
    served = hosted is not None and (call_id in hosted or type(result.get("type")) is str)
    return ToolResult(
        call_id,
        output_of(content),
        is_error=status == "error",
        media=tuple(_parse_media(item, kind, item[kind]) for item in content if (kind := _media_kind(item))),
        hosted=served,
        status=status if type(status) is str else None,
        raw=block,
    )


def output_of(content: Sequence[JsonObject]) -> str:
    """Return the output of a tool: its texts, and its values as JSON."""
    return "\n".join(text for text in map(_output_text, content) if text)


def _output_text(item: JsonObject) -> str:
    text = item.get("text")
    if type(text) is str:
        return text
    return spaced_json(item["json"]) if "json" in item else ""


def _media_kind(item: JsonObject) -> str:
    kind = kind_of(item)
    return kind if kind in _MEDIA and type(item[kind]) is dict else ""


def _parse_reasoning(block: JsonObject, value: JsonObject, path: str) -> Reasoning:
    redacted = value.get("redactedContent")
    if redacted is not None:
        return Reasoning("", redacted if type(redacted) is str else None, redacted=True, raw=block)
    inner = an_object(value.get("reasoningText") or {}, f"{path}.reasoningText")
    signature = inner.get("signature")
    text = text_at(inner, "text", f"{path}.reasoningText")
    return Reasoning(text, signature if type(signature) is str else None, raw=block)


def _parse_media(block: JsonObject, kind: str, value: JsonObject) -> Media:
    ending = str(value.get("format") or "")
    source: Any = value.get("source")
    source = source if type(source) is dict else {}
    data = source.get("bytes")
    if isinstance(data, bytes | bytearray):
        data = base64.b64encode(data).decode()
    location: Any = source.get("s3Location")
    url = location.get("uri") if type(location) is dict else None
    name = value.get("name")
    return Media(
        _MEDIA[kind],
        _MIMES.get(ending, f"{kind}/{ending}") if ending else None,
        data if type(data) is str else None,
        url if type(url) is str else None,
        name=name if type(name) is str else None,
        raw=block,
    )


# --- render ------------------------------------------------------------------------------------------------------


def render(message: Message) -> list[Json]:
    """Render one message; an unedited one is returned as it was parsed.

    A message that Converse cannot express (only reasoning of another provider) gives no message.
    """
    if message.raw is not None and not message.edited:
        return [message.raw]
    content = [wire for wire in map(build_part, message.parts) if wire is not None]
    if not content:
        return []
    if type(message.raw) is dict and "role" in message.raw:
        return [{**message.raw, "content": content}]
    if message.role == "system":
        return content
    return [{"role": "assistant" if message.role == "assistant" else "user", "content": content}]


def build_part(part: Part) -> JsonObject | None:
    """Render one part; ``None`` when Converse cannot express it."""
    match part:
        case Text(text, raw, edited):
            return raw if raw is not None and not edited else {**(raw or {}), "text": text}
        case Media():
            return part.raw if part.raw is not None else _build_media(part)
        case Reasoning() | Opaque():
            return part.raw
        case ToolCall():
            return _build_use(part)
        case ToolResult():
            return _build_result(part)
        case Marker():
            return {"text": MARKER_QUESTION}
        case _:
            assert_never(part)


def _build_use(call: ToolCall) -> JsonObject | None:
    if call.raw is not None and not call.edited:
        return call.raw
    if call.raw is None and call.hosted:
        return None
    use: JsonObject = call.raw["toolUse"] if call.raw is not None else {}
    return {"toolUse": {**use, "toolUseId": call.id, "name": call.name, "input": input_object(call.input)}}


def _build_result(result: ToolResult) -> JsonObject | None:
    if result.raw is not None and not result.edited:
        return result.raw
    if result.raw is None and result.hosted:
        return {"text": result.output} if result.output.strip() else None
    was: JsonObject = result.raw["toolResult"] if result.raw is not None else {}
    built = {**was, "toolUseId": result.call_id}
    if result.raw is None or output_of(was.get("content") or ()) != result.output:
        built["content"] = _build_content(result)
    if result.is_error:
        built["status"] = "error"
    elif was.get("status") == "error":
        built["status"] = "success"
    return {"toolResult": built}


def _build_content(result: ToolResult) -> list[JsonObject]:
    """Build the content of a result with its media; an error needs content (BR-6)."""
    texts = [{"text": result.output}] if result.output.strip() else []
    media = [part.raw if part.raw is not None else _build_media(part) for part in result.media]
    return [*texts, *media] or ([{"text": NO_OUTPUT}] if result.is_error else [])


def _build_media(part: Media) -> JsonObject:
    kind = part.media if part.media in _MEDIA else "document"
    ending = next((name for name, mime in _MIMES.items() if mime == part.mime), (part.mime or "/txt").partition("/")[2])
    source = {"bytes": part.data} if part.data is not None else {"s3Location": {"uri": part.url or ""}}
    named = {"name": part.name or "document"} if kind == "document" else {}
    return {kind: {"format": ending, **named, "source": source}}

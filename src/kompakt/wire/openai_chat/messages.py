"""Parse and render OpenAI Chat Completions messages.

Invariant: an unedited message renders as the object it was parsed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from kompakt.errors import MalformedPayload
from kompakt.model.contract import Contract, IdRule
from kompakt.model.json import compact_json
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
from kompakt.wire.fields import an_array, an_object, blocks_at, data_url, model_of, text_at

FORMAT = "openai-chat"

MAX_ID = 40
"""Characters of a call id (OC-4). Some relays accept 64, the API itself 40."""

CONTRACT = Contract(
    format=FORMAT,
    results="own-message",
    alternates=False,
    prefix_rule="keep-with-calls",
    ids=IdRule(pattern=r"(?s).+", max_length=MAX_ID, scope="message"),
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

# --- parse -------------------------------------------------------------------------------------------------------


def parse(items: Sequence[Json], body: JsonObject | None) -> History:
    """Parse a list of messages and the request body around it.

    Raises:
        MalformedPayload: a value has a type that no message can have there.
    """
    messages = [_parse_message(raw, index) for index, raw in enumerate(items)]
    tools = an_array((body or {}).get("tools") or [], "tools")
    return History(messages, format=FORMAT, body=body, tools=tools, model=model_of(body), contract=CONTRACT)


def _parse_message(raw: Json, index: int) -> Message:
    if type(raw) is not dict:
        an_object(raw, f"messages[{index}]")
    name = raw.get("role")
    role = _ROLES.get(name) if type(name) is str else None
    content = raw.get("content")
    if role == "tool":
        return Message("tool", (_parse_result(raw, content, index),), None, raw)
    if role is None:
        if type(name) is not str:
            raise MalformedPayload(f"messages[{index}].role", "a string", name)
        return Message("user", (Opaque(f"role {name}", raw),), None, raw)
    if type(content) is str:
        parts: tuple[Part, ...] = (Text(content),)
    elif content is None:
        parts = ()
    else:
        parts = tuple(_parse_block(block) for block in blocks_at(raw, "content", f"messages[{index}]"))
    if role == "assistant" and (len(raw) > 2 or content is None):
        parts = _parse_assistant(raw, parts, index)
    return Message(role, parts, None, raw)


def _parse_assistant(raw: JsonObject, parts: tuple[Part, ...], index: int) -> tuple[Part, ...]:
    """Add the parts that only an assistant message has: reasoning, a refusal, calls."""
    reasoning = raw.get("reasoning_content", raw.get("reasoning"))
    if type(reasoning) is str:
        parts = (Reasoning(reasoning), *parts)
    refusal = raw.get("refusal")
    if type(refusal) is str:
        parts = (*parts, Text(refusal, {"type": "refusal", "refusal": refusal}))
    calls = raw.get("tool_calls")
    if calls:
        calls = calls if type(calls) is list else an_array(calls, f"messages[{index}].tool_calls")
        parts = (*parts, *[_parse_call(call, index, number) for number, call in enumerate(calls)])
    if type(raw.get("function_call")) is dict:
        function = raw["function_call"]
        parts = (*parts, ToolCall(str(function.get("name") or ""), str(function.get("name") or ""), raw=function))
    return parts


def _parse_call(call: Json, index: int, number: int) -> ToolCall:
    if type(call) is dict:
        function, call_id = call.get("function"), call.get("id")
        if type(function) is dict and type(call_id) is str and type(name := function.get("name")) is str:
            given = function.get("arguments", function.get("input"))
            # extra content is the signature of a Gemini call
            return ToolCall(call_id, name, given, raw=call, fixed="extra_content" in call)
    path = f"messages[{index}].tool_calls[{number}]"
    call = an_object(call, path)
    kind = "custom" if call.get("custom") is not None and call.get("function") is None else "function"
    function = an_object(call.get(kind) or {}, f"{path}.{kind}")
    given = function.get("arguments", function.get("input"))
    call_id, name = text_at(call, "id", path), text_at(function, "name", f"{path}.{kind}")
    return ToolCall(call_id, name, given, raw=call, fixed="extra_content" in call)


def _parse_result(raw: JsonObject, content: Json, index: int) -> ToolResult:
    call_id = raw.get("tool_call_id")
    if type(call_id) is str and type(content) is str:
        return ToolResult(call_id, content)
    path = f"messages[{index}]"
    if type(call_id) is not str:
        call_id = text_at(raw, "tool_call_id" if raw["role"] == "tool" else "name", path)
    if type(content) is str:
        return ToolResult(call_id, content)
    blocks = blocks_at(raw, "content", path)
    media = tuple(part for part in map(_parse_block, blocks) if type(part) is Media)
    return ToolResult(call_id, text_of(blocks), media=media)


def _parse_block(block: JsonObject) -> Part:
    kind = block.get("type")
    if kind == "text" and type(block.get("text")) is str:
        return Text(block["text"], block)
    if kind == "refusal" and type(block.get("refusal")) is str:
        return Text(block["refusal"], block)
    inner: Any = block.get(kind) if type(kind) is str else None
    if type(inner) is dict:
        if kind == "image_url" and type(inner.get("url")) is str:
            mime, data = data_url(inner["url"])
            return Media("image", mime, data, None if data else inner["url"], inner.get("detail"), raw=block)
        if kind == "input_audio" and type(inner.get("data")) is str:
            return Media("audio", f"audio/{inner.get('format', 'wav')}", inner["data"], raw=block)
        if kind == "file":
            mime, data = data_url(str(inner.get("file_data") or ""))
            return Media("document", mime, data, name=inner.get("filename"), raw=block)
    return Opaque(str(kind), block)


# --- render ------------------------------------------------------------------------------------------------------


def render(message: Message) -> list[Json]:
    """Render one message; an unedited one is returned as it was parsed.

    Several results in one message become several messages, because a tool message has exactly one.
    """
    if message.raw is not None and not message.edited:
        return [message.raw]
    results = [part for part in message.parts if type(part) is ToolResult]
    if message.role != "assistant" and results:
        rest = tuple(part for part in message.parts if type(part) is not ToolResult)
        shell = message.raw if message.role == "tool" else None
        if shell is None:  # a tool message takes only text, so media follow in a user message
            rest = (*[item for result in results for item in result.media], *rest)
        others = [_build(Message("user", rest))] if rest else []
        return [*[_build_result(result, shell) for result in results], *others]
    return [_build(message)]


def _build_result(result: ToolResult, shell: JsonObject | None) -> JsonObject:
    if shell is None:
        return {"role": "tool", "tool_call_id": result.call_id, "content": result.output}
    key = "tool_call_id" if shell.get("role") == "tool" else "name"
    kept = text_of(shell.get("content")) == result.output
    return {**shell, key: result.call_id, "content": shell["content"] if kept else result.output}


def _build(message: Message) -> JsonObject:
    raw: JsonObject = dict(message.raw or {})
    raw["role"] = raw.get("role") or message.role
    content: list[Json] = []
    calls: list[Json] = []
    for part in message.parts:
        if type(part) is ToolCall:
            if part.raw is None or part.raw is not raw.get("function_call"):
                calls.append(_build_call(part))
        elif type(part) is Reasoning:
            raw[_reasoning_key(raw)] = part.text
        elif type(part) is Text and _is_field(part, raw):
            continue
        else:
            content.append(_build_part(part))
    raw["content"] = _joined(content, message)
    raw.pop("tool_calls", None)
    if calls:
        raw["tool_calls"] = calls
    return raw


def _reasoning_key(raw: JsonObject) -> str:
    """Return the field that holds the reasoning of a message; servers use one of two."""
    is_short = "reasoning_content" not in raw and type(raw.get("reasoning")) is str
    return "reasoning" if is_short else "reasoning_content"


def _is_field(part: Text, raw: JsonObject) -> bool:
    """Return whether a text is the refusal field of the message, which stays in place."""
    return type(part.raw) is dict and part.raw.get("type") == "refusal" and raw.get("refusal") == part.text


def _joined(content: list[Json], message: Message) -> Json:
    """Return the content as a string or as blocks, like the message had it."""
    if not content:
        return None if any(type(part) is ToolCall for part in message.parts) else ""
    was_blocks = type(message.raw) is dict and type(message.raw.get("content")) is list
    if len(content) == 1 and content[0].get("type") == "text" and not was_blocks and len(content[0]) == 2:
        return content[0]["text"]
    return content


def _build_call(call: ToolCall) -> JsonObject:
    if call.raw is not None and not call.edited:
        return call.raw
    arguments = call.input if type(call.input) is str else compact_json(call.input or {})
    raw: JsonObject = call.raw if type(call.raw) is dict else {"type": "function"}
    if is_custom(raw):
        return {**raw, "id": call.id, "custom": {**raw["custom"], "name": call.name, "input": arguments}}
    function = {**(raw.get("function") or {}), "name": call.name, "arguments": arguments}
    return {**raw, "id": call.id, "function": function}


def calls_of(raw: JsonObject) -> list[JsonObject]:
    """Return the calls of an assistant message in wire form; other messages have none."""
    return raw.get("tool_calls") or [] if raw["role"] == "assistant" else []


def is_custom(call: JsonObject) -> bool:
    """Return whether a call is for a custom tool, which takes any text instead of JSON."""
    return call.get("custom") is not None and call.get("function") is None


def _build_part(part: Part) -> JsonObject:
    match part:
        case Text(text, raw, edited):
            kept: JsonObject = raw if type(raw) is dict and raw.get("type") == "text" else {}
            return kept if kept and not edited else {**kept, "type": "text", "text": text}
        case Media():
            return part.raw if part.raw is not None else _build_media(part)
        case Opaque():
            return part.raw
        case Marker():
            return {"type": "text", "text": MARKER_QUESTION}
        case ToolResult() | ToolCall() | Reasoning():
            return {"type": "text", "text": text_of(getattr(part, "output", None) or getattr(part, "text", ""))}
        case _:
            assert_never(part)


def _build_media(part: Media) -> JsonObject:
    if part.media == "image":
        return {"type": "image_url", "image_url": {"url": part.url or f"data:{part.mime};base64,{part.data}"}}
    if part.media == "audio":
        return {
            "type": "input_audio",
            "input_audio": {"data": part.data, "format": (part.mime or "/wav").split("/")[1]},
        }
    return {
        "type": "file",
        "file": {"filename": part.name or "file", "file_data": f"data:{part.mime};base64,{part.data}"},
    }

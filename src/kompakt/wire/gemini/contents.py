"""Parse and render Gemini contents; each part has one kind of data.

Invariant: an unedited content renders as the object it was parsed from. A signed part is never changed: it stays
byte-equal, or loses its signature together with the signed text. Keys are read in both spellings (``functionCall``,
``function_call``) and written in the one found. Calls may have no id; then they pair by function name, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, assert_never

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
from kompakt.model.phrases import MARKER_QUESTION
from kompakt.wire.fields import an_array, an_object, blocks_at, input_object, model_of, text_at

FORMAT = "gemini"

CONTRACT = Contract(
    format=FORMAT,
    results="next-user-message",
    alternates=True,
    prefix_rule="keep-current-turn",
    ids=IdRule(pattern=r"(?s).*", max_length=2**31, scope="none"),
    system_in_messages=False,
    merges_results=False,  # GE-6: merging would move the start of the current turn
    separate_output=True,  # models list inputTokenLimit and outputTokenLimit
)

ROLES: dict[str, Role] = {
    "user": "user",
    "model": "assistant",
    "function": "user",
    "tool": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
"""Known role names. Gemini itself accepts only user and model (GE-7); older SDKs wrote others."""

SIGNATURES = ("thoughtSignature", "thought_signature")

_KINDS = {
    "text": "text",
    "functionCall": "functionCall",
    "function_call": "functionCall",
    "functionResponse": "functionResponse",
    "function_response": "functionResponse",
    "inlineData": "inlineData",
    "inline_data": "inlineData",
    "fileData": "fileData",
    "file_data": "fileData",
    "executableCode": "executableCode",
    "executable_code": "executableCode",
    "codeExecutionResult": "codeExecutionResult",
    "code_execution_result": "codeExecutionResult",
    "toolCall": "toolCall",
    "tool_call": "toolCall",
    "toolResponse": "toolResponse",
    "tool_response": "toolResponse",
}

KEYS = frozenset(_KINDS)
"""The keys of a part that contain data."""

CODE = "executableCode"
"""The pairing key of code and its result: they alternate, and their ids are optional."""

_OUTPUT_KEYS = ("output", "result", "error", "content")


def kind_of(part: JsonObject) -> tuple[str, str]:
    """Return the kind of data in a part and its key; both are empty when unknown."""
    for key, value in part.items():
        if value is not None and key in _KINDS:
            return _KINDS[key], key
    return "", ""


def signature_of(part: JsonObject) -> Json:
    """Return the signature of a part in either spelling; falsy when there is none."""
    return part.get(SIGNATURES[0]) or part.get(SIGNATURES[1])


def hosted_key(kind: str, value: JsonObject) -> str:
    """Return the key that pairs a call that Gemini runs itself with its result."""
    if kind in (CODE, "codeExecutionResult"):
        return CODE
    return str(value.get("id") or value.get("toolType") or value.get("tool_type") or "")


# --- parse -------------------------------------------------------------------------------------------------------


def parse(items: Sequence[Json], body: JsonObject | None) -> History:
    """Parse a list of contents and the request body around it.

    Raises:
        MalformedPayload: a value has a type that no content can have there.
    """
    calls = _Calls()
    messages = [_parse_content(raw, index, calls) for index, raw in enumerate(items)]
    tools = an_array((body or {}).get("tools") or [], "tools")
    return History(
        messages,
        format=FORMAT,
        body=body,
        system=_parse_system(body),
        tools=tools,
        model=model_of(body),
        contract=CONTRACT,
    )


def _parse_system(body: JsonObject | None) -> list[Message]:
    for key in ("systemInstruction", "system_instruction"):
        value = (body or {}).get(key)
        if isinstance(value, str):
            return [Message("system", (Text(value),), None, value)]
        if value is not None:
            blocks = blocks_at(an_object(value, key), "parts", key)
            parts = [_parse_part(block, key, j, _Calls()) for j, block in enumerate(blocks)]
            return [Message("system", tuple(parts), None, value)]
    return []


class _Open(NamedTuple):
    """A call without a response so far."""

    run: int
    id: str
    named: bool
    """Whether the id comes from the wire; otherwise it is the function name."""


class _Calls:
    """Finds the call that a response answers: by id where both have one, else by name in the newest answer first."""

    __slots__ = ("_names", "_open", "_run")

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open: dict[str, list[_Open]] = {}
        self._run = 0

    def begin_run(self) -> None:
        """Start another answer of the model."""
        self._run += 1

    def expect(self, name: str, call_id: str) -> str:
        """Register a call and return its pairing id."""
        self._names[call_id] = name
        self._open.setdefault(name, []).append(_Open(self._run, call_id or name, bool(call_id)))
        return call_id or name

    def answer(self, name: str, call_id: str) -> str:
        """Return the id of the call that a response answers.

        A response without an open call gets the empty id when its name was used before: the name alone would make it a
        second answer to an older call.
        """
        if call_id and call_id in self._names:
            called = self._names[call_id]
            self._open[called] = [call for call in self._open[called] if call.id != call_id]
            return call_id
        waiting = self._open.get(name)
        fits = [call for call in waiting or () if not (call_id and call.named)]
        if waiting is None or not fits:
            return call_id or ("" if waiting is not None else name)
        found = next((call for call in fits if call.run == self._run), fits[0])
        waiting.remove(found)
        return found.id


def _parse_content(raw: Json, index: int, calls: _Calls) -> Message:
    if type(raw) is not dict:
        an_object(raw, f"contents[{index}]")
    name = raw.get("role")
    if name is not None and type(name) is not str:
        raise MalformedPayload(f"contents[{index}].role", "a string", name)
    role = ROLES.get(name or "user")
    if role is None:
        return Message("user", (Opaque(f"role {name}", raw),), None, raw)
    if role == "assistant":
        calls.begin_run()
    path = f"contents[{index}]"
    blocks = blocks_at(raw, "parts", path)
    return Message(role, tuple([_parse_part(block, path, j, calls) for j, block in enumerate(blocks)]), None, raw)


def _parse_part(part: JsonObject, content: str, j: int, calls: _Calls) -> Part:
    kind, key = kind_of(part)
    value: Any = part.get(key)
    if kind == "text":
        if type(value) is not str:
            raise MalformedPayload(f"{content}.parts[{j}].text", "a string", value)
        return Reasoning(value, _blob(part), raw=part) if part.get("thought") is True else Text(value, part)
    if not kind:
        return Opaque(next(iter(part), ""), part)
    path = f"{content}.parts[{j}].{key}"
    value = an_object(value, path)
    match kind:
        case "functionCall":
            name = text_at(value, "name", path)
            call_id = calls.expect(name, text_at(value, "id", path))
            return ToolCall(call_id, name, value.get("args"), raw=part, fixed=bool(signature_of(part)))
        case "functionResponse":
            return _parse_response(part, value, path, calls)
        case "inlineData" | "fileData":
            return _parse_media(part, value)
        case _:
            return _parse_hosted(part, kind, value)


def _blob(part: JsonObject) -> str | None:
    signature = signature_of(part)
    return signature if type(signature) is str else None


def _parse_response(part: JsonObject, value: JsonObject, path: str, calls: _Calls) -> ToolResult:
    name = text_at(value, "name", path)
    call_id = calls.answer(name, text_at(value, "id", path))
    response = value.get("response")
    media = tuple(found for found in map(_media_within, blocks_at(value, "parts", path)) if found is not None)
    failed = type(response) is dict and "error" in response
    return ToolResult(call_id, output_of(response), name or None, is_error=failed, media=media, raw=part)


def output_of(response: Json) -> str:
    """Return the output of a function: its only text, else the whole response as JSON."""
    if type(response) is dict and len(response) == 1:
        ((key, value),) = response.items()
        if key in _OUTPUT_KEYS and type(value) is str:
            return value
    return "" if response is None or response == {} else spaced_json(response)


def _media_within(part: JsonObject) -> Media | None:
    kind, key = kind_of(part)
    value = part.get(key)
    return _parse_media(part, value) if kind in ("inlineData", "fileData") and type(value) is dict else None


def _parse_media(part: JsonObject, value: JsonObject) -> Media:
    mime = value.get("mimeType") or value.get("mime_type")
    mime = mime if type(mime) is str else None
    data = value.get("data")
    url = value.get("fileUri") or value.get("file_uri")
    name = value.get("displayName") or value.get("display_name")
    return Media(
        _media_kind(mime or ""),
        mime,
        data if type(data) is str else None,
        url if type(url) is str else None,
        name=name if type(name) is str else None,
        raw=part,
    )


def _media_kind(mime: str) -> Literal["image", "audio", "video", "document", "file"]:
    match mime.partition("/")[0]:
        case "image":
            return "image"
        case "audio":
            return "audio"
        case "video":
            return "video"
        case "application" | "text":
            return "document"
        case _:
            return "file"


def _parse_hosted(part: JsonObject, kind: str, value: JsonObject) -> Part:
    """Parse a call that Gemini ran itself, or its result; both are in a content of the model."""
    pairs_by = hosted_key(kind, value)
    name = "code_execution" if pairs_by == CODE else str(value.get("toolType") or value.get("tool_type") or "")
    if kind in (CODE, "toolCall"):
        return ToolCall(pairs_by, name, value, hosted=True, raw=part)
    output = value.get("output") if kind == "codeExecutionResult" else value.get("response")
    outcome = value.get("outcome")
    failed = type(outcome) is str and outcome != "OUTCOME_OK"
    return ToolResult(pairs_by, output_of(output), name, is_error=failed, hosted=True, raw=part)


# --- render ------------------------------------------------------------------------------------------------------


def render(message: Message) -> list[Json]:
    """Render one message; an unedited one is returned as it was parsed.

    A message that Gemini cannot express (only reasoning of another provider) gives no content.
    """
    if message.raw is not None and not message.edited:
        return [message.raw]
    parts = [wire for wire in map(build_part, message.parts) if wire is not None]
    if not parts:
        return []
    if type(message.raw) is dict:
        return [{**message.raw, "parts": parts}]
    return [{"role": "model" if message.role == "assistant" else "user", "parts": parts}]


def build_part(part: Part) -> JsonObject | None:
    """Render one part; ``None`` when Gemini cannot express it."""
    match part:
        case Text(text, raw, edited):
            return raw if raw is not None and not edited else {**_unsigned(raw or {}), "text": text}
        case Media():
            return part.raw if part.raw is not None else _build_media(part)
        case Reasoning() | Opaque():
            return part.raw
        case ToolCall():
            return _build_call(part)
        case ToolResult():
            return _build_result(part)
        case Marker():
            return {"text": MARKER_QUESTION}
        case _:
            assert_never(part)


def _unsigned(raw: JsonObject) -> JsonObject:
    """Copy a part without its signature, which an edit makes invalid."""
    return {key: value for key, value in raw.items() if key not in SIGNATURES}


def _build_media(part: Media) -> JsonObject:
    mime = part.mime or "application/octet-stream"
    if part.data is None:
        return {"fileData": {"mimeType": mime, "fileUri": part.url or ""}}
    return {"inlineData": {"mimeType": mime, "data": part.data}}


def _build_call(call: ToolCall) -> JsonObject | None:
    if call.raw is not None and (not call.edited or call.hosted):
        return call.raw
    if call.hosted:
        return None
    if call.raw is None:
        named = {} if call.id in ("", call.name) else {"id": call.id}
        return {"functionCall": {**named, "name": call.name, "args": input_object(call.input)}}
    _, key = kind_of(call.raw)
    value = {**call.raw[key], "name": call.name, "args": input_object(call.input)}
    if value.get("id"):
        value["id"] = call.id
    return {**_unsigned(call.raw), key: value}


def _build_result(result: ToolResult) -> JsonObject | None:
    if result.raw is not None and (not result.edited or result.hosted):
        return result.raw
    if result.hosted:
        return {"text": result.output} if result.output else None
    if result.raw is None:
        named = {} if result.call_id in ("", result.name) else {"id": result.call_id}
        value: JsonObject = {**named, "name": result.name or result.call_id, "response": _build_response(result, None)}
        return {"functionResponse": _with_media(value, result)}
    _, key = kind_of(result.raw)
    value = dict(result.raw[key])
    if output_of(value.get("response")) != result.output:
        value["response"] = _build_response(result, value.get("response"))
    if value.get("id") and result.call_id:
        value["id"] = result.call_id
    return {**result.raw, key: _with_media(value, result)}


def _build_response(result: ToolResult, was: Json) -> JsonObject:
    """Build a response with the output under its previous key, if there was one."""
    key = "error" if result.is_error else "output"
    if type(was) is dict and len(was) == 1 and next(iter(was)) in _OUTPUT_KEYS:
        key = next(iter(was))
    return {key: result.output}


def _with_media(value: JsonObject, result: ToolResult) -> JsonObject:
    bare = {key: held for key, held in value.items() if key != "parts"}
    parts = [part.raw if part.raw is not None else _build_media(part) for part in result.media]
    return {**bare, "parts": parts} if parts else bare

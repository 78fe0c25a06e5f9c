"""Parse and render OpenAI Responses items; each item is one message here.

Invariant: an unedited item renders as the object it was parsed from, and an encrypted item stays byte-equal or is
dropped. Adjacent items of the model are one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never, cast

from kompakt.errors import MalformedPayload
from kompakt.model.contract import Contract, IdRule
from kompakt.model.json import as_object, spaced_json
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

FORMAT = "openai-responses"

MAX_CALL_ID = 64
"""Characters of a call_id (OR-8)."""

CONTRACT = Contract(
    format=FORMAT,
    results="after-run",
    alternates=False,
    prefix_rule="with-its-item",
    ids=IdRule(pattern=r"(?s).+", max_length=MAX_CALL_ID, scope="request"),
)

SERVER = "server:"
"""Prefix of the ids of pairs that the server makes itself, so that they never match a call of the client. A tool search
that ran on the server has no call_id; the next item answers it.
"""

FIXED_OUTPUTS = frozenset({"computer_call_output", "tool_search_output", "mcp_approval_response"})
"""Outputs that are not text: a screenshot, found tools, an approval. A shorter text cannot replace them."""

BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
"""A blank pixel: the output of a computer call must be a screenshot, so it can be blanked but not removed."""


class CallShape(NamedTuple):
    """The fields of one call type."""

    name: str | None
    """The fixed name of the tool; ``None`` where the item has a name."""
    input: str
    hosted: bool = False
    """The provider runs it; the id of the item identifies it."""


CALLS: dict[str, CallShape] = {
    "function_call": CallShape(None, "arguments"),
    "custom_tool_call": CallShape(None, "input"),
    "local_shell_call": CallShape("local_shell", "action"),
    "shell_call": CallShape("shell", "action"),
    "apply_patch_call": CallShape("apply_patch", "operation"),
    "computer_call": CallShape("computer", "action"),
    "tool_search_call": CallShape("tool_search", "arguments"),
    "program": CallShape("program", "code", True),
    "web_search_call": CallShape("web_search", "action", True),
    "file_search_call": CallShape("file_search", "queries", True),
    "code_interpreter_call": CallShape("code_interpreter", "code", True),
    "image_generation_call": CallShape("image_generation", "revised_prompt", True),
    "mcp_call": CallShape(None, "arguments", True),
    "mcp_list_tools": CallShape("mcp_list_tools", "tools", True),
    "mcp_approval_request": CallShape(None, "arguments", True),
}

OUTPUTS: dict[str, str] = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "computer_call_output": "output",
    "tool_search_output": "tools",
    "program_output": "result",
    "mcp_approval_response": "reason",
}
"""Items that answer a call, and the field of their output."""

ANSWERED_BY: dict[str, tuple[str, ...]] = {
    "function_call": ("function_call_output",),
    "custom_tool_call": ("custom_tool_call_output",),
    "local_shell_call": ("local_shell_call_output", "function_call_output"),  # Codex answers it like a function
    "shell_call": ("shell_call_output",),
    "apply_patch_call": ("apply_patch_call_output",),
    "computer_call": ("computer_call_output",),
    "tool_search_call": ("tool_search_output",),
    "program": ("program_output",),
    "mcp_approval_request": ("mcp_approval_response",),
}
"""Calls and the items that may answer them, the usual one first."""

INNER_OUTPUTS: dict[str, str] = {
    "mcp_call": "output",
    "code_interpreter_call": "outputs",
    "file_search_call": "results",
    "image_generation_call": "result",
}
"""Hosted calls that contain their own output, and its field."""

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_STEERING = frozenset({"compaction_trigger", "configuration_update", "additional_tools"})
"""Items that configure the request and have no content."""

_OWN_OPAQUE = _STEERING | {"compaction", "item_reference"}


def kind_of(raw: Json) -> str:
    """Return the type of an item; without one, a role means a message and an id alone means a reference."""
    item: JsonObject = raw
    if type(raw) is not dict:
        return "text"
    kind = item.get("type")
    if type(kind) is str:
        return kind
    return "message" if "role" in item or "id" not in item else "item_reference"


# --- parse -------------------------------------------------------------------------------------------------------


def parse(items: Sequence[Json], body: JsonObject | None) -> History:
    """Parse a list of items and the request body around it.

    Raises:
        MalformedPayload: a value has a type that no item can have there.
    """
    messages = [parse_item(raw, f"input[{index}]") for index, raw in enumerate(items)]
    envelope = body or {}
    instructions = envelope.get("instructions")
    system: tuple[Message, ...] = ()
    if instructions is not None:
        if type(instructions) is not str:
            raise MalformedPayload("instructions", "a string", instructions)
        system = (Message("system", (Text(instructions),)),)
    tools = an_array(envelope.get("tools") or [], "tools")
    return History(
        messages, format=FORMAT, body=body, system=system, tools=tools, model=model_of(body), contract=CONTRACT
    )


def parse_item(raw: Json, path: str) -> Message:
    """Parse one item as one message.

    Raises:
        MalformedPayload: a value has a type that no item can have there.
    """
    if type(raw) is str:
        return Message("user", (Text(raw),), None, raw)
    raw = an_object(raw, path)
    text_at(raw, "id", path)
    kind = kind_of(raw)
    if kind == "message":
        return _parse_message(raw, path)
    if kind in CALLS:
        return Message("assistant", _parse_call_item(raw, kind, path), None, raw)
    if kind in OUTPUTS:
        result = _parse_output(raw, kind, path)
        return Message("assistant" if result.hosted else "tool", (result,), None, raw)
    if kind == "reasoning":
        return Message("assistant", (_parse_reasoning(raw, path),), None, raw)
    role: Role = "system" if kind in _STEERING else "tool" if kind.endswith("_output") else "assistant"
    return Message(role, (Opaque(kind, raw),), None, raw)


def _parse_message(raw: JsonObject, path: str) -> Message:
    name = raw.get("role")
    if type(name) is not str:
        raise MalformedPayload(f"{path}.role", "a string", name)
    role = _ROLES.get(name)
    if role is None:
        return Message("user", (Opaque(f"role {name}", raw),), None, raw)
    content = raw.get("content")
    if type(content) is str:
        return Message(role, (Text(content),), None, raw)
    return Message(role, tuple(map(_parse_block, blocks_at(raw, "content", path))), None, raw)


def _parse_block(block: JsonObject) -> Part:
    kind = block.get("type")
    if kind in ("input_text", "output_text") and type(block.get("text")) is str:
        return Text(block["text"], block)
    if kind == "refusal" and type(block.get("refusal")) is str:
        return Text(block["refusal"], block)
    if kind in ("input_image", "computer_screenshot"):
        return _parse_image(block)
    if kind == "input_file":
        address: Any = block.get("file_url")
        given: Any = block.get("file_data")
        mime, data = data_url(given) if type(given) is str else (None, None)
        return Media("document", mime, data or given, address, block.get("detail"), block.get("filename"), block)
    inner = as_object(block.get("input_audio"))
    if kind == "input_audio" and type(inner.get("data")) is str:
        return Media("audio", f"audio/{inner.get('format', 'wav')}", inner["data"], raw=block)
    return Opaque(str(kind), block)


def _parse_image(block: JsonObject) -> Media:
    address = block.get("image_url")
    mime, data = data_url(address) if type(address) is str else (None, None)
    return Media("image", mime, data, None if data else address, block.get("detail"), raw=block)


def _parse_reasoning(raw: JsonObject, path: str) -> Reasoning:
    texts = [text_of(blocks_at(raw, key, path)) for key in ("summary", "content")]
    blob = raw.get("encrypted_content")
    text = "\n".join(filter(None, texts))
    return Reasoning(text, blob if type(blob) is str else None, bool(blob) and not text, raw)


def _parse_call_item(raw: JsonObject, kind: str, path: str) -> tuple[Part, ...]:
    call = _parse_call(raw, kind, path)
    inner = _parse_inner(raw, kind, call) if kind in INNER_OUTPUTS else None
    return (call,) if inner is None else (call, inner)


def _parse_call(raw: JsonObject, kind: str, path: str) -> ToolCall:
    shape = CALLS[kind]
    name = text_at(raw, "name", path) if shape.name is None else shape.name
    call_id = text_at(raw, "call_id", path)
    hosted = shape.hosted or (kind == "tool_search_call" and not call_id)
    if kind == "program" or (hosted and not shape.hosted):
        call_id = SERVER + call_id
    follows = text_at(raw, "approval_request_id", path) or None if kind == "mcp_call" else None
    given = raw.get(_input_key(raw, kind))
    fixed = kind not in ("function_call", "custom_tool_call")
    return ToolCall(
        call_id or raw.get("id") or "",
        name,
        given,
        hosted,
        follows,
        raw,
        fixed=fixed,
        asks=kind == "mcp_approval_request",
    )


def _input_key(raw: JsonObject, kind: str) -> str:
    return "actions" if kind == "computer_call" and "actions" in raw else CALLS[kind].input


def _parse_inner(raw: JsonObject, kind: str, call: ToolCall) -> ToolResult | None:
    """Parse the output that a hosted call contains itself."""
    value: Any = raw.get(INNER_OUTPUTS[kind])
    error: Any = raw.get("error")
    if not value and not error:
        return None
    media: tuple[Media, ...] = ()
    if not value:
        text = error if type(error) is str else spaced_json(error)
    elif kind == "image_generation_call":
        text, media = "", (Media("image", f"image/{raw.get('output_format') or 'png'}", value, raw=value),)
    elif type(value) is list:
        entries = map(as_object, cast("list[Any]", value))
        text = "\n".join(str(entry.get("logs") or entry.get("text") or "") for entry in entries)
    else:
        text = str(value)
    return ToolResult(call.id, text, call.name, not value, media, hosted=True, raw=raw)


def _parse_output(raw: JsonObject, kind: str, path: str) -> ToolResult:
    call_id = text_at(raw, _link_key(raw, kind), path)
    hosted = kind == "program_output" or (kind == "tool_search_output" and not call_id)
    if hosted:
        call_id = SERVER + call_id
    value = raw.get(OUTPUTS[kind])
    text, media = (value, ()) if type(value) is str else _read_output(raw, kind, path)
    if kind == "mcp_approval_response":
        text = ("approved" if raw.get("approve") else "denied") + (f": {text}" if text else "")
    failed, fixed = raw.get("status") == "failed", raw["type"] in FIXED_OUTPUTS
    return ToolResult(call_id, text, is_error=failed, media=media, hosted=hosted, fixed=fixed, raw=raw)


def _link_key(raw: JsonObject, kind: str) -> str:
    """Return the field that links an output to its call."""
    if kind == "mcp_approval_response":
        return "approval_request_id"
    # The documented local shell output has no call_id; its id is that of the call.
    return "id" if kind == "local_shell_call_output" and not raw.get("call_id") else "call_id"


def _read_output(raw: JsonObject, kind: str, path: str) -> tuple[str, tuple[Media, ...]]:
    """Parse an output that is not plain text."""
    field = OUTPUTS[kind]
    if kind == "computer_call_output" and raw.get(field) is not None:
        return "", (_parse_image(an_object(raw[field], f"{path}.{field}")),)
    blocks = blocks_at(raw, field, path)
    if kind == "shell_call_output":
        return "".join(str(block.get("stdout") or "") + str(block.get("stderr") or "") for block in blocks), ()
    if kind == "tool_search_output":
        return spaced_json(blocks) if blocks else "", ()
    return text_of(blocks), tuple(part for part in map(_parse_block, blocks) if type(part) is Media)


# --- render ------------------------------------------------------------------------------------------------------


def render(message: Message) -> list[Json]:
    """Render one message; an unedited one is returned as it was parsed.

    A message of another provider may become several items: its text, and each call and result.
    """
    if message.raw is not None and not message.edited:
        return [message.raw]
    return _Writer(message).run()


class _Writer:
    """Renders the parts of a message as items; text between two calls becomes one item."""

    def __init__(self, message: Message) -> None:
        self.parts = message.parts
        self.shell: JsonObject | None = message.raw if kind_of(message.raw) == "message" else None
        self.is_model = message.role == "assistant"
        self.role = "user" if message.role == "tool" else message.role
        self.content: list[Json] = []
        self.items: list[Json] = []

    def run(self) -> list[Json]:
        for part in self.parts:
            self._add(part)
        self._close()
        if not self.items and self.shell is not None:
            self.items.append({**self.shell, "content": ""})
        return self.items

    def _add(self, part: Part) -> None:
        match part:
            case Text() | Marker():
                self.content.append(_build_text(part, self.is_model))
            case Media():
                self._add_media(part)
            case Reasoning():
                if is_own(part.raw):
                    self._emit(part.raw)
            case ToolCall():
                self._emit(_build_call(part))
            case ToolResult():
                self._add_result(part)
            case Opaque():
                if is_own(part.raw):
                    self._emit(part.raw)
                elif self.shell is not None and part.raw is not self.shell:
                    self.content.append(part.raw)
            case _:
                assert_never(part)

    def _add_media(self, part: Media) -> None:
        block = _build_media(part)
        if not self.is_model:
            self.content.append(block)
            return
        # Messages of the model contain only text, so its media become input.
        self._emit({"type": "message", "role": "user", "content": [block]})

    def _add_result(self, part: ToolResult) -> None:
        if not (is_own(part.raw) and kind_of(part.raw) in INNER_OUTPUTS):
            self._emit(_build_result(part))
        elif self.items and part.edited:
            self.items[-1] = _with_inner_output(part, self.items[-1])

    def _emit(self, item: Json) -> None:
        self._close()
        self.items.append(item)

    def _close(self) -> None:
        if not self.content:
            return
        content: Json = self.content
        if self.shell is None or self.items:
            self.items.append({"type": "message", "role": self.role, "content": content})
        else:
            was_text = type(self.shell.get("content")) is str
            plain = was_text and len(content) == 1 and content[0].keys() == {"type", "text"}
            self.items.append({**self.shell, "content": content[0]["text"] if plain else content})
        self.content = []


def is_own(raw: Json) -> bool:
    """Return whether the wire form of a part is an item of this format; other providers share type names."""
    item = as_object(raw)
    kind = item.get("type")
    if kind == "reasoning":
        return "encrypted_content" in item or "summary" in item
    if kind == "compaction":
        return "encrypted_content" in item and "content" not in item
    return kind in CALLS or kind in OUTPUTS or kind in _OWN_OPAQUE


def _build_text(part: Text | Marker, is_model: bool) -> JsonObject:
    kinds = ("output_text", "refusal") if is_model else ("input_text",)
    if isinstance(part, Marker):
        return {"type": kinds[0], "text": MARKER_QUESTION}
    raw = as_object(part.raw)
    if raw.get("type") not in (*kinds, "input_text"):
        return {"type": kinds[0], "text": part.text}
    return raw if not part.edited else {**raw, "refusal" if raw["type"] == "refusal" else "text": part.text}


def _build_media(part: Media) -> JsonObject:
    raw = as_object(part.raw)
    if raw.get("type") in ("input_image", "input_file", "input_audio"):
        return raw
    address = part.url or f"data:{part.mime or 'application/octet-stream'};base64,{part.data or ''}"
    if part.media == "image":
        return {"type": "input_image", "image_url": address, "detail": part.detail or "auto"}
    if part.media == "audio" and part.data is not None:
        form = (part.mime or "audio/wav").partition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": address}


def _build_call(call: ToolCall) -> JsonObject:
    if not is_own(call.raw):
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": input_text(call.input)}
    raw: JsonObject = call.raw
    if not call.edited:
        return raw
    kind = kind_of(raw)
    before = _parse_call(raw, kind, "")
    item = dict(raw)
    if call.id != before.id:
        item["id" if CALLS[kind].hosted and "call_id" not in raw else "call_id"] = call.id
    if call.name != before.name and "name" in raw:
        item["name"] = call.name
    if call.input is not before.input:
        key = _input_key(raw, kind)
        item[key] = input_text(call.input) if key == "arguments" and type(raw.get(key)) is str else call.input
    return item


def input_text(value: Json) -> str:
    """Write the input of a call as JSON text."""
    return spaced_json({} if value is None else value)


def _build_result(result: ToolResult) -> JsonObject:
    if not is_own(result.raw):
        return {"type": "function_call_output", "call_id": result.call_id, "output": _output_value(result)}
    raw: JsonObject = result.raw
    if not result.edited:
        return raw
    kind = kind_of(raw)
    before = _parse_output(raw, kind, "")
    item = dict(raw)
    if result.call_id != before.call_id:
        item[_link_key(raw, kind)] = result.call_id
    if (result.output, result.media) != (before.output, before.media):
        item[OUTPUTS[kind]] = _output_field(kind, result)
    return item


def answering_item(kind: str, result: ToolResult) -> JsonObject | None:
    """Build the output item that answers a call of this type; ``None`` where only the server can."""
    if kind == "program":
        return None
    output = ANSWERED_BY[kind][0]
    if kind == "mcp_approval_request":
        return {"type": output, "approval_request_id": result.call_id, "approve": False, "reason": result.output}
    link = "id" if kind == "local_shell_call" else "call_id"
    item: JsonObject = {"type": output, link: result.call_id, OUTPUTS[output]: _output_field(output, result)}
    if kind == "apply_patch_call":
        item["status"] = "failed" if result.is_error else "completed"
    if kind == "tool_search_call":
        item |= {"execution": "client", "status": "completed"}
    return item


def _output_field(kind: str, result: ToolResult) -> Json:
    """Return the output in the shape of this output type."""
    if kind in ("function_call_output", "custom_tool_call_output"):
        return _output_value(result)
    if kind == "shell_call_output":
        code = 1 if result.is_error else 0
        return [{"stdout": result.output, "stderr": "", "outcome": {"type": "exit", "exit_code": code}}]
    if kind == "tool_search_output":
        return []
    if kind == "computer_call_output":
        shown = _build_media(result.media[0]).get("image_url") if result.media else BLANK
        return {"type": "computer_screenshot", "image_url": shown or BLANK}
    return result.output


def _output_value(result: ToolResult) -> Json:
    if not result.media:
        return result.output
    texts = [{"type": "input_text", "text": result.output}] if result.output else []
    return [*texts, *map(_build_media, result.media)]


def _with_inner_output(result: ToolResult, item: JsonObject) -> JsonObject:
    """Apply an edited output to the hosted call that contains it; an error is short and stays."""
    kind = kind_of(item)
    field = INNER_OUTPUTS[kind]
    if not item.get(field):
        return item
    if kind == "code_interpreter_call":
        return {**item, field: [{"type": "logs", "logs": result.output}]}
    if kind == "file_search_call":
        return {**item, field: [{"text": result.output}]}
    if kind == "image_generation_call":
        return item if result.media else {**item, field: BLANK.partition(",")[2]}
    return {**item, field: result.output}

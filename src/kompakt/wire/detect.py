"""Tell which provider's format a payload is in, from evidence and never from a guess.

Every clue speaks for a set of formats; what all clues agree on is the answer. Clues that contradict one another mean a
mixed payload, clues that leave several open mean an ambiguous one: both are errors that name the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

from kompakt.errors import AmbiguousFormat, MalformedPayload, UnknownFormat
from kompakt.model.messages import Json, JsonObject

Clue: TypeAlias = tuple[str, frozenset[str]]
"""What was seen, and the formats it is at home in."""

CHAT, RESPONSES, ANTHROPIC, GEMINI, BEDROCK = "openai-chat", "openai-responses", "anthropic", "gemini", "bedrock"
FORMATS = (CHAT, RESPONSES, ANTHROPIC, GEMINI, BEDROCK)

_CLUES_READ = 400
"""Messages looked at from each end: enough to meet a tool call, little enough to cost nothing on long histories."""


def _in(*formats: str) -> frozenset[str]:
    return frozenset(formats)


_BODY_KEYS: dict[str, frozenset[str]] = {
    "contents": _in(GEMINI),
    "systemInstruction": _in(GEMINI),
    "system_instruction": _in(GEMINI),
    "generationConfig": _in(GEMINI),
    "input": _in(RESPONSES),
    "instructions": _in(RESPONSES),
    "previous_response_id": _in(RESPONSES),
    "max_output_tokens": _in(RESPONSES),
    "toolConfig": _in(BEDROCK, GEMINI),
    "inferenceConfig": _in(BEDROCK),
    "modelId": _in(BEDROCK),
    "anthropic_version": _in(ANTHROPIC),
    "system": _in(ANTHROPIC, BEDROCK),
    "stop_sequences": _in(ANTHROPIC),
    "thinking": _in(ANTHROPIC),
    "max_completion_tokens": _in(CHAT),
    "response_format": _in(CHAT),
    "frequency_penalty": _in(CHAT),
    "stream_options": _in(CHAT, RESPONSES),
    "n": _in(CHAT),
    "stop": _in(CHAT),
}

_ITEM_KEYS: dict[str, frozenset[str]] = {
    "parts": _in(GEMINI),
    "tool_calls": _in(CHAT),
    "tool_call_id": _in(CHAT),
    "function_call": _in(CHAT),
    "refusal": _in(CHAT),
    "call_id": _in(RESPONSES),
    "encrypted_content": _in(RESPONSES),
}

_ROLES: dict[str, frozenset[str]] = {
    "model": _in(GEMINI),
    "tool": _in(CHAT),
    "function": _in(CHAT, GEMINI),
    "developer": _in(CHAT, RESPONSES),
    "system": _in(CHAT, RESPONSES, ANTHROPIC, BEDROCK),
}

_BLOCK_TYPES: dict[str, frozenset[str]] = {
    "text": _in(CHAT, ANTHROPIC),
    "image_url": _in(CHAT),
    "input_audio": _in(CHAT, RESPONSES),
    "file": _in(CHAT),
    "refusal": _in(CHAT, RESPONSES),
    "input_text": _in(RESPONSES),
    "output_text": _in(RESPONSES),
    "input_image": _in(RESPONSES),
    "input_file": _in(RESPONSES),
    "tool_use": _in(ANTHROPIC),
    "tool_result": _in(ANTHROPIC),
    "thinking": _in(ANTHROPIC, CHAT),
    "redacted_thinking": _in(ANTHROPIC),
    "server_tool_use": _in(ANTHROPIC),
    "mcp_tool_use": _in(ANTHROPIC),
    "image": _in(ANTHROPIC),
    "document": _in(ANTHROPIC),
}

_BEDROCK_BLOCKS = frozenset(
    {"text", "toolUse", "toolResult", "reasoningContent", "cachePoint", "image", "document", "video"}
)

_MODELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("claude", _in(ANTHROPIC, BEDROCK, CHAT)),
    ("gemini", _in(GEMINI, CHAT)),
    ("gpt", _in(CHAT, RESPONSES)),
    ("o1", _in(CHAT, RESPONSES)),
    ("o3", _in(CHAT, RESPONSES)),
    ("o4", _in(CHAT, RESPONSES)),
    ("deepseek", _in(CHAT, ANTHROPIC)),
    ("mistral", _in(CHAT)),
)
_MODEL_HOME: dict[str, str] = {"claude": ANTHROPIC, "gemini": GEMINI}
"""Which format a model's own provider speaks: decides where nothing else does."""


def detect(payload: object, *, format: str | None = None, model: str | None = None) -> str:
    """Name the format of a payload; a format given by the caller is only checked for being one.

    Raises:
        UnknownFormat: nothing in the payload belongs to a known format, or ``format`` names none.
        AmbiguousFormat: clues contradict one another, or leave more than one format open.
        MalformedPayload: the payload is neither a list nor an object.
    """
    if format is not None:
        if format not in FORMATS:
            raise UnknownFormat(f"format {format!r} is not known; use one of {', '.join(map(repr, FORMATS))}")
        return format
    if not isinstance(payload, list | dict):
        raise MalformedPayload("payload", "a request body or a list of messages", payload)
    clues = list(_clues(cast("Json", payload)))
    open_formats = frozenset(FORMATS)
    for sight, formats in clues:
        if not open_formats & formats:
            rest = sorted(open_formats | formats, key=FORMATS.index)
            raise AmbiguousFormat(f"the payload mixes formats ({sight} does not go with what comes before)", rest)
        open_formats &= formats
    if not clues:
        raise UnknownFormat("the payload holds nothing that a provider's request would; pass format=… if it does")
    return _settle(open_formats, model or _own_model(payload))


def _settle(formats: frozenset[str], model: str | None) -> str:
    """Choose when one format is left, or when the model's own provider is among those left."""
    if len(formats) > 1:
        for family, homes in _MODELS:
            if model and family in model.lower():
                formats = formats & homes or formats
                home = _MODEL_HOME.get(family, CHAT)
                formats = frozenset({home}) if home in formats else formats
                break
    if len(formats) == 1:
        return next(iter(formats))
    if formats == _in(CHAT, RESPONSES):
        return CHAT  # both of OpenAI: what Responses adds to plain messages would have shown as typed items
    raise AmbiguousFormat("nothing in the payload decides its format", sorted(formats, key=FORMATS.index))


def _own_model(payload: object) -> str | None:
    name: object = cast("JsonObject", payload).get("model") if isinstance(payload, dict) else None
    return name if isinstance(name, str) else None


def messages_key(format: str) -> str:
    """Name the body's field that holds the messages."""
    return {RESPONSES: "input", GEMINI: "contents"}.get(format, "messages")


def _clues(payload: Json) -> Iterator[Clue]:
    items: object = payload
    if isinstance(payload, dict):
        body = cast("JsonObject", payload)
        for key, formats in _BODY_KEYS.items():
            if key in body:
                yield f"the field {key!r}", formats
        if "messages" in body:
            yield "the field 'messages'", _in(CHAT, ANTHROPIC, BEDROCK)
        yield from _tool_clues(body.get("tools"))
        items = next((body[key] for key in ("messages", "contents", "input") if key in body), ())
    if isinstance(items, list):
        sequence = cast("list[Json]", items)
        edge = sequence if len(sequence) <= 2 * _CLUES_READ else [*sequence[:_CLUES_READ], *sequence[-_CLUES_READ:]]
        if isinstance(edge[0] if edge else None, dict) and edge[0].get("role") == "system":
            yield "a system message at the start", _in(CHAT, RESPONSES)
        for item in edge:
            yield from _item_clues(item)


def _tool_clues(tools: object) -> Iterator[Clue]:
    for tool in cast("Sequence[object]", tools) if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            if "input_schema" in tool:
                yield "a tool with 'input_schema'", _in(ANTHROPIC)
            elif "functionDeclarations" in tool or "function_declarations" in tool:
                yield "a tool with function declarations", _in(GEMINI)
            elif "function" in tool:
                yield "a tool with 'function'", _in(CHAT)
            elif tool.get("type") == "function":
                yield "a function tool with its name outside", _in(RESPONSES)


def _item_clues(item: object) -> Iterator[Clue]:
    if not isinstance(item, dict):
        return
    message = cast("JsonObject", item)
    role = message.get("role")
    if "type" in message and role is None:
        yield f"an item of type {message['type']!r}", _in(RESPONSES)
        return
    for key, formats in _ITEM_KEYS.items():
        if message.get(key) is not None:
            yield f"the field {key!r} of a message", formats
    if isinstance(role, str):
        yield f"the role {role!r}", _ROLES.get(role, frozenset(FORMATS))
    content = message.get("content")
    if isinstance(content, str):
        yield "a message with plain text", _in(CHAT, RESPONSES, ANTHROPIC)
    for block in cast("list[object]", content) if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield from _block_clues(cast("JsonObject", block))


def _block_clues(block: JsonObject) -> Iterator[Clue]:
    kind = block.get("type")
    if isinstance(kind, str):
        if kind in _BLOCK_TYPES:
            yield f"a content part of type {kind!r}", _BLOCK_TYPES[kind]
    elif block.keys() & _BEDROCK_BLOCKS:
        yield f"a content part {next(iter(block))!r} without a type", _in(BEDROCK)

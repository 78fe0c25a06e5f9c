"""The known provider formats, and detection of the format of a payload.

Detection is based on evidence and never guesses. Every clue in a payload allows a set of formats; the intersection is
the answer. Contradicting clues mean that the payload mixes formats. Clues that leave several formats mean that it is
ambiguous. Both raise an error that lists the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

from kompakt.errors import AmbiguousFormat, InputError, MalformedPayload, UnknownFormat
from kompakt.model.messages import Json, JsonObject
from kompakt.wire import anthropic, bedrock, gemini, openai_chat, openai_responses
from kompakt.wire.wire import Clues, Wire

WIRES: dict[str, Wire] = {
    wire.format: wire for wire in (openai_chat.WIRE, openai_responses.WIRE, anthropic.WIRE, gemini.WIRE, bedrock.WIRE)
}

_FORMATS = tuple(WIRES)
_ALL = frozenset(WIRES)
_OPENAI = frozenset({openai_chat.WIRE.format, openai_responses.WIRE.format})

Clue: TypeAlias = tuple[str, frozenset[str]]
"""A description of the evidence, and the formats it occurs in."""

_CLUES_READ = 400
"""Messages read from each end of a list: enough to find a tool call, few enough for very long histories."""


def wire_for(format: object) -> Wire:
    """Return the wire of a format by its name.

    Raises:
        UnknownFormat: no format has this name.
    """
    wire = WIRES.get(format) if isinstance(format, str) else None
    if wire is None:
        raise UnknownFormat(f"format {format!r} is not known; use one of {', '.join(map(repr, _FORMATS))}")
    return wire


def detect(payload: object, *, format: str | None = None, model: str | None = None) -> str:
    """Return the format name of a payload; of a ``format`` given by the caller, a body must have the messages.

    Raises:
        UnknownFormat: nothing in the payload belongs to a known format, ``format`` names none, or the body has its
            messages in a field of another format.
        AmbiguousFormat: clues contradict one another, or allow more than one format.
        MalformedPayload: the payload is neither a list nor an object.
    """
    if format is not None:
        wire = wire_for(format)
        other = next((key for key in _MESSAGE_KEYS if isinstance(payload, dict) and key in payload), wire.messages_key)
        if other != wire.messages_key and wire.messages_key not in cast("JsonObject", payload):
            raise UnknownFormat(_mismatch(cast("JsonObject", payload), other, wire))
        return format
    if not isinstance(payload, list | dict):
        raise MalformedPayload("payload", "a request body or a list of messages", payload)
    if _is_langchain(cast("Json", payload)):
        raise UnknownFormat(
            "the messages are in LangChain's own format; write convert_to_openai_messages(messages) from "
            "langchain_core.messages instead of messages_to_dict(messages)"
        )
    clues = list(_clues(cast("Json", payload)))
    candidates = _ALL
    for evidence, formats in clues:
        if not candidates & formats:
            rest = sorted(candidates | formats, key=_FORMATS.index)
            raise AmbiguousFormat(f"the payload mixes formats ({evidence} contradicts the clues before it)", rest)
        candidates &= formats
    if not clues:
        raise UnknownFormat(
            "the payload has no field of a known provider's request; if it is one, name its format (format=… in "
            "Python, --format on the command line)"
        )
    return _choose(candidates, model or _model_in(payload))


def _mismatch(body: JsonObject, other: str, wire: Wire) -> str:
    """Say that a body has its messages in a field of another format, and name that format if it is certain."""
    text = f"the payload has {other!r}, not {wire.messages_key!r}: it is not a request in the format {wire.format!r}"
    try:
        return f"{text}; detected format: {detect(body)!r}"
    except InputError:
        return text


def _is_langchain(payload: Json) -> bool:
    """Return whether messages are as LangChain's ``messages_to_dict``, ``model_dump`` or ``dumpd`` write them."""
    items: object = payload.get("messages") if isinstance(payload, dict) else payload
    found = (
        [item for item in cast("list[Json]", items)[:_CLUES_READ] if isinstance(item, dict)]
        if isinstance(items, list)
        else []
    )
    return any("role" not in item and (item.get("type") in ("human", "ai") or item.get("lc") == 1) for item in found)


def _choose(formats: frozenset[str], model: str | None) -> str:
    """Choose the only format left, or the one that the model's own provider uses."""
    if len(formats) > 1 and model is not None:
        families = {family: None for wire in WIRES.values() for family in wire.clues.models}
        family = next((family for family in families if family in model.lower()), None)
        if family is not None:
            formats = formats & _formats_with(lambda clues: family in clues.models) or formats
            formats = formats & _formats_with(lambda clues: family in clues.own_models) or formats
    if len(formats) == 1:
        return next(iter(formats))
    if formats == _OPENAI:
        # Plain messages are valid in both formats of OpenAI; only Responses has typed items, and none was seen.
        return openai_chat.WIRE.format
    raise AmbiguousFormat("nothing in the payload decides its format", sorted(formats, key=_FORMATS.index))


def _model_in(payload: object) -> str | None:
    name: object = cast("JsonObject", payload).get("model") if isinstance(payload, dict) else None
    return name if isinstance(name, str) else None


def _formats_with(has: Callable[[Clues], bool]) -> frozenset[str]:
    return frozenset(wire.format for wire in WIRES.values() if has(wire.clues))


def _index(keys: Callable[[Clues], frozenset[str]]) -> dict[str, frozenset[str]]:
    """Map every key to the formats that list it."""
    listed = {key: None for wire in WIRES.values() for key in sorted(keys(wire.clues))}
    return {key: _formats_with(lambda clues, key=key: key in keys(clues)) for key in listed}


_BODY_KEYS = _index(lambda clues: clues.body_keys)
_ITEM_KEYS = _index(lambda clues: clues.item_keys)
_ROLES = _index(lambda clues: clues.roles)
_BLOCK_TYPES = _index(lambda clues: clues.block_types)
_UNTYPED_BLOCKS = _index(lambda clues: clues.untyped_blocks)
_TOOL_KEYS = _index(lambda clues: clues.tool_keys)
_FLAT_TOOLS = _formats_with(lambda clues: clues.flat_tools)
_TEXT_CONTENT = _formats_with(lambda clues: clues.text_content)
_TYPED_ITEMS = _formats_with(lambda clues: clues.typed_items)
_SYSTEM_FIRST = frozenset(wire.format for wire in WIRES.values() if wire.contract.system_in_messages)
_MESSAGE_KEYS = tuple(dict.fromkeys(wire.messages_key for wire in WIRES.values()))


def _clues(payload: Json) -> Iterator[Clue]:
    items: object = payload
    if isinstance(payload, dict):
        body = cast("JsonObject", payload)
        for key, formats in _BODY_KEYS.items():
            if key in body:
                yield f"the field {key!r}", formats
        for key in _MESSAGE_KEYS:
            if key in body:
                yield f"the field {key!r}", frozenset(w.format for w in WIRES.values() if w.messages_key == key)
        yield from _tool_clues(body.get("tools"))
        items = next((body[key] for key in _MESSAGE_KEYS if key in body), ())
    if isinstance(items, list):
        entries = cast("list[Json]", items)
        ends = entries if len(entries) <= 2 * _CLUES_READ else [*entries[:_CLUES_READ], *entries[-_CLUES_READ:]]
        if ends and isinstance(ends[0], dict) and ends[0].get("role") == "system":
            yield "a system message at the start", _SYSTEM_FIRST
        for item in ends:
            yield from _item_clues(item)


def _tool_clues(tools: object) -> Iterator[Clue]:
    for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        key = next((key for key in _TOOL_KEYS if key in tool), None)
        if key is not None:
            yield f"a tool with {key!r}", _TOOL_KEYS[key]
        elif cast("JsonObject", tool).get("type") == "function":
            yield "a function tool without 'function'", _FLAT_TOOLS


def _item_clues(item: object) -> Iterator[Clue]:
    if not isinstance(item, dict):
        return
    message = cast("JsonObject", item)
    role = message.get("role")
    if "type" in message and role is None:
        yield f"an item of type {message['type']!r}", _TYPED_ITEMS
        return
    for key, formats in _ITEM_KEYS.items():
        if message.get(key) is not None:
            yield f"the field {key!r} of a message", formats
    if isinstance(role, str):
        yield f"the role {role!r}", _ROLES.get(role, _ALL)
    content = message.get("content")
    if isinstance(content, str):
        yield "a message with plain text", _TEXT_CONTENT
    for block in cast("list[object]", content) if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield from _block_clues(cast("JsonObject", block))


def _block_clues(block: JsonObject) -> Iterator[Clue]:
    kind = block.get("type")
    if isinstance(kind, str):
        if kind in _BLOCK_TYPES:
            yield f"a content block of type {kind!r}", _BLOCK_TYPES[kind]
        return
    for key in block:
        if key in _UNTYPED_BLOCKS:
            yield f"a content block {key!r} without a type", _UNTYPED_BLOCKS[key]
            return

"""The tool in a request: behind the client's own, under a name that none of them has.

A tool that is offered stays in every request of the conversation, so that what stands before the messages never
changes. Where a client declares no tools, or forbids calls from the beginning, none is offered.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

import msgspec

from kompakt.engine.recall import tool
from kompakt.gateway.recall.turn import as_list, as_object
from kompakt.gateway.request.body import RequestBody
from kompakt.model.messages import Json, JsonObject
from kompakt.store.codec import encode
from kompakt.wire.registry import WIRES

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_DECLARED = ("functionDeclarations", "function_declarations")


def declared(asked: RequestBody) -> frozenset[str] | None:
    """Return the names of the client's tools; ``None`` when there is none to put another behind."""
    raw = _raw(asked)
    return None if raw is None else _names(asked.format, raw)


def fits(asked: RequestBody) -> bool:
    """Tell whether one answer with whole calls comes back, and the provider keeps nothing of it to continue from."""
    config = as_object(asked.field("generationConfig"))
    is_kept = asked.format == "openai-responses" and asked.field("store") is not False
    in_pieces = (
        _calling(asked).get("streamFunctionCallArguments") is True
    )  # Gemini names a call in its first piece only
    return not is_kept and not in_pieces and asked.field("n") in (None, 1) and config.get("candidateCount") in (None, 1)


def forbids(asked: RequestBody) -> bool:
    """Tell whether the client wants no calls."""
    choice = asked.field("tool_choice")
    return choice == "none" or as_object(choice).get("type") == "none" or _calling(asked).get("mode") == "NONE"


def _calling(asked: RequestBody) -> JsonObject:
    """Return how Gemini is told to call."""
    config = as_object(asked.field("toolConfig") or asked.field("tool_config"))
    return as_object(config.get("functionCallingConfig") or config.get("function_calling_config"))


def chosen(taken: frozenset[str]) -> str:
    """Choose a name that no tool of the client has."""
    names = (tool.NAME, f"kompakt_{tool.NAME}")
    for name in names:
        if name not in taken:
            return name
    return next(name for number in count(2) if (name := f"{names[-1]}_{number}") not in taken)


def offered(asked: RequestBody, name: str) -> RequestBody:
    """Put the tool behind the client's."""
    raw = _raw(asked)
    assert raw is not None
    made = _with_tool(asked.format, raw, name)
    before = {key: made if key == "tools" else value for key, value in asked.before.items()}
    after = {key: made if key == "tools" else value for key, value in asked.after.items()}
    return msgspec.structs.replace(asked, before=before, after=after)


def _raw(asked: RequestBody) -> bytes | None:
    return asked.before.get("tools", asked.after.get("tools"))


@lru_cache(maxsize=64)
def _names(format: str, raw: bytes) -> frozenset[str] | None:
    listed = as_list(_decoded(raw))
    if format == "gemini":
        listed = [one for entry in listed for key in _DECLARED for one in as_list(as_object(entry).get(key))]
    named = [as_object(entry) for entry in listed]
    found = [entry.get("name") or as_object(entry.get("function")).get("name") for entry in named]
    return frozenset(str(name) for name in found) if listed else None


def _decoded(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _with_tool(format: str, raw: bytes, name: str) -> bytes:
    made: JsonObject = WIRES[format].define_tool(name=name, description=tool.DESCRIPTION, schema=tool.SCHEMA)
    if format != "gemini":
        return b"[" + b",".join([*map(bytes, _ARRAY.decode(raw)), encode(made)]) + b"]"
    entries = as_list(_decoded(raw))
    at, key = max((at, key) for at, entry in enumerate(entries) for key in _DECLARED if as_object(entry).get(key))
    own = [*entries[at][key], *made["functionDeclarations"]]
    return encode([*entries[:at], {**entries[at], key: own}, *entries[at + 1 :]])

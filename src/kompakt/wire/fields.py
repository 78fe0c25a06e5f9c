"""Typed access to decoded JSON from outside: shapes are verified here, once.

Every ``MalformedPayload`` names the path of the wrong value. Usage objects never raise: unusable counts are zero.

One rule (TX-1) applies to every format and to every text of a request, including field names: no lone surrogates.
Programs that cut text by UTF-16 units produce these halves of a pair. JSON can write them as an escape, but
providers reject the whole request. Sources: Anthropic answers 400 "The request body is not valid JSON: no low surrogate
in string", DeepSeek "lone leading surrogate in hex escape". Python cannot encode such a request as UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from kompakt.errors import MalformedPayload
from kompakt.model.budget import Usage
from kompakt.model.json import decode_text
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.wire import Change, Problem


def an_object(value: object, path: str) -> JsonObject:
    """Return a JSON object.

    Raises:
        MalformedPayload: the value has another type.
    """
    if not isinstance(value, dict):
        raise MalformedPayload(path, "an object", value)
    return cast("JsonObject", value)


def an_array(value: object, path: str) -> list[Any]:
    """Return a JSON array.

    Raises:
        MalformedPayload: the value has another type.
    """
    if not isinstance(value, list):
        raise MalformedPayload(path, "an array", value)
    return cast("list[Any]", value)


def text_at(holder: JsonObject, key: str, path: str) -> str:
    """Return a string field; an absent or null field is empty.

    Raises:
        MalformedPayload: the value has another type.
    """
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedPayload(f"{path}.{key}", "a string", value)
    return value


def blocks_at(holder: JsonObject, key: str, path: str) -> list[JsonObject]:
    """Return a list of objects; an absent or null field is empty.

    Raises:
        MalformedPayload: the value has another type.
    """
    value = holder.get(key)
    if value is None:
        return []
    blocks = an_array(value, f"{path}.{key}")
    for index, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise MalformedPayload(f"{path}.{key}[{index}]", "an object", block)
    return cast("list[JsonObject]", blocks)


def model_of(body: JsonObject | None, *keys: str) -> str | None:
    """Return the model name in a request body."""
    for key in keys or ("model",):
        value = (body or {}).get(key)
        if isinstance(value, str) and value:
            return value
    return None


def enables_thinking(holder: object) -> bool:
    """Return whether an object has ``thinking`` of type ``enabled``: extended thinking with a token budget."""
    thinking = cast("JsonObject", holder).get("thinking") if isinstance(holder, dict) else None
    return isinstance(thinking, dict) and cast("JsonObject", thinking).get("type") == "enabled"


def data_url(url: str) -> tuple[str | None, str | None]:
    """Split a data URL into media type and base64 text; (None, None) for any other URL."""
    if not url.startswith("data:"):
        return None, None
    head, _, data = url.partition(",")
    return head[5:].partition(";")[0] or None, data


def input_object(value: object) -> JsonObject:
    """Convert the input of a call to an object: unchanged, decoded from its JSON text, or wrapped as ``raw``."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            decoded: object = decode_text(value) if value else {}
        except ValueError:
            decoded = None
        return cast("JsonObject", decoded) if isinstance(decoded, dict) else {"raw": value}
    return cast("JsonObject", value) if isinstance(value, dict) else {"raw": value}


# --- usage -------------------------------------------------------------------------------------------------------
# Providers differ in whether cache reads are part of the input and reasoning is part of the output. ``Usage`` counts
# every token once.


def first_count(usage: Mapping[str, object], *paths: str) -> int:
    """Return the first count above zero among paths of one or two keys; 0 when there is none."""
    for path in paths:
        holder, _, key = path.rpartition(".")
        details = usage.get(holder) if holder else usage
        value = cast("Mapping[str, object]", details).get(key) if isinstance(details, Mapping) else None
        # NaN and infinity fail the comparison.
        if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < float("inf"):
            return int(value)
    return 0


def usage_with_cache_inside(prompt: int, *, cached: int, written: int, output: int, reasoning: int) -> Usage:
    """Build a usage from a prompt count that includes cache reads."""
    cached = min(cached, prompt)
    return Usage(
        input=prompt - cached,
        cache_read=cached,
        cache_write=min(written, prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def usage_with_cache_apart(fresh: int, *, cached: int, written: int, output: int, reasoning: int) -> Usage:
    """Build a usage from an input count that includes neither cache reads nor cache writes."""
    return Usage(
        input=fresh + written,
        cache_read=cached,
        cache_write=written,
        output=output,
        reasoning=min(reasoning, output),
    )


# --- lone surrogates -----------------------------------------------------------------------------------------------

_SIGNATURES = ("signature", "thoughtSignature", "thought_signature")
"""Signatures of the text beside or inside them; a changed text makes them invalid."""

_BATCH = 256
"""Messages that are checked in one call: fewer calls are faster, and a batch takes little memory."""

_ENCODER = msgspec.msgpack.Encoder(enc_hook=repr)
"""Finds lone surrogates, which UTF-8 cannot encode. MessagePack copies texts as they are, so it is the fastest."""


def surrogate_problems(items: Sequence[Json], body: JsonObject | None, key: str) -> list[Problem]:
    """List the texts of a request that contain a lone surrogate; ``key`` is the field of the messages."""
    message = "a lone surrogate is not a character; every provider rejects the request"
    return [Problem("TX-1", path, message) for path in _paths(items, body, key)]


def replace_surrogates(
    items: Sequence[Json], body: JsonObject | None, key: str
) -> tuple[Sequence[Json], JsonObject | None, list[Change]]:
    """Join adjacent halves and replace the others with U+FFFD; a changed text loses its signature."""
    changes = [
        Change("TX-1", "replaced", path, "a lone surrogate is now a replacement character")
        for path in _paths(items, body, key)
    ]
    if not changes:
        return items, body, changes
    repaired = [_repaired(item) if _is_broken(item) else item for item in items]
    if body is None:
        return repaired, None, changes
    beside = {_joined(name): value if name == key else _repaired(value) for name, value in body.items()}
    if isinstance(beside.get(key), str):  # the whole input may be one string
        beside[key] = repaired[0]
    return repaired, beside, changes


def _paths(items: Sequence[Json], body: JsonObject | None, key: str) -> Iterator[str]:
    is_text = isinstance((body or {}).get(key), str)
    buffer = bytearray()
    for start in range(0, len(items), _BATCH):
        if not _is_broken(items[start : start + _BATCH], buffer):
            continue
        for i, item in enumerate(items[start : start + _BATCH], start):
            if _is_broken(item):
                yield from _places(item, key if is_text else f"{key}[{i}]")
    beside = {name: value for name, value in (body or {}).items() if name != key}
    if _is_broken(beside):
        yield from (path.removeprefix(".") for path in _places(beside, ""))


def _is_broken(value: Json | Sequence[Json], buffer: bytearray | None = None) -> bool:
    """Return whether a value contains a lone surrogate; ``buffer`` is reused for the encoded value."""
    try:
        _ENCODER.encode_into(value, bytearray() if buffer is None else buffer)
    except UnicodeEncodeError:
        return True
    except OverflowError:  # MessagePack has no integers of more than 64 bits
        return next(_places(value, ""), None) is not None
    return False


def _places(value: Json, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if _joined(value) != value:
            yield path
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if _joined(name) != name:
                yield f"{path}.{_joined(name)}"
            yield from _places(inner, f"{path}.{_joined(name)}")
    elif isinstance(value, list):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _places(inner, f"{path}[{i}]")


def _repaired(value: Json) -> Json:
    """Return a value without lone surrogates; unchanged parts stay the same objects."""
    if isinstance(value, str):
        return value if value.isascii() else _joined(value)
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        listed = [_repaired(inner) for inner in entries]
        return value if all(one is other for one, other in zip(listed, entries, strict=True)) else listed
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    made = {_joined(name): _repaired(inner) for name, inner in fields.items()}
    if made.keys() == fields.keys() and all(made[name] is inner for name, inner in fields.items()):
        return value
    return {name: inner for name, inner in made.items() if name not in _SIGNATURES}


def _joined(text: str) -> str:
    """Return a text without lone surrogates; the same object when it has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

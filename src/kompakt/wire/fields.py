"""Typed access to decoded JSON from outside: shapes are verified here, once.

Every ``MalformedPayload`` names the path of the wrong value. Usage objects never raise: unusable counts are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kompakt.errors import MalformedPayload
from kompakt.model.budget import Usage
from kompakt.model.json import decode_text
from kompakt.model.messages import JsonObject


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

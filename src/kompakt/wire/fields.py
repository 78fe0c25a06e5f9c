"""Look into decoded JSON with types checked: the edge where shapes are verified once.

Every function names the path of what it refuses, so a caller sees where the payload goes wrong.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from kompakt.errors import MalformedPayload
from kompakt.model.json import decode_text
from kompakt.model.messages import Json, JsonObject


def an_object(value: object, path: str) -> JsonObject:
    """Take a JSON object.

    Raises:
        MalformedPayload: it is something else.
    """
    if not isinstance(value, dict):
        raise MalformedPayload(path, "an object", value)
    return cast("JsonObject", value)


def an_array(value: object, path: str) -> list[Any]:
    """Take a JSON array.

    Raises:
        MalformedPayload: it is something else.
    """
    if not isinstance(value, list):
        raise MalformedPayload(path, "an array", value)
    return cast("list[Any]", value)


def text_at(holder: JsonObject, key: str, path: str) -> str:
    """Take a string field; absent or null reads as empty.

    Raises:
        MalformedPayload: it is something else.
    """
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedPayload(f"{path}.{key}", "a string", value)
    return value


def blocks_at(holder: JsonObject, key: str, path: str) -> list[JsonObject]:
    """Take a list of objects; absent or null reads as empty.

    Raises:
        MalformedPayload: it is something else.
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
    """Read the model's name from a request body."""
    for key in keys or ("model",):
        value = (body or {}).get(key)
        if isinstance(value, str) and value:
            return value
    return None


def data_url(url: str) -> tuple[str | None, str | None]:
    """Split a data URL into media type and base64 text; (None, None) for any other address."""
    if not url.startswith("data:"):
        return None, None
    head, _, data = url.partition(",")
    return head[5:].partition(";")[0] or None, data


def parsed_input(value: object) -> Json:
    """Give a call's input as a JSON value: text that holds an object is decoded, anything else is wrapped."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        decoded: object = decode_text(value) if value else {}
    except ValueError:
        return {"raw": value}
    return cast("Json", decoded) if isinstance(decoded, dict) else {"raw": value}


def as_object(value: object) -> JsonObject:
    """Make an object of a call's input: as it is, out of its JSON text, or wrapped."""
    value = parsed_input(value)
    return cast("JsonObject", value) if isinstance(value, dict) else {"raw": value}


def written(value: Json) -> str:
    """Write a value as the JSON text that a wire wants; lone surrogates as escapes, which is all that can be done."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        import json  # late: only for what is no text

        return json.dumps(value)

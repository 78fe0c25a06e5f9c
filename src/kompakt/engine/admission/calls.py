"""What a call says, by its shape alone: no tool and no name of an argument is known here."""

from __future__ import annotations

from typing import Any, cast

from kompakt.model.json import decode_text
from kompakt.model.messages import Json


def arguments(call_input: Json) -> list[Json]:
    """List the arguments of a call, whether they come as JSON or as JSON text."""
    if isinstance(call_input, str):
        try:
            call_input = decode_text(call_input)
        except ValueError:
            return [call_input]
    return list(cast("dict[str, Any]", call_input).values()) if isinstance(call_input, dict) else [call_input]


def texts_of(call_input: Json) -> list[str]:
    """List the texts of a call: its arguments, and those of the objects in its lists."""
    found: list[str] = []
    for value in arguments(call_input):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            objects = [item for item in cast("list[Any]", value) if isinstance(item, dict)]
            found += [
                text for item in objects for text in cast("dict[str, Any]", item).values() if isinstance(text, str)
            ]
    return found

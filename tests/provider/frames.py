"""Helpers of all dialects: frames of server-sent events, pieces of text, checks of declared tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tests.provider.answer import Body

TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
PIECE = 24


def frame(data: Any, event: str | None = None) -> bytes:
    """Return one event as it is sent."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {text}\n\n".encode()


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cut a text as a stream would."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def joined(content: Any, *kinds: str) -> str:
    """Return the text of content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = [part for part in content or [] if isinstance(part, dict) and (not kinds or part.get("type") in kinds)]
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def first_text(content: Any) -> str:
    """Return the first text of content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return next((part["text"] for part in content or [] if isinstance(part.get("text"), str) and part["text"]), "")


def tool_faults(path: str, tools: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Yield what is wrong with declared functions, given as pairs of name and schema."""
    names: set[str] = set()
    for at, (name, schema) in enumerate(tools):
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            yield f"TOOL {path}[{at}].name: {name!r} does not match the pattern of names"
            continue
        if name in names:
            yield f"TOOL {path}[{at}].name: {name!r} is declared twice"
        names.add(name)
        if schema is not None and (not isinstance(schema, dict) or str(schema.get("type")).lower() != "object"):
            yield f"TOOL {path}[{at}]: the schema of the arguments must be of type object"


def unknown_keys(body: Body, known: Iterable[str]) -> Iterator[str]:
    """Yield each parameter that the interface does not know."""
    yield from (f"BODY {key}: unknown parameter" for key in sorted(body.keys() - set(known)))


def loaded(text: str) -> Body:
    """Read a JSON object; anything else gives an object that equals no call."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"unreadable": text}

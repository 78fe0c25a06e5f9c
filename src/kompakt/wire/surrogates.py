"""Lone surrogates: halves of a character that no request may carry.

Writers that cut text by UTF-16 units leave half of a pair behind. It can be written as a JSON escape, but no provider
reads it back: the whole request is refused. So the rule holds for every format and for every text of a request, the
names of fields included.

Known from: Anthropic answers 400 "The request body is not valid JSON: no low surrogate in string", DeepSeek "lone
leading surrogate in hex escape"; Python cannot even encode such a request as UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from kompakt.model.messages import Json, JsonObject
from kompakt.wire.problems import Change, Problem

_SIGNATURES = ("signature", "thoughtSignature", "thought_signature")
"""What proves the text beside it or inside it; it no longer holds once that text changes."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def problems(items: Sequence[Json], body: JsonObject | None, key: str) -> list[Problem]:
    """List the texts of a request that hold half of a surrogate pair; ``key`` names the field of the messages."""
    message = "half of a surrogate pair is no character; every provider refuses the request"
    return [Problem("TX-1", path, message) for path in _paths(items, body, key)]


def repair(
    items: Sequence[Json], body: JsonObject | None, key: str
) -> tuple[Sequence[Json], JsonObject | None, list[Change]]:
    """Join halves that stand side by side and replace the others by U+FFFD; a changed text loses its signature."""
    changes = [
        Change("TX-1", "replaced", path, "half of a surrogate pair is now a replacement character")
        for path in _paths(items, body, key)
    ]
    if not changes:
        return items, body, changes
    mended = [_mended(item) if _is_broken(item) else item for item in items]
    if body is None:
        return mended, None, changes
    beside = {_whole(name): value if name == key else _mended(value) for name, value in body.items()}
    if isinstance(beside.get(key), str):  # the whole input may be one text
        beside[key] = mended[0]
    return mended, beside, changes


def _paths(items: Sequence[Json], body: JsonObject | None, key: str) -> Iterator[str]:
    is_text = isinstance((body or {}).get(key), str)
    for i, item in enumerate(items):
        if _is_broken(item):
            yield from _places(item, key if is_text else f"{key}[{i}]")
    beside = {name: value for name, value in (body or {}).items() if name != key}
    if _is_broken(beside):
        yield from (path.removeprefix(".") for path in _places(beside, ""))


def _is_broken(value: Json) -> bool:
    try:
        _ENCODER.encode(value)
    except UnicodeEncodeError:
        return True
    return False


def _places(value: Json, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if _whole(value) != value:
            yield path
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if _whole(name) != name:
                yield f"{path}.{_whole(name)}"
            yield from _places(inner, f"{path}.{_whole(name)}")
    elif isinstance(value, list):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _places(inner, f"{path}[{i}]")


def _mended(value: Json) -> Json:
    """Copy what has to change of a value; what has not stays the same object."""
    if isinstance(value, str):
        return value if value.isascii() else _whole(value)
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        listed = [_mended(inner) for inner in entries]
        return value if all(one is other for one, other in zip(listed, entries, strict=True)) else listed
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    made = {_whole(name): _mended(inner) for name, inner in fields.items()}
    if made.keys() == fields.keys() and all(made[name] is inner for name, inner in fields.items()):
        return value
    return {name: inner for name, inner in made.items() if name not in _SIGNATURES}


def _whole(text: str) -> str:
    """Return a text without lone surrogates; the same object when it has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

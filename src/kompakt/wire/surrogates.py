"""Lone surrogates: halves of a UTF-16 pair, which no request may contain (TX-1).

Programs that cut text by UTF-16 units leave them behind. JSON can write them as an escape, but providers reject the
whole request. So the rule applies to every format and every text of a request, including field names.

Sources: Anthropic answers 400 "The request body is not valid JSON: no low surrogate in string", DeepSeek "lone leading
surrogate in hex escape". Python cannot encode such a request as UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from kompakt.model.messages import Json, JsonObject
from kompakt.wire.wire import Change, Problem

_SIGNATURES = ("signature", "thoughtSignature", "thought_signature")
"""Signatures of the text beside or inside them; a changed text makes them invalid."""

_BATCH = 256
"""Messages that are checked in one call: fewer calls are faster, and a batch takes little memory."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def problems(items: Sequence[Json], body: JsonObject | None, key: str) -> list[Problem]:
    """List the texts of a request that contain a lone surrogate; ``key`` is the field of the messages."""
    message = "a lone surrogate is not a character; every provider rejects the request"
    return [Problem("TX-1", path, message) for path in _paths(items, body, key)]


def repair(
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
    for start in range(0, len(items), _BATCH):
        if not _is_broken(items[start : start + _BATCH]):
            continue
        for i, item in enumerate(items[start : start + _BATCH], start):
            if _is_broken(item):
                yield from _places(item, key if is_text else f"{key}[{i}]")
    beside = {name: value for name, value in (body or {}).items() if name != key}
    if _is_broken(beside):
        yield from (path.removeprefix(".") for path in _places(beside, ""))


def _is_broken(value: Json | Sequence[Json]) -> bool:
    try:
        _ENCODER.encode(value)
    except UnicodeEncodeError:
        return True
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

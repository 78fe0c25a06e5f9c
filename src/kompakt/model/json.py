"""JSON values: validation, conversion of SDK objects, encoding and decoding.

Invariant: a value from ``plain`` consists of JSON types and bytes, has at most ``MAX_DEPTH`` levels and no integer that
Python refuses to write. So recursive code, comparisons and JSON writers need no guard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec

from kompakt.errors import InputError, MalformedPayload
from kompakt.model.messages import Json, JsonObject

MAX_DEPTH = 200
"""Levels of nesting. Providers accept fewer: protobuf 100, serde 128."""

MAX_INNER_DEPTH = 100
"""Levels of a value decoded from text inside a payload, which it may replace."""

MAX_DIGITS = 4_300
"""Digits of an integer; by default Python neither reads nor writes longer ones."""

_TOO_LARGE = 10**MAX_DIGITS
_SCALARS = frozenset({str, float, bool, type(None), bytes, bytearray})
_PLAIN = _SCALARS | {int, dict, list}

Origins = dict[int, tuple[Any, object]]
"""Each converted value by its id, with the original object; holding the value keeps the id valid."""


class Plain(NamedTuple):
    """A JSON value and the originals of its converted parts."""

    value: Any
    origins: Origins


def plain(value: object, path: str = "payload") -> Plain:
    """Return a value as JSON: the same object when it already is, else a copy with other types converted.

    Objects with ``model_dump`` (results of SDKs) become what their SDK would send; tuples become lists.

    Raises:
        InputError: the value is nested too deeply, has an integer that is too long, or is not JSON; names the path.
    """
    if _is_plain(value, path):
        return Plain(value, {})
    origins: Origins = {}
    return Plain(_convert(value, path, 0, origins), origins)


def _is_plain(value: object, path: str, levels: int = MAX_DEPTH) -> bool:
    """Return whether a value is JSON. This runs on every payload, so each level is checked with a few calls into C."""
    values: list[Any] = [value]
    for _ in range(levels + 1):
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        if int in kinds and any(not -_TOO_LARGE < one < _TOO_LARGE for one in values if type(one) is int):
            return False
        objects: list[dict[Any, Any]] = [one for one in values if type(one) is dict] if dict in kinds else []
        arrays: list[list[Any]] = [one for one in values if type(one) is list] if list in kinds else []
        if not objects and not arrays:
            return True
        try:
            "".join(chain.from_iterable(objects))  # the fastest check that all names are strings
        except TypeError:
            return False
        values = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(arrays)]
    raise _too_deep(path)


def _too_deep(path: str) -> InputError:
    return InputError(f"{path[:80]}: nested more than {MAX_DEPTH} levels deep, which no provider accepts")


def _convert(value: object, path: str, depth: int, origins: Origins) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, str):  # a subclass, such as an enum member
        return str.__str__(value)
    if isinstance(value, int):
        if not -_TOO_LARGE < value < _TOO_LARGE:
            raise InputError(f"{path}: an integer with more than {MAX_DIGITS:,} digits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    made = _convert_holder(value, path, depth, origins)
    if made is not value:
        origins[id(made)] = (made, value)
    return made


def _convert_holder(value: object, path: str, depth: int, origins: Origins) -> Any:
    if depth >= MAX_DEPTH:
        raise _too_deep(path)
    dump: object = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _convert(_dumped(value, dump, path), path, depth + 1, {})
    if isinstance(value, Mapping):
        pairs = list(cast("Mapping[object, object]", value).items())
        made = [(_key(key, path), _convert(inner, f"{path}.{key}", depth + 1, origins)) for key, inner in pairs]
        is_same = all(one[0] is other[0] and one[1] is other[1] for one, other in zip(made, pairs, strict=True))
        return value if is_same and type(value) is dict else dict(made)
    if isinstance(value, Sequence) and not isinstance(value, memoryview | range):
        entries = cast("Sequence[object]", value)
        listed = [_convert(inner, f"{path}[{i}]", depth + 1, origins) for i, inner in enumerate(entries)]
        is_same = all(one is other for one, other in zip(listed, entries, strict=True))
        return value if is_same and type(value) is list else listed
    raise MalformedPayload(path, "a JSON value", value)


def _key(key: object, path: str) -> str:
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int) and -_TOO_LARGE < key < _TOO_LARGE:
        return str(int(key))
    raise MalformedPayload(path, "an object with string keys", key)


def _dumped(value: object, dump: Callable[..., object], path: str) -> object:
    """Dump an SDK object like the SDKs of OpenAI and Anthropic do before they send it."""
    hidden: object = getattr(value, "__api_exclude__", None)
    try:
        try:
            return dump(mode="json", by_alias=True, exclude_unset=True, exclude=hidden, warnings=False)
        except TypeError:  # not pydantic: no such options
            return dump()
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {type(value).__name__}.model_dump failed: {error}") from error


def restore(value: Any, origins: Origins) -> Any:
    """Replace converted values that are still unchanged with the caller's own objects."""
    if not origins:
        return value
    found = origins.get(id(value))
    if found is not None and found[0] is value:
        return found[1]
    if type(value) is dict:
        fields = cast("dict[str, Any]", value)
        made = {key: restore(inner, origins) for key, inner in fields.items()}
        return fields if all(made[key] is inner for key, inner in fields.items()) else made
    if type(value) is list:
        entries = cast("list[Any]", value)
        listed = [restore(inner, origins) for inner in entries]
        return entries if all(one is other for one, other in zip(listed, entries, strict=True)) else listed
    return value


def encode(value: Json) -> bytes:
    """Write JSON without white space. Lone surrogates become escapes; NaN and infinities are written as Python does.

    Raises:
        InputError: the value is nested too deeply.
    """
    try:
        data = msgspec.json.encode(value)
        # msgspec writes NaN and infinities as null
        is_same = b"null" not in data or not any(map(_is_not_finite, chain.from_iterable(levels(value))))
        return data if is_same else json.dumps(value, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        raise InputError(f"the payload is nested more than {MAX_DEPTH} deep and cannot be stored or sent") from None


def levels(value: Json) -> Iterator[list[Json]]:
    """Yield a value level by level, from the outside in."""
    level = [value]
    while level:
        yield level
        inside = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list | tuple)
        ]
        level = list(chain.from_iterable(inside))


def _is_not_finite(value: Json) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def compact_json(value: Json) -> str:
    """Write JSON text without white space; see ``encode``."""
    return encode(value).decode()


def spaced_json(value: Json) -> str:
    """Return a string unchanged and any other value as JSON text, spaced as Python's ``json`` does.

    Integers over 64 bits and bytes of an SDK are written too.
    """
    return value if type(value) is str else json.dumps(value, ensure_ascii=False, default=repr)


def indented_json(value: object) -> bytes:
    """Write indented JSON with a line end; lone surrogates become escapes."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), indent=2).encode() + b"\n"


def json_text(value: Json) -> str:
    """Write a JSON value compactly; values that JSON cannot express are written with ``repr``.

    Raises:
        InputError: the value is nested too deeply.
    """
    try:
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError, UnicodeEncodeError):
            return repr(value)
    except RecursionError:
        raise InputError("a value is nested too deeply to be sent as JSON") from None


def prepare(*types: object) -> None:
    """Build what msgspec needs to decode values as these types; call it where a module is imported.

    msgspec builds it on first use and publishes it before it is complete. If two threads decode the first values of a
    type at the same time, one of them reads a null pointer, and the process ends with a segmentation fault (seen with
    msgspec 0.22.0 in gateways that started under load).
    """
    for one in types:
        msgspec.json.Decoder(one)


def decode(data: bytes) -> Json:
    """Read what ``encode`` wrote."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def decode_loosely(data: bytes) -> Any:
    """Decode JSON with lone surrogates, escaped or encoded, which strict decoders reject.

    Raises:
        ValueError: the data is not JSON, or otherwise not UTF-8.
        RecursionError: the data is nested too deeply.
    """
    return json.loads(data.decode("utf-8", "surrogatepass"), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def decode_text(text: str) -> Any:
    """Decode JSON text inside a value, such as the arguments of a call.

    Raises:
        ValueError: the text is not JSON, or nested more than ``MAX_INNER_DEPTH`` levels deep.
    """
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if len(text) > MAX_INNER_DEPTH and text.count("[") + text.count("{") > MAX_INNER_DEPTH:
        try:
            _is_plain(value, "text", MAX_INNER_DEPTH)
        except InputError as error:
            raise ValueError(str(error)) from None
    return value


def as_object(value: object) -> JsonObject:
    """Return an object as it is, and ``{}`` for any other value."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_objects(value: object) -> list[JsonObject]:
    """Return the objects of a list, and an empty list for any other value."""
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", entry) for entry in entries if isinstance(entry, dict)]


def as_text(value: object) -> str:
    """Return a string as it is, and an empty one for any other value."""
    return value if isinstance(value, str) else ""

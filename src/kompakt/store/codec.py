"""How values become bytes and come back: compact, long texts once, encrypted when there is a key.

A text of some length inside a value is taken out and kept as a blob under its hash, so that an output that was read
twice, or is in a session and its fork, is kept once. What is left is JSON. Both are compressed where that helps.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

import msgspec

from kompakt.errors import InputError, StoreDamaged, UsageError, WrongKey
from kompakt.model.json import MAX_DEPTH
from kompakt.model.messages import Json

LONG = 4_096
"""Characters from which a text is kept as a blob."""

DEEPEST = MAX_DEPTH
"""Lists and objects inside one another that can be read back wherever that is asked for."""

_TOO_DEEP = f"the payload is nested more than {DEEPEST} deep and cannot be stored"

_COMPRESS = 512
"""Bytes from which compression is tried."""

_POINTER = "$kompakt-blob"
_PLAIN, _DEFLATED, _SEALED = b"p", b"z", b"s"
_NONCE = 12
_HASH = 16


class Packed(msgspec.Struct, frozen=True):
    """A value as bytes, with the blobs it points to."""

    data: bytes
    content: bytes
    """Hash of the value, whatever is packed how."""
    blobs: dict[str, bytes] = {}


class ValueCodec:
    """Packs values, with a key or without."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or b""
        self._cipher: Any = None if key is None else _cipher(key)

    @property
    def is_encrypted(self) -> bool:
        """Tell whether there is a key."""
        return self._cipher is not None

    def pack(self, value: Json) -> Packed:
        """Make bytes of a value."""
        whole = encode(value)
        if whole.count(b"[") + whole.count(b"{") > DEEPEST and sum(1 for _ in _levels(value)) > DEEPEST:
            raise InputError(_TOO_DEEP)
        if len(whole) < LONG:
            return Packed(self._wrap(whole), self._hash(whole))
        blobs: dict[str, bytes] = {}
        rest = encode(_without_long(value, lambda text: self._blob(text, blobs)))
        return Packed(self._wrap(rest if blobs else whole), self._hash(whole), blobs)

    def pack_whole(self, value: Json) -> bytes:
        """Make bytes of a value with nothing taken out."""
        return self._wrap(encode(value))

    def unpack(self, data: bytes, blobs: Mapping[str, bytes] | None = None, *, where: str) -> Json:
        """Make the value again; ``blobs`` are those it points to, ``where`` is what errors call the place.

        Raises:
            StoreDamaged: the bytes are not what was written, or the key is another.
            WrongKey: they are encrypted and there is no key, or they are not and there is one.
        """
        self._check_sealed(data, where)
        try:
            value = decode(self._unwrap(data))
        except (ValueError, zlib.error, RecursionError):
            raise StoreDamaged(f"{where}: the bytes kept are damaged, or were written with another key") from None
        return value if blobs is None else self.resolve(value, blobs, where=where)

    def resolve(self, value: Json, blobs: Mapping[str, bytes], *, where: str) -> Json:
        """Read a value that was unpacked without its blobs.

        Raises:
            StoreDamaged: a blob is missing or damaged.
        """
        try:
            return _with_long(value, lambda name: self._text(blobs[name], name))
        except KeyError as error:
            raise StoreDamaged(f"{where}: blob {error} is missing; restore the store from a backup") from None
        except (ValueError, zlib.error):
            raise StoreDamaged(f"{where}: the bytes kept are damaged, or were written with another key") from None

    def is_whole(self, value: Json, content: bytes) -> bool:
        """Tell whether a value is the one that was packed."""
        return self._hash(encode(value)) == content

    def _blob(self, text: str, blobs: dict[str, bytes]) -> str:
        data = text.encode("utf-8", "surrogatepass")
        hash = self._hash(data).hex()
        if hash not in blobs:
            blobs[hash] = self._wrap(data)
        return hash

    def _text(self, packed: bytes, hash: str) -> str:
        data = self._unwrap(packed)
        if self._hash(data).hex() != hash:
            raise ValueError(hash)
        return data.decode("utf-8", "surrogatepass")

    def _hash(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_HASH, key=self._key[:64]).digest()

    def _wrap(self, data: bytes) -> bytes:
        packed = _PLAIN + data
        if len(data) >= _COMPRESS:
            packed = min(packed, _DEFLATED + zlib.compress(data, 3), key=len)
        if self._cipher is None:
            return packed
        nonce = os.urandom(_NONCE)
        return _SEALED + nonce + self._cipher.encrypt(nonce, packed, None)

    def _unwrap(self, data: bytes) -> bytes:
        if data[:1] == _SEALED:
            if self._cipher is None:
                raise ValueError("sealed")
            data = self._opened(data)
        elif self._cipher is not None:
            raise ValueError("not sealed")
        return zlib.decompress(data[1:]) if data[:1] == _DEFLATED else data[1:]

    def _check_sealed(self, data: bytes, where: str) -> None:
        """Refuse bytes that were written with a key when there is none, and the other way round."""
        if data[:1] == _SEALED and self._cipher is None:
            raise WrongKey(
                f"{where}: the store is encrypted and no key was given; give it with key=…, "
                "--key-file FILE or KOMPAKT_KEY"
            )
        if data[:1] in (_PLAIN, _DEFLATED) and self._cipher is not None:
            raise WrongKey(f"{where}: the store is not encrypted and a key was given; leave the key out")

    def _opened(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # late: only who encrypts needs it

        try:
            return self._cipher.decrypt(data[1 : 1 + _NONCE], data[1 + _NONCE :], None)
        except InvalidTag:
            raise ValueError("tag") from None


def _cipher(key: bytes) -> Any:
    if len(key) != 32:
        raise UsageError(f"a key has 32 bytes, not {len(key)}; make one with secrets.token_bytes(32)")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("encryption needs the package cryptography; pip install 'kompakt[encryption]'") from None
    return AESGCM(key)


def encode(value: Json) -> bytes:
    """Write JSON; texts that UTF-8 has no bytes for are written as escapes, numbers that are none as Python does."""
    try:
        data = msgspec.json.encode(value)
        is_same = b"null" not in data or not any(map(_is_odd, chain.from_iterable(_levels(value))))
        return data if is_same else json.dumps(value, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        raise InputError(_TOO_DEEP) from None


def _levels(value: Json) -> Iterator[list[Json]]:
    """Go through a value: itself, what is in it, what is in that."""
    level = [value]
    while level:
        yield level
        inside = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list | tuple)
        ]
        level = list(chain.from_iterable(inside))


def _is_odd(value: Json) -> bool:
    """Tell whether a number is none that JSON knows."""
    return isinstance(value, float) and not math.isfinite(value)


def decode(data: bytes) -> Json:
    """Read what ``encode`` wrote."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def pointed(value: Json) -> str | None:
    """Return the hash of the blob that a value points to; ``None`` when it is no pointer."""
    found = cast("dict[str, Json]", value).get(_POINTER) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _without_long(value: Json, put: Callable[[str], str]) -> Json:
    """Copy a value with pointers in the place of long texts."""
    if isinstance(value, str):
        return {_POINTER: put(value)} if len(value) >= LONG else value
    if isinstance(value, list):
        return [_without_long(inner, put) for inner in cast("list[Json]", value)]
    if isinstance(value, dict):
        copy = {key: _without_long(inner, put) for key, inner in cast("dict[str, Json]", value).items()}
        return {_POINTER: [copy]} if _POINTER in copy else copy
    return value


def _with_long(value: Json, get: Callable[[str], str]) -> Json:
    """Undo ``_without_long``."""
    if isinstance(value, list):
        return [_with_long(inner, get) for inner in cast("list[Json]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Json]", value)
    pointer = found.get(_POINTER)
    if isinstance(pointer, str):
        return get(pointer)
    inner = pointer[0] if isinstance(pointer, list) and pointer else found
    if not isinstance(inner, dict):
        raise ValueError("an escaped object is none")
    return {key: _with_long(item, get) for key, item in cast("dict[str, Json]", inner).items()}

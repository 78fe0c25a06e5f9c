"""Values as bytes: JSON with long texts moved to blobs, compressed, and encrypted if there is a key.

A long text inside a value is stored as a blob under its hash. An output that occurs twice, or in a session and its
fork, is therefore stored once. Both JSON and blobs are compressed where that saves space.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from kompakt.errors import InputError, StoreDamaged, UsageError, WrongKey
from kompakt.model.json import MAX_DEPTH, decode, encode, levels
from kompakt.model.messages import Json
from kompakt.version import install_command

LONG = 4_096
"""Characters from which a text is stored as a blob."""

_COMPRESS = 512
"""Bytes from which compression is attempted."""

_POINTER = "$kompakt-blob"
_PLAIN, _DEFLATED, _SEALED = b"p", b"z", b"s"
_NONCE = 12
_HASH = 16


class PackedValue(msgspec.Struct, frozen=True):
    """A value as bytes, with the blobs it refers to."""

    data: bytes
    content: bytes
    """Hash of the value, independent of compression and blobs."""
    blobs: dict[str, bytes] = {}


class ValueCodec:
    """Packs and unpacks values, with or without a key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or b""
        self._cipher: Any = None if key is None else _cipher(key)

    @property
    def is_encrypted(self) -> bool:
        """Whether there is a key."""
        return self._cipher is not None

    def seal_key(self, tenant: str) -> bytes:
        """Return the key that seals the pivots of a tenant, derived from the store's key; empty without one."""
        if not self._key:
            return b""
        data = tenant.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=32, key=self._key[:64], person=b"kompakt seal").digest()

    def pack(self, value: Json) -> PackedValue:
        """Pack a value, with long texts as blobs."""
        whole = encode(value)
        if whole.count(b"[") + whole.count(b"{") > MAX_DEPTH and sum(1 for _ in levels(value)) > MAX_DEPTH:
            raise InputError(f"the payload is nested more than {MAX_DEPTH} deep and cannot be stored")
        if len(whole) < LONG:
            return PackedValue(self._wrap(whole), self._hash(whole))
        blobs: dict[str, bytes] = {}
        rest = encode(_without_long(value, lambda text: self._blob(text, blobs)))
        return PackedValue(self._wrap(rest if blobs else whole), self._hash(whole), blobs)

    def pack_whole(self, value: Json) -> bytes:
        """Pack a value without moving texts to blobs."""
        return self._wrap(encode(value))

    def unpack(self, data: bytes, blobs: Mapping[str, bytes] | None = None, *, where: str) -> Json:
        """Unpack a value. ``blobs`` has the blobs it refers to; ``where`` names the place in errors.

        Raises:
            StoreDamaged: the bytes are damaged, or were encrypted with another key.
            WrongKey: the value is encrypted and there is no key, or the other way round.
        """
        self._check_sealed(data, where)
        try:
            value = decode(self._unwrap(data))
        except (ValueError, zlib.error, RecursionError):
            raise StoreDamaged(f"{where}: the stored bytes are damaged, or were written with another key") from None
        return value if blobs is None else self.resolve(value, blobs, where=where)

    def resolve(self, value: Json, blobs: Mapping[str, bytes], *, where: str) -> Json:
        """Insert the blobs into a value that was unpacked without them.

        Raises:
            StoreDamaged: a blob is missing or damaged.
        """
        try:
            return _with_long(value, lambda name: self._text(blobs[name], name))
        except KeyError as error:
            raise StoreDamaged(f"{where}: blob {error} is missing; restore the store from a backup") from None
        except (ValueError, zlib.error):
            raise StoreDamaged(f"{where}: the stored bytes are damaged, or were written with another key") from None

    def is_whole(self, value: Json, content: bytes) -> bool:
        """Return whether a value has the hash ``content``."""
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
        """Raise ``WrongKey`` if the bytes are encrypted and there is no key, or the other way round."""
        if data[:1] == _SEALED and self._cipher is None:
            raise WrongKey(
                f"{where}: the store is encrypted and no key was given; give it with key=…, "
                "--key-file FILE or KOMPAKT_KEY"
            )
        if data[:1] in (_PLAIN, _DEFLATED) and self._cipher is not None:
            raise WrongKey(f"{where}: the store is not encrypted and a key was given; leave the key out")

    def _opened(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # late import: an optional extra

        try:
            return self._cipher.decrypt(data[1 : 1 + _NONCE], data[1 + _NONCE :], None)
        except InvalidTag:
            raise ValueError("tag") from None


def _cipher(key: bytes) -> Any:
    if len(key) != 32:
        raise UsageError(f"the key has {len(key)} bytes; use 32, for example secrets.token_bytes(32)")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError(
            f"encryption needs the package cryptography; install it with: {install_command('encryption')}"
        ) from None
    return AESGCM(key)


def pointed(value: Json) -> str | None:
    """Return the hash of the blob that a value points to; ``None`` if it is not a pointer."""
    found = cast("dict[str, Json]", value).get(_POINTER) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _without_long(value: Json, put: Callable[[str], str]) -> Json:
    """Copy a value with pointers in place of long texts. An object that looks like a pointer is escaped in a list."""
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
        raise ValueError("not an escaped object")
    return {key: _with_long(item, get) for key, item in cast("dict[str, Json]", inner).items()}

"""Values of the gateway as notes of the store: packed, and read back as what they were or not at all."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kompakt.errors import StoreDamaged
from kompakt.store.codec import ValueCodec

Value = TypeVar("Value", bound=msgspec.Struct)


def encode_note(value: msgspec.Struct, value_codec: ValueCodec) -> bytes:
    """Make bytes of a value."""
    return value_codec.pack_whole(msgspec.to_builtins(value))


def decode_note(data: bytes, value_codec: ValueCodec, kind: type[Value]) -> Value:
    """Make the value again.

    Raises:
        StoreDamaged: the bytes are not what was written.
    """
    where = f"a {kind.__name__.lower()} of the gateway"
    try:
        return msgspec.convert(value_codec.unpack(data, where=where), kind)
    except msgspec.ValidationError:
        raise StoreDamaged(f"{where} is not what this version writes") from None

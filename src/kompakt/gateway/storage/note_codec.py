"""Values of the gateway as notes of the store: packed, and read back as what they were or not at all."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kompakt.errors import StoreDamaged
from kompakt.store.encoding import Packing

Value = TypeVar("Value", bound=msgspec.Struct)


def encode_note(value: msgspec.Struct, packing: Packing) -> bytes:
    """Make bytes of a value."""
    return packing.pack_whole(msgspec.to_builtins(value))


def decode_note(data: bytes, packing: Packing, kind: type[Value]) -> Value:
    """Make the value again.

    Raises:
        StoreDamaged: the bytes are not what was written.
    """
    where = f"a {kind.__name__.lower()} of the gateway"
    try:
        return msgspec.convert(packing.unpack(data, where=where), kind)
    except msgspec.ValidationError:
        raise StoreDamaged(f"{where} is not what this version writes") from None

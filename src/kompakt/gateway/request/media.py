"""Bytes of images, audio and documents in a request, as they are after base64."""

from __future__ import annotations

from collections.abc import Iterable

from kompakt.errors import InputError
from kompakt.gateway.request.body import read
from kompakt.gateway.request.digests import decode_item, parse_items
from kompakt.model.messages import Media, Message, ToolResult


def media_bytes(body: bytes, format: str) -> int:
    """Count the bytes of media that a request holds inline; what is named by address counts nothing."""
    request = read(body, format)
    if request is None:
        return 0
    return sum(_in_message(message) for item in request.items() for message in _messages(item, format))


def _messages(item: bytes, format: str) -> Iterable[Message]:
    try:
        return parse_items([decode_item(item)], format)
    except InputError:
        return ()


def _in_message(message: Message) -> int:
    inline = [part for part in message.parts if type(part) is Media]
    results = [one for part in message.parts if type(part) is ToolResult for one in part.media or ()]
    return sum(len(one.data or "") * 3 // 4 for one in (*inline, *results))

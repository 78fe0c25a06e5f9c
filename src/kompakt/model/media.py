"""Token counts of images, audio, video and documents, by each provider's published rule.

Sizes are read from the first bytes of inline data. If they cannot be read (a URL, an unknown codec), the provider's
usual size is assumed. So media never count as nothing and never as base64 text.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Literal, TypeAlias

from kompakt.model.messages import Media

MediaRule: TypeAlias = Literal["openai", "anthropic", "gemini"]

_HEADER = 64 * 1024
"""Bytes decoded to find the size of an image: in a JPEG it may follow long metadata."""

_USUAL = (1024, 1024)
"""Assumed width and height of an image of unknown size."""

_BYTES_PER_PAGE = 50_000
"""Bytes of a PDF page, roughly, when pages cannot be counted."""


def media_tokens(part: Media, rule: MediaRule) -> int:
    """Count one media part by a provider's rule."""
    if part.media == "image":
        return _image_tokens(part, rule)
    if part.media in ("audio", "video"):
        return _timed_tokens(part, rule)
    pages = max(1, _byte_size(part) // _BYTES_PER_PAGE)
    return pages * (258 if rule == "gemini" else 1_500)


def _image_tokens(part: Media, rule: MediaRule) -> int:
    width, height = image_size(part.data) or _USUAL
    if rule == "anthropic":
        # Images are scaled to at most 1568 pixels a side; tokens = pixels / 750.
        scale = min(1.0, 1568 / max(width, height))
        return min(1_600, math.ceil(width * scale * height * scale / 750))
    if rule == "gemini":
        # Up to 384 pixels a side is one tile of 258 tokens; larger ones are cut into tiles of 768.
        if max(width, height) <= 384:
            return 258
        return 258 * math.ceil(width / 768) * math.ceil(height / 768)
    if part.detail == "low":
        return 85
    # High detail: fitted into 2048 pixels, shortest side to 768, then 170 for each tile of 512 and 85 once.
    scale = min(1.0, 2048 / max(width, height))
    width, height = width * scale, height * scale
    scale = min(1.0, 768 / min(width, height))
    return 85 + 170 * math.ceil(width * scale / 512) * math.ceil(height * scale / 512)


def _timed_tokens(part: Media, rule: MediaRule) -> int:
    """Count audio and video by length: 16 kB/s of audio, 250 kB/s of video where only the size is known."""
    rate, per_second = (16_000, 32) if part.media == "audio" else (250_000, 263)
    if rule == "openai" and part.media == "audio":
        per_second = 10
    return max(1, math.ceil(_byte_size(part) / rate)) * per_second


def _byte_size(part: Media) -> int:
    return len(part.data) * 3 // 4 if part.data else 0


def image_size(data: str | None) -> tuple[int, int] | None:
    """Return width and height from the first bytes of a PNG, JPEG, GIF or WebP; ``None`` if they are not there."""
    if not data:
        return None
    try:
        head = base64.b64decode(data[: _HEADER * 4 // 3 // 4 * 4], validate=False)
    except (binascii.Error, ValueError):
        return None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return _sane(struct.unpack(">II", head[16:24]))
    if head[:4] == b"GIF8" and len(head) >= 10:
        return _sane(struct.unpack("<HH", head[6:10]))
    if head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) >= 30:
        width, height = head[24:27] + b"\0", head[27:30] + b"\0"
        return _sane((struct.unpack("<I", width)[0] + 1, struct.unpack("<I", height)[0] + 1))
    return _jpeg_size(head) if head[:2] == b"\xff\xd8" else None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Return the size in the frame header of a JPEG."""
    at = 2
    while at + 9 < len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], struct.unpack(">H", head[at + 2 : at + 4])[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return _sane((width, height))
        at += 2 + max(length, 2)
    return None


def _sane(size: tuple[int, ...]) -> tuple[int, int] | None:
    width, height = size
    return (width, height) if 0 < width < 100_000 and 0 < height < 100_000 else None

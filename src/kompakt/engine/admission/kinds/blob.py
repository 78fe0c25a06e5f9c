"""Encoded bytes inside a text: replaced by their type, size and hash. Cost: one scan of long words only."""

from __future__ import annotations

import hashlib
import re

from kompakt.model.phrases import FOLD

_MIN = 400
"""Minimum characters of a blob in one word."""

_BLOB = re.compile(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{{_MIN},}}={{0,2}}")

_WRAPPED = re.compile(r"(?:\n[A-Za-z0-9+/]{60,100}\r?(?=\n)){6,}(?:\n[A-Za-z0-9+/]{1,100}={0,2}(?=\n|\Z))?")
"""A blob that is wrapped over many lines of one width."""

_WIDE = re.compile(r"\n[A-Za-z0-9+/]{60}")
"""A cheap check: a line that may be part of a wrapped blob."""

_MAGIC = (
    ("iVBORw0KGgo", "PNG image"),
    ("/9j/", "JPEG image"),
    ("R0lGOD", "GIF image"),
    ("UklGR", "WebP image or WAV sound"),
    ("JVBERi0", "PDF document"),
    ("UEsDB", "ZIP archive"),
    ("H4sI", "gzip data"),
    ("SUQz", "MP3 sound"),
)


def replace(text: str) -> tuple[str, int]:
    """Replace the blobs of a text; return the text and their number."""
    words = blocks = 0
    lines = text.split("\n")
    if max(map(len, lines)) >= _MIN:
        for place, line in enumerate(lines):
            if len(line) >= _MIN:
                lines[place], count = _BLOB.subn(_description, line)
                words += count
        text = "\n".join(lines) if words else text
    if _WIDE.search(text):
        text, blocks = _WRAPPED.subn(_description, text)
    return text, words + blocks


def _description(found: re.Match[str]) -> str:
    blob = found[0].strip("\n")
    start = blob[:_MIN]
    if not (any(map(str.isdigit, start)) and any(map(str.isupper, start)) and any(map(str.islower, start))):
        return found[0]  # a long word or a path, or a ruler
    kind = next((name for magic, name in _MAGIC if blob.startswith(magic)), "encoded data")
    digest = hashlib.sha256(blob.encode()).hexdigest()[:12]
    lead = "\n" if found[0].startswith("\n") else ""
    return f"{lead}{FOLD}{kind}, {len(blob)} characters, sha256 {digest}"

"""How text from outside is quoted: one line, bounded, and never able to pass for kompakt's own words."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_OWN = re.compile(r"\[(?=\s*kompakt)", re.IGNORECASE)


def one_line(text: str, limit: int) -> str:
    """Fold a text into one line of at most a number of characters."""
    folded = " ".join(text[: limit * 4].split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def harmless(text: str) -> str:
    """Remove what could break a line, hide in it or imitate one of kompakt's markers."""
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return _OWN.sub("[ ", text) if "[" in text and "kompakt" in text.lower() else text


def quoted(line: str, limit: int) -> str:
    """Quote the beginning of a line in quotation marks that it does not contain: it is data, whatever it says."""
    text = harmless(line[:limit])
    if '"' not in text:
        return f'"{text}"'
    if "\u201c" in text or "\u201d" in text:
        return '"' + text.replace('"', "'") + '"'
    return f"\u201c{text}\u201d"


def as_code(text: str, limit: int) -> str:
    """Write a command or a name between backticks, on one line."""
    return f"`{harmless(one_line(text, limit)).replace('`', chr(39))}`"

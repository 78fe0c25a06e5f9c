"""How text from outside is quoted: one line, bounded, and never able to pass for kompakt's own words.

JSON becomes key–value text, which takes the fewest words.
"""

from __future__ import annotations

import re

from kompakt.model.json import decode_text
from kompakt.model.messages import Json

MAX_JSON = 60_000
"""Longest output that is read as JSON."""

MAX_VALUE = 120
"""Characters kept of one value."""

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


def flat(value: Json, limit: int) -> str:
    """Write a JSON value as ``key value, key (key value; …)``, cut at a number of characters."""
    text = harmless(" ".join(_flat(value).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _flat(value: Json) -> str:
    if isinstance(value, dict):
        pairs = ((key, item) for key, item in value.items() if item not in (None, "", [], {}))
        return ", ".join(
            f"{key} ({_flat(v)})" if isinstance(v, dict | list) else f"{key} {_flat(v)}" for key, v in pairs
        )
    if isinstance(value, list):
        return "; ".join(map(_flat, value))
    return one_line(str(value), MAX_VALUE)


def answer_text(output: str, limit: int) -> str:
    """Say what a tool answered: JSON as key–value text, anything else quoted."""
    stripped = output.strip()
    if stripped[:1] in ("{", "[") and len(stripped) <= MAX_JSON:
        try:
            return flat(decode_text(stripped), limit)
        except ValueError:
            pass
    return quoted(one_line(stripped, limit), limit) if stripped else "no output"

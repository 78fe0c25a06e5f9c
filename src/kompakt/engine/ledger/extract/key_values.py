"""JSON as key–value text: what a call was given and what it returned, in the fewest words."""

from __future__ import annotations

from kompakt.engine.ledger.quotes import harmless, one_line, quoted
from kompakt.model.json import decode_text
from kompakt.model.messages import Json

MAX_JSON = 60_000
"""Longest output that is read as JSON."""

MAX_VALUE = 120
"""Characters kept of one value."""


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

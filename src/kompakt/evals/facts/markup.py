"""What is not in somebody's own words: elements in angle brackets, and fenced code. Linear in the text."""

from __future__ import annotations

import re
from bisect import bisect_left

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{0,80})(?:\s[^<>]{0,2000})?>")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)


def own_text(text: str) -> str:
    """Replace each element, and then each block of fenced code, by a line break."""
    return _FENCED.sub("\n", _without_elements(text))


def _without_elements(text: str) -> str:
    """Replace elements from their first tag to the next closing tag of the same name; one never closed stays."""
    tags = list(_TAG.finditer(text)) if "</" in text else []
    closing: dict[str, list[int]] = {}
    for tag in tags:
        if tag[1]:
            closing.setdefault(tag[2], []).append(tag.start())
    kept: list[str] = []
    at = 0
    for tag in tags:
        ends = closing.get(tag[2], [])
        place = bisect_left(ends, tag.end())
        if tag[1] or tag.start() < at or place == len(ends):
            continue
        kept.append(text[at : tag.start()])
        at = text.index(">", ends[place]) + 1
    return "\n".join([*kept, text[at:]])

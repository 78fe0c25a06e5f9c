"""What people and the assistant said: the user's constraints and decisions word for word, requests, questions.

Only the user's own words count: not what stands in angle brackets, in a code block, in a quotation or in a pasted log,
and nothing that a tool or a provider of context said. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE = 400
"""Longest line of the user's that is kept whole; of a longer one the sentences that bind."""

SHORT = 300
"""A message up to this many characters is kept whole: it is what the user asked for."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{0,80})(?:\s[^<>]{0,2000})?(/?)>")
_NEVER_CLOSED = frozenset(["area", "br", "col", "hr", "img", "input", "li", "link", "meta", "p", "source"])
_FENCES = ("```", "~~~")
STRICT = re.compile(
    r"\b(?:don['\u2019]?t|do not|never|always|must|only|make sure|should(?:n['\u2019]?t| not)|instead of)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_PASTED = re.compile(
    r"^(?:>|\d{1,5}[:|\u2192\t]|\d{4}-\d\d-\d\d[T ]\d|\[\d|at \S+\(|File \"|[+-]{3} |@@ |\$ |\S+:\d+:|[{}\[\]();]+$"
    r"|//|/\*|\* @|(?:\S+\s+)?\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL)\b)|\) ?=>|=> ?[{(\[]"
)
_CODE = frozenset("=(){}")


def own_words(text: str) -> str:
    """Leave out of a user's text what is not in the user's own words."""
    if "<" in text:
        text = "\n".join(_untagged(text))
    if "```" in text or "~~~" in text:
        text = "\n".join(_unfenced(text.split("\n")))
    return text


def _untagged(text: str) -> Iterator[str]:
    """Go through what stands outside of tags; one that is never closed but has a line to itself reaches to the end."""
    tags = list(_TAG.finditer(text))
    opened: dict[str, list[int]] = {}
    closed: dict[int, int] = {}
    for number, tag in enumerate(tags):
        if not tag[1] and not tag[3]:
            opened.setdefault(tag[2], []).append(number)
        elif tag[1] and opened.get(tag[2]):
            closed[opened[tag[2]].pop()] = tag.end()
    lost = {number for name, numbers in opened.items() if name.lower() not in _NEVER_CLOSED for number in numbers}
    at = 0
    for number, tag in enumerate(tags):
        if tag.start() < at:
            continue
        end = closed.get(number, len(text) if number in lost and _is_alone(text, tag.start(), tag.end()) else 0)
        if end:
            yield text[at : tag.start()]
            at = end
    yield text[at:]


def _is_alone(text: str, start: int, end: int) -> bool:
    """Tell whether nothing else stands in a line."""
    before = text[max(0, start - 200) : start].rpartition("\n")[2]
    return not before.strip() and not text[end : end + 200].partition("\n")[0].strip()


def _unfenced(lines: list[str]) -> Iterator[str]:
    """Go through the lines outside of code blocks."""
    fence = ""
    for line in lines:
        begun = line.lstrip()[:3]
        if fence:
            fence = "" if begun == fence else fence
        elif begun in _FENCES and line.count(begun) == 1:
            fence = begun
        else:
            yield line


def spoken_lines(text: str) -> list[str]:
    """Return the lines of a user's text that are the user's own, as they stand."""
    lines = map(str.strip, own_words(text).split("\n"))
    return [line for line in lines if line and not _is_pasted(line) and not _TAG.match(line)]


def _is_pasted(line: str) -> bool:
    """Tell whether a line looks like code, a log or a quotation."""
    if _PASTED.search(line[:MAX_LINE]) or line.endswith(("{", "}")):
        return True
    return line.endswith(";") and not _CODE.isdisjoint(line)


def binding(text: str) -> list[str]:
    """Take the sentences that forbid, demand or restrict, with the line they stand in when it is not long."""
    if not STRICT.search(text):
        return []
    found: list[str] = []
    for line in spoken_lines(text):
        if not STRICT.search(line):
            continue
        if len(line) <= MAX_LINE:
            found.append(line)
        else:
            found += [part for part in _SENTENCE.split(line) if len(part) <= MAX_LINE and STRICT.search(part)]
    return found


def request(text: str) -> str | None:
    """Return a short message of the user's in full; ``None`` when it is long or nothing of the user's."""
    lines = spoken_lines(text)
    whole = "\n".join(lines)
    return whole if lines and len(whole) <= SHORT else None


def question(text: str) -> str | None:
    """Return the question that an answer ends with."""
    last = text.rstrip().rsplit("\n", 1)[-1].strip()
    if not last.endswith("?"):
        return None
    return _SENTENCE.split(last)[-1]


def opening(text: str, limit: int) -> str:
    """Return the beginning of what the assistant told, up to a whole sentence where one ends in time."""
    folded = " ".join(text[: limit * 2].split())
    if len(folded) <= limit:
        return folded
    cut = max(folded.rfind(mark, 0, limit) for mark in (". ", ": ", "! ", "? "))
    return folded[: cut + 1] if cut > limit // 3 else folded[: limit - 1] + "…"

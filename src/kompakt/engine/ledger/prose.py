"""Passages of the assistant's prose and of long messages, ranked by what they settle.

A reader who takes over needs causes, decisions, results and open questions, in complete sentences. "Let me look at the
file" helps nobody. The words that mark the difference are those with which people state reasons, outcomes and choices
in any field; a sentence with a number, a path or code in it is more specific than one without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PASSAGE = 230
"""Characters of a passage, about: two or three sentences that belong together."""

_SETTLES = re.compile(
    r"\b(?:because|since|due to|root cause|the (?:issue|problem|bug|cause|reason|fix|key)|decid\w+|chose|instead|"
    r"rather than|"
    r"found|turns out|option|recommend\w*|conclu\w+|confirm\w*|verified|works?|fixed|done|implemented|summary|so that|"
    r"therefore|means|should|must|cannot|can't|won't|doesn't|didn't|not|only|however|but|actually|now|remaining|next|"
    r"cancel\w*|updated|changed|failed|missing|blocked)\b",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(
    r"(?:let me|now let me|let's|i'll|i will|i'm going to|now i'll|now i need to|next,? i|"
    r"now i (?:understand|see|know)\b|now (?:run|check|update|let|add|fix|verify|create|also)|i can see|i need to|"
    r"we (?:can|need to)|"
    r"good|great|perfect|excellent|ok|okay|sure|alright|understood)\b[^.:!?]*[.:!?]?",
    re.IGNORECASE,
)
_REASONS = re.compile(
    r"\b(?:because|since|so|instead|but|not|found|fixed|done|is|are|was|were|has|have)\b", re.IGNORECASE
)
MAX_ANNOUNCEMENT = 140
"""Characters of a sentence that may be an announcement."""

_SPECIFIC = re.compile(r"`|\w[._/]\w|\w\(\)")
_MARKUP = re.compile(r"\*\*|^#{1,6} |^> ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'`(*\[\d])")


def passages(text: str, size: int = PASSAGE, *, keep_all: bool = False) -> list[str]:
    """Split a text into passages of whole sentences and lines, without announcements of what comes next.

    Pass ``keep_all`` for the words of a user: "let's fix it" announces something when the assistant says it, and is a
    request when the user does.
    """
    found: list[str] = []
    current = ""
    sentences = map(_bounded, _SENTENCE_END.split(text)) if keep_all else _sentences(text)
    for sentence in sentences:
        if not keep_all and _announces(sentence):
            continue
        if current and len(current) + len(sentence) > size * 1.4:
            found.append(current)
            current = ""
        current = f"{current} {sentence}" if current else sentence
        if len(current) >= size:
            found.append(current)
            current = ""
    if current:
        found.append(current)
    return found


def _announces(sentence: str) -> bool:
    """Tell whether a sentence only says what comes next."""
    if _ANNOUNCES.fullmatch(sentence):
        return True
    if not _ANNOUNCES.match(sentence):
        return False
    return sentence.endswith(":") or (len(sentence) < MAX_ANNOUNCEMENT and not _REASONS.search(sentence))


def _sentences(text: str) -> Iterator[str]:
    in_code = False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("```"):
            in_code = not in_code
        elif in_code and stripped:
            yield _bounded(stripped)
        elif stripped and not set(stripped) <= set("-|=:+ *#"):
            yield from map(_bounded, _SENTENCE_END.split(_MARKUP.sub("", stripped)))


MAX_SENTENCE = 600
"""Characters kept of a sentence or of a line of code."""


def _bounded(sentence: str) -> str:
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 1] + "…"


_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"<([a-z][\w-]{0,40})>[^<\n]{0,40}</\1>|</?[a-z][\w-]{0,40}>")
_PROSE_LINE = re.compile(r"\s*+(?:[-*>]|\d{1,3}[.)]|#{1,6})?+\s*+(?:\*\*)?[A-Z][^{};=]{30}")

MIN_REPORT = 600
"""Characters of an answer that may be a report."""

MAX_REPORT = 60_000
"""Characters that are read of a report."""

REPORT_LINES = 5
"""Lines of prose that a report has at least."""


def is_report(output: str) -> bool:
    """Return whether a tool answered with prose, as a sub-agent or a search of the web does."""
    if len(output) < MIN_REPORT or output.lstrip()[:1] in ("{", "["):
        return False
    lines = [line for line in output[:20_000].split("\n") if line.strip()]
    prose = sum(_PROSE_LINE.match(line) is not None for line in lines)
    return prose >= min(REPORT_LINES, len(lines)) and prose * 5 >= len(lines)


def report_text(output: str) -> str:
    """Return the prose of a report: without tags, code blocks, and lines that log calls of tools."""
    prose = _FENCED.sub("", _TAG.sub(" ", output[:MAX_REPORT]))
    return "\n".join(
        line for line in prose.split("\n") if not line.lstrip().startswith(("{", "[Tool", "}", "//", "#!"))
    )


_COURTESY = re.compile(
    r"(?:i can (?:help|assist)|i understand|i apologi[sz]e|thank you|you're (?:welcome|right)|of course|certainly|"
    r"(?:could|would|can) you (?:please )?(?:confirm|provide|let me know)|please (?:confirm|let me know|provide)|"
    r"let me know|it seems|it looks like|is there anything)\b",
    re.IGNORECASE,
)


def words_of(passage: str) -> set[str]:
    """Return the words by which a passage is compared with others."""
    return set(re.findall(r"\w{4,}", passage.lower()))


def substance(passage: str) -> float:
    """Estimate how much a passage settles: about 1 for plain narration, 3 for a finding with its reason."""
    value = 1.0 + 0.6 * len(_SETTLES.findall(passage[:2_000])) ** 0.5
    if any(map(str.isdigit, passage)):
        value += 0.3
    if _SPECIFIC.search(passage):
        value += 0.3
    if passage.endswith("?"):
        value -= 0.3
    if len(passage) < 25:
        value -= 0.6
    if _COURTESY.match(passage):
        value *= 0.5
    return max(value, 0.2)

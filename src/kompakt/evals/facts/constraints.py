"""Constraints: sentences in which the user forbids, requires or restricts something, and refused tool calls.

Ignored are elements in angle brackets, fenced code, pasted documents, logs, and summaries written by an agent in the
user's role. The reason of a refusal is a fact if there is one, word for word; otherwise the refused command or file is,
with a word for the refusal.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import OperationalFact, words
from kompakt.evals.facts.paths import named_file, short
from kompakt.evals.facts.shell import command_of, first_line
from kompakt.evals.history_events import CallPair, HistoryEvent

SHORTEST, LONGEST = 12, 240

_DEMAND = re.compile(
    r"\b(?:don['’]t|do not|never|always|must|only|make sure|should not|shouldn['’]t|instead of)\b", re.IGNORECASE
)
_PASTED = 1_500
_HEADING = re.compile(r"^#{1,6} |^\*\*[^*]+\*\*", re.M)
"""A long text with several headings is treated as a pasted document."""

_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_LOG = re.compile(
    r"^\s*(?:\d{2,4}[-/:]\d\d|\[[^\]]*\]\s|at \S+ ?\(|File \"|[\w./-]+:\d+|\$ |>|\||[+-]{3} |@@|[{}<]"
    r"|(?:INFO|WARN|DEBUG|ERROR)\b|\d+→)"
)
_CODE = re.compile(
    r"[{};]\s*$|^\s*(?:func|def|class|import|from|return|if|for|const|let|var|type|//|/\*|\*|#!)\b|:=|=>|\(\)|=="
)


def constraint_facts(events: Iterable[HistoryEvent]) -> Iterator[OperationalFact]:
    for event in events:
        if event.kind == "user" and not event.summary:
            yield from (OperationalFact("constraint", one, "stated") for one in constraints(event.text))


def constraints(text: str) -> Iterator[str]:
    """Yield the constraining sentences of a user message."""
    if len(text) > _PASTED and len(_HEADING.findall(text)) >= 3:
        return
    for line in own_text(text).splitlines():
        if _LOG.match(line) or _CODE.search(line):
            continue
        for sentence in _ENDS.split(line):
            words = sentence.strip().lstrip("-*•# ").strip()
            if SHORTEST <= len(words) <= LONGEST and _DEMAND.search(words) and " " in words:
                yield words


_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{0,80})(?:\s[^<>]{0,2000})?>")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)


def own_text(text: str) -> str:
    """Replace elements in angle brackets and fenced code with line breaks, in linear time."""
    return _FENCED.sub("\n", _without_elements(text))


def _without_elements(text: str) -> str:
    """Replace each element up to the next closing tag of the same name; unclosed elements stay."""
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


# --- refusals ---

REFUSAL_WORDS = words("refus", "reject", "declin", "denied", "not allow")

_REFUSED = re.compile(
    r"user (?:doesn't|does not|did not|didn't) want to|(?:rejected|denied|declined) by the user", re.I
)
_REASON = re.compile(r"user (?:said|says|wrote):\s*(.+)", re.I | re.S)
_START = 300
"""Characters at the start of an answer in which a refusal is stated."""


def is_refused(result: HistoryEvent) -> bool:
    """Return whether a result says that the user did not allow the call."""
    return result.failed and _REFUSED.search(result.text[:_START]) is not None


def refusal_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    for call in pairs:
        if call.result is None or not is_refused(call.result):
            continue
        reason = _REASON.search(call.result.text)
        if reason is not None:
            key = " ".join(reason[1].split())
            yield OperationalFact("refusal", key, "the user's reason", "", (call.event.id,))
            continue
        command, path = command_of(call.event), named_file(call.event)
        key = first_line(command) if command else short(path) if path else call.event.name
        yield OperationalFact("refusal", key, "refused", REFUSAL_WORDS, (call.event.id,))

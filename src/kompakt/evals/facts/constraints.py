"""User constraints: sentences in the user's own words that forbid, demand or restrict.

Not the user's own: anything inside angle brackets, fenced code, indented or quoted blocks, logs, and an agent's own
summary that stands in the user's place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import Fact
from kompakt.evals.facts.markup import own_text
from kompakt.evals.sources.trail import Event

SHORTEST, LONGEST = 12, 240

_DEMAND = re.compile(
    r"\b(?:don['’]t|do not|never|always|must|only|make sure|should not|shouldn['’]t|instead of)\b", re.IGNORECASE
)
_PASTED = 1_500
_HEADING = re.compile(r"^#{1,6} |^\*\*[^*]+\*\*", re.M)
"""A long text with several headings is a document that somebody pasted."""

_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_LOG = re.compile(
    r"^\s*(?:\d{2,4}[-/:]\d\d|\[[^\]]*\]\s|at \S+ ?\(|File \"|[\w./-]+:\d+|\$ |>|\||[+-]{3} |@@|[{}<]"
    r"|(?:INFO|WARN|DEBUG|ERROR)\b|\d+→)"
)
_CODE = re.compile(
    r"[{};]\s*$|^\s*(?:func|def|class|import|from|return|if|for|const|let|var|type|//|/\*|\*|#!)\b|:=|=>|\(\)|=="
)


def constraint_facts(trail: Iterable[Event]) -> Iterator[Fact]:
    """Yield each constraint once."""
    for event in trail:
        if event.kind == "user" and not event.summary:
            yield from (Fact("constraint", one, "stated") for one in constraints(event.text))


def constraints(text: str) -> Iterator[str]:
    """Yield the constraining sentences of what a user wrote."""
    if len(text) > _PASTED and len(_HEADING.findall(text)) >= 3:
        return
    for line in own_text(text).splitlines():
        if _LOG.match(line) or _CODE.search(line):
            continue
        for sentence in _ENDS.split(line):
            words = sentence.strip().lstrip("-*•# ").strip()
            if SHORTEST <= len(words) <= LONGEST and _DEMAND.search(words) and " " in words:
                yield words

"""What recall brings back: needs that left the context, excluded parts, and the evidence of questions.

A need is reachable when it stands in the context or in the answer of one recall of at most 1,000 tokens, asked with the
words around its first use but not with the need or its pieces. An excluded part is restored when its reference brings
it back byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt import api
from kompakt.evals.measures.measure import Projection, Score
from kompakt.evals.reports.row import Row, scored
from kompakt.evals.sources.case import Case, Recording
from kompakt.evals.sources.trail import events
from kompakt.model.messages import Message, ToolCall
from kompakt.model.references import References

TOKENS = 1_000
MOST_RESTORED = 60
"""Excluded messages of a case that are restored; more of them would say the same."""

_GONE = frozenset(["excluded", "pruned", "summarized", "shortened"])
_PRINTED = re.compile(r"\bm[0-9a-f]{4,40}(?:\.\d+)?\b")
_DATED = re.compile(r"^\[[^\]\n]{1,80}\]\n")


def add_reachable(found: Score, case: Case, projection: Projection, compaction: api.Compaction) -> None:
    """Count the needs that stand in the context or come back with one recall."""
    for need in case.needs:
        reached = need.key in projection.text
        if not reached and need.query:
            reached = need.key in compaction.recall(need.query, tokens=TOKENS).text
        found.add("reachable", reached, need.key, f"call +{need.place}; query {need.query!r}")


def add_restored(found: Score, case: Case, projection: Projection, compaction: api.Compaction) -> None:
    """Count the references, printed or reported, that bring back what they name, byte for byte."""
    prefix = case.prefix
    if compaction.report.repairs:  # names are those of the history as it was mended
        prefix = api.parse(api.repair(prefix).payload, prefix.format)
    names = References(prefix)
    printed = set(_PRINTED.findall(projection.fresh))
    gone = {action.reference for action in compaction.report.actions if action.what in _GONE}
    for reference in sorted(gone | printed)[:MOST_RESTORED]:
        at = names.find(reference)
        if at is not None:
            text = compaction.recall(reference, tokens=None).text
            found.add("restored", all(one in text for one in _parts(prefix[at], reference)), reference, f"message {at}")


def _parts(message: Message, reference: str) -> list[str]:
    """List the texts that a reference names: one part's, or all of a message."""
    _, dot, part = reference.partition(".")
    parts = message.parts
    if dot and part.isdigit() and int(part) < len(parts):
        parts = (parts[int(part)],)
    kept = tuple(part for part in parts if not isinstance(part, ToolCall))
    return [event.text for event in events([message.with_parts(kept)]) if event.text]


def evidence(recording: Recording) -> Iterator[Row]:
    """Ask every question of a dialogue; its evidence counts when every turn of it is in the answer."""
    questions = [question for question in recording.session.questions if question.messages]
    if not questions:
        return
    found = Score({}, {}, [])
    for question in questions:
        text = api.recall(recording.history, question.text, tokens=TOKENS).text
        wanted = [_DATED.sub("", recording.history[at].text) for at in question.messages]
        told = all(one in text for one in wanted)
        for kind in ("evidence", "evidence, several turns" if len(wanted) > 1 else "evidence, one turn"):
            found.add(kind, told, question.text, f"category {question.category}, {len(wanted)} turns")
    session = recording.session
    yield scored(Row(measure="evidence", mode="kompakt", session=session.name, source=session.source), found)

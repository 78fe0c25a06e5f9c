"""Recall: reachable needs, restored parts, and the evidence of questions.

A need is reachable when it is in the context, or in the answer of one recall of at most 1,000 tokens whose query is the
text around its first use without the need. An excluded part is restored when its reference returns it byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt import api
from kompakt.evals.case import EvalCase, Recording
from kompakt.evals.history_events import events_of
from kompakt.evals.measures.score import ResultRow, Score, ShownText, with_score
from kompakt.model.messages import Message, ToolCall
from kompakt.model.references import References

TOKENS = 1_000
MOST_RESTORED = 60
"""Excluded messages of a case that are checked."""

_GONE = frozenset(["excluded", "pruned", "summarized", "shortened"])
_PRINTED = re.compile(r"\bm[0-9a-f]{4,40}(?:\.\d+)?\b")
_DATED = re.compile(r"\A\[[^\n]*\]\n")


def add_reachable(found: Score, case: EvalCase, shown: ShownText, compaction: api.Compaction) -> None:
    """Count the needs that are in the context or in the answer of one recall."""
    for need in case.needs:
        reached = need.key in shown.text
        if not reached and need.query:
            reached = need.key in compaction.recall(need.query, tokens=TOKENS).text
        found.add("reachable", reached, need.key, f"call +{need.place}; query {need.query!r}")


def add_restored(found: Score, case: EvalCase, shown: ShownText, compaction: api.Compaction) -> None:
    """Count the printed and reported references that return their original byte for byte."""
    prefix = case.prefix
    if compaction.report.repairs:  # references are those of the repaired history
        prefix = api.parse(api.repair(prefix).payload, prefix.format)
    names = References(prefix)
    printed = set(_PRINTED.findall(shown.fresh))
    gone = {action.reference for action in compaction.report.actions if action.what in _GONE}
    for reference in sorted(gone | printed)[:MOST_RESTORED]:
        at = names.find(reference)
        if at is not None:
            text = compaction.recall(reference, tokens=None).text
            found.add("restored", all(one in text for one in _parts(prefix[at], reference)), reference, f"message {at}")


def _parts(message: Message, reference: str) -> list[str]:
    """List the texts of a part or of a whole message."""
    _, dot, part = reference.partition(".")
    parts = message.parts
    if dot and part.isdigit() and int(part) < len(parts):
        parts = (parts[int(part)],)
    kept = tuple(part for part in parts if not isinstance(part, ToolCall))
    return [event.text for event in events_of([message.with_parts(kept)]) if event.text]


def measure_evidence(recording: Recording) -> Iterator[ResultRow]:
    """Recall with every question of a dialogue; it passes when the answer has every turn of its evidence."""
    questions = [question for question in recording.session.questions if question.messages]
    if not questions:
        return
    found = Score({}, {}, [])
    for question in questions:
        text = api.recall(recording.history, question.text, tokens=TOKENS).text
        wanted = [_DATED.sub("", recording.history[at].text) for at in question.messages]
        passed = all(one in text for one in wanted)
        for kind in ("evidence", "evidence, several turns" if len(wanted) > 1 else "evidence, one turn"):
            found.add(kind, passed, question.text, f"category {question.category}, {len(wanted)} turns")
    session = recording.session
    yield with_score(ResultRow(measure="evidence", mode="kompakt", session=session.name, source=session.source), found)

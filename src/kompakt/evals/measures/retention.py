"""Retention: what a compaction still states, compared with baselines: at each cut, along a chain, and by admission.

One compaction per case serves facts, needs, precision, validity, reachability and restoring. Recorded summaries are
measured at their own cut and size; kompakt and the baselines get the same room there, plus the first and the newest
request.

A chain compacts the same prefix to the same budget in 1 to 16 passes. Each pass starts from the result of the previous
one, so any decay is caused by the chain alone.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kompakt import api
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.errors import DoesNotFit
from kompakt.evals.case import (
    BUDGET_SHARE,
    EvalCase,
    Recording,
    case_at,
    cases,
    compact_at_least,
    cut_at,
    cuts,
    summary_cases,
)
from kompakt.evals.history_events import events_of
from kompakt.evals.measures.needs import names
from kompakt.evals.measures.precision import assertions
from kompakt.evals.measures.score import Miss, ResultRow, Score, ShownText, read, score, with_score
from kompakt.model.messages import History, Json, Message, ToolCall
from kompakt.model.references import References

TENTH = "10 %"
SUMMARY = "summary size"

UNFIT = "does not fit"
"""Start of the note of a row whose budget is below the floor."""


def measure_retention(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Measure a session at its cuts and at its recorded summaries."""
    session = recording.session
    for case in cases(recording):
        blank = ResultRow(measure="retention", mode=TENTH, session=session.name, source=session.source, at=case.cut.at)
        yield compact_case(blank, case, case.cut.budget(BUDGET_SHARE), policy)
        yield from _baselines(blank, case, case.cut.budget(BUDGET_SHARE))
    for one in summary_cases(recording) if session.source == "claude-code" else ():
        case = one.case
        blank = ResultRow(
            measure="retention", mode=SUMMARY, session=session.name, source=session.source, at=case.cut.at
        )
        row = msgspec.structs.replace(blank, mode=f"real summary, {SUMMARY}", tokens=one.tokens)
        yield with_score(row, score(case, ShownText(one.text)))
        yield compact_case(blank, case, one.tokens + case.cut.requests, policy)
        yield from _baselines(blank, case, one.tokens)


def compact_case(blank: ResultRow, case: EvalCase, budget: int, policy: AnyPolicy) -> ResultRow:
    """Compact a case and score it. A case that does not fit scores zero."""
    row = msgspec.structs.replace(blank, mode=f"kompakt, {blank.mode}", budget=budget)
    began = time.perf_counter()
    try:
        result = api.compact(case.prefix, budget=budget, policy=policy)
    except DoesNotFit as error:
        found = score(case, None)
        found.add("compacted", False, case.name, str(error))
        for need in case.needs:
            found.add("reachable", False, need.key, UNFIT)
        return msgspec.structs.replace(with_score(row, found), note=f"{UNFIT}: {error}")
    seconds = time.perf_counter() - began
    shown = read(result.payload, case, case.prefix.format)
    found = score(case, shown)
    tokens = api.count(result.payload, format=case.prefix.format).total
    found.add("compacted", True)
    found.add("fits", tokens <= budget, case.name, f"{tokens} tokens in {budget}")
    problems = api.check(result.payload, format=case.prefix.format)
    found.add("valid", not problems, case.name, "; ".join(map(str, problems[:3])))
    for one in assertions(case, shown.fresh):
        found.add("precision", one.true, one.text, one.kind)
    add_reachable(found, case, shown, result)
    add_restored(found, case, shown, result)
    return msgspec.structs.replace(with_score(row, found), tokens=tokens, seconds=seconds)


def _baselines(blank: ResultRow, case: EvalCase, tokens: int) -> Iterator[ResultRow]:
    """Measure the baselines in the same room, without storing their misses."""
    for name, shown in projections(case, tokens):
        row = msgspec.structs.replace(blank, mode=f"{name}, {blank.mode}", tokens=tokens)
        found = score(case, shown)
        none: list[Miss] = []
        yield with_score(row, Score(found.passed, found.total, none))


# --- chains ---

PASSES = (1, 2, 4, 8, 16)
CHAIN_CUT = 0.85
CHAIN_ROUNDS = 20
CHAIN_TOKENS = 20_000


def measure_chains(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Compact a long session 1 to 16 times on the way; skip short sessions."""
    session = recording.session
    if sum(recording.weight) < CHAIN_TOKENS or len(api.rounds(recording.history)) < CHAIN_ROUNDS:
        return
    for cut in cuts(recording.history, recording.weight, (CHAIN_CUT,)):
        whole = case_at(recording, cut)
        for passes in PASSES:
            row = ResultRow(
                measure="chains", mode=f"after {passes}", session=session.name, source=session.source, at=cut.at
            )
            budget = cut.budget(BUDGET_SHARE)
            payload = walk(recording, whole, passes, budget, policy)
            shown = read(payload, whole, recording.history.format)
            yield msgspec.structs.replace(with_score(row, score(whole, shown)), budget=budget)


def walk(recording: Recording, whole: EvalCase, passes: int, budget: int, policy: str) -> Json:
    """Compact at the end of each stretch and return the last payload."""
    history = recording.history
    at = 0
    payload: Json = None
    for stop in _stops(recording, whole.cut.at, passes):
        stretch = history[at:stop]
        before = () if payload is None else tuple(api.parse(payload, history.format))
        given: History = history.with_messages((*before, *stretch))
        payload = compact_at_least(given, budget, policy).payload
        at = stop
    return payload


def _stops(recording: Recording, end: int, passes: int) -> list[int]:
    """Return the ends of the stretches: equal shares of the tokens, at round boundaries."""
    starts = [one.start for one in api.rounds(recording.history) if 0 < one.start < end]
    total = sum(recording.weight[:end])
    reached = 0
    stops: list[int] = []
    for index, tokens in enumerate(recording.weight[:end]):
        if index in starts and reached >= total * (len(stops) + 1) / passes and len(stops) < passes - 1:
            stops.append(index)
        reached += tokens
    return [*stops, end]


# --- admission ---


def measure_compression(recording: Recording, admission: str) -> Iterator[ResultRow]:
    """Measure what a policy removes from a session that fits, and whether its facts are still stated."""
    cut = cut_at(recording.history, recording.weight, len(recording.history))
    whole = case_at(recording, cut)
    result = api.compact(whole.prefix, budget=cut.tokens, policy=admission)
    shown = read(result.payload, whole, recording.history.format)
    found = Score({}, {}, [])
    for fact in whole.facts:
        found.add("facts", fact.stated_in(shown.text, shown.unchanged), fact.key, fact.kind)
    found.passed["tokens removed"] = max(0, result.tokens_before - result.tokens_after)
    found.total["tokens removed"] = result.tokens_before
    session = recording.session
    row = ResultRow(measure="compression", mode=admission, session=session.name, source=session.source, at=cut.at)
    yield with_score(row, found)


# --- baselines: other ways to fill the same number of tokens ---
# Sizes are measured in characters, at the rate of the prefix, so that the tokenizer does not affect a baseline.

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = re.compile(r"[A-Za-z_]\w{2,}")
_MASK = "[output hidden]"
_LONGEST_SENTENCE = 400


def tail(case: EvalCase, tokens: int) -> str:
    return case.text[-_characters(case, tokens) :]


def head_and_tail(case: EvalCase, tokens: int) -> str:
    half = _characters(case, tokens) // 2
    return f"{case.text[:half]}\n{case.text[-half:]}"


def masked(case: EvalCase, tokens: int) -> str:
    """Hide every tool output, then keep the end."""
    shown = [_MASK if event.kind == "result" else event.text for event in case.events]
    return "\n".join(shown)[-_characters(case, tokens) :]


def extractive(case: EvalCase, tokens: int) -> str:
    """Keep the sentences with the rarest words, in order."""
    sentences = [one.strip()[:_LONGEST_SENTENCE] for one in _SENTENCES.split(case.text)]
    bags = [set(_WORDS.findall(sentence)) for sentence in sentences]
    spread = Counter(word for bag in bags for word in bag)
    weight = [sum(math.log(len(bags) / spread[word]) for word in bag) / (len(bag) + 4) for bag in bags]
    kept = _fill(sorted(range(len(bags)), key=lambda at: -weight[at]), sentences, _characters(case, tokens))
    return "\n".join(sentences[at] for at in sorted(kept))


def identifiers(case: EvalCase, tokens: int) -> str:
    """List every identifier, newest first, without context."""
    listed = list(dict.fromkeys(name for event in reversed(case.events) for name in names(event.text)))
    kept = _fill(range(len(listed)), listed, _characters(case, tokens))
    return "\n".join(listed[at] for at in kept)


BASELINES: dict[str, Callable[[EvalCase, int], str]] = {
    "tail": tail,
    "head and tail": head_and_tail,
    "masked outputs": masked,
    "extractive": extractive,
    "bare identifiers": identifiers,
}


def projections(case: EvalCase, tokens: int) -> Iterable[tuple[str, ShownText]]:
    for name, baseline in BASELINES.items():
        yield name, ShownText(baseline(case, tokens))


def _characters(case: EvalCase, tokens: int) -> int:
    return max(2, int(len(case.text) * tokens / max(1, case.cut.tokens)))


def _fill(order: Iterable[int], texts: list[str], room: int) -> list[int]:
    """Take texts in order until the room is used up."""
    kept: list[int] = []
    for at in order:
        if not texts[at]:
            continue
        room -= len(texts[at]) + 1
        if room < 0:
            break
        kept.append(at)
    return kept


# --- recall ---
# A need is reachable when it is in the context, or in the answer of one recall whose query is the text around its first
# use without the need. An excluded part is restored when its reference returns it byte for byte.

RECALL_TOKENS = 1_000
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
            reached = need.key in compaction.recall(need.query, tokens=RECALL_TOKENS).text
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
        text = api.recall(recording.history, question.text, tokens=RECALL_TOKENS).text
        wanted = [_DATED.sub("", recording.history[at].text) for at in question.messages]
        passed = all(one in text for one in wanted)
        for kind in ("evidence", "evidence, several turns" if len(wanted) > 1 else "evidence, one turn"):
            found.add(kind, passed, question.text, f"category {question.category}, {len(wanted)} turns")
    session = recording.session
    yield with_score(ResultRow(measure="evidence", mode="kompakt", session=session.name, source=session.source), found)

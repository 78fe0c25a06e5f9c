"""Score a projection against its prefix, and the rows that hold the scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from kompakt import api
from kompakt.evals.case import EvalCase
from kompakt.evals.facts import KINDS
from kompakt.evals.facts.fact import plain
from kompakt.evals.history_events import CallPair, events_of, pair_calls, text_of
from kompakt.evals.measures.needs import filler_words
from kompakt.model.messages import Json

BEYOND = "need, beyond formulas"
"""A need whose neighbouring words are not filler repeated beside every name. Reported without a goal."""

KEY_ONLY = "key without context"
"""End of the reason of a miss whose key is present without its relation."""

MOST_MISSED = 400
"""Misses stored in a row. The counts are complete."""


class ShownText(msgspec.Struct, frozen=True):
    """What a model reads in place of a prefix."""

    text: str
    unchanged: frozenset[str] = frozenset()
    """Ids of calls that are shown with their original results."""
    fresh: str = ""
    """Text that no message of the prefix contains: summaries, ledgers, placeholders."""


class Miss(msgspec.Struct, frozen=True):
    """An expected item that a projection does not state."""

    kind: str
    key: str
    why: str


class Score(msgspec.Struct):
    """How many items of each kind were expected and how many passed."""

    passed: dict[str, int] = {}
    total: dict[str, int] = {}
    missed: list[Miss] = []

    def add(self, kind: str, passed: bool, key: str = "", why: str = "") -> None:
        self.total[kind] = self.total.get(kind, 0) + 1
        self.passed[kind] = self.passed.get(kind, 0) + passed
        if not passed:
            self.missed.append(Miss(kind, key, why))


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one session at one cut, compacted in one way."""

    measure: str
    """``retention``, ``chains``, ``attack``, ``evidence``, ``compression``, ``bill`` or ``latency``."""
    mode: str
    """How the context was made: kompakt at a size, a baseline, a recorded summary, or a number of passes."""
    session: str
    source: str
    at: int = 0
    """The message index of the cut."""
    passed: dict[str, int] = {}
    total: dict[str, int] = {}
    missed: tuple[Miss, ...] = ()
    tokens: int = 0
    """Tokens of the context."""
    budget: int = 0
    seconds: float = 0.0
    note: str = ""

    def share(self, kind: str) -> float | None:
        """Return the share of a kind that passed, or ``None`` if nothing was expected."""
        total = self.total.get(kind, 0)
        return self.passed.get(kind, 0) / total if total else None


def with_score(row: ResultRow, score: Score) -> ResultRow:
    """Return a row with the counts of a score."""
    missed = tuple(score.missed[:MOST_MISSED])
    return msgspec.structs.replace(row, passed=score.passed, total=score.total, missed=missed)


def read(payload: Json, case: EvalCase, format: str | None = None) -> ShownText:
    """Read a compacted payload and compare it with its prefix."""
    history = api.parse(payload, format)
    shown = events_of(history)
    known = {event.text for event in case.events}
    fresh = "\n".join(event.text for event in shown if event.text not in known)
    text = "\n".join([text_of([*events_of(history.system), *shown]), *spelled_out(fresh)])
    return ShownText(text, unchanged_calls(pair_calls(case.events), pair_calls(shown)), fresh)


_HEADING = re.compile(r"#+ (.+)")
_FOLDER = re.compile(r"\W*\b[Pp]aths\b.* relative to (\S+?)/?\.?")
_FILE = re.compile(r"[-*] ([^\s:`]+)(: .*)")
_LISTED = re.compile(r"[-*] (\S*/\S*?)/?: ([^`:]+)")


def spelled_out(text: str) -> Iterator[str]:
    """Yield lines in full as a reader understands them: heading and folder apply to the lines below them.

    A line ``- folder: one.py, two.py`` gives one line per file.
    """
    heading = folder = ""
    for line in text.split("\n"):
        if found := _HEADING.fullmatch(line):
            heading, folder = found[1], ""
        elif found := _FOLDER.fullmatch(line):
            folder = found[1]
        elif folder and (found := _FILE.fullmatch(line)) and not found[1].startswith(("/", "~")):
            yield f"{heading}: {folder}/{found[1]}{found[2]}"
        elif found := _LISTED.fullmatch(line):
            yield from (f"{heading}: {found[1]}/{name.strip()}" for name in found[2].split(","))


def score(case: EvalCase, shown: ShownText | None) -> Score:
    """Check every fact and need; ``None`` (nothing could be made) fails all of them."""
    result = Score({}, {}, [])
    text, unchanged = ("", frozenset[str]()) if shown is None else (shown.text, shown.unchanged)
    for fact in case.facts:
        passed = shown is not None and fact.stated_in(text, unchanged)
        why = "" if passed else f"{fact.relation}; {KEY_ONLY if plain(fact.key) in plain(text) else 'absent'}"
        result.add(fact.kind, passed, fact.key, why)
    filler = frozenset[str]() if shown is None else filler_words(shown.fresh)
    for need in case.needs:
        passed = shown is not None and need.stated_in(text)
        why = "" if passed else f"call +{need.place}; {KEY_ONLY if need.key in text else 'absent'}"
        result.add("need", passed, need.key, why)
        result.add(BEYOND, passed and need.stated_in(text, filler), need.key, "only filler words beside it")
    return result


def unchanged_calls(before: Iterable[CallPair], shown: Iterable[CallPair]) -> frozenset[str]:
    """Return the ids of calls that are shown unchanged with their results."""
    present = {(call.event.id, call.event.text, call.result.text) for call in shown if call.result is not None}
    return frozenset(
        call.event.id
        for call in before
        if call.result is not None and (call.event.id, call.event.text, call.result.text) in present
    )


SCORED_KINDS = (*KINDS, "need", BEYOND)
"""Every kind that a projection is scored on, in the order of reports."""

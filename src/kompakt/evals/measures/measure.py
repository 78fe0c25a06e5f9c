"""A projection held against its prefix: what it still tells."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kompakt import api
from kompakt.evals.facts import KINDS
from kompakt.evals.measures.needs import formulas
from kompakt.evals.sources.case import Case
from kompakt.evals.sources.trail import Call, calls, events, text_of
from kompakt.model.messages import Json

BEYOND = "need, beyond formulas"
"""A need whose words are not the same filler beside every name: for reading, no goal of its own."""


class Projection(msgspec.Struct, frozen=True):
    """What a model would read in place of a prefix."""

    text: str
    whole: frozenset[str] = frozenset()
    """Calls that stand in it with their results, unchanged."""
    fresh: str = ""
    """What no message of the prefix says in the same words: summaries, ledgers, placeholders."""


class Missed(msgspec.Struct, frozen=True):
    """Something that was asked for and is not told."""

    kind: str
    key: str
    why: str


class Score(msgspec.Struct):
    """How many of each kind were asked for and told."""

    told: dict[str, int] = {}
    asked: dict[str, int] = {}
    missed: list[Missed] = []

    def add(self, kind: str, told: bool, key: str = "", why: str = "") -> None:
        """Count one more."""
        self.asked[kind] = self.asked.get(kind, 0) + 1
        self.told[kind] = self.told.get(kind, 0) + told
        if not told:
            self.missed.append(Missed(kind, key, why))


def read(payload: Json, case: Case, format: str | None = None) -> Projection:
    """Read a compacted payload against its prefix."""
    history = api.parse(payload, format)
    shown = events(history)
    known = {event.text for event in case.trail}
    fresh = "\n".join(event.text for event in shown if event.text not in known)
    text = text_of([*events(history.system), *shown])
    return Projection(text, unchanged(calls(case.trail), calls(shown)), fresh)


def score(case: Case, projection: Projection | None) -> Score:
    """Ask a projection for every fact and need; one that could not be made tells nothing."""
    found = Score({}, {}, [])
    text, whole = ("", frozenset[str]()) if projection is None else (projection.text, projection.whole)
    for fact in case.facts:
        told = projection is not None and fact.told(text, whole)
        why = f"{fact.relation}; {'its key stands alone' if fact.key in text else 'absent'}" if not told else ""
        found.add(fact.kind, told, fact.key, why)
    worn = frozenset[str]() if projection is None else formulas(projection.fresh)
    for need in case.needs:
        told = projection is not None and need.told(text)
        why = f"call +{need.place}; {'its name stands alone' if need.key in text else 'absent'}" if not told else ""
        found.add("need", told, need.key, why)
        found.add(BEYOND, told and need.told(text, worn), need.key, "the words beside it are a formula")
    return found


def unchanged(before: Iterable[Call], shown: Iterable[Call]) -> frozenset[str]:
    """Name the calls that stand unchanged with their results."""
    there = {(call.event.id, call.event.text, call.result.text) for call in shown if call.result is not None}
    return frozenset(
        call.event.id
        for call in before
        if call.result is not None and (call.event.id, call.event.text, call.result.text) in there
    )


ASKED = (*KINDS, "need", BEYOND)
"""Every kind that a projection is asked for, in the order of reports."""

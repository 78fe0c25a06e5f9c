"""A session made ready for measuring, and the cases that are asked of it.

Parsing, counting and reading events happen once a session; a case is a stretch of it with the facts that the stretch
bears out and the needs behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kompakt import api
from kompakt.evals.facts import Fact, facts_of
from kompakt.evals.measures.cuts import Cut, cut_at, cuts, weights
from kompakt.evals.measures.needs import Need, needs
from kompakt.evals.sources.session import Session
from kompakt.evals.sources.trail import Event, events, text_of
from kompakt.model.messages import History


class Recording(msgspec.Struct, frozen=True):
    """A session, parsed and counted."""

    session: Session
    history: History
    weight: list[int]
    """Tokens by message."""
    trail: list[Event]


class Case(msgspec.Struct, frozen=True):
    """A prefix with what is asked of it: facts it bears out, and what is needed behind the cut."""

    name: str
    cut: Cut
    prefix: History
    trail: list[Event]
    facts: list[Fact]
    needs: list[Need]
    text: str
    """The prefix as text."""


class Summarized(msgspec.Struct, frozen=True):
    """A real summary in a recording: the stretch it stands for, its words and its size."""

    case: Case
    text: str
    tokens: int


def record(session: Session) -> Recording:
    """Parse, count and read a session."""
    history = api.parse(session.body, session.format)
    return Recording(session, history, weights(history), events(history, session.summaries))


def cases(recording: Recording) -> Iterator[Case]:
    """Yield the prefixes of a session at its cuts."""
    for cut in cuts(recording.history, recording.weight):
        yield case(recording, cut)


def summarized(recording: Recording) -> Iterator[Summarized]:
    """Yield each real summary with the stretch since the one before, where the recording tells summaries apart."""
    start = 0
    for at in sorted(recording.session.summaries):
        if at >= len(recording.history) or recording.history[at].role != "user" or at - start < 2:
            continue
        cut = cut_at(recording.history, recording.weight, at, start=start)
        text = recording.history[at].text
        yield Summarized(case(recording, cut, skip=1), text, recording.weight[at])
        start = at


def case(recording: Recording, cut: Cut, *, skip: int = 0) -> Case:
    """Cut a session; ``skip`` messages behind the cut are neither prefix nor future."""
    before = [event for event in recording.trail if cut.start <= event.message < cut.at]
    after = [event for event in recording.trail if event.message >= cut.at + skip]
    text = text_of(before)
    prefix = recording.history.with_messages(recording.history[cut.start : cut.at])
    return Case(recording.session.name, cut, prefix, before, facts_of(before), needs(text, after), text)

"""Cases: where a session is cut, the budget of each prefix, and what is expected of its projection.

A session is parsed and counted once. A cut is at a share of its tokens, moved to the nearest round boundary. The budget
is a share of the prefix plus the first and the newest request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from kompakt import api
from kompakt.errors import DoesNotFit
from kompakt.evals.facts import OperationalFact, facts_of
from kompakt.evals.history_events import HistoryEvent, events_of, text_of
from kompakt.evals.measures.needs import Need, needs
from kompakt.evals.session_files import RecordedSession
from kompakt.model.messages import History, Message

SHARES = (0.40, 0.55, 0.70, 0.85)
"""Cuts, as shares of the session's tokens."""

BUDGET_SHARE = 0.10
FLOOR_MARGIN = 1.1


class Cut(msgspec.Struct, frozen=True):
    """A position in a session. The messages before it are the prefix."""

    at: int
    """The first message after the prefix."""
    share: float
    """The requested share of the session's tokens."""
    tokens: int
    """Tokens of the prefix."""
    requests: int
    """Tokens of the first and the newest request."""
    start: int = 0
    """The first message of the prefix. Not 0 when an earlier summary replaces what was before."""

    def budget(self, share: float = BUDGET_SHARE) -> int:
        """Return the token budget of the prefix."""
        return int(share * self.tokens) + self.requests


class Recording(msgspec.Struct, frozen=True):
    """A session, parsed and counted."""

    session: RecordedSession
    history: History
    weight: list[int]
    """Tokens of each message."""
    events: list[HistoryEvent]


class EvalCase(msgspec.Struct, frozen=True):
    """A prefix, the facts it contains, and what the agent needs after the cut."""

    name: str
    cut: Cut
    prefix: History
    events: list[HistoryEvent]
    facts: list[OperationalFact]
    needs: list[Need]
    text: str
    """The prefix as text."""


class SummaryCase(msgspec.Struct, frozen=True):
    """A summary in a recording, with the stretch of the session that it replaces."""

    case: EvalCase
    text: str
    tokens: int


def record(session: RecordedSession) -> Recording:
    history = api.parse(session.body, session.format)
    weight = [tokens_of(history, (message,)) for message in history]
    return Recording(session, history, weight, events_of(history, session.summaries))


def cases(recording: Recording) -> Iterator[EvalCase]:
    """Yield the prefixes of a session at its cuts."""
    for cut in cuts(recording.history, recording.weight):
        yield case_at(recording, cut)


def summary_cases(recording: Recording) -> Iterator[SummaryCase]:
    """Yield each recorded summary with the stretch since the previous one, where the recording marks summaries."""
    start = 0
    for at in sorted(recording.session.summaries):
        if at >= len(recording.history) or recording.history[at].role != "user" or at - start < 2:
            continue
        cut = cut_at(recording.history, recording.weight, at, start=start)
        text = recording.history[at].text
        yield SummaryCase(case_at(recording, cut, skip=1), text, recording.weight[at])
        start = at


def case_at(recording: Recording, cut: Cut, *, skip: int = 0) -> EvalCase:
    """Cut a session. ``skip`` messages after the cut belong neither to the prefix nor to what follows."""
    before = [event for event in recording.events if cut.start <= event.message < cut.at]
    after = [event for event in recording.events if event.message >= cut.at + skip]
    text = text_of(before)
    prefix = recording.history.with_messages(recording.history[cut.start : cut.at])
    return EvalCase(recording.session.name, cut, prefix, before, facts_of(before), needs(text, after), text)


def tokens_of(history: History, messages: Sequence[Message]) -> int:
    """Count messages without the envelope of their history."""
    bare = History(messages, format=history.format, model=history.model, contract=history.contract)
    return api.count(bare, model=history.model).total


def cuts(history: History, weight: Sequence[int], shares: Sequence[float] = SHARES) -> Iterator[Cut]:
    """Yield the cuts of a session; shares that fall on the same boundary give one cut."""
    starts = [one.start for one in api.rounds(history) if one.start > 0]
    reached = list(accumulate(weight, initial=0))
    seen: set[int] = set()
    for share in shares:
        if not starts:
            return
        at = min(starts, key=lambda start: abs(reached[start] - share * reached[-1]))
        if at not in seen:
            seen.add(at)
            yield cut_at(history, weight, at, share)


def cut_at(history: History, weight: Sequence[int], at: int, share: float = 0.0, *, start: int = 0) -> Cut:
    """Return the cut before the message at an index."""
    prefix = history.with_messages(history[start:at])
    requests = [message for turn in api.turns(prefix) if (message := turn.request) is not None]
    ends = {id(message) for message in (requests[:1] + requests[-1:])}
    tokens = sum(weight[index] for index in range(start, at) if id(history[index]) in ends)
    return Cut(at, share, api.count(prefix).total, tokens, start)


def compact_at_least(history: History, budget: int, policy: str) -> api.Compaction:
    """Compact to a budget, or to slightly more than the floor when the budget is below it.

    For measures of what survives, not of what fits: a chain or an attack with an impossible budget measures nothing.

    Raises:
        DoesNotFit: the floor and its margin are not enough either.
    """
    try:
        return api.compact(history, budget=budget, policy=policy)
    except DoesNotFit as error:
        return api.compact(history, budget=int(error.floor * FLOOR_MARGIN) + 1, policy=policy)

"""The status of one session: its size, how full the window is, its compactions, and what recall can reach.

The command line, MCP and pages print these numbers and compute none of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from kompakt.model import tokens
from kompakt.model.budget import Budget
from kompakt.model.groups import turns
from kompakt.model.limits import lookup
from kompakt.model.messages import History, JsonObject, Marker
from kompakt.session.reader import ResumedSession, SessionReader, project_session, resume_session
from kompakt.session.undo import CompactionInfo, list_compactions
from kompakt.wire.registry import WIRES
from kompakt.wire.transcripts import Transcript

if TYPE_CHECKING:
    from kompakt.session.session import Session

BY_AGENT = "the agent's own summary"
"""The reason of a compaction in a transcript."""


class CompactionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction of a session. Sizes are ``None`` for a compaction that an agent made without reporting them."""

    id: str
    at: str | None = None
    """When it was made, in UTC."""
    undone: bool = False
    auto: bool = True
    reason: str = ""
    policy: str = ""
    tokens_before: int | None = None
    tokens_after: int | None = None
    covers_to: int = 0
    """The last message that it replaces."""
    failures: tuple[str, ...] = ()


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one session."""

    id: str
    format: str
    model: str | None = None
    created: str | None = None
    messages: int
    turns: int
    tokens: int
    """Tokens of what the model sees."""
    window: int | None = None
    """Tokens of the model's context window, if it is known."""
    recallable: int = 0
    """Messages that the model no longer sees as they were, and that recall restores."""
    compactions: tuple[CompactionStatus, ...] = ()
    pending: tuple[tuple[int, Marker], ...] = ()
    """Requests to compact that were not answered yet, by row."""
    pins: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    """What is repaired in every request."""

    @property
    def fullness(self) -> float | None:
        """Return the share of the window that is in use; ``None`` when the window is unknown or unlimited."""
        return self.tokens / self.window if self.window else None

    @property
    def live(self) -> tuple[CompactionStatus, ...]:
        """Return the compactions that count."""
        return tuple(one for one in self.compactions if not one.undone)


async def session_status(session: Session, *, model: str | None = None) -> SessionStatus:
    """Return the status of a stored session, counted for ``model``, else for its own model."""
    reader = await session.reader()
    return resumed_status(session.id, reader, await resume_session(reader, model=model), model=model)


def resumed_status(
    id: str, reader: SessionReader, resumed: ResumedSession, *, model: str | None = None
) -> SessionStatus:
    """Return the status of a stored session that was read already."""
    shown = project_session(resumed)
    name = model or resumed.history.model
    return SessionStatus(
        id=id,
        format=reader.head.format,
        model=name,
        created=timestamp(reader.head.created),
        messages=reader.head.messages,
        turns=reader.head.turn,
        tokens=shown.tokens,
        window=window_of(name),
        recallable=max(0, reader.head.messages - _shown_as_stored(resumed)),
        compactions=tuple(map(_compaction, list_compactions(reader.timeline))),
        pending=tuple(resumed.markers.items()),
        pins=tuple(reader.timeline.pins),
        repairs=shown.repairs,
    )


def _shown_as_stored(session: ResumedSession) -> int:
    """Count the messages that the model sees unchanged."""
    context = session.context
    return sum(
        session.kinds[index] == "message"
        and index not in context.visibility.replacements
        and session.seqs[index] not in session.altered
        for index in context.shown_indices()
    )


def _compaction(info: CompactionInfo) -> CompactionStatus:
    fields = {name: getattr(info, name) for name in info.__struct_fields__ if name != "at"}
    return CompactionStatus(at=timestamp(info.at), **fields)


def transcript_status(transcript: Transcript | None, history: History, *, id: str) -> SessionStatus:
    """Return the status of an agent's transcript, or without one of a plain history.

    The agent sees its newest summary and what follows it.
    """
    runs = summary_runs(transcript.summaries) if transcript is not None else []
    first = runs[-1].start if runs else 0
    times = transcript.times if transcript is not None else ()
    return SessionStatus(
        id=id,
        format=history.format,
        model=history.model,
        created=timestamp(times[0][1]) if times else None,
        messages=len(history),
        turns=len(turns(history)),
        tokens=_seen_tokens(transcript.usages if transcript is not None else (), history, first),
        window=window_of(history.model),
        recallable=first,
        compactions=tuple(
            CompactionStatus(
                id=f"summary-{number}",
                at=timestamp(at) if (at := time_of_summary(times, run)) is not None else None,
                reason=BY_AGENT,
                covers_to=run.start,
            )
            for number, run in enumerate(runs, 1)
        ),
    )


def time_of_summary(times: Iterable[tuple[int, float]], run: range) -> float | None:
    """Return when an agent summarized: the time of the summary, or else of the next message that has one."""
    return min((one for one in times if one[0] >= run.start), default=(0, None))[1]


def summary_runs(summaries: Iterable[int]) -> list[range]:
    """Group the indices of an agent's summaries by compaction: one compaction may add several messages."""
    runs: list[range] = []
    for index in sorted(summaries):
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _seen_tokens(usages: Sequence[tuple[int, JsonObject]], history: History, first: int) -> int:
    """Return the tokens that the agent sent and received last, as its provider reported them, else counted."""
    counter = tokens.counter_for(history.model)
    wire = WIRES[history.format]
    for index, usage in reversed(usages):
        total = wire.usage(usage).total
        if index >= first and total:
            return total + sum(map(counter.message, history.messages[index + 1 :]))
    return tokens.count(history.with_messages(history.messages[first:]), counter).total


def budget_of_model(model: str | None) -> Budget | None:
    """Return the budget of a model by its published window; ``None`` if that is unknown or unlimited."""
    found = lookup(model) if model else None
    return Budget.for_model(found) if found is not None and found.known and found.context else None


def window_of(model: str | None) -> int | None:
    """Return the tokens that a request to a model can have; ``None`` when they are unknown or unlimited.

    A model that limits its prompt below its context has the limit of the prompt.
    """
    budget = budget_of_model(model)
    return budget.window if budget is not None else None


def timestamp(seconds: float) -> str:
    """Return a time in UTC, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

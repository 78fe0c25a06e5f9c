"""What the model sees of a stored session: the view of the newest pivot and all that came after it.

Costs what is shown, not what is stored. A session that is broken on disk comes out mended, and the mending is told;
what is on disk stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from kompakt import api
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.saved_state import FULL_LEDGER, State, resume
from kompakt.engine.pivot.text import told_in_full
from kompakt.model.messages import History, Json, Marker
from kompakt.model.tokens import Counter, Tokenizer, counter_of
from kompakt.session.reader import SessionReader
from kompakt.session.resume_prompt import mid_step
from kompakt.session.row_codec import StoredMessage, history_of
from kompakt.wire.registry import WIRES


class SessionProjection(msgspec.Struct, frozen=True):
    """What the model will see."""

    payload: Json
    """A request, in the session's format."""
    history: History
    """The same as messages, before anything was mended."""
    tokens: int
    repairs: tuple[str, ...] = ()
    """What had to be mended so that the provider takes it."""


class ResumedSession(msgspec.Struct):
    """The context of a stored session, and which row each of its messages is."""

    context: Context
    history: History
    """The messages of the context, in the session's envelope."""
    seqs: list[int]
    names: tuple[str, ...]
    kinds: list[str]
    altered: frozenset[int] = frozenset()
    """The rows in whose place something else was shown before."""
    markers: dict[int, Marker] = {}
    """The requests to compact that nothing has answered yet, by their rows."""


async def resume_session(
    reader: SessionReader, *, model: str | None = None, tokenizer: Tokenizer | None = None
) -> ResumedSession:
    """Make the context of a session as it is now, counted by a tokenizer, else for a model, else for its own model."""
    pivot = reader.timeline.pivot
    frame = await reader.frame(pivot) if pivot is not None else None
    rows = await reader.view(frame, after=pivot.tip if pivot is not None else 0)
    envelope = history_of((), reader.head.format, reader.envelope)
    counter = counter_of(tokenizer, model or envelope.model).own()
    session = _put_together(envelope, frame.state if frame else State(), rows.every, rows.kept, counter)
    session.markers = rows.markers
    session.altered = frozenset(entry.seq for entry in (frame.view if frame else ()) if entry.item is not None)
    return session


def _put_together(
    envelope: History, state: State, every: Sequence[StoredMessage], kept: int, counter: Counter
) -> ResumedSession:
    names = tuple(one.row.name for one in every)
    annotations = [one.annotation for one in every if one.note.counter == counter.name]
    context = resume(
        envelope.with_messages(one.message for one in every[:kept]),
        state,
        counter=counter,
        references=names,
        annotations=annotations,
    )
    context.is_resumed = bool(state.ledger)
    context.manual_thinking = WIRES[envelope.format].manual_thinking(envelope.body)
    asks = [index for index, one in enumerate(every) if one.row.kind == "resume"]
    context.breaks |= {
        index for at in asks for index in (at, at + 1)
    }  # who speaks next joins it, where roles alternate
    context.extend(one.message for one in every[kept:])
    history = envelope.with_messages(one.message for one in every)
    return ResumedSession(context, history, [one.row.seq for one in every], names, [one.row.kind for one in every])


def project_session(session: ResumedSession) -> SessionProjection:
    """Say what the model will see, mended where it has to be."""
    context = session.context
    messages = list(context.project())
    history = session.history.with_messages(messages)
    mended = api.repair(history, resting=_rests(history))
    repairs = tuple(map(str, mended.changes))
    return SessionProjection(mended.payload, history, context.projected_tokens, repairs)


def ledger_without(session: ResumedSession, seqs: Collection[int]) -> str:
    """Take the facts from all rows that are not among those that will be shown."""
    context = session.context
    snapshot = context.snapshot()
    for group in list(context.live):
        if not any(session.seqs[index] in seqs for index in group.indices):
            context.view.hide(group, "no longer shown")
    told = told_in_full(context, FULL_LEDGER)
    context.rollback(snapshot)  # a draft may have to be made again
    return told


def _rests(history: History) -> bool:
    """Tell whether the assistant had the last word, so that nothing is about to be sent."""
    return bool(history.messages) and history.messages[-1].role == "assistant" and not mid_step(history.messages)

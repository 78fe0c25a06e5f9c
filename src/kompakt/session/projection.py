"""A stored session as a request: what the model sees, or everything that was said.

The model sees the view of the newest pivot and all later messages. Reading it costs what is shown, not what is stored.
A session that is broken on disk is repaired in the projection, and the repairs are listed; stored rows do not change.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from kompakt import api
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import full_ledger
from kompakt.engine.pivot.saved_state import FULL_LEDGER, SavedContext, resume
from kompakt.errors import UsageError
from kompakt.model.contract import Contract
from kompakt.model.groups import groups, pair, sides, turn_cuts
from kompakt.model.messages import History, Json, Marker, Message, Opaque, Reasoning
from kompakt.model.tokens import Counter, Tokenizer, counter_of
from kompakt.session.reader import SessionReader
from kompakt.session.row_codec import StoredMessage, history_of
from kompakt.wire.registry import WIRES


class SessionProjection(msgspec.Struct, frozen=True):
    """What the model sees."""

    payload: Json
    """A request in the session's format."""
    history: History
    """The same as messages, before repairs."""
    tokens: int
    repairs: tuple[str, ...] = ()
    """What was repaired so that the provider accepts the request."""


class ResumedSession(msgspec.Struct):
    """The context of a stored session, and the row of each of its messages."""

    context: Context
    history: History
    """The messages of the context, in the session's envelope."""
    seqs: list[int]
    names: tuple[str, ...]
    kinds: list[str]
    altered: frozenset[int] = frozenset()
    """Rows that the newest compaction shows changed."""
    markers: dict[int, Marker] = {}
    """Pending requests to compact, by row."""


async def resume_session(
    reader: SessionReader, *, model: str | None = None, tokenizer: Tokenizer | None = None
) -> ResumedSession:
    """Build the context of a session, counted by ``tokenizer``, else for ``model``, else for the session's model."""
    pivot = reader.timeline.pivot
    frame = await reader.frame(pivot) if pivot is not None else None
    rows = await reader.view(frame, after=pivot.tip if pivot is not None else 0)
    envelope = history_of((), reader.head.format, reader.envelope)
    counter = counter_of(tokenizer, model or envelope.model).own()
    state = frame.state if frame else SavedContext()
    session = _resumed(envelope, state, rows.every, rows.kept, counter, seal_key=reader.seal_key)
    session.markers = rows.markers
    session.altered = frozenset(entry.seq for entry in (frame.view if frame else ()) if entry.item is not None)
    return session


def _resumed(
    envelope: History,
    state: SavedContext,
    every: Sequence[StoredMessage],
    kept: int,
    counter: Counter,
    *,
    seal_key: bytes,
) -> ResumedSession:
    names = tuple(one.row.name for one in every)
    annotations = [one.annotation for one in every if one.note.counter == counter.name]
    context = resume(
        envelope.with_messages(one.message for one in every[:kept]),
        state,
        counter=counter,
        references=names,
        annotations=annotations,
        seal_key=seal_key,
    )
    context.is_resumed = bool(state.ledger)
    context.manual_thinking = WIRES[envelope.format].manual_thinking(envelope.body)
    # Where roles alternate, the next user message is merged with a resume message, so both sides of it are breaks.
    asks = [index for index, one in enumerate(every) if one.row.kind == "resume"]
    context.breaks |= {index for at in asks for index in (at, at + 1)}
    context.extend(one.message for one in every[kept:])
    history = envelope.with_messages(one.message for one in every)
    return ResumedSession(context, history, [one.row.seq for one in every], names, [one.row.kind for one in every])


def project_session(session: ResumedSession) -> SessionProjection:
    """Return what the model sees, repaired if necessary."""
    context = session.context
    history = session.history.with_messages(list(context.project()))
    repaired = api.repair(history, resting=_ends_with_answer(history))
    return SessionProjection(repaired.payload, history, context.projected_tokens, tuple(map(str, repaired.changes)))


def ledger_without(session: ResumedSession, seqs: Collection[int]) -> str:
    """Return the ledger of all messages that will not be shown; ``seqs`` are the rows that will."""
    context = session.context
    snapshot = context.snapshot()
    for group in list(context.live):
        if not any(session.seqs[index] in seqs for index in group.indices):
            context.visibility.hide(group, "no longer shown")
    ledger = full_ledger(context, FULL_LEDGER)
    context.rollback(snapshot)  # a conflict may require a second draft from the same context
    return ledger


def _ends_with_answer(history: History) -> bool:
    """Return whether the assistant wrote the last message, so that nothing is about to be sent."""
    return bool(history.messages) and history.messages[-1].role == "assistant" and not mid_step(history.messages)


def mid_step(messages: Sequence[Message], contract: Contract | None = None) -> bool:
    """Return whether a step is unfinished, so that no user message may be inserted after the last message.

    A call waits for its result. If the provider allows no text beside results, results wait for the model's answer.
    """
    if not messages:
        return False
    last = messages[-1]
    if last.results and contract is not None and contract.alternates and not contract.merges_results:
        return True
    if last.parts and all(type(part) is Opaque for part in last.parts):  # a provider's item that may have to be last
        return True
    if last.role == "assistant" and all(type(part) is Reasoning for part in last.parts):
        return True
    newest = groups(messages)[-1].messages
    return last in newest and bool(pair(newest).open)


async def export(
    reader: SessionReader,
    *,
    view: Literal["full", "model"] = "full",
    format: str | None = None,
    last: int | None = None,
    first: int | None = None,
) -> Json:
    """Return a session as a request: all messages or what the model sees, whole or only some turns."""
    if last is not None and last < 1:
        raise UsageError(f"turns={last!r} is not possible; give the number of last turns to export, 1 or more")
    if view == "model":
        shown = project_session(await resume_session(reader))
        history = _last_turns(api.parse(shown.payload, reader.head.format), last)
        made = api.render(history, format)
        return made if format in (None, reader.head.format) else api.repair(made, format, resting=True).payload
    if last is not None and reader.head.turn:
        first = max(1, reader.head.turn - last + 1)
    after = 0
    if first is not None:  # start earlier if a group reaches into the turn
        cuts = await reader.cuts()
        after = cuts[bisect(cuts, await reader.turn_start(first) - 1) - 1]
    messages = [one.message for one in await reader.all(after=after) if one.row.kind == "message"]
    return api.render(history_of(messages, reader.head.format, reader.envelope), format)


def _last_turns(history: History, last: int | None) -> History:
    cuts = turn_cuts(history.messages)
    if last is None or last >= len(cuts):
        return history
    return history.with_messages(sides(history.messages, cuts[-last])[1])

"""Compactions that kompakt does not make: the caller or the provider decides what the model sees.

Messages that are stored already are shown from their rows; others are inserted. All earlier messages stay in the store.
The ledger is taken from them as in any compaction, so the next compaction by kompakt knows what happened even if the
provider's own summary is encrypted. The cost depends on what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from kompakt.engine.compaction.report import Report, build_report
from kompakt.engine.pivot.saved_state import SavedContext, resume
from kompakt.model.messages import History, Message
from kompakt.model.references import digest
from kompakt.model.tokens import Tokenizer
from kompakt.session.compaction import SessionCompaction, add_compaction, announce, is_auto, is_stale
from kompakt.session.lock import COMPACTION, hold
from kompakt.session.reader import ResumedSession, SessionReader, ledger_without, resume_session
from kompakt.session.rows import Draft
from kompakt.session.timeline import RECOVERABLE, PreparedCompaction, ViewEntry, build_record
from kompakt.store.records import Head

if TYPE_CHECKING:
    from kompakt.session.session import Session


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """What the model sees after a compaction by its provider."""

    messages: tuple[Message, ...]
    summary: str
    """The readable part of the provider's summary."""
    reason: str
    resume: str | None
    """Text of the message that asks the agent to continue, unless a user requested the compaction."""


async def publish(
    session: Session,
    reader: SessionReader,
    shown: ProviderView,
    *,
    fits: Callable[[int], bool],
    model: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> SessionCompaction | None:
    """Record a provider's compaction of the session as ``reader`` read it; later messages follow.

    ``None``, without a change, if the result does not fit or an event was recorded since.
    """
    now = await resume_session(reader, model=model, tokenizer=tokenizer)
    history = now.history.with_messages(shown.messages)
    done: list[PreparedCompaction] = []

    async with hold(session.records, session.key, COMPACTION, session=session.id) as fence:
        markers = await (await session.reader()).markers()

        async def make(head: Head) -> Draft:
            draft, done[:] = Draft(head, reader.codec), []
            if is_stale(reader, head):
                return draft
            view = _view(draft, now, history)
            state = _provider_state(reader, now, view, shown)
            report = _report(
                session, now, history, view, state, policy="provider", reason=shown.reason, summary=shown.summary
            )
            if not fits(report.tokens_after):
                return Draft(head, reader.codec)
            prepared = _prepared(now, view, state, report, tip=reader.head.rows, markers=markers, auto=is_auto(markers))
            add_compaction(draft, prepared, resume=shown.resume if is_auto(markers) else None)
            done.append(prepared)
            return draft

        await session.write(make, fence=fence)
    return announce(done[0]) if done else None


def _provider_state(
    reader: SessionReader, now: ResumedSession, view: list[ViewEntry], shown: ProviderView
) -> SavedContext:
    seqs = [entry.seq for entry in view]
    texts = [message.text for message in shown.messages]
    return SavedContext(
        breaks=tuple(_breaks(now.seqs, seqs)),
        stripped=1,  # the first message has no reasoning; this marks the prefix as rewritten
        ledger=ledger_without(now, set(seqs)),
        missing_pins=tuple(pin for pin in reader.timeline.pins if not any(pin in text for text in texts)),
    )


def _breaks(before: Sequence[int], view: Sequence[int]) -> list[int]:
    """Return the indices of shown messages that did not directly follow the one before them."""
    follows = dict(pairwise(before))
    return [n for n, seq in enumerate(view) if n and follows.get(view[n - 1]) != seq]


async def replace(session: Session, history: History, *, reason: str) -> SessionCompaction:
    """Show the model these messages from now on."""
    done: list[PreparedCompaction] = []

    async def make(_: Head) -> Draft:
        reader = await session.reader()
        now = await resume_session(reader)
        draft = Draft(reader.head, reader.codec)
        view = _view(draft, now, history)
        ledger = ledger_without(now, {entry.seq for entry in view})
        state = SavedContext(breaks=tuple(range(1, len(view))), stripped=len(view), ledger=ledger)
        report = _report(session, now, history, view, state, policy="replace", reason=reason)
        done[:] = [_prepared(now, view, state, report, tip=draft.head.rows)]
        draft.add_event(done[0].record)
        return draft

    await session.write(make)
    report = done[0].report
    return SessionCompaction(
        id=done[0].record.id,
        changed=True,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_after,
        report=report,
    )


def _view(draft: Draft, now: ResumedSession, history: History) -> list[ViewEntry]:
    """Find the row of each message, or insert one."""
    known: dict[bytes, list[int]] = {}
    for seq, message in zip(now.seqs, now.context.messages, strict=True):
        known.setdefault(digest(message), []).append(seq)
    view: list[ViewEntry] = []
    for item, message in draft.codec.items(history):
        seqs = known.get(digest(message))
        view.append(ViewEntry(seqs.pop(0) if seqs else draft.add(item, message, kind="inserted")))
    return view


def _report(
    session: Session,
    now: ResumedSession,
    history: History,
    view: Sequence[ViewEntry],
    state: SavedContext,
    *,
    policy: str,
    reason: str,
    summary: str = "",
) -> Report:
    context = resume(
        now.history.with_messages(history), state, counter=now.context.counter, seal_key=now.context.seal_key
    )
    return build_report(
        context,
        policy=policy,
        reason=reason,
        tokens_before=now.context.projected_tokens,
        messages_before=len(now.history),
        messages_after=len(view),
        notes=summary,
        recoverable=RECOVERABLE,
        session=session.id,
    )


def _prepared(
    now: ResumedSession,
    view: Sequence[ViewEntry],
    state: SavedContext,
    report: Report,
    *,
    tip: int,
    markers: Iterable[int] = (),
    auto: bool = False,
) -> PreparedCompaction:
    shown = {entry.seq for entry in view}
    hidden = max([seq for seq in now.seqs if seq not in shown], default=0)
    record = build_record(view, state, report, covers_to=hidden, tip=tip, markers=markers, auto=auto)
    return PreparedCompaction(record, report.notes, report)

"""A compaction that the provider has made: its own item stands for what came before, opaque and sent back as it is.

Everything that was said stays in the store, and the ledger is taken from it as ever: should kompakt compact next, it
knows what happened although nobody can read the item. Costs what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.saved_state import State, resume
from kompakt.model.messages import Marker, Message
from kompakt.model.references import digest
from kompakt.model.tokens import Tokenizer
from kompakt.session.compaction import (
    RECOVERABLE,
    PreparedCompaction,
    SessionCompaction,
    frame_text,
    is_auto,
    new_id,
    told,
    write,
)
from kompakt.session.draft import Draft
from kompakt.session.lock import hold
from kompakt.session.projection import ResumedSession, ledger_without, resume_session
from kompakt.session.reader import SessionReader
from kompakt.session.timeline import CompactionRecord, Frame, ViewEntry
from kompakt.store.records import Head

if TYPE_CHECKING:
    from kompakt.session.session import Session

POLICY = "provider"


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """What the model sees from now on."""

    messages: tuple[Message, ...]
    summary: str
    """What can be read of the provider's summary."""
    reason: str
    asks: bool
    """Whether the agent is asked to go on, unless a person wanted this."""


async def publish(
    session: Session,
    reader: SessionReader,
    shown: ProviderView,
    *,
    fits: Callable[[int], bool],
    model: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> SessionCompaction | None:
    """Let the model see what a provider made of a session as it was read; what was said since follows.

    ``None``, and nothing is written, when that does not fit or something was done to the session as a whole meanwhile.
    """
    now = await resume_session(reader, model=model, tokenizer=tokenizer)
    done: list[PreparedCompaction] = []

    async with hold(session.records, session.key, "compaction") as fence:
        markers = await (await session.reader()).markers()

        async def make(head: Head) -> Draft:
            draft, done[:] = Draft(head, reader.codec), []
            if (head.created, head.events) == (reader.head.created, reader.head.events):
                prepared = _prepared(draft, reader, now, shown, markers)
                if not fits(prepared.report.tokens_after):
                    return Draft(head, reader.codec)
                write(draft, prepared, reader.codec, asks=shown.asks and is_auto(markers))
                done.append(prepared)
            return draft

        await session.write(make, fence=fence)
    return told(done[0]) if done else None


def _prepared(
    draft: Draft, reader: SessionReader, now: ResumedSession, shown: ProviderView, markers: Mapping[int, Marker]
) -> PreparedCompaction:
    """Find the rows of what is shown, or insert them, and put it into a record."""
    known: dict[bytes, list[int]] = {}
    for seq, message in zip(now.seqs, now.context.messages, strict=True):
        known.setdefault(digest(message), []).append(seq)
    history = now.history.with_messages(shown.messages)
    view = [_placed(draft, known, item, message) for item, message in reader.codec.items(history)]
    seqs = [entry.seq for entry in view]
    texts = [message.text for message in shown.messages]
    state = State(
        breaks=tuple(_breaks(now.seqs, seqs)),
        stripped=1,  # which has no reasoning; it says that this is not what was sent first
        ledger=ledger_without(now, set(seqs)),
        missing_pins=tuple(pin for pin in reader.timeline.pins if not any(pin in text for text in texts)),
    )
    context = resume(history, state, counter=now.context.counter)
    before = now.context.projected_tokens
    report = Report(
        policy=POLICY,
        reason=shown.reason,
        tokens_before=before,
        tokens_after=context.projected_tokens,
        messages_before=len(now.history),
        messages_after=len(view),
        budget=0,
        told=shown.summary,
        recoverable=RECOVERABLE,
    )
    record = CompactionRecord(
        id=new_id(),
        frame=frame_text(Frame(view=tuple(view), state=state, report=report)),
        covers_to=max([seq for seq in now.seqs if seq not in seqs], default=0),
        tip=reader.head.rows,
        markers=tuple(markers),
        auto=is_auto(markers),
        reason=report.reason,
        policy=report.policy,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_after,
    )
    return PreparedCompaction(record, shown.summary, report)


def _placed(draft: Draft, known: dict[bytes, list[int]], item: object, message: Message) -> ViewEntry:
    seqs = known.get(digest(message))
    return ViewEntry(seqs.pop(0) if seqs else draft.add(item, message, kind="inserted"))


def _breaks(before: Sequence[int], view: Sequence[int]) -> list[int]:
    """List those of the shown that did not stand behind the one before them."""
    follows = dict(pairwise(before))
    return [n for n, seq in enumerate(view) if n and follows.get(view[n - 1]) != seq]

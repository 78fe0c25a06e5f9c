"""The pivot of a compaction that is recorded in a session, such as one that a person asked for or edited.

It is built once from the record and the request that needs it first, and then stored like any other pivot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kompakt import api
from kompakt.engine.pivot.pivot import pivot_text
from kompakt.engine.pivot.saved_state import SavedContext, resume
from kompakt.gateway.pivots.budget import LearnedLimits
from kompakt.gateway.pivots.lookup import Pivot, VisibleMessage, without_cache_marks
from kompakt.gateway.request.history import HashChain, decode_item, parse_items
from kompakt.model.messages import History, Json, Message, ToolResult
from kompakt.model.tokens import counter_for
from kompakt.session.timeline import CompactionRecord, Frame
from kompakt.wire.registry import WIRES


class RecordedCompaction(NamedTuple):
    """A compaction of a session, as its store has it."""

    session: str
    record: CompactionRecord
    frame: Frame
    """What it shows, with its text as last edited."""
    names: Mapping[int, str]
    """References of the rows that it shows."""
    offset: int
    """Rows of leading system messages, which are not part of a pivot."""
    seal_key: bytes = b""


def pivot_of_record(chain: HashChain, recorded: RecordedCompaction, learned: LearnedLimits) -> Pivot:
    """Build the pivot that shows what a recorded compaction shows.

    Raises:
        InputError: an item is not a message.
    """
    record, frame, offset = recorded.record, recorded.frame, recorded.offset
    lead = sum(entry.seq <= offset for entry in frame.view)
    view = tuple(
        VisibleMessage(
            entry.seq - offset - 1,
            without_cache_marks(decode_item(chain.request.item(_place(chain, recorded, entry.seq))))
            if entry.item is None
            else entry.item,
            recorded.names[entry.seq],
            entry.pruned,
            altered=entry.item is not None,
        )
        for entry in frame.view[lead:]
    )
    state = _without_lead(frame.state, lead)
    history = request_history(chain)
    messages = parse_items([one.item for one in view], chain.request.format)
    context = resume(
        history.with_messages(with_pruned(message, one.pruned) for message, one in zip(messages, view, strict=True)),
        state,
        counter=counter_for(history.model).own(),
        references=[one.name for one in view],
        seal_key=recorded.seal_key,
    )
    context.manual_thinking = WIRES[history.format].manual_thinking(history.body)
    shown = history.with_messages(context.project())
    items = rendered_items(shown)
    return Pivot(
        id=record.id,
        session=recorded.session,
        covers=record.tip - offset,
        items=[without_cache_marks(item) for item in items],
        tokens=sum(context.counter.message(message) for message in parse_items(items, shown.format)),
        state=state,
        view=view,
        policy=record.policy,
        reason=record.reason,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        notes=pivot_text(context) if context.summary_text else "",
        scale=learned.scale,
        limit=learned.limit,
        output_counts=learned.output_counts,
    )


def _place(chain: HashChain, recorded: RecordedCompaction, seq: int) -> int:
    return chain.lead + seq - recorded.offset - 1


def _without_lead(state: SavedContext, lead: int) -> SavedContext:
    """Return a state that does not count leading system messages."""
    return msgspec.structs.replace(
        state,
        covers=max(0, state.covers - lead) if state.summary else state.covers,
        stripped=max(0, state.stripped - lead),
        breaks=tuple(index - lead for index in state.breaks if index >= lead),
    )


# --- parts of a request ---


def request_history(chain: HashChain) -> History:
    """Return a request without its messages; leading system messages count as its system prompt."""
    body = chain.request
    envelope = WIRES[body.format].parse([], body.envelope())
    lead = parse_items([decode_item(body.item(index)) for index in range(chain.lead)], body.format)
    return History(
        (),
        format=body.format,
        body=envelope.body,
        system=(*envelope.system, *lead),
        tools=envelope.tools,
        model=body.model,
        contract=envelope.contract,
    )


def with_pruned(message: Message, pruned: Sequence[int]) -> Message:
    """Mark the tool results whose output an earlier compaction hid."""
    if not pruned:
        return message
    parts = [
        msgspec.structs.replace(part, pruned_at=0.0) if place in pruned and type(part) is ToolResult else part
        for place, part in enumerate(message.parts)
    ]
    return msgspec.structs.replace(message, parts=tuple(parts))


def rendered_items(shown: History) -> list[Json]:
    """Render the visible messages, repaired where the client's own history is invalid."""
    payload = api.repair(shown).payload
    key = WIRES[shown.format].messages_key
    return list(payload[key] if isinstance(payload, dict) else payload)

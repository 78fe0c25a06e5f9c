"""Check a session: recompute every derived value and compare it with the stored one.

Checks hashes, chains, references, sequence numbers, turns, pairs of calls and results, blobs, the head, and the view of
every compaction. Only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kompakt.errors import KompaktError, StoreDamaged
from kompakt.model.groups import groups
from kompakt.model.references import MIN_DIGITS, linked
from kompakt.session.reader import SessionReader, project_session, resume_session
from kompakt.session.rows import StoredMessage, begins_turn
from kompakt.store.records import StoredRow
from kompakt.wire.openai_responses.rules import is_managed

_NUMBER = re.compile("[0-9a-f]+")


class _VerifyState:
    """Values derived from the rows so far."""

    def __init__(self) -> None:
        self.chain = b""
        self.turn = 0
        self.messages = 0
        self.seq = 0
        self.names: set[str] = set()


async def verify(reader: SessionReader) -> list[str]:
    found: list[str] = []
    state = _VerifyState()
    try:
        async for page in reader.pages():
            found += await _content_faults(page, reader)
            found += [] if is_managed(reader.envelope) else _pair_faults(page)
            for one in page:
                found += _row_faults(one, state)
        found += _head_faults(state, reader)
        found += await _dead_faults(reader)
        found += await _view_faults(reader)
    except StoreDamaged as error:
        found.append(str(error))
    return found


async def _content_faults(page: Sequence[StoredMessage], reader: SessionReader) -> list[str]:
    """Compare each item with its stored hash."""
    codec, blobs = reader.codec, await reader.blobs([one.row for one in page])
    return [
        f"message {one.row.seq} ({one.row.name}): the content differs from what was written"
        for one in page
        if not codec.value_codec.is_whole(codec.item(one.row, blobs), one.row.content)
    ]


def _pair_faults(page: Sequence[StoredMessage]) -> list[str]:
    found: list[str] = []
    for group in groups([one.message for one in page]):
        if any(message.results for message in group.messages) and not any(m.calls for m in group.messages):
            row = page[group.indices[0]].row
            found.append(f"message {row.seq} ({row.name}): a result without a call; it is dropped when sent")
    return found


def _row_faults(one: StoredMessage, state: _VerifyState) -> Iterator[str]:
    row, message = one.row, one.message
    where = f"message {row.seq} ({row.name})"
    if row.seq <= state.seq:
        yield f"{where}: out of order, after message {state.seq}"
    state.seq = row.seq
    if row.name in state.names:
        yield f"{where}: the reference exists twice"
    state.names.add(row.name)
    if row.kind == "message":
        state.chain = linked(state.chain, message)
        state.messages += 1
        if not _is_name(row):
            yield f"{where}: the reference does not match the hash chain"
    state.turn += begins_turn(message, row.kind)
    if row.chain != state.chain:
        yield f"{where}: the hash chain breaks here"
        state.chain = row.chain
    if row.turn != max(1, state.turn):
        yield f"{where}: stored as turn {row.turn}, but belongs to turn {max(1, state.turn)}"


def _is_name(row: StoredRow) -> bool:
    """Return whether a reference matches the chain hash: a prefix of it, or all of it followed by a number."""
    whole = f"m{row.chain.hex()}"
    if len(row.name) <= len(whole):
        return len(row.name) > MIN_DIGITS and whole.startswith(row.name)
    return row.name.startswith(whole) and _NUMBER.fullmatch(row.name[len(whole) :]) is not None


def _head_faults(state: _VerifyState, reader: SessionReader) -> Iterator[str]:
    head = reader.head
    for what, stored, derived in (
        ("messages", head.messages, state.messages),
        ("turns", head.turn, state.turn),
        ("the newest message", head.tip, state.seq),
        ("the chain", head.chain.hex(), state.chain.hex()),
    ):
        if stored != derived:
            yield f"{what}: the head says {stored}, the rows say {derived}"


async def _dead_faults(reader: SessionReader) -> list[str]:
    """Check reverted rows too: they are still stored."""
    found: list[str] = []
    for first, last in reader.timeline.dead:
        rows = await reader.records.rows(reader.head.key, after=first - 1, upto=last, limit=last - first + 1)
        if [row.seq for row in rows] != list(range(first, last + 1)):
            found.append(f"some of the reverted messages {first} to {last} are missing")
        blobs, codec = await reader.blobs(rows), reader.codec
        found += [
            f"message {row.seq} ({row.name}), reverted: the content differs from what was written"
            for row in rows
            if not codec.value_codec.is_whole(codec.item(row, blobs), row.content)
        ]
    return found


async def _view_faults(reader: SessionReader) -> list[str]:
    """Read the view of every compaction and project the session."""
    found: list[str] = []
    for _, record in reader.timeline.compactions:
        try:
            frame = await reader.frame(record)
            rows = await reader.records.rows_at(reader.head.key, [entry.seq for entry in frame.view])
            if len(rows) != len(frame.view):
                found.append(f"compaction {record.id} shows messages that are missing")
        except KompaktError as error:
            found.append(f"compaction {record.id}: {error}")
    project_session(await resume_session(reader))
    return found

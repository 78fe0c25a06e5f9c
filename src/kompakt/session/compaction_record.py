"""The stored record of a compaction, built in one place for every way a session can be compacted.

A compaction changes no row. Its record lists the messages that the model sees from then on, the state that the next
compaction continues from, and the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import token_hex

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.saved_state import State
from kompakt.session.timeline import CompactionRecord, Frame, ViewEntry
from kompakt.store.codec import encode

RECOVERABLE = "everything that was left out is in the store"
"""``Report.recoverable`` of every compaction of a stored session."""


class PreparedCompaction(msgspec.Struct):
    """A compaction that is ready to be committed."""

    record: CompactionRecord
    summary: str
    report: Report
    resume: str | None = None
    """Text of the message that asks the agent to continue, if any."""
    changed: bool = True
    """False if a trigger fired but its strategy changed nothing, so that there is nothing to commit."""


def build_record(
    view: Sequence[ViewEntry],
    state: State,
    report: Report,
    *,
    covers_to: int,
    tip: int,
    markers: Iterable[int] = (),
    auto: bool = False,
    id: str | None = None,
) -> CompactionRecord:
    """Build the record of a compaction that shows ``view``.

    The stored report has no actions: there is one for each message that ever existed.
    """
    frame = Frame(view=tuple(view), state=state, report=msgspec.structs.replace(report, actions=()))
    return CompactionRecord(
        id=id if id is not None else f"c{token_hex(6)}",
        frame=frame_text(frame),
        covers_to=covers_to,
        tip=tip,
        markers=tuple(markers),
        auto=auto,
        reason=report.reason,
        policy=report.policy,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_after,
        failures=report.failures,
    )


def frame_text(frame: Frame) -> str:
    """Write a frame as JSON."""
    return encode(msgspec.to_builtins(frame)).decode()

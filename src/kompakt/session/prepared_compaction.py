"""A compaction worked out ahead, while the agent works, and published in one batch when it still fits.

What has to be read is read first; from then on the store is not touched, so giving up costs the words and nothing else.
What is said meanwhile simply follows what the compaction shows. It is void once anything was done to the session as a
whole: another compaction, an undo, a revert, a pin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kompakt.session.compaction import (
    CompactionOptions,
    PreparedCompaction,
    SessionCompaction,
    budget_of,
    prepare_from,
    told,
    written,
)
from kompakt.session.lock import hold
from kompakt.session.projection import ResumedSession, resume_session
from kompakt.session.reader import SessionReader

if TYPE_CHECKING:
    from kompakt.session.session import Session


class CompactionPlan(NamedTuple):
    """A compaction to be worked out, of a session as it was at one moment."""

    reader: SessionReader
    session: ResumedSession
    wish: CompactionOptions

    async def prepared(self) -> PreparedCompaction:
        """Work it out; may wait for a summariser, and for nothing else.

        Raises:
            DoesNotFit: what must stay is larger than the budget.
        """
        budget = budget_of(self.session, self.wish)
        reason = self.wish.reason or f"prepared ahead of {budget.trigger} tokens"
        wish = msgspec.structs.replace(self.wish, reason=reason)
        return await prepare_from(self.reader, self.session, wish, {})  # the markers are known when it is published


async def plan(session: Session, wish: CompactionOptions) -> CompactionPlan:
    """Read what a compaction has to know."""
    reader = await session.reader()
    return CompactionPlan(reader, await resume_session(reader, model=wish.model, tokenizer=wish.tokenizer), wish)


async def publish(session: Session, planned: CompactionPlan, prepared: PreparedCompaction) -> SessionCompaction | None:
    """Write a compaction that was worked out ahead; ``None``, and nothing is written, when it no longer fits.

    A person who has asked meanwhile is not answered with something that was made before.
    """
    async with hold(session.records, session.key, "compaction") as fence:
        markers = await (await session.reader()).markers()
        if not all(marker.auto and not marker.instructions for marker in markers.values()):
            return None
        prepared.record = msgspec.structs.replace(prepared.record, markers=tuple(markers))
        return told(prepared) if await written(session, prepared, planned.reader, fence) else None

"""What people change in sessions of the gateway, and how the requests that follow notice it.

Pivots are found by the content of a request. Once a person has changed a session, its timeline decides instead: which
compaction counts, with which text, and which texts are pinned. A note marks such a session, wherever it was changed:
in this gateway, with ``kompakt session``, or in an inspector of the store. Every request asks for this note, so all
replicas notice a change with their next request, and other sessions cost no further read.

A compaction of such a session is recorded before it is used, under the lock under which people change the session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from kompakt.errors import StoreError, UsageError
from kompakt.gateway.concurrency import off_loop, with_timeout
from kompakt.gateway.pivots.budget import learned_limits
from kompakt.gateway.pivots.lookup import (
    MAX_BYTES,
    TRIES,
    PivotMatch,
    RenderedPivot,
    pivot_name,
    recorded_name,
)
from kompakt.gateway.pivots.recorded import RecordedCompaction, pivot_of_record
from kompakt.gateway.request.history import HashChain
from kompakt.gateway.storage import recorder
from kompakt.gateway.storage.recorder import RecordedBranch, mark_name
from kompakt.gateway.storage.storage import GatewayStorage, Match, SessionChanges, decode_note
from kompakt.gateway.tenants import Owner
from kompakt.model.lru import Lru
from kompakt.session.lock import COMPACTION, hold
from kompakt.session.reader import SessionReader
from kompakt.session.session import Session
from kompakt.session.timeline import CompactionRecord, EditEvent, Timeline
from kompakt.store.records import Fence

PATIENCE = 10.0
"""Seconds to write pending records before a change, and to wait for a lock."""


# --- by a person -----------------------------------------------------------------------------------------------------


class ManagedSession(Session):
    """A session of this gateway that a person changes."""

    def __init__(self, session: Session, storage: GatewayStorage) -> None:
        super().__init__(
            session.records,
            session.id,
            tenant=session.tenant,
            value_codec=session.value_codec,
            redact=session.redact,
        )
        self._storage = storage

    async def is_served(self) -> bool:
        """Write what is pending, which the change may be about, and answer without a read."""
        await with_timeout(self._storage.flush_pivots(), PATIENCE)
        return True

    async def undo_newest(self) -> CompactionRecord:
        """Undo the newest compaction.

        Raises:
            UsageError: there is none.
        """
        await self.is_served()
        newest = (await self.reader()).timeline.pivot
        if newest is None:
            raise UsageError("the session has no compaction to undo")
        await self.undo(newest.id)
        return newest


# --- for requests ----------------------------------------------------------------------------------------------------


class ChangedSessions:
    """Applies what people changed to the requests of clients."""

    def __init__(self, storage: GatewayStorage) -> None:
        self._storage = storage
        self._pivots = Lru[tuple[str, str], RenderedPivot](MAX_BYTES, lambda rendered: rendered.size)

    async def apply(self, owner: Owner, chain: HashChain, match: Match) -> Match:
        """Replace the pivot of a request by the one that counts after the changes of people."""
        if match.degraded is not None:
            return match
        try:
            for session in match.changed:
                decided = await self._decided(owner, chain, match, session)
                if decided is not None:
                    return decided
        except StoreError as error:
            return msgspec.structs.replace(match, degraded=self._storage.store_failed(error))
        return match

    async def _decided(self, owner: Owner, chain: HashChain, match: Match, session: str) -> Match | None:
        """Return what the timeline of a session decides; ``None`` if it says nothing about the request."""
        found = match.found
        branch = await self._branch(owner, chain, match, session)
        if branch is None:
            return None
        try:
            reader = await self._storage.call((await self._storage.store_of(owner).session(session)).reader())
        except UsageError:  # deleted meanwhile
            return None
        timeline = reader.timeline
        known = [(event, record) for event, record in timeline.compactions if record.tip <= branch.rows]
        is_own = session == match.branch.session
        live = [(event, record) for event, record in known if not timeline.is_undone(event, record)]
        number = live[-1][0].number if live else 0
        undone = any(event.number > number for event, _ in known)
        changes = SessionChanges(session, _newest_change(timeline), timeline.pins if is_own else (), undone)
        if known or (found is not None and found.pivot.session == session):
            found = await self._pivot(owner, chain, match, reader, branch, live[-1][1]) if live else None
        return msgspec.structs.replace(match, found=found, changes=changes)

    async def _branch(self, owner: Owner, chain: HashChain, match: Match, session: str) -> RecordedBranch | None:
        """Return how much of the request is in the session."""
        if session == match.branch.session:
            return match.branch
        if match.found is None:
            return None
        name = mark_name(chain.keys[match.found.at])
        note = (await self._storage.read_notes(owner, [name])).get(name)
        branch = None if note is None else decode_note(note, self._storage.value_codec, RecordedBranch)
        return branch if branch is not None and branch.session == session else None

    async def _pivot(
        self,
        owner: Owner,
        chain: HashChain,
        match: Match,
        reader: SessionReader,
        branch: RecordedBranch,
        record: CompactionRecord,
    ) -> PivotMatch | None:
        """Return the pivot of a recorded compaction, as it was sent or as it is now after an edit."""
        edit, at = _edit_of(reader.timeline, record), chain.lead + record.tip - branch.offset
        if at > chain.length:
            return None
        if match.found is not None and match.found.pivot.id == record.id and not edit:
            return match.found
        name = recorded_name(record.id, edit)
        rendered = self._pivots.get((owner.tenant, name))
        if rendered is None:
            sent = [pivot_name(chain.keys[at], attempt) for attempt in range(TRIES)]
            rendered = await self._storage.recorded_pivot(owner, [name, *(sent if not edit else ())], record.id)
        if rendered is None:
            frame = await self._storage.call(reader.frame(record))
            rows = await self._storage.call(reader.records.rows_at(reader.head.key, [one.seq for one in frame.view]))
            names = {row.seq: row.name for row in rows}
            made = RecordedCompaction(branch.session, record, frame, names, branch.offset, reader.seal_key)
            learned = learned_limits(match.found)
            pivot = await off_loop(lambda: pivot_of_record(chain, made, learned), size=len(chain.request.body))
            rendered = await self._storage.publish_recorded(owner, name, pivot)
        self._pivots.put((owner.tenant, name), rendered)
        return PivotMatch(at, rendered)

    @asynccontextmanager
    async def lock(self, owner: Owner, branch: RecordedBranch) -> AsyncGenerator[Fence]:
        """Hold the lock under which a session is compacted and people change it."""
        session = await self._storage.store_of(owner).session(branch.session)
        async with hold(session.records, session.key, COMPACTION, session=session.id, patience=PATIENCE) as fence:
            yield fence

    async def record(self, owner: Owner, branch: RecordedBranch, rendered: RenderedPivot, fence: Fence) -> None:
        """Add a pivot to the compactions of a session now.

        Raises:
            StoreError: the store is unavailable.
            UsageError: the session was deleted.
        """
        session = await self._storage.store_of(owner).session(branch.session)
        pivot = await self._storage.whole(rendered)
        await self._storage.call(recorder.record_pivot(session, branch, pivot, fence=fence))


def _newest_change(timeline: Timeline) -> int:
    """Return the number of the newest event that is not a compaction by the gateway itself."""
    changes = [one for one in timeline.events if type(one.event) is not CompactionRecord or not one.event.auto]
    return changes[-1].number if changes else 0


def _edit_of(timeline: Timeline, record: CompactionRecord) -> int:
    """Return the number of the edit whose text a compaction has; 0 if it has its own."""
    edits = [
        one.number
        for one in timeline.events
        if type(one.event) is EditEvent and one.event.compaction == record.id and one.number not in timeline.undone
    ]
    return edits[-1] if edits else 0

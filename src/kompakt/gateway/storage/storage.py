"""The store as the gateway uses it: pivots and lines found by content, originals written behind the answers.

Nothing here is needed in memory: what is remembered saves a question to the store, and every question can be asked
again. Nothing of it is trusted either: a session may be deleted while its conversation continues, so with every request
what is remembered is compared with the store. While the store cannot be reached the gateway uses what it remembers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import msgspec

from kompakt.engine.recall import Recalled
from kompakt.errors import KompaktError, StoreError, StoreUnavailable, UsageError
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.http.threads import off_loop
from kompakt.gateway.pivots import lookup as pivots
from kompakt.gateway.pivots.lookup import Found, Known, Pivot, Remembered
from kompakt.gateway.recall.lookup import recalled
from kompakt.gateway.request.hash_chain import Trail
from kompakt.gateway.storage import recorder as recording
from kompakt.gateway.storage.locks import KeyedLocks
from kompakt.gateway.storage.note_codec import packed, unpacked
from kompakt.gateway.storage.recorder import Line
from kompakt.gateway.storage.timeouts import Value, promptly
from kompakt.gateway.storage.write_behind import Behind
from kompakt.gateway.storage.written_prefixes import Written
from kompakt.gateway.tenancy.tenants import Tenant
from kompakt.session.store import Store
from kompakt.store.values import key_of

_log = logging.getLogger("kompakt.gateway")

MAX_LINES = 10_000
"""Ends of requests for which it is remembered where they are recorded."""

PATIENCE = 3.0
"""Seconds that the store has to find something; a request is then served without it."""

WRITE_PATIENCE = 8.0
"""Seconds that it has to write originals: many may come to write at once, and what is hidden has to be there."""

_REST = 2.0
"""Seconds in which a store that failed is not asked again."""

_LOOKS = 20
_PAUSE = 0.05
_LEASE = 2.0
"""How often, every how many seconds, is looked whether another replica is done; and how long it may take."""

_SCOPE_DIGITS = 12

_UNPACKED = 8
"""Bytes that a byte of a note becomes when it is unpacked, about."""


class Owner(NamedTuple):
    """Whose sessions they are: a tenant of the store and, for tenants that no operator named, how their names begin."""

    tenant: str
    scope: str

    @classmethod
    def of(cls, tenant: Tenant) -> Owner:
        """Say where the sessions of a tenant are.

        Who is only known by a credential shares the store's own tenant, so that its tools find the sessions; their
        names begin with the hash, and the gateway shows nobody else's.
        """
        if tenant.source in ("key", "header"):
            return cls(tenant.id, "")
        return cls("", f"{tenant.id.rpartition('-')[2][:_SCOPE_DIGITS]}-")

    def session(self, name: str) -> str:
        """Return the id of a session in the store."""
        return name if self.scope and name.startswith(self.scope) else f"{self.scope}{name}"

    def owns(self, session: str) -> bool:
        """Tell whether a session of the store's tenant is this owner's."""
        return session.startswith(self.scope)


class _Recollection(NamedTuple):
    """What is remembered of a request."""

    found: Found | None
    line: Line | None
    above: int
    """From how many items on the store has to be asked."""
    notes: Mapping[str, str]
    """Names of notes that the store must still have, and the sessions that are gone where it has not."""


_NOTHING = _Recollection(None, None, 0, {})


class _Lost(Exception):
    """Something that is remembered is no longer in the store."""


class Standing(msgspec.Struct):
    """What a request stands on."""

    found: Found | None
    line: Line
    degraded: str | None = None
    """Why the store was not asked."""
    undone: bool = False
    """Whether a deeper pivot was undone: the request is then sent without it as long as it fits."""


class Keeping:
    """Pivots, lines and sessions of all tenants."""

    def __init__(self, store: Store, metrics: Metrics, *, on_loss: Callable[[], object] = lambda: None) -> None:
        self.records = store.records
        self.packing = store.packing
        self._store = store
        self._metrics = metrics
        self._on_loss = on_loss
        """Called when something is no longer in the store that was."""
        self.losses = 0
        """How often that was so; whoever remembers what is in the store forgets it when this changes."""
        self._remembered = Remembered()
        self._lines: OrderedDict[bytes, Line] = OrderedDict()
        self._written = Written()
        self._behind = Behind(self.failed)
        self._locks = KeyedLocks()
        self._down_until = 0.0

    def store_of(self, owner: Owner) -> Store:
        """Return the sessions of an owner's tenant."""
        return self._store.of_tenant(owner.tenant)

    # --- find -----------------------------------------------------------------------------------------------------

    async def stand(self, owner: Owner, trail: Trail, *, named: str | None) -> Standing:
        """Find the deepest pivot of a request and where it is recorded.

        What is remembered saves questions about what is not new. It is compared with the store each time: a session may
        have been deleted, by whoever, since the request before.
        """
        known, degraded = self._recollection(trail), None
        try:
            try:
                found, line = await self._asked(owner, trail, known)
            except _Lost:
                found, line = await self._asked(owner, trail, _NOTHING)
            self._remembered.stand(trail, found)
        except StoreError as error:
            reason = self.failed(error)
            found, line = known.found, known.line
            degraded = reason if known.above < trail.length else None  # all of a known request is remembered
        return Standing(found, await self._placed(owner, trail, line or self._begun(owner, trail, named)), degraded)

    def _recollection(self, trail: Trail) -> _Recollection:
        """Collect what is remembered of a request, and the notes that the store must have if it is still true."""
        found, above = self._remembered.deepest(trail)
        notes = dict[str, str]()
        if found is not None and found.known.is_stored:
            pivot = found.known.pivot
            notes[pivots.name_of(trail.keys[found.at], pivot.attempt)] = pivot.session
        for at in chain.from_iterable(trail.ends(trail.lead)):
            line = self._lines.get(trail.keys[at])
            if line is not None:
                notes[recording.mark_name(trail.keys[at])] = line.session
                return _Recollection(found, line, above, notes)
        return _Recollection(found, None, above, notes)

    async def stand_again(self, owner: Owner, trail: Trail, standing: Standing) -> Standing:
        """Ask the store for every pivot after the one that a request stands on, whatever is remembered."""
        above = standing.found.at if standing.found is not None else trail.lead
        known = _Recollection(standing.found, standing.line, above, {})
        try:
            found, _ = await self._asked(owner, trail, known, is_thorough=True)
        except StoreError as error:
            return Standing(standing.found, standing.line, self.failed(error))
        self._remembered.stand(trail, found)
        return Standing(found, standing.line, standing.degraded)

    async def without_undone(self, owner: Owner, trail: Trail, standing: Standing) -> Standing:
        """Go back to the pivot before the one that a request stands on, as often as that was undone."""
        found = standing.found
        while found is not None:
            name = pivots.undo_name(found.known.pivot.id)
            try:
                note = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name)
                if note is None:
                    break
                undo = unpacked(note, self.packing, pivots.Undo)
                found = await self._before(owner, trail, undo) if undo.covers < found.at else None
            except StoreError as error:
                self.failed(error)
                break
        if found is standing.found:
            return standing
        return msgspec.structs.replace(standing, found=found, undone=True)

    async def _before(self, owner: Owner, trail: Trail, undo: pivots.Undo) -> Found | None:
        """Find the pivot before one that was undone."""
        if undo.covers <= trail.lead:
            return None
        names = [pivots.name_of(trail.keys[undo.covers], attempt) for attempt in range(pivots.TRIES)]
        notes = await self._reached(self.records.notes(owner.tenant, names))
        kept = (unpacked(notes[name], self.packing, Pivot) for name in names if name in notes)
        return next(
            (Found(undo.covers, Known.of(pivot, is_stored=True)) for pivot in kept if pivot.id == undo.before), None
        )

    async def _placed(self, owner: Owner, trail: Trail, line: Line) -> Line:
        """Record at once a conversation that continues differently from what its session holds: in another one."""
        place = (owner.tenant, line.session)
        if not self._behind.has_other(place, trail) and not self._written.differs(place, trail):
            return line
        try:
            await self._behind.write(place)
            return await self.record(owner, trail, line)
        except StoreError as error:
            self.failed(error)
            return line

    async def _asked(
        self, owner: Owner, trail: Trail, known: _Recollection, *, is_thorough: bool = False
    ) -> tuple[Found | None, Line | None]:
        """Look in the store for pivots and marks of prefixes that end above what is known.

        A pivot is only ever kept for a prefix that is marked, and a mark says which pivot the request stood on that it
        was made for. So the newest mark ends the search, except where a thorough one is wanted.

        Raises:
            _Lost: something that is remembered is no longer there; it is forgotten.
        """
        above, line, expected = max(known.above, trail.lead), None, known.notes
        for page in trail.ends(above):
            names = [recording.mark_name(trail.keys[at]) for at in page]
            if not names and not expected:
                continue
            notes = await self._reached(self.records.notes(owner.tenant, [*names, *expected]))
            lost = {session for name, session in expected.items() if name not in notes}
            if lost:
                self._forget(owner, lost)
                raise _Lost
            expected = {}
            marks = {at: notes[name] for at, name in zip(page, names, strict=True) if name in notes}
            if not marks:
                continue
            newest = unpacked(marks[max(marks)], self.packing, Line)
            line = line or newest
            ends = set(marks)
            if not is_thorough and newest.pivot_covers and above < trail.lead + newest.pivot_covers <= trail.length:
                ends.add(trail.lead + newest.pivot_covers)
            kept = await self._reached(self.records.notes(owner.tenant, pivots.names(trail, ends)))
            size = _UNPACKED * sum(map(len, kept.values()))
            found = await off_loop(
                lambda kept=kept, ends=ends: pivots.deepest(trail, kept, self.packing, ends), size=size
            )
            if found is not None:
                self._remembered.put(trail.keys[found.at], found.known)
                return found, line
            if newest.pivot_covers is not None and not is_thorough:
                break
        return known.found, line or known.line

    def _forget(self, owner: Owner, sessions: Collection[str]) -> None:
        """Forget sessions that are no longer in the store."""
        self.losses += 1
        self._on_loss()
        for session in sessions:
            _log.info("session %s is no longer in the store; its conversation is recorded again", session)
            self._written.forget((owner.tenant, session))
            self._remembered.forget(session)
        for key in [key for key, line in self._lines.items() if line.session in sessions]:
            del self._lines[key]

    def _line(self, trail: Trail) -> Line | None:
        """Return where the longest prefix is recorded that is remembered."""
        lines = (self._lines.get(trail.keys[at]) for at in chain.from_iterable(trail.ends(trail.lead)))
        return next((line for line in lines if line is not None), None)

    def _begun(self, owner: Owner, trail: Trail, named: str | None) -> Line:
        """Begin a line: named by the client, or by how the conversation begins."""
        first = trail.keys[min(trail.lead + 1, trail.length)].hex()[:16]
        return Line(session=owner.session(named or first), items=0, offset=0)

    # --- keep -----------------------------------------------------------------------------------------------------

    async def record(self, owner: Owner, trail: Trail, line: Line, *, covers: int | None = None) -> Line:
        """Write the originals of a request; ``covers`` is how many items the pivot covers that it stands on.

        Raises:
            StoreError: that cannot be done now.
        """
        async with self._locks.hold((owner.tenant, line.session)):
            known = self._lines.get(trail.key)
            if known is not None:
                return known
            covers = self._remembered.covers(trail) if covers is None else covers
            return await self._recorded(owner, trail, self._line(trail) or line, covers)

    async def _recorded(self, owner: Owner, trail: Trail, line: Line, covers: int | None) -> Line:
        store, whole = self.store_of(owner), trail.length - trail.lead
        while True:
            line = await self._reached(recording.record(store, trail, line), WRITE_PATIENCE)
            if line.items >= whole:
                break
        line = msgspec.structs.replace(line, pivot_covers=covers)
        mark = {recording.mark_name(trail.key): packed(line, self.packing)}
        note = self.records.note(owner.tenant, key_of(owner.tenant, line.session), mark)
        await self._reached(note, WRITE_PATIENCE)
        self._lines[trail.key] = line
        self._written.put((owner.tenant, line.session), trail)
        while len(self._lines) > MAX_LINES:
            self._lines.popitem(last=False)
        return line

    async def names(self, owner: Owner, line: Line, start: int) -> tuple[str, ...]:
        """Return what the recorded items from one on are called."""
        session = await self.store_of(owner).session(line.session)
        return await self._reached(recording.names(session, line, start))

    async def publish(self, owner: Owner, trail: Trail, pivot: Pivot) -> Known:
        """Keep a pivot; return the one that is kept, which another replica may have made.

        Raises:
            StoreError: that cannot be done now.
        """
        name = pivots.name_of(trail.key, pivot.attempt)
        data = await self._packed(pivot)
        note = self.records.note(owner.tenant, key_of(owner.tenant, pivot.session), {name: data})
        await self._reached(note, WRITE_PATIENCE)
        kept = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name, data)
        return await self.hold(trail, pivot if kept == data else await self._unpacked(kept), is_stored=True)

    async def hold(self, trail: Trail, pivot: Pivot, *, is_stored: bool) -> Known:
        """Remember a pivot here."""
        known = await off_loop(lambda: Known.of(pivot, is_stored=is_stored), size=_size(pivot))
        self._remembered.put(trail.key, known)
        return known

    async def _packed(self, pivot: Pivot) -> bytes:
        return await off_loop(lambda: packed(pivot, self.packing), size=_size(pivot))

    async def _unpacked(self, data: bytes) -> Pivot:
        return await off_loop(lambda: unpacked(data, self.packing, Pivot), size=_UNPACKED * len(data))

    def settle(self, trail: Trail, standing: Standing) -> None:
        """Remember what a request stands on after a pivot was made for it."""
        self._remembered.stand(trail, standing.found)

    async def begin(self, owner: Owner, trail: Trail, attempt: int) -> Found | None:
        """Begin to make a pivot; return it where another replica has made it, or is at it and done soon.

        Raises:
            StoreError: the store cannot be asked now.
        """
        name = pivots.name_of(trail.key, attempt)
        place = key_of(owner.tenant, name)
        for _ in range(_LOOKS):
            data = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name)
            if data is not None:
                return Found(trail.length, await self.hold(trail, await self._unpacked(data), is_stored=True))
            if await self._reached(self.records.acquire(place, "pivot", lease=_LEASE)) is not None:
                return None
            await asyncio.sleep(_PAUSE)
        return None

    async def ready(self, owner: Owner, name: str) -> Pivot | None:
        """Return a pivot that was prepared.

        Raises:
            StoreError: the store cannot be asked now.
        """
        data = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name)
        return None if data is None else await self._unpacked(data)

    async def keep_ready(self, owner: Owner, name: str, pivot: Pivot) -> None:
        """Keep a pivot that was prepared.

        Raises:
            StoreError: that cannot be done now.
        """
        note = {name: await self._packed(pivot)}
        await self._reached(self.records.note(owner.tenant, key_of(owner.tenant, pivot.session), note))

    async def notes(self, owner: Owner, names: Collection[str]) -> dict[str, bytes]:
        """Return the notes of these names that exist.

        Raises:
            StoreError: the store cannot be asked now.
        """
        return await self._reached(self.records.notes(owner.tenant, names))

    async def note(self, owner: Owner, session: str, notes: Mapping[str, bytes]) -> None:
        """Keep notes that go with a session; a name that is there keeps its first value.

        Raises:
            StoreError: that cannot be done now.
        """
        await self._reached(self.records.note(owner.tenant, key_of(owner.tenant, session), notes))

    async def recall(self, owner: Owner, trail: Trail, line: Line, query: str, *, tokens: int) -> Recalled:
        """Find or restore what was said on the chain of a request, and nowhere else.

        Raises:
            StoreError: the store cannot be asked now.
        """
        recorded = await self.record(owner, trail, line)
        try:
            return await self._reached(recalled(self.store_of(owner), recorded, query, tokens=tokens))
        except UsageError:  # deleted since it was recorded
            self._forget(owner, [recorded.session])
            recorded = await self.record(owner, trail, line)
            return await self._reached(recalled(self.store_of(owner), recorded, query, tokens=tokens))

    async def _reached(self, call: Awaitable[Value], patience: float = PATIENCE) -> Value:
        """Wait for the store, not for long, and after a failure not at all for a while.

        Raises:
            StoreError: it does not answer.
        """
        now = asyncio.get_running_loop().time()
        if now < self._down_until:
            close = getattr(call, "close", None)
            if close is not None:
                close()
            raise StoreUnavailable("the store did not answer a moment ago")
        try:
            return await promptly(call, patience)
        except StoreUnavailable:
            self._down_until = asyncio.get_running_loop().time() + _REST
            raise

    # --- behind the answers ---------------------------------------------------------------------------------------

    def record_later(self, owner: Owner, trail: Trail, line: Line) -> None:
        """Write the originals of a request when there is time."""
        place = (owner.tenant, line.session)
        if not self._written.holds(place, trail):
            self._behind.put(place, trail, lambda: self.record(owner, trail, line))

    def tell_later(self, owner: Owner, line: Line, known: Known) -> None:
        """Record in the session that a pivot was made, when there is time."""

        async def tell() -> None:
            session = await self.store_of(owner).session(line.session)
            with suppress(UsageError):  # the session was deleted meanwhile: there is nothing to add to
                await self._reached(recording.tell(session, line, known.pivot))

        self._behind.put_other(tell, known.size)

    def note_later(self, owner: Owner, session: str, notes: Mapping[str, bytes]) -> None:
        """Keep notes that go with a session, when there is time."""
        self._behind.put_other(lambda: self.note(owner, session, notes), sum(map(len, notes.values())))

    async def room(self) -> None:
        """Wait while more has to be written than may wait for it."""
        await self._behind.room()

    async def catch_up(self, tenant: str, session: str) -> None:
        """Write what waits of a session, so that who reads it now finds what was said a moment ago."""
        await self._behind.write((tenant, session))
        async with self._locks.hold((tenant, session)):
            return

    async def flush(self) -> None:
        """Wait until everything is written that was put off."""
        await self._behind.flush()

    def failed(self, error: KompaktError) -> str:
        """Note that the store failed; return the reason that clients are told."""
        self._metrics.store_failures.inc()
        _log.warning("the store cannot be used now: %s", error)
        return "store-unavailable"


def _size(pivot: Pivot) -> int:
    """Estimate the bytes that a pivot is written in."""
    return 4 * pivot.tokens + 100 * len(pivot.view) + len(pivot.state.ledger)

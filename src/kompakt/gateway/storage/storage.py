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
from typing import NamedTuple

import msgspec

from kompakt.engine.recall import Recalled
from kompakt.errors import KompaktError, StoreError, StoreUnavailable, UsageError
from kompakt.gateway.concurrency import KeyedLocks, Value, off_loop, with_timeout
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots import lookup as pivots
from kompakt.gateway.pivots.lookup import Pivot, PivotCache, PivotMatch, RenderedPivot
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage import recorder as recording
from kompakt.gateway.storage.recorder import RecordedBranch, recall_in_branch
from kompakt.gateway.storage.records import decode_note, encode_note
from kompakt.gateway.storage.write_behind import WriteBehind
from kompakt.gateway.storage.written_prefixes import WrittenPrefixes
from kompakt.gateway.tenancy.tenants import Tenant
from kompakt.session.store import Store
from kompakt.store.records import key_of

_log = logging.getLogger("kompakt.gateway")

MAX_BRANCHES = 10_000
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

    found: PivotMatch | None
    branch: RecordedBranch | None
    above: int
    """From how many items on the store has to be asked."""
    notes: Mapping[str, str]
    """Names of notes that the store must still have, and the sessions that are gone where it has not."""


_NOTHING = _Recollection(None, None, 0, {})


class _Lost(Exception):
    """Something that is remembered is no longer in the store."""


class Match(msgspec.Struct):
    """What a request stands on."""

    found: PivotMatch | None
    branch: RecordedBranch
    degraded: str | None = None
    """Why the store was not asked."""
    undone: bool = False
    """Whether a deeper pivot was undone: the request is then sent without it as long as it fits."""


class GatewayStorage:
    """Pivots, lines and sessions of all tenants."""

    def __init__(self, store: Store, metrics: Metrics, *, on_loss: Callable[[], object] = lambda: None) -> None:
        self.records = store.records
        self.value_codec = store.value_codec
        self._store = store
        self._metrics = metrics
        self._on_loss = on_loss
        """Called when something is no longer in the store that was."""
        self.losses = 0
        """How often that was so; whoever remembers what is in the store forgets it when this changes."""
        self._cache = PivotCache()
        self._branches: OrderedDict[bytes, RecordedBranch] = OrderedDict()
        self._written = WrittenPrefixes()
        self._queue = WriteBehind(self.store_failed)
        self._locks = KeyedLocks()
        self._down_until = 0.0

    def store_of(self, owner: Owner) -> Store:
        """Return the sessions of an owner's tenant."""
        return self._store.of_tenant(owner.tenant)

    # --- find -----------------------------------------------------------------------------------------------------

    async def match(self, owner: Owner, chain: HashChain, *, named: str | None) -> Match:
        """Find the deepest pivot of a request and where it is recorded.

        What is remembered saves questions about what is not new. It is compared with the store each time: a session may
        have been deleted, by whoever, since the request before.
        """
        known, degraded = self._recollection(chain), None
        try:
            try:
                found, branch = await self._asked(owner, chain, known)
            except _Lost:
                found, branch = await self._asked(owner, chain, _NOTHING)
            self._cache.remember(chain, found)
        except StoreError as error:
            reason = self.store_failed(error)
            found, branch = known.found, known.branch
            degraded = reason if known.above < chain.length else None  # all of a known request is remembered
        return Match(found, await self._placed(owner, chain, branch or self._begun(owner, chain, named)), degraded)

    def _recollection(self, chain: HashChain) -> _Recollection:
        """Collect what is remembered of a request, and the notes that the store must have if it is still true."""
        found, above = self._cache.deepest(chain)
        notes = dict[str, str]()
        if found is not None and found.rendered.is_stored:
            pivot = found.pivot
            notes[pivots.name_of(chain.keys[found.at], pivot.attempt)] = pivot.session
        for at in chain.all_ends():
            branch = self._branches.get(chain.keys[at])
            if branch is not None:
                notes[recording.mark_name(chain.keys[at])] = branch.session
                return _Recollection(found, branch, above, notes)
        return _Recollection(found, None, above, notes)

    async def match_uncached(self, owner: Owner, chain: HashChain, match: Match) -> Match:
        """Ask the store for every pivot after the one that a request stands on, whatever is remembered."""
        above = match.found.at if match.found is not None else chain.lead
        known = _Recollection(match.found, match.branch, above, {})
        try:
            found, _ = await self._asked(owner, chain, known, is_thorough=True)
        except StoreError as error:
            return Match(match.found, match.branch, self.store_failed(error))
        self._cache.remember(chain, found)
        return Match(found, match.branch, match.degraded)

    async def without_undone(self, owner: Owner, chain: HashChain, match: Match) -> Match:
        """Go back to the pivot before the one that a request stands on, as often as that was undone."""
        found = match.found
        while found is not None:
            name = pivots.undo_name(found.pivot.id)
            try:
                note = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name)
                if note is None:
                    break
                undo = decode_note(note, self.value_codec, pivots.Undo)
                found = await self._before(owner, chain, undo) if undo.covers < found.at else None
            except StoreError as error:
                self.store_failed(error)
                break
        if found is match.found:
            return match
        return msgspec.structs.replace(match, found=found, undone=True)

    async def _before(self, owner: Owner, chain: HashChain, undo: pivots.Undo) -> PivotMatch | None:
        """Find the pivot before one that was undone."""
        if undo.covers <= chain.lead:
            return None
        names = [pivots.name_of(chain.keys[undo.covers], attempt) for attempt in range(pivots.TRIES)]
        notes = await self._reached(self.records.notes(owner.tenant, names))
        kept = (decode_note(notes[name], self.value_codec, Pivot) for name in names if name in notes)
        return next(
            (
                PivotMatch(undo.covers, RenderedPivot.of(pivot, is_stored=True))
                for pivot in kept
                if pivot.id == undo.before
            ),
            None,
        )

    async def _placed(self, owner: Owner, chain: HashChain, branch: RecordedBranch) -> RecordedBranch:
        """Record at once a conversation that continues differently from what its session holds: in another one."""
        place = (owner.tenant, branch.session)
        if not self._queue.has_other(place, chain) and not self._written.differs(place, chain):
            return branch
        try:
            await self._queue.write(place)
            return await self.record(owner, chain, branch)
        except StoreError as error:
            self.store_failed(error)
            return branch

    async def _asked(
        self, owner: Owner, chain: HashChain, known: _Recollection, *, is_thorough: bool = False
    ) -> tuple[PivotMatch | None, RecordedBranch | None]:
        """Look in the store for pivots and marks of prefixes that end above what is known.

        A pivot is only ever kept for a prefix that is marked, and a mark says which pivot the request stood on that it
        was made for. So the newest mark ends the search, except where a thorough one is wanted.

        Raises:
            _Lost: something that is remembered is no longer there; it is forgotten.
        """
        above, branch, expected = max(known.above, chain.lead), None, known.notes
        for page in chain.ends(above):
            names = [recording.mark_name(chain.keys[at]) for at in page]
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
            newest = decode_note(marks[max(marks)], self.value_codec, RecordedBranch)
            branch = branch or newest
            ends = set(marks)
            if not is_thorough and newest.pivot_covers and above < chain.lead + newest.pivot_covers <= chain.length:
                ends.add(chain.lead + newest.pivot_covers)
            kept = await self._reached(self.records.notes(owner.tenant, pivots.names(chain, ends)))
            size = _UNPACKED * sum(map(len, kept.values()))
            found = await off_loop(
                lambda kept=kept, ends=ends: pivots.deepest(chain, kept, self.value_codec, ends), size=size
            )
            if found is not None:
                self._cache.put(chain.keys[found.at], found.rendered)
                return found, branch
            if newest.pivot_covers is not None and not is_thorough:
                break
        return known.found, branch or known.branch

    def _forget(self, owner: Owner, sessions: Collection[str]) -> None:
        """Forget sessions that are no longer in the store."""
        self.losses += 1
        self._on_loss()
        for session in sessions:
            _log.info("session %s is no longer in the store; its conversation is recorded again", session)
            self._written.forget((owner.tenant, session))
            self._cache.forget(session)
        for key in [key for key, branch in self._branches.items() if branch.session in sessions]:
            del self._branches[key]

    def _line(self, chain: HashChain) -> RecordedBranch | None:
        """Return where the longest prefix is recorded that is remembered."""
        branches = (self._branches.get(chain.keys[at]) for at in chain.all_ends())
        return next((branch for branch in branches if branch is not None), None)

    def _begun(self, owner: Owner, chain: HashChain, named: str | None) -> RecordedBranch:
        """Begin a line: named by the client, or by how the conversation begins."""
        first = chain.keys[min(chain.lead + 1, chain.length)].hex()[:16]
        return RecordedBranch(session=owner.session(named or first), items=0, offset=0)

    # --- keep -----------------------------------------------------------------------------------------------------

    async def record(
        self, owner: Owner, chain: HashChain, branch: RecordedBranch, *, covers: int | None = None
    ) -> RecordedBranch:
        """Write the originals of a request; ``covers`` is how many items the pivot covers that it stands on.

        Raises:
            StoreError: that cannot be done now.
        """
        async with self._locks.hold((owner.tenant, branch.session)):
            known = self._branches.get(chain.key)
            if known is not None:
                return known
            covers = self._cache.covers(chain) if covers is None else covers
            return await self._recorded(owner, chain, self._line(chain) or branch, covers)

    async def _recorded(
        self, owner: Owner, chain: HashChain, branch: RecordedBranch, covers: int | None
    ) -> RecordedBranch:
        store, whole = self.store_of(owner), chain.length - chain.lead
        while True:
            branch = await self._reached(recording.record(store, chain, branch), WRITE_PATIENCE)
            if branch.items >= whole:
                break
        branch = msgspec.structs.replace(branch, pivot_covers=covers)
        mark = {recording.mark_name(chain.key): encode_note(branch, self.value_codec)}
        note = self.records.note(owner.tenant, key_of(owner.tenant, branch.session), mark)
        await self._reached(note, WRITE_PATIENCE)
        self._branches[chain.key] = branch
        self._written.put((owner.tenant, branch.session), chain)
        while len(self._branches) > MAX_BRANCHES:
            self._branches.popitem(last=False)
        return branch

    async def names(self, owner: Owner, branch: RecordedBranch, start: int) -> tuple[str, ...]:
        """Return what the recorded items from one on are called."""
        session = await self.store_of(owner).session(branch.session)
        return await self._reached(recording.names(session, branch, start))

    async def publish(self, owner: Owner, chain: HashChain, pivot: Pivot) -> RenderedPivot:
        """Keep a pivot; return the one that is kept, which another replica may have made.

        Raises:
            StoreError: that cannot be done now.
        """
        name = pivots.name_of(chain.key, pivot.attempt)
        data = await self._packed(pivot)
        note = self.records.note(owner.tenant, key_of(owner.tenant, pivot.session), {name: data})
        await self._reached(note, WRITE_PATIENCE)
        kept = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name, data)
        return await self.hold(chain, pivot if kept == data else await self._unpacked(kept), is_stored=True)

    async def hold(self, chain: HashChain, pivot: Pivot, *, is_stored: bool) -> RenderedPivot:
        """Remember a pivot here."""
        known = await off_loop(lambda: RenderedPivot.of(pivot, is_stored=is_stored), size=_size(pivot))
        self._cache.put(chain.key, known)
        return known

    async def _packed(self, pivot: Pivot) -> bytes:
        return await off_loop(lambda: encode_note(pivot, self.value_codec), size=_size(pivot))

    async def _unpacked(self, data: bytes) -> Pivot:
        return await off_loop(lambda: decode_note(data, self.value_codec, Pivot), size=_UNPACKED * len(data))

    def settle(self, chain: HashChain, match: Match) -> None:
        """Remember what a request stands on after a pivot was made for it."""
        self._cache.remember(chain, match.found)

    async def begin(self, owner: Owner, chain: HashChain, attempt: int) -> PivotMatch | None:
        """Begin to make a pivot; return it where another replica has made it, or is at it and done soon.

        Raises:
            StoreError: the store cannot be asked now.
        """
        name = pivots.name_of(chain.key, attempt)
        place = key_of(owner.tenant, name)
        for _ in range(_LOOKS):
            data = (await self._reached(self.records.notes(owner.tenant, [name]))).get(name)
            if data is not None:
                return PivotMatch(chain.length, await self.hold(chain, await self._unpacked(data), is_stored=True))
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

    async def save_prepared(self, owner: Owner, name: str, pivot: Pivot) -> None:
        """Keep a pivot that was prepared.

        Raises:
            StoreError: that cannot be done now.
        """
        note = {name: await self._packed(pivot)}
        await self._reached(self.records.note(owner.tenant, key_of(owner.tenant, pivot.session), note))

    async def read_notes(self, owner: Owner, names: Collection[str]) -> dict[str, bytes]:
        """Return the notes of these names that exist.

        Raises:
            StoreError: the store cannot be asked now.
        """
        return await self._reached(self.records.notes(owner.tenant, names))

    async def write_notes(self, owner: Owner, session: str, notes: Mapping[str, bytes]) -> None:
        """Keep notes that go with a session; a name that is there keeps its first value.

        Raises:
            StoreError: that cannot be done now.
        """
        await self._reached(self.records.note(owner.tenant, key_of(owner.tenant, session), notes))

    async def recall(
        self, owner: Owner, chain: HashChain, branch: RecordedBranch, query: str, *, tokens: int
    ) -> Recalled:
        """Find or restore what was said on the chain of a request, and nowhere else.

        Raises:
            StoreError: the store cannot be asked now.
        """
        recorded = await self.record(owner, chain, branch)
        try:
            return await self._reached(recall_in_branch(self.store_of(owner), recorded, query, tokens=tokens))
        except UsageError:  # deleted since it was recorded
            self._forget(owner, [recorded.session])
            recorded = await self.record(owner, chain, branch)
            return await self._reached(recall_in_branch(self.store_of(owner), recorded, query, tokens=tokens))

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
            return await with_timeout(call, patience)
        except StoreUnavailable:
            self._down_until = asyncio.get_running_loop().time() + _REST
            raise

    # --- behind the answers ---------------------------------------------------------------------------------------

    def record_later(self, owner: Owner, chain: HashChain, branch: RecordedBranch) -> None:
        """Write the originals of a request when there is time."""
        place = (owner.tenant, branch.session)
        if not self._written.holds(place, chain):
            self._queue.put(place, chain, lambda: self.record(owner, chain, branch))

    def record_pivot_later(self, owner: Owner, branch: RecordedBranch, known: RenderedPivot) -> None:
        """Record in the session that a pivot was made, when there is time."""

        async def record_pivot() -> None:
            session = await self.store_of(owner).session(branch.session)
            with suppress(UsageError):  # the session was deleted meanwhile: there is nothing to add to
                await self._reached(recording.record_pivot(session, branch, known.pivot))

        self._queue.put_other(record_pivot, known.size)

    def write_notes_later(self, owner: Owner, session: str, notes: Mapping[str, bytes]) -> None:
        """Keep notes that go with a session, when there is time."""
        self._queue.put_other(lambda: self.write_notes(owner, session, notes), sum(map(len, notes.values())))

    async def wait_for_room(self) -> None:
        """Wait while more has to be written than may wait for it."""
        await self._queue.room()

    async def flush_session(self, tenant: str, session: str) -> None:
        """Write what waits of a session, so that who reads it now finds what was said a moment ago."""
        await self._queue.write((tenant, session))
        async with self._locks.hold((tenant, session)):
            return

    async def flush(self) -> None:
        """Wait until everything is written that was put off."""
        await self._queue.flush()

    def store_failed(self, error: KompaktError) -> str:
        """Note that the store failed; return the reason that clients are told."""
        self._metrics.store_failures.inc()
        _log.warning("the store cannot be used now: %s", error)
        return "store-unavailable"


def _size(pivot: Pivot) -> int:
    """Estimate the bytes that a pivot is written in."""
    return 4 * pivot.tokens + 100 * len(pivot.view) + len(pivot.state.ledger)

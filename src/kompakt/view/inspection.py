"""An inspection: the sessions of a transcript file or a store, and everything that the inspector shows of them.

``open_inspection`` opens a file or a store. A server that has a store open already makes an ``Inspection`` of its own
``Directory``. Reading writes nothing. Actions need ``write=True``.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from kompakt.engine.compaction.policies import BUILT_IN, Policy
from kompakt.engine.context.archive import speaks
from kompakt.engine.recall import DEFAULT_TOKENS
from kompakt.errors import DoesNotFit, KompaktError, StoreError, UsageError
from kompakt.model.budget import Budget
from kompakt.model.json import json_text
from kompakt.model.lru import Lru
from kompakt.session.compaction import CompactionOptions
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store
from kompakt.store import find_store
from kompakt.store.records import Head
from kompakt.view.compactions import MAX_REMOVED, compaction_of, preview_of
from kompakt.view.composition import context_of, largest_in
from kompakt.view.directories import (
    MAX_SESSIONS,
    Directory,
    DirectoryEntry,
    FileDirectory,
    MissingSession,
    StoreDirectory,
)
from kompakt.view.growth import (
    BudgetOf,
    SessionCost,
    StepSizes,
    cost_of,
    growth_of,
    selected,
    sizes_of,
)
from kompakt.view.index import IndexedMessage, SessionIndex, request_title, text_of_message
from kompakt.view.sources import Moment, ShownRequest, Source, TranscriptSource, ViewPoint
from kompakt.view.status import CompactionStatus, SessionStatus, budget_of_model, timestamp
from kompakt.view.values import (
    KINDS,
    ActionResult,
    CacheClasses,
    CompactionPreview,
    CompactionView,
    ContextView,
    Growth,
    InspectorAction,
    MessagePage,
    MessageRow,
    MessageState,
    MessageText,
    RecallAnswer,
    SessionDetail,
    SessionLine,
    SessionList,
    SessionRow,
    StepRequest,
)

Value = TypeVar("Value")

MAX_PAGE = 500
"""Rows in one answer."""

MAX_SEARCHED = 1_000
"""Newest sessions whose titles a search of the list reads."""

MAX_STEP_ROWS = 2_000
MAX_BODY = 200_000
"""Characters of a request that are shown."""

TEXT_PAGE = 65_536
"""Characters of one page of a message."""

MAX_QUERY = 2_000
MAX_PIN = 20_000
"""Characters of a pinned text."""

_KEPT = 4
"""Sessions whose index is kept in memory."""

_TITLE_ROWS = 12
"""Rows that are read for the title of a session in the list."""

MAX_COUNTED = 5_000
"""Messages of a session whose tokens the list counts. Those of a longer one are counted when it is opened."""

MAX_COSTED = 2_000
"""Messages of a session whose steps and costs the list computes. Those of a longer one are known when it is opened."""

REST = 3
"""Pause after the costs of a session are computed for the list, as a multiple of the time that it took."""

LONG = 3_000
"""Messages of a session that is shown before all of it is read."""

READ_ONLY = "the inspector was opened for reading; start it with --write to change sessions"

_PATIENCE = 0.4
"""Seconds that the list waits for token counts; the others follow with the next call."""


# --- one session -----------------------------------------------------------------------------------------------------


class InspectedSession:
    """The index of a session, and values that are computed once for each version of it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.index = SessionIndex(source)
        self._version: tuple[float, int, int] | None = None
        self._values: dict[str, Any] = {}
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._task: asyncio.Task[None] | None = None

    async def moment(self) -> Moment:
        """Return the session as it is now."""
        moment = await self.source.moment()
        if self._version is not None and self._version[0] != moment.version[0]:
            await self.index.close()
            self.index = SessionIndex(self.source)  # the session was deleted and made again
        if self._version != moment.version:
            self._version = moment.version
            self._values = {}
        return moment

    async def _once(self, name: str, moment: Moment, make: Callable[[], Awaitable[Value]]) -> Value:
        """Return a value that is computed once for each version. What belongs to an older version is not kept."""
        async with self._locks[name.partition(" ")[0]]:
            if self._version == moment.version and name in self._values:
                return self._values[name]
            value = await make()
            if self._version == moment.version:
                self._values[name] = value
            return value

    async def shown(self, moment: Moment) -> ShownRequest:
        """Return the next request."""
        return await self._once("shown", moment, lambda: self.source.shown(moment))

    async def visible(self, moment: Moment) -> dict[int, bool]:
        """Return the rows that the newest compaction shows, and whether they are shortened."""
        return await self._once("visible", moment, lambda: self.source.visible(moment))

    async def status(self, moment: Moment) -> SessionStatus:
        """Return the numbers that the command line and MCP print."""
        return await self._once("status", moment, lambda: self.source.status(moment))

    async def steps(self, moment: Moment) -> StepSizes:
        """Return the tokens of every request."""

        async def make() -> StepSizes:
            await self.index.until(moment)
            shown, status = await self.shown(moment), await self.status(moment)
            return await sizes_of(self.source, moment, self.index, shown, status.tokens)

        return await self._once("steps", moment, make)

    async def cost(self, moment: Moment) -> SessionCost:
        """Return what the session cost."""
        steps = await self.steps(moment)
        return await self._once("cost", moment, lambda: asyncio.to_thread(cost_of, self.index, steps, moment.model))

    async def growth(self, moment: Moment, budget: Budget | None) -> Growth:
        """Return the chart with all of its points."""
        steps = await self.steps(moment)
        return await self._once(
            "growth", moment, lambda: asyncio.to_thread(growth_of, moment, self.index, steps, budget)
        )

    async def compaction(self, moment: Moment, point: ViewPoint, budget: Budget | None) -> CompactionView:
        """Return a compaction with all items that it removed."""
        growth, steps = await self.growth(moment, budget), await self.steps(moment)
        mark = next(one for one in growth.compactions if one.id == point.id)
        return await self._once(
            f"compaction {point.id}",
            moment,
            lambda: compaction_of(self.source, moment, self.index, point, mark, steps.hidden),
        )

    async def prepare(self, moment: Moment, budget: Budget | None, *, patience: float) -> bool:
        """Compute the numbers of the session in the background; return whether they are known in time."""
        if self.is_known:
            return True
        if self._task is None or self._task.done():

            async def work() -> None:
                await self.growth(moment, budget)
                await self.cost(moment)

            self._task = asyncio.create_task(work())
        await asyncio.wait({self._task}, timeout=patience)
        if self._task.done():
            self._task.result()  # raises what stopped it
        return self.is_known

    @property
    def is_known(self) -> bool:
        """Whether the numbers of the newest version are computed."""
        return "growth" in self._values and "cost" in self._values

    async def close(self) -> None:
        """Stop background work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.index.close()

    def tokens(self, version: tuple[float, int, int]) -> int | None:
        """Return the tokens of the next request if they are known without reading anything."""
        return self._values["status"].tokens if self._version == version and "status" in self._values else None

    def numbers(self) -> tuple[tuple[float, int, int], RowNumbers] | None:
        """Return the numbers for the list that are known, with their version."""
        if self._version is None or not self.is_known:
            return None
        cost, growth = self._values["cost"], self._values["growth"]
        return self._version, RowNumbers(growth.steps, saved_tokens(growth), cost.saved, cost.cache.share)


def saved_tokens(growth: Growth) -> int:
    """Return what the compactions that count removed."""
    return sum(max(0, (mark.before or 0) - (mark.after or 0)) for mark in growth.compactions if not mark.undone)


class RowNumbers(NamedTuple):
    """Numbers in the list that take reading the whole session."""

    steps: int
    tokens_saved: int
    money_saved: float | None
    cached: float | None


class InspectionCache:
    """What is kept between calls. Callers that may see different sessions can share it."""

    def __init__(self) -> None:
        self.sessions = Lru[str, InspectedSession](_KEPT)
        self.rows = Lru[str, tuple[tuple[float, int, int], SessionRow]](MAX_SESSIONS)
        self.costs = Lru[str, tuple[tuple[float, int, int], RowNumbers]](MAX_SESSIONS)
        self.filling: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop all background work."""
        if self.filling is not None:
            self.filling.cancel()
            await asyncio.gather(self.filling, return_exceptions=True)
        for session in [one for _, one in self.sessions.items()]:
            await session.close()


# --- the inspection --------------------------------------------------------------------------------------------------


class Inspection:
    """What the inspector shows, and the actions that it offers."""

    def __init__(
        self,
        directory: Directory,
        *,
        write: bool = False,
        cache: InspectionCache | None = None,
        budget_of: BudgetOf = budget_of_model,
        policies: Mapping[str, Policy] = BUILT_IN,
        read_only: str = READ_ONLY,
    ) -> None:
        self.directory = directory
        self.write = write
        self.read_only = read_only
        """Why actions are refused without ``write``, and how to allow them."""
        self.cache = cache or InspectionCache()
        self._owns_cache = cache is None
        self._budget_of = budget_of
        self._policies = policies

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop background work and close what was opened."""
        if self._owns_cache:
            await self.cache.close()
        await self.directory.close()

    async def _find(self, id: str) -> tuple[InspectedSession, Moment]:
        source = await self.directory.find(id)
        session = self.cache.sessions.get(source.key)
        if session is None or (isinstance(source, TranscriptSource) and session.source is not source):
            if session is not None:
                await session.close()  # the file was read again
            session = InspectedSession(source)
            self.cache.sessions.put(source.key, session)
        return session, await session.moment()

    # --- the list ---------------------------------------------------------------------------------------------------

    async def sessions(self, query: str = "", cursor: str | None = None, limit: int = 50) -> SessionList:
        """List sessions, the newest first. ``query`` selects those whose id, title, client or model contains it."""
        limit = max(1, min(limit, MAX_PAGE))
        entries = sorted(await self.directory.listed(), key=_newest_first)
        words = query.lower().split()
        if words:
            entries = [entry for entry in entries[:MAX_SEARCHED] if await self._matches(entry, words)]
        start = _position(entries, cursor) if cursor else 0
        page = entries[start : start + limit]
        ends = time.monotonic() + _PATIENCE
        rows = [await self._row(entry, counts=time.monotonic() < ends) for entry in page]
        self._fill([entry for entry, row in zip(page, rows, strict=True) if row.tokens is None or self._lacks(entry)])
        following = start + limit < len(entries)
        return SessionList(rows=tuple(rows), next=_cursor(page[-1]) if following and page else None, total=len(entries))

    async def only(self) -> str | None:
        """Return the only session of a file or store, which is opened at once; ``None`` if there are several."""
        entries = await self.directory.listed()
        return entries[0].id if len(entries) == 1 else None

    async def _matches(self, entry: DirectoryEntry, words: Sequence[str]) -> bool:
        row = await self._row(entry, counts=False)
        text = " ".join(filter(None, (row.id, row.title, row.client, row.model))).lower()
        return all(word in text for word in words)

    async def _row(self, entry: DirectoryEntry, *, counts: bool) -> SessionRow:
        """Return the row of a session; reads its head, its events and its first messages, once for each version."""
        known = self.cache.rows.get(entry.key)
        if known is not None and known[0] == entry.version and (known[1].tokens is not None or not counts):
            return self._with_cost(entry, known[1])
        try:
            row = await _read_row(entry, self._budget_of, counts=counts and entry.messages <= MAX_COUNTED)
        except (StoreError, UsageError) as error:  # damaged, or deleted meanwhile
            row = SessionRow(
                id=entry.id,
                title=f"cannot be read: {error}"[:120],
                format=entry.format,
                messages=entry.messages,
                last_activity=timestamp(entry.touched),
            )
        self.cache.rows.put(entry.key, (entry.version, row))
        return self._with_cost(entry, row)

    def _with_cost(self, entry: DirectoryEntry, row: SessionRow) -> SessionRow:
        """Add numbers that are known already, and the id by which the caller knows the session.

        Steps and costs may be those of a moment ago: the newest follow.
        """
        row = msgspec.structs.replace(row, id=entry.id)
        session = self.cache.sessions.get(entry.key)
        if session is not None:
            tokens = session.tokens(entry.version)
            row = row if tokens is None else _filled(row, tokens)
            if (numbers := session.numbers()) is not None:
                self.cache.costs.put(entry.key, numbers)
        known = self.cache.costs.get(entry.key)
        if known is None or known[0][0] != entry.version[0]:
            return row
        return msgspec.structs.replace(row, **known[1]._asdict())

    def _lacks(self, entry: DirectoryEntry) -> bool:
        """Whether the newest steps and costs of a session are not known and can be computed."""
        known = self.cache.costs.get(entry.key)
        return entry.messages <= MAX_COSTED and (known is None or known[0] != entry.version)

    def _fill(self, entries: Sequence[DirectoryEntry]) -> None:
        """Count the tokens of sessions and compute their costs, in the background."""
        if not entries or (self.cache.filling is not None and not self.cache.filling.done()):
            return

        async def work() -> None:
            for entry in entries:
                if entry.messages <= MAX_COUNTED:
                    await self._row(entry, counts=True)
            for entry in entries:
                if self._lacks(entry):
                    began = time.monotonic()
                    await self._compute(entry)
                    await asyncio.sleep(REST * (time.monotonic() - began))

        self.cache.filling = asyncio.create_task(work())

    async def _compute(self, entry: DirectoryEntry) -> None:
        """Compute the steps and costs of a session."""
        kept = self.cache.sessions.get(entry.key)
        try:
            session = kept or InspectedSession(await entry.open())
            moment = await session.moment()
            await session.growth(moment, self._budget_of(moment.model))
            await session.cost(moment)
            if (numbers := session.numbers()) is not None:
                self.cache.costs.put(entry.key, numbers)
            if kept is None:
                await session.close()
        except KompaktError:  # damaged, or deleted meanwhile; the list says so
            return

    # --- one session ------------------------------------------------------------------------------------------------

    async def session(self, id: str, *, patience: float | None = None) -> SessionDetail:
        """Return one session with its compactions, pins and costs.

        With ``patience`` a long session is returned after that many seconds without the numbers that are not known yet.
        """
        session, moment = await self._find(id)
        budget = self._budget_of(moment.model)
        if patience is not None and moment.rows > LONG and not await session.prepare(moment, budget, patience=patience):
            return await self._unfinished(id, session, moment, budget)
        status, cost = await session.status(moment), await session.cost(moment)
        growth = await session.growth(moment, budget)
        row = _row_of(id, session.source, moment, budget, session.index.title)
        row = msgspec.structs.replace(
            row,
            messages=status.messages,
            steps=growth.steps,
            compactions=len(status.live),
            tokens_saved=saved_tokens(growth),
            money_saved=cost.saved,
            cached=cost.cache.share,
        )
        detail = self._detail(session, moment, _filled(row, status.tokens))
        return msgspec.structs.replace(
            detail,
            created=status.created,
            turns=status.turns,
            recallable=status.recallable,
            compactions=tuple(_sized(one, growth) for one in status.compactions),
            pins=status.pins,
            repairs=status.repairs,
            pending=len(status.pending),
            cache=cost.cache,
            complete=True,
        )

    async def _unfinished(
        self, id: str, session: InspectedSession, moment: Moment, budget: Budget | None
    ) -> SessionDetail:
        """Return what is known of a long session that is still being read."""
        title = session.index.title or await _title(session.source, moment)
        return self._detail(session, moment, _row_of(id, session.source, moment, budget, title))

    def _detail(self, session: InspectedSession, moment: Moment, row: SessionRow) -> SessionDetail:
        reason = session.source.read_only or ("" if self.write else self.read_only)
        return SessionDetail(
            row=row,
            messages=row.messages,
            turns=0,
            recallable=0,
            compactions=tuple(map(_listed, moment.points)),
            pins=moment.pins,
            events=moment.version[2],
            can_undo=moment.can_undo,
            can_redo=moment.can_redo,
            cache=CacheClasses(),
            policies=tuple(self._policies),
            actions=() if reason else self.directory.actions,
            writable=not reason and bool(self.directory.actions),
            read_only_reason=reason,
            complete=False,
        )

    async def growth(self, id: str) -> Growth:
        """Return the size of every request."""
        session, moment = await self._find(id)
        growth = await session.growth(moment, self._budget_of(moment.model))
        return msgspec.structs.replace(growth, points=selected(growth.points, growth.compactions))

    async def messages(self, id: str, start: int = 0, limit: int = 100, kind: str | None = None) -> MessagePage:
        """Return a page of messages, all or those of one kind."""
        if kind is not None and kind not in KINDS:
            raise UsageError(f"kind={kind!r} is not known; use one of {', '.join(KINDS)}")
        session, moment = await self._find(id)
        start, limit = max(0, start), max(1, min(limit, MAX_PAGE))
        index = session.index
        places = index.places.get(kind) if kind is not None else None
        await index.until(moment, lambda: len(index if places is None else places) >= start + limit)
        if places is None:
            chosen = index.rows[start : start + limit]
        else:
            chosen = [index.rows[place] for place in places[start : start + limit]]
        complete = index.is_complete(moment)
        total = len(places) if places is not None else len(index) if complete else moment.rows
        rows = await self._rows(session, moment, chosen)
        messages, notes = moment.messages, index.notes if complete else 0
        return MessagePage(rows=rows, start=start, total=total, messages=messages, notes=notes, complete=complete)

    async def _rows(
        self, session: InspectedSession, moment: Moment, chosen: Sequence[IndexedMessage]
    ) -> tuple[MessageRow, ...]:
        visible = await session.visible(moment)
        pinned: set[int] = set()
        if moment.pins and chosen:
            for row in await session.source.at(moment, [one.seq for one in chosen]):
                text = text_of_message(row.message)
                if any(pin in text for pin in moment.pins):
                    pinned.add(row.seq)
        return tuple(
            MessageRow(
                seq=one.seq,
                role=one.role,
                kind=one.kind,
                tool=one.tool,
                title=one.title,
                subject=one.subject,
                tokens=one.tokens,
                at=timestamp(one.at) if one.at is not None else None,
                pinned=one.seq in pinned,
                state=_state(one, moment, visible),
                ref=one.ref,
                step=one.step,
            )
            for one in chosen
        )

    async def message(self, id: str, seq: int, offset: int = 0) -> MessageText:
        """Return the text of a message, from an offset on."""
        session, moment = await self._find(id)
        one = await self._message(session, moment, seq)
        (row,) = await self._rows(session, moment, [one])
        stored = await session.source.at(moment, [seq])
        text = text_of_message(stored[0].message) if stored else ""
        offset = max(0, min(offset, len(text)))
        end = offset + TEXT_PAGE
        shown = None
        if row.state == "shortened":
            found = next((each for each in (await session.shown(moment)).rows if each.seq == seq), None)
            shown = text_of_message(found.message)[:TEXT_PAGE] if found is not None else None
        return MessageText(
            row=row,
            text=text[offset:end],
            offset=offset,
            next=end if end < len(text) else None,
            total=len(text),
            shown=shown,
        )

    async def texts(self, id: str, seqs: Sequence[int]) -> dict[int, str]:
        """Return the whole texts of messages, for many at once."""
        session, moment = await self._find(id)
        return {row.seq: text_of_message(row.message) for row in await session.source.at(moment, seqs)}

    async def _message(self, session: InspectedSession, moment: Moment, seq: int) -> IndexedMessage:
        index = session.index
        await index.until(moment, lambda: bool(index.seqs) and index.seqs[-1] >= seq)
        one = index.find(seq)
        if one is None:
            raise MissingSession(f"there is no message {seq}; the session has {moment.rows:,}")
        return one

    async def step(self, id: str, n: int) -> StepRequest:
        """Return one request as it was sent; the step after the last one is the next request."""
        session, moment = await self._find(id)
        steps = await session.steps(moment)
        index = session.index
        starts = steps.starts
        last = len(starts)
        if not 1 <= n <= last + 1:
            raise MissingSession(f"there is no step {n}; the session has {last:,}")
        point = (await session.growth(moment, self._budget_of(moment.model))).points[n - 1]
        if n > last:
            shown, state, answer = await session.shown(moment), moment.now, list[IndexedMessage]()
        else:
            state, start = steps.states[n - 1], starts[n - 1]
            shown = await session.source.shown(moment, rows=start - 1, events=state.event)
            end = starts[n] if n < last else moment.rows + 1
            run = index.rows[index.position(start) : index.position(end)]
            answer = [one for one in run if one.role == "assistant"]
        left_out = max(0, len(shown.rows) - MAX_STEP_ROWS)
        summary = state.point.summary if state.point is not None and shown.pivot else 0
        before = max(0, shown.pivot_at - left_out)
        seqs = [row.seq for row in shown.rows[left_out:]]
        ordered = [*seqs[:before], summary, *seqs[before:]] if summary else seqs
        rows = await self._rows(session, moment, [one for seq in ordered if (one := index.find(seq)) is not None])
        sizes = {row.seq: row for row in shown.rows}
        rows = tuple(
            msgspec.structs.replace(row, tokens=sizes[row.seq].tokens, state=_sent(sizes[row.seq].shortened))
            if row.seq in sizes
            else msgspec.structs.replace(row, tokens=shown.pivot_tokens, state="sent")
            for row in rows
        )
        body = await asyncio.to_thread(lambda: json_text(shown.body()))
        return StepRequest(
            step=n,
            steps=last,
            seq=point.seq,
            at=point.at,
            model=moment.model,
            total=point.total,
            tokens=point.tokens,
            cached=point.cached,
            compaction=state.point.id if state.point is not None else None,
            rows=rows,
            left_out=left_out,
            answer=await self._rows(session, moment, answer),
            body=body[:MAX_BODY],
            body_chars=len(body),
        )

    async def context(self, id: str) -> ContextView:
        """Return what the next request consists of."""
        session, moment = await self._find(id)
        steps, shown = await session.steps(moment), await session.shown(moment)
        chosen = [one for seq in largest_in(shown) if (one := session.index.find(seq)) is not None]
        largest = await self._rows(session, moment, chosen)
        budget = self._budget_of(moment.model)
        return await asyncio.to_thread(context_of, moment, session.index, shown, steps.now, budget, largest)

    async def compaction(self, id: str, cid: str, start: int = 0, limit: int = MAX_REMOVED) -> CompactionView:
        """Return one compaction; ``start`` and ``limit`` select a page of its removed items."""
        session, moment = await self._find(id)
        point = moment.point(cid)
        if point is None:
            raise MissingSession(f"there is no compaction {cid!r}; the session has {len(moment.points)}")
        found = await session.compaction(moment, point, self._budget_of(moment.model))
        start, limit = max(0, start), max(1, min(limit, MAX_REMOVED))
        return msgspec.structs.replace(found, removed=found.removed[start : start + limit])

    async def preview(self, id: str, budget: int | None = None, policy: str | None = None) -> CompactionPreview:
        """Return what a compaction would do now. Writes nothing.

        Raises:
            UsageError: the policy is not known, or neither a budget nor the window of the model is.
        """
        chosen = self._policy(policy)
        policy = chosen.name
        session, moment = await self._find(id)
        await session.index.until(moment)
        began = time.perf_counter()
        options = CompactionOptions(budget=self._budget(moment, budget), policy=chosen)
        try:
            planned = await session.source.plan(moment, options)
        except DoesNotFit as error:
            status = await session.status(moment)
            return CompactionPreview(
                budget=error.budget,
                policy=policy,
                due=True,
                tokens_before=status.tokens,
                tokens_after=error.floor,
                fits=False,
                seconds=time.perf_counter() - began,
                problems=(str(error),),
            )
        return preview_of(planned, session.index, policy=policy, seconds=time.perf_counter() - began)

    def _policy(self, name: str | None) -> Policy:
        """Return a policy by its name; by default the first one."""
        if name is None:
            return next(iter(self._policies.values()))
        if name not in self._policies:
            raise UsageError(f"policy {name!r} is not known; use one of {', '.join(self._policies)}")
        return self._policies[name]

    def _budget(self, moment: Moment, budget: int | None) -> int | Budget | None:
        return budget if budget is not None else self._budget_of(moment.model)

    async def recall(self, id: str, query: str) -> RecallAnswer:
        """Return what the recall tool returns to the model."""
        if not query.strip() or len(query) > MAX_QUERY:
            raise UsageError(f"the query must be 1 to {MAX_QUERY:,} characters, not all blank")
        session, moment = await self._find(id)
        found = await session.source.recall(query, DEFAULT_TOKENS)
        names = {name for ref in found.references if (name := re.split(r"[.:]", ref)[0])}
        rows = await session.source.named(moment, names)
        return RecallAnswer(
            query=query,
            found=bool(found),
            text=found.text,
            references=found.references,
            seqs=tuple(sorted(rows.values())),
            tokens=found.tokens,
        )

    # --- actions ----------------------------------------------------------------------------------------------------

    async def act(self, id: str, asked: InspectorAction) -> ActionResult:
        """Change a session.

        Raises:
            UsageError: actions are not allowed, the action is not confirmed, or it is not possible.
        """
        session, _ = await self._find(id)
        if session.source.read_only or not self.write:
            raise UsageError(session.source.read_only or self.read_only)
        if asked.action not in self.directory.actions:
            raise UsageError(f"{asked.action} is not possible here; possible: {', '.join(self.directory.actions)}")
        if not asked.confirm:
            raise UsageError(f"confirm the action: send confirm: true to {asked.action}")
        return await self._act(await self.directory.writable(id), session, asked)

    async def _act(self, stored: Session, session: InspectedSession, asked: InspectorAction) -> ActionResult:
        match asked.action:
            case "pin" | "unpin":
                return await self._pin(stored, session, asked)
            case "undo":
                done = await stored.undo(asked.compaction)
                return ActionResult(action="undo", changed=True, message=f"Undone: {done}.")
            case "redo":
                done = await stored.redo()
                return ActionResult(action="redo", changed=True, message=f"Done again: {done}.")
            case "compact":
                return await self._compact(stored, session, asked)
            case "edit":
                await stored.edit_summary(asked.text or "", asked.compaction)
                return ActionResult(
                    action="edit", changed=True, message="The pivot was replaced.", compaction=asked.compaction
                )
            case "delete":
                changed = await stored.delete()
                message = "The session was deleted." if changed else "The session was deleted before."
                return ActionResult(action="delete", changed=changed, message=message)

    async def _pin(self, stored: Session, session: InspectedSession, asked: InspectorAction) -> ActionResult:
        text = asked.text
        if text is None and asked.seq is not None:
            found = await session.source.at(await session.moment(), [asked.seq])
            text = found[0].message.text if found else None
            if not text:
                raise UsageError(f"message {asked.seq} has no text to pin; select a part of it and pin that text")
        if not text or not text.strip():
            raise UsageError("name the text to pin, or the number of the message")
        if len(text) > MAX_PIN:
            raise UsageError(f"a pin is in every request, so it may have at most {MAX_PIN:,} characters; pin a part")
        pins = (await stored.reader()).timeline.pins
        if asked.action == "unpin" and text not in pins:
            inside = [pin for pin in pins if pin in text]
            if asked.seq is None or not inside:
                raise UsageError("this text is not pinned; the session lists its pins")
            text = inside[0]
        changed = (text in pins) != (asked.action == "pin")
        if changed:
            await stored.pin(text, pinned=asked.action == "pin")
        message = "Pinned: every compaction keeps it." if asked.action == "pin" else "The pin was removed."
        return ActionResult(action=asked.action, changed=changed, message=message)

    async def _compact(self, stored: Session, session: InspectedSession, asked: InspectorAction) -> ActionResult:
        policy = self._policy(asked.policy)
        moment = await session.moment()
        budget = self._budget(moment, asked.budget)
        done = await stored.compact(budget, policy=policy, instructions=asked.text)
        size = f"{done.tokens_before:,} tokens"
        if not done.changed:
            message = f"Nothing was compacted: {size} fit the budget."
        else:
            message = f"Compacted: {size} before, {done.tokens_after:,} after. Undo takes it back."
        return ActionResult(
            action="compact",
            changed=done.changed,
            message=message,
            compaction=done.id if done.changed else None,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
        )

    # --- changes ----------------------------------------------------------------------------------------------------

    async def version(self, id: str) -> tuple[float, int, int]:
        """Return the version of a session, which changes with every write."""
        source = await self.directory.find(id)
        try:
            return (await source.moment()).version
        except UsageError as error:
            raise MissingSession(str(error)) from None  # it was deleted meanwhile

    async def changes(self, id: str | None = None, *, pause: float = 1.0) -> AsyncIterator[list[tuple[str, int]]]:
        """Yield the sessions that changed, with their last message; empty lists in between.

        Without an id all sessions are watched.
        """
        known: dict[str, tuple[object, ...]] | None = None
        while True:
            began = time.monotonic()
            looking = asyncio.ensure_future(self._versions(id))
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())
            # A reader that leaves ends the iteration, not a query: an interrupted connection is lost to the store.
            now, last = await asyncio.shield(looking)
            changed = [one for one in {**(known or {}), **now} if (known or {}).get(one) != now.get(one)]
            yield [] if known is None else [(one, last.get(one, 0)) for one in changed]
            known = now
            await asyncio.sleep(max(pause, 4 * (time.monotonic() - began)))  # a large store is read less often

    async def _versions(self, id: str | None) -> tuple[dict[str, tuple[object, ...]], dict[str, int]]:
        """Return what changes with one session or with all, and their last messages."""
        now: dict[str, tuple[object, ...]] = {}
        try:
            if id is None:
                entries = await self.directory.listed()
                now = {entry.id: (entry.version, self._is_counted(entry), not self._lacks(entry)) for entry in entries}
                return now, {entry.id: entry.version[1] for entry in entries}
            source = await self.directory.find(id)
            version = (await source.moment()).version
        except UsageError:  # there is no such session, or it was deleted meanwhile
            return {}, {}
        opened = self.cache.sessions.get(source.key)
        return {id: (version, opened is not None and opened.is_known)}, {id: version[1]}

    def _is_counted(self, entry: DirectoryEntry) -> bool:
        known = self.cache.rows.get(entry.key)
        return known is not None and known[0] == entry.version and known[1].tokens is not None


def _newest_first(entry: DirectoryEntry) -> tuple[float, str]:
    return -entry.touched, entry.key


def _cursor(entry: DirectoryEntry) -> str:
    return f"{entry.touched!r} {entry.key}"


def _position(entries: Sequence[DirectoryEntry], cursor: str) -> int:
    """Return the position after the session of a cursor, also if that session has changed since."""
    touched, _, key = cursor.partition(" ")
    try:
        place = -float(touched), key
    except ValueError:
        raise UsageError("the cursor is not one that this list returned; start without one") from None
    return bisect_right(entries, place, key=_newest_first)


def _filled(row: SessionRow, tokens: int) -> SessionRow:
    return msgspec.structs.replace(row, tokens=tokens, fullness=tokens / row.window if row.window else None)


def _listed(point: ViewPoint) -> CompactionStatus:
    return CompactionStatus(
        id=point.id,
        at=timestamp(point.at) if point.at is not None else None,
        undone=point.undone,
        auto=point.auto,
        reason=point.reason,
        policy=point.policy,
        tokens_before=point.tokens_before,
        tokens_after=point.tokens_after,
        failures=point.failures,
    )


def _sized(one: CompactionStatus, growth: Growth) -> CompactionStatus:
    """Add the sizes of requests around a compaction whose own sizes are unknown."""
    mark = next((mark for mark in growth.compactions if mark.id == one.id), None)
    if mark is None or one.tokens_before is not None:
        return one
    return msgspec.structs.replace(one, tokens_before=mark.before, tokens_after=mark.after)


def _row_of(id: str, source: Source, moment: Moment, budget: Budget | None, title: str) -> SessionRow:
    """Return the row of a session with what is known without counting tokens."""
    live = [point for point in moment.points if not point.undone]
    return SessionRow(
        id=id,
        title=title,
        client=source.client,
        model=moment.model,
        format=moment.envelope.format,
        window=budget.window if budget is not None else None,
        messages=moment.messages,
        compactions=len(live),
        tokens_saved=sum(max(0, (one.tokens_before or 0) - (one.tokens_after or 0)) for one in live),
        last_activity=timestamp(moment.touched),
        parent=moment.parent,
    )


async def _read_row(entry: DirectoryEntry, budget_of: BudgetOf, *, counts: bool) -> SessionRow:
    source = await entry.open()
    moment = await source.moment()
    title = entry.title or await _title(source, moment)
    row = msgspec.structs.replace(
        _row_of(entry.id, source, moment, budget_of(moment.model), title),
        client=entry.client or source.client,
        format=entry.format,
        messages=entry.messages,
        last_activity=timestamp(entry.touched),
    )
    return _filled(row, (await source.status(moment)).tokens) if counts else row


async def session_line(head: Head, entry: DirectoryEntry) -> SessionLine:
    """Return the line of a stored session for the command line; counts no tokens.

    Raises:
        StoreDamaged: the session cannot be read.
    """
    row = await _read_row(entry, budget_of_model, counts=False)
    known = {name: getattr(row, name) for name in ("title", "client", "model", "compactions")}
    return msgspec.structs.replace(line_of(head), **known)


def line_of(head: Head) -> SessionLine:
    """Return the line of a stored session of which only the head can be read."""
    return SessionLine(
        id=head.name,
        format=head.format,
        messages=head.messages,
        turns=head.turn,
        created=timestamp(head.created),
        touched=timestamp(head.last_write),
    )


async def _title(source: Source, moment: Moment) -> str:
    """Return the first words that the user wrote."""
    for row in await source.at(moment, range(1, min(moment.rows, _TITLE_ROWS) + 1)):
        if row.stored == "message" and speaks(row.message):
            title = request_title(row.message)
            if title:
                return title
    return ""


def _state(one: IndexedMessage, moment: Moment, visible: dict[int, bool]) -> MessageState:
    """Return how the next request contains a message."""
    now = moment.now
    if any(first <= one.seq <= last for first, last in now.dead) or one.seq in now.muted:
        return "undone"
    if one.stored == "summary" and not one.ref.startswith("m"):
        if now.point is not None and now.point.summary == one.seq:
            return "sent"
        return "undone" if any(point.summary == one.seq and point.undone for point in moment.points) else "replaced"
    if one.seq in visible:
        return _sent(visible[one.seq])
    return "sent" if one.seq > (now.point.tip if now.point is not None else 0) else "replaced"


def _sent(shortened: bool) -> MessageState:
    return "shortened" if shortened else "sent"


async def open_inspection(
    target: str | Path,
    *,
    store: Store | None = None,
    write: bool = False,
    tenant: str = "",
    key: bytes | None = None,
    session: str | None = None,
    budget_of: BudgetOf = budget_of_model,
) -> Inspection:
    """Open a transcript file, or a store by its URL or path; ``store`` is one that is open already.

    ``session`` selects one session of a file that has several.

    Raises:
        InputError: the file has no history.
        UsageError: there is no such file or store.
        StoreError: the store cannot be opened.
    """
    text = str(target)
    if store is not None:
        return Inspection(StoreDirectory(store), write=write, budget_of=budget_of)
    url = await asyncio.to_thread(find_store, text)
    if url is not None:
        opened = await open_store(url, tenant=tenant, key=key)
        return Inspection(StoreDirectory(opened), write=write, budget_of=budget_of)
    directory = FileDirectory(text, session)
    await directory.listed()  # errors of the file are raised now
    return Inspection(directory, write=write, budget_of=budget_of)

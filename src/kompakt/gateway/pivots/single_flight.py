"""A pivot is made: once for a prefix, wherever it is asked for, after the originals it hides are in the store.

Whoever comes second waits for the first, but no longer than making it takes: two that are made at once are the same.
A pivot that will be due soon is prepared behind an answer; it is used when it is due and not before, so that what is
sent never depends on who was quicker. When the store cannot be reached the pivot is made all the same and remembered
here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kompakt.engine.compaction.policies import Policy
from kompakt.engine.compaction.report import Report, Step
from kompakt.engine.compaction.telemetry import announce
from kompakt.errors import StoreError
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots import budget as planning
from kompakt.gateway.pivots.budget import Learnt, Wanted
from kompakt.gateway.pivots.lookup import Found, Pivot, name_of, ready_name
from kompakt.gateway.request.hash_chain import Trail
from kompakt.gateway.storage.storage import Keeping, Owner, Standing
from kompakt.model.budget import Budget

_log = logging.getLogger("kompakt.gateway")

MAX_READY = 4
"""Pivots prepared at once: they take time from those who wait."""

THREADS = 2
"""Pivots worked out at once: more would take as long all together, and each thread keeps memory of its own."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot is wanted for."""

    budget: Budget
    policy: Policy
    reason: str
    learnt: Learnt = Learnt()
    attempt: int = 0
    due: int = 0
    """How many items the request has that needs the pivot."""
    behind: int = 0
    """What the items cost that are sent behind the pivot."""


class Compacting:
    """Makes pivots."""

    def __init__(self, keeping: Keeping, metrics: Metrics) -> None:
        self._keeping = keeping
        self._metrics = metrics
        self._busy: dict[str, asyncio.Task[Standing]] = {}
        self._ready: dict[str, asyncio.Task[Pivot]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "kompakt-pivot")

    async def compact(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Standing:
        """Make the pivot of a request, or take the one that is being made.

        Raises:
            InputError: a message is none.
        """
        name = name_of(trail.key, terms.attempt)
        task = self._busy.get(name)
        if task is None:
            task = self._busy[name] = asyncio.create_task(self._made(owner, trail, standing, terms))
            task.add_done_callback(lambda _: self._busy.pop(name, None))
        return await asyncio.shield(task)

    async def _made(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Standing:
        degraded, line, began = standing.degraded, standing.line, time.perf_counter()
        if degraded is None:
            try:
                line = await self._keeping.record(owner, trail, line, covers=self._start(trail, standing))
                found = await self._keeping.begin(owner, trail, terms.attempt)
                if found is not None:
                    return Standing(found, line)
            except StoreError as error:
                degraded = self._keeping.failed(error)
        pivot = await self._prepared(owner, trail, Standing(standing.found, line, degraded), terms)
        before, after = pivot.tokens_before + terms.behind, pivot.tokens_after + terms.behind
        pivot = msgspec.structs.replace(pivot, due=terms.due, tokens_before=before, tokens_after=after)
        self._tell(pivot, trail, terms, seconds=time.perf_counter() - began)
        known = None
        if degraded is None:
            try:
                known = await self._keeping.publish(owner, trail, pivot)
                self._keeping.tell_later(owner, line, known)
            except StoreError as error:
                degraded = self._keeping.failed(error)
        known = known or await self._keeping.hold(trail, pivot, is_stored=False)
        return Standing(Found(trail.length, known), line, degraded)

    # --- ahead of time --------------------------------------------------------------------------------------------

    def prepare(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> None:
        """Begin to make a pivot that is not due yet."""
        name = _ready_name(trail, terms)
        if name not in self._ready and standing.degraded is None and len(self._ready) < MAX_READY:
            task = self._ready[name] = asyncio.create_task(self._readied(owner, trail, standing, terms))
            task.add_done_callback(lambda done: self._over(name, done))

    def _over(self, name: str, task: asyncio.Task[Pivot]) -> None:
        """Let go of what was prepared; it is in the store. What failed will be said when it is due."""
        self._ready.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            _log.info("not prepared: %s", task.exception())

    async def _readied(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Pivot:
        line = await self._keeping.record(owner, trail, standing.line, covers=self._start(trail, standing))
        name = _ready_name(trail, terms)
        found = await self._keeping.ready(owner, name)
        if found is not None:
            return found
        pivot = await self._worked_out(owner, trail, Standing(standing.found, line), terms)
        await self._keeping.keep_ready(owner, name, pivot)
        return pivot

    async def _prepared(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Pivot:
        """Take a pivot that was prepared, or make it."""
        name = _ready_name(trail, terms)
        task = self._ready.get(name)
        try:
            if task is not None:
                return await asyncio.shield(task)
            found = await self._keeping.ready(owner, name) if standing.degraded is None and not terms.attempt else None
        except StoreError as error:
            standing.degraded, found = self._keeping.failed(error), None
        return found or await self._worked_out(owner, trail, standing, terms)

    async def _worked_out(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Pivot:
        names: tuple[str, ...] = ()
        if standing.degraded is None:
            names = await self._keeping.names(owner, standing.line, self._start(trail, standing))
        wanted = Wanted(
            trail=trail,
            found=standing.found,
            budget=terms.budget,
            policy=terms.policy,
            session=standing.line.session,
            names=names,
            reason=terms.reason,
            learnt=terms.learnt,
            attempt=terms.attempt,
        )
        return await asyncio.get_running_loop().run_in_executor(self._threads, planning.make, wanted)

    def _start(self, trail: Trail, standing: Standing) -> int:
        """Return how many items the pivot covers that a request stands on."""
        return (standing.found.at if standing.found is not None else trail.lead) - trail.lead

    def _tell(self, pivot: Pivot, trail: Trail, terms: Terms, *, seconds: float) -> None:
        """Log and count a compaction; ``seconds`` is how long the request waited for it."""
        sizes = (pivot.tokens_before, pivot.tokens_after, trail.length)
        self._metrics.compactions.labels("overflow" if terms.attempt or terms.learnt.limit else "due").inc()
        announce(
            Report(
                policy=pivot.policy,
                reason=pivot.reason,
                tokens_before=pivot.tokens_before,
                tokens_after=pivot.tokens_after,
                messages_before=trail.length - trail.lead,
                messages_after=len(pivot.items),
                budget=terms.budget.trigger,
                steps=tuple(Step(name, *sizes) for name in pivot.strategies),
                told=pivot.told,
                seconds=seconds,
                session=pivot.session,
            )
        )


def _ready_name(trail: Trail, terms: Terms) -> str:
    return ready_name(trail.key, terms.budget.trigger, terms.budget.target)

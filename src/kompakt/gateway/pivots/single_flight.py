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
from kompakt.gateway.pivots.budget import LearnedLimits, PivotRequest, build_pivot
from kompakt.gateway.pivots.lookup import Pivot, PivotMatch, name_of, ready_name
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.model.budget import Budget

_log = logging.getLogger("kompakt.gateway")

MAX_READY = 4
"""Pivots prepared at once: they take time from those who wait."""

THREADS = 2
"""Pivots worked out at once: more would take as long all together, and each thread keeps memory of its own."""


class PivotTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot is wanted for."""

    budget: Budget
    policy: Policy
    reason: str
    learnt: LearnedLimits = LearnedLimits()
    attempt: int = 0
    due: int = 0
    """How many items the request has that needs the pivot."""
    behind: int = 0
    """What the items cost that are sent behind the pivot."""


class PivotMaker:
    """Makes pivots."""

    def __init__(self, storage: GatewayStorage, metrics: Metrics) -> None:
        self._storage = storage
        self._metrics = metrics
        self._busy: dict[str, asyncio.Task[Match]] = {}
        self._ready: dict[str, asyncio.Task[Pivot]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "kompakt-pivot")

    async def compact(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        """Make the pivot of a request, or take the one that is being made.

        Raises:
            InputError: a message is none.
        """
        name = name_of(chain.key, terms.attempt)
        task = self._busy.get(name)
        if task is None:
            task = self._busy[name] = asyncio.create_task(self._made(owner, chain, match, terms))
            task.add_done_callback(lambda _: self._busy.pop(name, None))
        return await asyncio.shield(task)

    async def _made(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        degraded, branch, began = match.degraded, match.branch, time.perf_counter()
        if degraded is None:
            try:
                branch = await self._storage.record(owner, chain, branch, covers=self._start(chain, match))
                found = await self._storage.begin(owner, chain, terms.attempt)
                if found is not None:
                    return Match(found, branch)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        pivot = await self._prepared(owner, chain, Match(match.found, branch, degraded), terms)
        before, after = pivot.tokens_before + terms.behind, pivot.tokens_after + terms.behind
        pivot = msgspec.structs.replace(pivot, due=terms.due, tokens_before=before, tokens_after=after)
        self._tell(pivot, chain, terms, seconds=time.perf_counter() - began)
        known = None
        if degraded is None:
            try:
                known = await self._storage.publish(owner, chain, pivot)
                self._storage.record_pivot_later(owner, branch, known)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        known = known or await self._storage.hold(chain, pivot, is_stored=False)
        return Match(PivotMatch(chain.length, known), branch, degraded)

    # --- ahead of time --------------------------------------------------------------------------------------------

    def prepare(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> None:
        """Begin to make a pivot that is not due yet."""
        name = _ready_name(chain, terms)
        if name not in self._ready and match.degraded is None and len(self._ready) < MAX_READY:
            task = self._ready[name] = asyncio.create_task(self._readied(owner, chain, match, terms))
            task.add_done_callback(lambda done: self._over(name, done))

    def _over(self, name: str, task: asyncio.Task[Pivot]) -> None:
        """Let go of what was prepared; it is in the store. What failed will be said when it is due."""
        self._ready.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            _log.info("not prepared: %s", task.exception())

    async def _readied(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        branch = await self._storage.record(owner, chain, match.branch, covers=self._start(chain, match))
        name = _ready_name(chain, terms)
        found = await self._storage.ready(owner, name)
        if found is not None:
            return found
        pivot = await self._worked_out(owner, chain, Match(match.found, branch), terms)
        await self._storage.save_prepared(owner, name, pivot)
        return pivot

    async def _prepared(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        """Take a pivot that was prepared, or make it."""
        name = _ready_name(chain, terms)
        task = self._ready.get(name)
        try:
            if task is not None:
                return await asyncio.shield(task)
            found = await self._storage.ready(owner, name) if match.degraded is None and not terms.attempt else None
        except StoreError as error:
            match.degraded, found = self._storage.store_failed(error), None
        return found or await self._worked_out(owner, chain, match, terms)

    async def _worked_out(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        names: tuple[str, ...] = ()
        if match.degraded is None:
            names = await self._storage.names(owner, match.branch, self._start(chain, match))
        wanted = PivotRequest(
            chain=chain,
            found=match.found,
            budget=terms.budget,
            policy=terms.policy,
            session=match.branch.session,
            names=names,
            reason=terms.reason,
            learnt=terms.learnt,
            attempt=terms.attempt,
        )
        return await asyncio.get_running_loop().run_in_executor(self._threads, build_pivot, wanted)

    def _start(self, chain: HashChain, match: Match) -> int:
        """Return how many items the pivot covers that a request stands on."""
        return (match.found.at if match.found is not None else chain.lead) - chain.lead

    def _tell(self, pivot: Pivot, chain: HashChain, terms: PivotTerms, *, seconds: float) -> None:
        """Log and count a compaction; ``seconds`` is how long the request waited for it."""
        sizes = (pivot.tokens_before, pivot.tokens_after, chain.length)
        self._metrics.compactions.labels("overflow" if terms.attempt or terms.learnt.limit else "due").inc()
        announce(
            Report(
                policy=pivot.policy,
                reason=pivot.reason,
                tokens_before=pivot.tokens_before,
                tokens_after=pivot.tokens_after,
                messages_before=chain.length - chain.lead,
                messages_after=len(pivot.items),
                budget=terms.budget.trigger,
                steps=tuple(Step(name, *sizes) for name in pivot.strategies),
                told=pivot.told,
                seconds=seconds,
                session=pivot.session,
            )
        )


def _ready_name(chain: HashChain, terms: PivotTerms) -> str:
    return ready_name(chain.key, terms.budget.trigger, terms.budget.target)

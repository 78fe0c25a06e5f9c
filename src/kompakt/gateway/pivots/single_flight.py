"""Build each pivot once, however many requests and replicas need it.

Clients retry and send requests in parallel, so several requests often need the same pivot at the same moment. The first
one builds it in a task, and the others wait for that task. The task is shielded: if the first client disconnects, the
others still get the pivot. Another replica is kept from building the same pivot by a short lease in the store. If both
build it anyway, the store keeps the one written first and both send that one.

The originals that a pivot hides are stored before it is used. A pivot that will be due soon is prepared in the
background but used only when it is due, so the bytes sent never depend on timing. While the store is unavailable,
pivots are built all the same and only cached.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kompakt.engine.compaction.policies import Policy
from kompakt.engine.compaction.report import Report, Step, announce
from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.errors import StoreError
from kompakt.gateway.concurrency import full_collections
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.budget import LearnedLimits
from kompakt.gateway.pivots.builder import PivotRequest, build_pivot
from kompakt.gateway.pivots.lookup import Pivot, PivotMatch, covered_items, pivot_name, prepared_name
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.model.budget import Budget

_log = logging.getLogger("kompakt.gateway")

MAX_PREPARING = 4
"""Pivots prepared at the same time; they compete with pivots that requests wait for."""

SUMMARY_THREADS = 16
"""Threads for pivots with a narrative: they wait for a provider most of the time."""

THREADS = 2
"""Threads that build pivots. Because of the GIL more would not be faster, and each holds memory."""


class PivotTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot has to achieve, and why it is needed."""

    budget: Budget
    policy: Policy
    reason: str
    learned: LearnedLimits = LearnedLimits()
    attempt: int = 0
    due: int = 0
    """Items of the request that needs the pivot."""
    tail_tokens: int = 0
    """Tokens of the items that are sent after the pivot."""
    summarizer: Summarizer | None = None
    """Writes the narrative of the first pivot of a prefix. After an overflow code writes the next one at once."""


class PivotMaker:
    """Builds, stores and announces pivots."""

    def __init__(self, storage: GatewayStorage, metrics: Metrics) -> None:
        self._storage = storage
        self._metrics = metrics
        self._making: dict[str, asyncio.Task[Match]] = {}
        self._preparing: dict[str, asyncio.Task[Pivot]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "kompakt-pivot")
        self._summary_threads = ThreadPoolExecutor(SUMMARY_THREADS, "kompakt-summary")

    async def compact(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        """Build the pivot of a request, or wait for the one that is being built.

        Raises:
            InputError: an item is not a message.
        """
        name = pivot_name(chain.key, terms.attempt)
        task = self._making.get(name)
        if task is None:
            task = self._making[name] = asyncio.create_task(self._make(owner, chain, match, terms))
            task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(task)

    async def _make(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        degraded, branch, began = match.degraded, match.branch, time.perf_counter()
        if degraded is None:
            try:
                branch = await self._storage.record(owner, chain, branch, covers=_covered(chain, match))
                found = await self._storage.claim(owner, chain, terms.attempt)
                if found is not None:
                    return Match(found, branch)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        known = Match(match.found, branch, degraded)
        pivot = await self._prepared(owner, chain, known, terms)
        degraded = known.degraded
        before, after = pivot.tokens_before + terms.tail_tokens, pivot.tokens_after + terms.tail_tokens
        pivot = msgspec.structs.replace(pivot, due=terms.due, tokens_before=before, tokens_after=after)
        self._announce(pivot, chain, terms, seconds=time.perf_counter() - began)
        rendered = None
        if degraded is None:
            try:
                rendered = await self._storage.publish(owner, chain, pivot)
                self._storage.record_pivot_later(owner, branch, rendered)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        rendered = rendered or await self._storage.cache_pivot(chain, pivot, is_stored=False)
        return Match(PivotMatch(chain.length, rendered), branch, degraded)

    # --- In advance ---

    def prepare(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> None:
        """Start to build a pivot in the background, before it is due."""
        name = _prepared_name(chain, terms)
        if name not in self._preparing and match.degraded is None and len(self._preparing) < MAX_PREPARING:
            task = self._preparing[name] = asyncio.create_task(self._prepare(owner, chain, match, terms))
            task.add_done_callback(lambda done: self._on_prepared(name, done))

    def _on_prepared(self, name: str, task: asyncio.Task[Pivot]) -> None:
        self._preparing.pop(name, None)  # the store has it now
        if not task.cancelled() and task.exception() is not None:
            _log.info("pivot not prepared in advance: %s", task.exception())

    async def _prepare(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        branch = await self._storage.record(owner, chain, match.branch, covers=_covered(chain, match))
        name = _prepared_name(chain, terms)
        found = await self._storage.prepared(owner, name)
        if found is not None:
            return found
        known = Match(match.found, branch)
        pivot = await self._build(owner, chain, known, terms)
        if known.degraded is None:
            await self._storage.save_prepared(owner, name, pivot)
        return pivot

    async def _prepared(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        """Return a pivot that was prepared, or build it."""
        name = _prepared_name(chain, terms)
        task = self._preparing.get(name)
        found = None
        try:
            if task is not None:
                return await asyncio.shield(task)
            if match.degraded is None and not terms.attempt:
                found = await self._storage.prepared(owner, name)
        except StoreError as error:
            match.degraded = self._storage.store_failed(error)
        return found or await self._build(owner, chain, match, terms)

    async def _build(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        """Build a pivot; if the store fails, without its references, and ``match`` says so."""
        names: tuple[str, ...] = ()
        if match.degraded is None:
            try:
                names = await self._storage.references(owner, match.branch, _covered(chain, match))
            except StoreError as error:
                match.degraded = self._storage.store_failed(error)
        request = PivotRequest(
            chain=chain,
            found=match.found,
            budget=terms.budget,
            policy=terms.policy,
            session=match.branch.session,
            names=names,
            reason=terms.reason,
            learned=terms.learned,
            attempt=terms.attempt,
            seal_key=self._storage.value_codec.seal_key(owner.tenant),
            summarizer=None if terms.attempt else terms.summarizer,
        )
        loop = asyncio.get_running_loop()
        if request.summarizer is None:
            return await loop.run_in_executor(self._threads, _build_pivot, request)
        pivot = await loop.run_in_executor(self._summary_threads, build_pivot, request)
        if (account := pivot.narrative) is not None:
            self._metrics.narratives.labels("used" if account.sentences else "failed").inc()
            self._metrics.narrative_tokens.labels("input").inc(account.usage.prompt)
            self._metrics.narrative_tokens.labels("output").inc(account.usage.output)
        return pivot

    def _announce(self, pivot: Pivot, chain: HashChain, terms: PivotTerms, *, seconds: float) -> None:
        """Log and count a compaction; ``seconds`` is how long the request waited for it."""
        sizes = (pivot.tokens_before, pivot.tokens_after, chain.length)
        self._metrics.compactions.labels("overflow" if terms.attempt or terms.learned.limit else "due").inc()
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
                narrative=pivot.narrative,
                seconds=seconds,
                session=pivot.session,
            )
        )


def _build_pivot(request: PivotRequest) -> Pivot:
    with full_collections.suspended():
        return build_pivot(request)


def _covered(chain: HashChain, match: Match) -> int:
    return covered_items(chain, match.found) - chain.lead


def _prepared_name(chain: HashChain, terms: PivotTerms) -> str:
    return prepared_name(chain.key, terms.budget.trigger, terms.budget.target)

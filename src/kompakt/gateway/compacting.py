"""A pivot is made: once for a prefix, wherever it is asked for, after the originals it hides are in the store.

Whoever comes second waits for the first, but no longer than making it takes: two that are made at once are the same.
When the store cannot be reached the pivot is made all the same and remembered here.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from kompakt.engine.policies import Policy
from kompakt.engine.report import Report
from kompakt.engine.telemetry import announce
from kompakt.errors import StoreError
from kompakt.gateway import planning
from kompakt.gateway.keeping import Keeping, Owner, Standing
from kompakt.gateway.metrics import Metrics
from kompakt.gateway.pivots import Found, Pivot
from kompakt.gateway.planning import Wanted
from kompakt.gateway.trails import Trail
from kompakt.model.budget import Budget

_log = logging.getLogger("kompakt.gateway")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot is wanted for."""

    budget: Budget
    policy: Policy
    reason: str
    scale: float = 1.0
    limit: int | None = None
    attempt: int = 0


class Compacting:
    """Makes pivots."""

    def __init__(self, keeping: Keeping, metrics: Metrics) -> None:
        self._keeping = keeping
        self._metrics = metrics
        self._busy: dict[tuple[bytes, int], asyncio.Task[Standing]] = {}

    async def compact(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Standing:
        """Make the pivot of a request, or take the one that is being made.

        Raises:
            DoesNotFit: what must stay is larger than the budget.
        """
        key = (trail.keys[trail.covered], terms.attempt)
        task = self._busy.get(key)
        if task is None:
            task = self._busy[key] = asyncio.create_task(self._made(owner, trail, standing, terms))
            task.add_done_callback(lambda _: self._busy.pop(key, None))
        return await asyncio.shield(task)

    async def _made(self, owner: Owner, trail: Trail, standing: Standing, terms: Terms) -> Standing:
        degraded, line, names = standing.degraded, standing.line, ()
        if degraded is None:
            try:
                line = await self._keeping.record(owner, trail, line)
                found = await self._keeping.begin(owner, trail, terms.attempt)
                if found is not None:
                    return Standing(found, line)
                names = await self._keeping.names(owner, line, self._start(trail, standing))
            except StoreError as error:
                degraded = self._keeping.failed(error)
        wanted = Wanted(
            trail=trail,
            found=standing.found,
            budget=terms.budget,
            policy=terms.policy,
            session=line.session,
            names=names,
            reason=terms.reason,
            scale=terms.scale,
            limit=terms.limit,
            attempt=terms.attempt,
        )
        pivot = await asyncio.to_thread(planning.make, wanted)
        self._tell(pivot, trail, terms)
        known = None
        if degraded is None:
            try:
                known = await self._keeping.publish(owner, trail, pivot)
                self._keeping.tell_later(owner, line, known.pivot)
            except StoreError as error:
                degraded = self._keeping.failed(error)
        return Standing(Found(trail.covered, known or self._keeping.hold(trail, pivot)), line, degraded)

    def _start(self, trail: Trail, standing: Standing) -> int:
        return (standing.found.at if standing.found is not None else trail.lead) - trail.lead

    def _tell(self, pivot: Pivot, trail: Trail, terms: Terms) -> None:
        self._metrics.compactions.labels("overflow" if terms.attempt or terms.limit else "due").inc()
        announce(
            Report(
                policy=pivot.policy,
                reason=pivot.reason,
                tokens_before=pivot.tokens_before,
                tokens_after=pivot.tokens_after,
                messages_before=trail.covered - trail.lead,
                messages_after=len(pivot.items),
                budget=terms.budget.trigger,
                told=pivot.told,
            )
        )

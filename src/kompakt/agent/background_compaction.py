"""Compaction in the background: an asynchronous summarizer runs while the agent works.

At most one compaction is prepared at a time. If the preparation fails it is dropped, the run continues, and the
compaction is made in the foreground when it is due. Nothing of it outlives the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from kompakt.engine.pivot.pivot import Summarizer
from kompakt.errors import KompaktError
from kompakt.session.compaction import CompactionOptions, CompactionPlan, SessionCompaction
from kompakt.session.session import Session
from kompakt.session.timeline import PreparedCompaction

_log = logging.getLogger("kompakt.agent")

SHARE = 0.8
"""Share of the trigger at which preparation starts: late enough to cover most messages, early enough to finish."""


def is_async(summarizer: Summarizer | str | None) -> bool:
    """Return whether a summarizer is asynchronous; only such a summarizer can run in the background."""
    called = getattr(type(summarizer), "__call__", None)  # noqa: B004 — whether __call__ is async, not whether it exists
    return inspect.iscoroutinefunction(summarizer) or inspect.iscoroutinefunction(called)


class BackgroundCompaction:
    """The compaction that is being prepared for a run, if any."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan: CompactionPlan | None = None
        self._task: asyncio.Task[PreparedCompaction] | None = None
        self._failed = False

    @property
    def may_start(self) -> bool:
        """Whether no preparation is running, and none has failed since the last compaction."""
        return self._task is None and not self._failed

    @property
    def is_done(self) -> bool:
        """Whether a preparation has finished or failed."""
        return self._failed or (self._task is not None and self._task.done())

    async def start(self, options: CompactionOptions) -> None:
        """Read the session, then prepare its compaction in a task."""
        try:
            self._plan = await CompactionPlan.read(self._session, options)
        except KompaktError as error:
            self._fail(error)
            return
        self._task = asyncio.create_task(self._plan.prepare())

    async def publish(self, *, fits: Callable[[PreparedCompaction], bool]) -> SessionCompaction | None:
        """Wait for the preparation and write it to the store; return ``None`` if there is none that can be used."""
        if self._task is None or self._plan is None:
            return None
        pending = await self._session.pending()
        if any(not marker.auto for marker in pending.values()):  # a manual request may have its own instructions
            return None
        await asyncio.wait([self._task])
        error = "cancelled" if self._task.cancelled() else self._task.exception()
        if error is not None:
            self._fail(error)
            return None
        prepared = self._task.result()
        return await self._plan.publish(self._session, prepared) if fits(prepared) else None

    def _fail(self, error: object) -> None:
        self._failed = True
        _log.warning("background compaction failed: %s", error)

    async def drop(self) -> None:
        """Cancel the preparation, because the history has changed or the run is over."""
        task, self._task, self._plan, self._failed = self._task, None, None, False
        if task is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log "exception was never retrieved"

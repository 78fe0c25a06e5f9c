"""A summary that has to be waited for is written while the agent works, and is there when it is needed.

At most one is in the making. Nothing that goes wrong with it reaches the run: it is dropped, and the compaction is made
in the ordinary way when it is due. Nothing of it outlives the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.errors import KompaktError
from kompakt.session.compaction import CompactionOptions, PreparedCompaction, SessionCompaction
from kompakt.session.prepared_compaction import CompactionPlan, plan, publish
from kompakt.session.session import Session

_log = logging.getLogger("kompakt.agent")

SHARE = 0.8
"""Share of the trigger at which preparing starts: late enough to cover most, early enough to be over in time."""


def awaits(summarizer: Summarizer | None) -> bool:
    """Tell whether a summariser has to be waited for; one that does not gains nothing by being asked ahead."""
    called = getattr(type(summarizer), "__call__", None)  # noqa: B004 — its kind is asked for, not whether it has one
    return inspect.iscoroutinefunction(summarizer) or inspect.iscoroutinefunction(called)


class Preparing:
    """The compaction of a run that is in the making, if one is."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan: CompactionPlan | None = None
        self._task: asyncio.Task[PreparedCompaction] | None = None
        self._gave_up = False

    @property
    def may_begin(self) -> bool:
        """Whether none is in the making, and none has failed since the last compaction."""
        return self._task is None and not self._gave_up

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: it is worked out, or it came to nothing."""
        return self._gave_up or (self._task is not None and self._task.done())

    async def begin(self, wish: CompactionOptions) -> None:
        """Read what has to be known and have the rest worked out beside the run."""
        try:
            self._plan = await plan(self._session, wish)
        except KompaktError as error:
            self._give_up(error)
            return
        self._task = asyncio.create_task(self._plan.prepared())

    async def published(self, *, fits: Callable[[PreparedCompaction], bool]) -> SessionCompaction | None:
        """Wait for what is in the making and publish it, when it is good for anything; ``None`` when it is not."""
        if self._task is None or self._plan is None:
            return None
        asked = await self._session.pending()
        if any(not marker.auto for marker in asked.values()):  # somebody wants one now, and may want something of it
            return None
        await asyncio.wait([self._task])
        why = "cancelled" if self._task.cancelled() else self._task.exception()
        if why is not None:
            self._give_up(why)
            return None
        prepared = self._task.result()
        return await publish(self._session, self._plan, prepared) if fits(prepared) else None

    def _give_up(self, why: object) -> None:
        self._gave_up = True
        _log.warning("a compaction could not be prepared: %s", why)

    async def drop(self) -> None:
        """Let go of what is in the making: the history is another now, or the run is over."""
        task, self._task, self._plan, self._gave_up = self._task, None, None, False
        if task is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen, so that nobody is told that it was not

"""Context providers: what is added before a run, and who sees what came of it.

One protocol for everything that is not the conversation itself: retrieved documents, the time, a memory, and the
history from a store. What a provider adds carries its ``source_id``, which is stored, so strategies can tell it from
the user's own words. A strategy serves at three points: before each model call, before new messages are stored
(``before_write``), and on what is stored already (``compact``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from kompakt.engine.context import Context
from kompakt.engine.policies import Policy
from kompakt.engine.strategies import Strategy
from kompakt.errors import UsageError
from kompakt.model.budget import Budget
from kompakt.model.messages import History, Message
from kompakt.model.tokens import Counter
from kompakt.session.compacting import SessionCompaction
from kompakt.session.store import Store


class Run(msgspec.Struct):
    """One run of an agent, as providers see it: they add to it before, and read it after."""

    session: str
    """The session's id."""
    inputs: list[Message]
    """What the user says."""
    format: str = "openai-chat"
    history: list[Message] = []
    """What was said before, as the model sees it."""
    added: list[Message] = []
    """What providers added, each with its source."""
    responses: list[Message] = []
    """What the run produced: answers, calls, results."""
    unrecoverable: list[str] = []
    """References of what was, by choice, not stored."""

    def add(self, source_id: str, messages: Iterable[Message]) -> None:
        """Add messages of a source."""
        self.added += [msgspec.structs.replace(message, source_id=source_id) for message in messages]

    @property
    def messages(self) -> list[Message]:
        """What is sent first: history, what was added, what the user says."""
        return [*self.history, *self.added, *self.inputs]


@runtime_checkable
class ContextProvider(Protocol):
    """Takes part in every run."""

    source_id: str
    """Marks what it adds."""

    async def before_run(self, run: Run) -> None:
        """Add what the model should know; called before the first model call."""
        ...

    async def after_run(self, run: Run) -> None:
        """See what was said and done; called once the run is over."""
        ...


class HistoryProvider:
    """Loads what was said before from a store, and stores what is said now.

    ``compaction`` is the policy for what is stored; ``before_write`` a strategy that new messages pass before they are
    stored. With ``store_excluded=False`` what that strategy excludes is not stored: it cannot be recovered, and the
    run says so.
    """

    def __init__(
        self,
        store: Store,
        *,
        budget: int | Budget | None = None,
        compaction: str | Policy | None = "default",
        before_write: Strategy | None = None,
        tokenizer: Counter | None = None,
        store_excluded: bool = True,
        load: bool = True,
        store_inputs: bool = True,
        store_responses: bool = True,
        store_added: Sequence[str] = (),
        source_id: str = "history",
    ) -> None:
        if before_write is None and not store_excluded:
            raise UsageError("store_excluded=False needs before_write=…: without a strategy nothing is excluded")
        self.source_id = source_id
        self._store = store
        self._budget = budget
        self._compaction = compaction
        self._before_write = before_write
        self._tokenizer = tokenizer
        self._store_excluded = store_excluded
        self._load = load
        self._stored = (store_inputs, store_responses, frozenset(store_added))

    async def before_run(self, run: Run) -> None:
        """Put what the model sees of the session before what is new."""
        session = await self._store.session(run.session)
        if self._load and await session.exists():
            shown = await session.project()
            run.history, run.format = list(shown.history), shown.history.format

    async def after_run(self, run: Run) -> None:
        """Store what is new, and compact what is stored when that is due."""
        inputs, responses, sources = self._stored
        added = [message for message in run.added if message.source_id in sources]
        new = [*added, *(run.inputs if inputs else ()), *(run.responses if responses else ())]
        await self.append(run, new)
        if self._compaction is not None and self._budget is not None:
            await self.compact(run.session)

    async def append(self, run: Run, messages: Sequence[Message]) -> None:
        """Store messages, those left that the strategy for new messages leaves."""
        session = await self._store.session(run.session)
        if not messages:
            return
        if self._before_write is None:
            await session.append(History(messages, format=run.format))
            return
        context = Context(messages, counter=self._tokenizer)
        await self._before_write(context)
        shown = context.shown_indices()
        if not self._store_excluded:
            hidden = set(range(len(messages))).difference(shown)
            run.unrecoverable += [context.reference(index) for index in sorted(hidden)]
            await session.append(History([context.shown(index) for index in shown], format=run.format))
            return
        await session.append(History(messages, format=run.format))
        if context.is_rewritten:
            await session.apply(_like(context))

    async def replace(self, session_id: str, messages: Sequence[Message]) -> SessionCompaction:
        """Let the model see these messages from now on; what is stored stays, and undo brings it back."""
        session = await self._store.session(session_id)
        return await session.replace(messages)

    async def compact(self, session_id: str) -> SessionCompaction:
        """Compact what is stored, when that is due."""
        session = await self._store.session(session_id)
        return await session.compact(self._budget, policy=self._compaction or "default")


def _like(new: Context) -> Strategy:
    """Make a strategy that leaves of the newest messages what another context, of them alone, has left."""

    async def leave_out(context: Context) -> bool:
        offset = len(context.messages) - len(new.messages)
        shown = set(new.shown_indices())
        for index in range(len(new.messages)):
            group = context.group_at(offset + index)
            if index not in shown and not context.is_protected(group):
                context.exclude(group, reason="left out before it was stored")
            elif index in new.view.instead:
                context.view.put(offset + index, new.shown(index))
        return context.is_rewritten

    return leave_out

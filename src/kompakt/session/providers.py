"""Context providers: what is added before a run, and who sees what it produced.

One protocol for everything that is not the conversation itself: retrieved documents, the time, a memory, and the
history from a store. What a provider adds carries its ``source_id``, which is stored, so strategies can tell it from
the user's own words. A strategy serves at three points: before each model call, before new messages are stored
(``before_write``), and on what is stored already (``compact``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol, runtime_checkable

import msgspec

from kompakt import api
from kompakt.engine.compaction.compact import attempt
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.compaction.report import Step
from kompakt.engine.context.context import Context
from kompakt.engine.context.values import ContextGroup, Load
from kompakt.engine.ledger.format import HEADING
from kompakt.engine.pivot.text import settle
from kompakt.engine.strategies import Strategy
from kompakt.engine.strategies.summarization import MAX_LEDGER
from kompakt.errors import KompaktError, UsageError
from kompakt.model.budget import Budget
from kompakt.model.messages import History, Message
from kompakt.model.tokens import Tokenizer, counter_of
from kompakt.session.compaction import SessionCompaction
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.session")


class Run(msgspec.Struct):
    """One run of an agent, as providers see it: they add to it before, and read it after."""

    session: str
    """The session's id."""
    inputs: list[Message]
    """What the user says."""
    format: str = "openai-chat"
    """The wire format of all messages here."""
    history: list[Message] = []
    """What was said before, as the model sees it. The run of an agent without a store of its own starts from it."""
    added: list[Message] = []
    """What providers added, each with its source."""
    responses: list[Message] = []
    """What the run produced: answers, calls, results."""
    compacted: list[Message] | None = None
    """What the model sees after the run, when something was compacted during the run."""
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
        """See what was said and done; called once the run is over. An error here is logged and ends nothing."""
        ...


class HistoryProvider:
    """Loads what was said before from a store, and stores what is said now.

    ``compaction`` is a policy, or a strategy, for what is stored; ``before_write`` a strategy that new messages pass
    before they are stored; ``tokenizer`` counts for both. With ``store_excluded=False`` what ``before_write`` excludes
    is not stored: only its summary is, and ``Run.unrecoverable`` lists the references.
    """

    def __init__(
        self,
        store: Store,
        *,
        budget: int | Budget | None = None,
        compaction: str | Policy | Strategy | None = "default",
        before_write: Strategy | None = None,
        tokenizer: Tokenizer | None = None,
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
        self.store = store
        self.loads = load
        self._budget = budget
        self._compaction = compaction
        self._before_write = before_write
        self._tokenizer = tokenizer
        self._store_excluded = store_excluded
        self._stored = (store_inputs, store_responses, frozenset(store_added))

    async def before_run(self, run: Run) -> None:
        """Put what the model sees of the session before what is new."""
        session = await self.store.session(run.session)
        if self.loads and await session.exists():
            shown = await session.project()
            run.history = list(_translated(shown.history, run.format))

    async def after_run(self, run: Run) -> None:
        """Store what is new, and compact what is stored when that is due; a compaction that fails is logged."""
        inputs, responses, sources = self._stored
        added = [message for message in run.added if message.source_id in sources]
        new = [*added, *(run.inputs if inputs else ()), *(run.responses if responses else ())]
        await self.append(run, new)
        session = await self.store.session(run.session)
        if not await session.exists():
            return
        if run.compacted is not None and inputs and responses and self._before_write is None:
            await self._adopt(session, run, run.compacted)
        has_strategy = not isinstance(self._compaction, str | Policy)
        if self._compaction is not None and (self._budget is not None or has_strategy):
            try:
                await self.compact(run.session)
            except KompaktError as error:
                _log.warning("session %r was stored and not compacted: %s", run.session, error)

    async def append(self, run: Run, messages: Sequence[Message]) -> None:
        """Store messages, those left that the strategy for new messages leaves."""
        if not messages:
            return
        session = await self.store.session(run.session)
        head = await session.records.head(session.key)
        format = run.format if head is None else head.format
        history = _translated(_history(messages, run.format), format)
        context = await self._prepared(history) if self._before_write is not None else None
        if context is None or not context.differs:
            await session.append(history)
        elif self._store_excluded:
            await session.append(history)
            await session.apply(_like(context), tokenizer=self._tokenizer, reason="compacted before it was stored")
        else:
            shown = set(context.shown_indices())
            lost = [n for n in range(len(history)) if n not in shown or n in context.view.instead]
            run.unrecoverable += [context.reference(index) for index in lost]
            _log.info("session %r: %d new messages were not stored as they came", run.session, len(lost))
            await session.append(history.with_messages(context.project()))

    async def _prepared(self, history: History) -> Context:
        """Run the strategy for new messages; one that raises is logged and leaves them as they came."""
        assert self._before_write is not None
        strategy, steps = self._before_write, list[Step]()
        context = Context(history, counter=counter_of(self._tokenizer, history.model).own())
        await attempt(context, strategy, getattr(strategy, "__name__", None) or type(strategy).__name__, steps)
        if context.is_rewritten:
            context.strip_reasoning()
        return context

    async def _adopt(self, session: Session, run: Run, compacted: Sequence[Message]) -> None:
        """Show what the run ended with, so that the next run need not compact the same history again."""
        sources = {None, *self._stored[2]}
        shown = [message for message in compacted if message.role != "system" and message.source_id in sources]
        history = _translated(_history(shown, run.format), (await session.head()).format)
        await session.replace(history, reason="compacted during the run")

    async def replace(self, session_id: str, messages: Sequence[Message]) -> SessionCompaction:
        """Let the model see these messages from now on; what is stored stays, and undo brings it back."""
        session = await self.store.session(session_id)
        return await session.replace(messages)

    async def compact(
        self,
        session_id: str,
        *,
        strategy: str | Policy | Strategy | None = None,
        budget: int | Budget | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> SessionCompaction:
        """Compact what is stored, when that is due; what is given here counts before the provider's own settings.

        Raises:
            UsageError: there is no such session, or neither a budget nor a strategy with a target of its own.
            DoesNotFit: what must stay is larger than the budget.
        """
        session = await self.store.session(session_id)
        chosen = strategy or self._compaction or "default"
        room, counts = budget or self._budget, tokenizer or self._tokenizer
        if isinstance(chosen, str | Policy):
            return await session.compact(room, policy=chosen, tokenizer=counts)
        if room is None:
            return await session.apply(chosen, tokenizer=counts)
        name = getattr(chosen, "__name__", None) or type(chosen).__name__
        return await session.compact(room, policy=Policy(name, (chosen,)), tokenizer=counts)


def _history(messages: Iterable[Message], format: str) -> History:
    """Put messages into an empty envelope of their format."""
    return WIRES[format].parse([], None).with_messages(messages)


def _translated(history: History, format: str) -> History:
    """Say a history in another format; who added a message stays known."""
    if history.format == format:
        return history
    said: list[Message] = []
    for source_id, some in groupby(history, lambda message: message.source_id):
        made = api.parse(api.render(_history(some, history.format), format), format)
        said += [msgspec.structs.replace(message, source_id=source_id) for message in made]
    return _history(said, format)


def _like(new: Context) -> Strategy:
    """Make a strategy that does to the newest messages of a session what was done to a context of them alone."""

    async def compact_new(context: Context) -> bool:
        offset = len(context.messages) - len(new.messages)
        shown, hidden = set(new.shown_indices()), dict[int, ContextGroup]()
        for index in range(len(new.messages)):
            group = context.group_at(offset + index)
            if index not in shown and not context.is_protected(group):
                hidden[group.number] = group
            elif index in new.view.instead:
                context.view.put(offset + index, new.shown(index))
        groups = list(hidden.values())
        if new.summary_text is None:
            context.exclude_all(groups, reason="compacted before it was stored")
        else:
            _summarize(context, groups, new)
        return context.is_rewritten

    return compact_new


def _summarize(context: Context, groups: Sequence[ContextGroup], new: Context) -> None:
    """Let the summary of new messages stand for their groups, with what an earlier summary of the session says."""
    made, earlier = new.summary_text, context.summary_text
    assert made is not None
    told = earlier.text if earlier is not None else ""
    if made.room:  # the ledger is written anew; what stands before it is the narrative
        told = told.partition(HEADING)[0].strip()
    room = min(made.room + (earlier.tokens if earlier is not None else 0), MAX_LEDGER) if made.room else 0
    load = (earlier.load if earlier is not None else Load()) + made.load
    text = "\n\n".join(filter(None, [told, made.text]))
    context.replace(groups, text, reason="summarized", room=room, load=load)
    settle(context)

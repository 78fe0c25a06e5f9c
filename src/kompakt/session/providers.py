"""Context providers: they add messages before a run and see its result.

One protocol for everything that is not the conversation itself: retrieved documents, the time, a memory, and the
history in a store. Messages of a provider carry its ``source_id``, which is stored, so strategies can distinguish them
from the user's own messages. A strategy can run at three points: before each model call, before new messages are stored
(``before_write``), and on stored messages (``compact``).
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
from kompakt.engine.context.archive import ContextGroup
from kompakt.engine.context.context import Context
from kompakt.engine.context.projection import Load
from kompakt.engine.ledger.items import narrative_of
from kompakt.engine.pivot import pivot
from kompakt.engine.pivot.pivot import count_exactly
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
    """One run of an agent, as providers see it: they add messages before it and read the result after it."""

    session: str
    """The session's id."""
    inputs: list[Message]
    """The user's new messages."""
    format: str = "openai-chat"
    """The wire format of all messages here."""
    history: list[Message] = []
    """Earlier messages, as the model sees them. An agent without its own store starts from them."""
    added: list[Message] = []
    """Messages that providers added, each with its source."""
    responses: list[Message] = []
    """Messages that the run produced: answers, calls, results."""
    compacted: list[Message] | None = None
    """What the model sees after the run, if the run compacted."""
    unrecoverable: list[str] = []
    """References of messages that were not stored because of ``store_excluded=False``."""

    def add(self, source_id: str, messages: Iterable[Message]) -> None:
        """Add messages under a source."""
        self.added += [msgspec.structs.replace(message, source_id=source_id) for message in messages]

    @property
    def messages(self) -> list[Message]:
        """The first request: history, added messages, new messages of the user."""
        return [*self.history, *self.added, *self.inputs]


@runtime_checkable
class ContextProvider(Protocol):
    """Takes part in every run of an agent."""

    source_id: str
    """Marks the messages it adds."""

    async def before_run(self, run: Run) -> None:
        """Add messages; called before the first model call."""
        ...

    async def after_run(self, run: Run) -> None:
        """Read the result; called after the run. An error is logged and does not fail the run."""
        ...


class HistoryProvider:
    """Loads the history of a session from a store before a run, and stores the new messages after it.

    ``compaction`` is a policy or strategy for stored messages, ``before_write`` a strategy for new messages before they
    are stored, ``tokenizer`` counts for both. With ``store_excluded=False`` messages that ``before_write`` excludes are
    not stored, only their summary; ``Run.unrecoverable`` lists their references.
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
        """Load what the model sees of the session."""
        session = await self.store.session(run.session)
        if self.loads and await session.exists():
            shown = await session.project()
            run.history = list(_translated(shown.history, run.format))

    async def after_run(self, run: Run) -> None:
        """Store the new messages, then compact if that is due; a failed compaction is logged."""
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
                _log.warning("session %r stored but not compacted: %s", run.session, error)

    async def append(self, run: Run, messages: Sequence[Message]) -> None:
        """Store messages, after ``before_write`` if there is one."""
        if not messages:
            return
        session = await self.store.session(run.session)
        head = await session.records.head(session.key)
        format = run.format if head is None else head.format
        history = _translated(_history(messages, run.format), format)
        context = await self._prepared(history, session) if self._before_write is not None else None
        if context is None or not context.differs:
            await session.append(history)
        elif self._store_excluded:
            await session.append(history)
            await session.apply(_like(context), tokenizer=self._tokenizer, reason="compacted before it was stored")
        else:
            shown = set(context.shown_indices())
            lost = [n for n in range(len(history)) if n not in shown or n in context.visibility.replacements]
            run.unrecoverable += [context.reference(index) for index in lost]
            _log.info("session %r: %d new messages excluded or changed before storing", run.session, len(lost))
            await session.append(history.with_messages(context.project()))

    async def _prepared(self, history: History, session: Session) -> Context:
        """Run ``before_write`` on new messages; if it raises, the error is logged and they stay unchanged."""
        assert self._before_write is not None
        strategy, steps = self._before_write, list[Step]()
        counter = counter_of(self._tokenizer, history.model).own()
        context = Context(history, counter=counter, seal_key=session.seal_key)
        await attempt(context, strategy, getattr(strategy, "__name__", None) or type(strategy).__name__, steps)
        if context.is_rewritten:
            context.strip_reasoning()
        return context

    async def _adopt(self, session: Session, run: Run, compacted: Sequence[Message]) -> None:
        """Show what the run ended with, so that the next run does not compact the same history again."""
        sources = {None, *self._stored[2]}
        shown = [
            pivot.resealed(message, session.seal_key) if message.is_summary else message
            for message in compacted
            if message.role != "system" and message.source_id in sources
        ]
        history = _translated(_history(shown, run.format), (await session.head()).format)
        await session.replace(history, reason="compacted during the run")

    async def replace(self, session_id: str, messages: Sequence[Message]) -> SessionCompaction:
        """Show the model these messages from now on. Stored messages stay, and undo restores the previous view."""
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
        """Compact the stored session if that is due. Arguments override the provider's own settings.

        Raises:
            UsageError: there is no such session, or neither a budget nor a strategy with its own target.
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
    """Return messages in an empty envelope of their format."""
    return WIRES[format].parse([], None).with_messages(messages)


def _translated(history: History, format: str) -> History:
    """Translate a history to another format; messages keep their ``source_id``."""
    if history.format == format:
        return history
    translated: list[Message] = []
    for source_id, some in groupby(history, lambda message: message.source_id):
        made = api.parse(api.render(_history(some, history.format), format), format)
        translated += [msgspec.structs.replace(message, source_id=source_id) for message in made]
    return _history(translated, format)


def _like(new: Context) -> Strategy:
    """Return a strategy that repeats, on the newest messages of a session, what was done to ``new``."""

    async def compact_new(context: Context) -> bool:
        offset = len(context.messages) - len(new.messages)
        shown, hidden = set(new.shown_indices()), dict[int, ContextGroup]()
        for index in range(len(new.messages)):
            group = context.group_at(offset + index)
            if index not in shown and not context.is_protected(group):
                hidden[group.number] = group
            elif index in new.visibility.replacements:
                context.visibility.put(offset + index, new.shown(index))
        groups = list(hidden.values())
        if new.summary_text is None:
            context.exclude_all(groups, reason="compacted before it was stored")
        else:
            _summarize(context, groups, new)
        return context.is_rewritten

    return compact_new


def _summarize(context: Context, groups: Sequence[ContextGroup], new: Context) -> None:
    """Replace groups by the summary of the new messages, after the text of an earlier summary."""
    made, earlier = new.summary_text, context.summary_text
    assert made is not None
    text = earlier.text if earlier is not None else ""
    if made.room:  # the ledger is written again; the narrative before it is kept
        text = narrative_of(text)
    room = min(made.room + (earlier.tokens if earlier is not None else 0), MAX_LEDGER) if made.room else 0
    load = (earlier.load if earlier is not None else Load()) + made.load
    text = "\n\n".join(filter(None, [text, made.text]))
    context.replace(groups, text, reason="summarized", room=room, load=load)
    count_exactly(context)

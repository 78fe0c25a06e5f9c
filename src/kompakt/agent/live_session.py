"""A stored session with its context in memory, so that a step costs only what the step adds.

Messages are written to the store first and then to the context. After a compaction, or after another process has
written to the session, the context is loaded from the store again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from kompakt import api
from kompakt.agent.tools import interrupted
from kompakt.engine.context.context import Context
from kompakt.model.groups import groups, pair
from kompakt.model.messages import History, Json, JsonObject, Message, Text, ToolCall, ToolResult
from kompakt.model.phrases import CUT_SHORT
from kompakt.model.tokens import Tokenizer, counter_of
from kompakt.session.reader import ResumedSession, SessionReader, resume_session
from kompakt.session.rows import Draft, with_facts
from kompakt.session.session import Session
from kompakt.store.records import Head
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

SOURCE = "kompakt"


class LiveSession:
    """A session whose request grows with every step."""

    context: Context

    def __init__(
        self,
        session: Session,
        envelope: JsonObject,
        *,
        format: str,
        model: str,
        tokenizer: Tokenizer | None = None,
        with_recall: JsonObject | None = None,
    ) -> None:
        self.session = session
        self.envelope = envelope
        self._with_recall = with_recall
        """The envelope with the recall tool; ``None`` when it is never offered."""
        self.offers_recall = False
        """Whether requests offer the recall tool: once a message or an output has left the context."""
        self.format = format
        self.model = model
        self.tokenizer = tokenizer
        self._wire = WIRES[format]
        self._request = self._wire.parse([], {**envelope, self._wire.messages_key: []})
        self._items: list[Json] = []
        self._shown: Sequence[Message] = ()
        self._rendered = 0
        """Messages of ``_shown`` that are in ``_items``."""
        self._rows = 0
        self._events = 0
        self._needs_repair = False
        """Whether the stored history is invalid, so that every request has to be repaired."""

    # --- read -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the context from the store and close the calls that an interrupted run left open."""
        reader = await self.session.reader()
        found = await resume_session(reader, model=self.model, tokenizer=self.tokenizer)
        self.context, self._shown, self._rendered = found.context, (), 0
        self._rows, self._events = reader.head.rows, reader.head.events
        if self._with_recall is not None and _has_hidden(reader, found):
            self.offers_recall = True
            self.context.set_envelope(self._wire.parse([], {**self._with_recall, self._wire.messages_key: []}))
        if calls := self.open_calls():
            await self.append_results(await self._saved_results(reader, found, calls))
        self._needs_repair = bool(api.check(self._history(), resting=True))

    def begin(self) -> None:
        """Start with an empty context, for a session that does not exist yet."""
        history = self._wire.parse([], self.envelope)
        counter = counter_of(self.tokenizer, self.model).own()
        self.context = Context(history, counter=counter, seal_key=self.session.seal_key)

    def _history(self) -> History:
        history = self._wire.parse([], self.envelope)
        return history.with_messages(self.context.project())

    async def _saved_results(
        self, reader: SessionReader, found: ResumedSession, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        """Return results for the calls of an interrupted run: the saved one, else one that says "interrupted"."""
        wanted = {call.id for call in calls}
        made = [
            seq
            for seq, message in zip(found.seqs, found.history, strict=True)
            if any(call.id in wanted for call in message.calls)
        ]
        later = await reader.all(after=max(made, default=0))  # only later rows: call ids may repeat in other steps
        done = {result.call_id: result for one in later if one.row.kind == "finished" for result in one.message.results}
        return [msgspec.structs.replace(done.get(call.id) or interrupted(call), name=call.name) for call in calls]

    async def is_current(self) -> bool:
        """Return whether nothing but this object has written to the session since it was loaded."""
        head = await self.session.records.head(self.session.key)
        return head is None or (head.rows, head.events) == (self._rows, self._events)

    @property
    def is_finished(self) -> bool:
        """Whether the last message is an answer without open calls, so that there is nothing to continue."""
        messages = self.context.messages
        return bool(messages) and messages[-1].role == "assistant" and not self.open_calls()

    def open_calls(self) -> list[ToolCall]:
        """Return the calls of the newest answer that have no result yet."""
        messages = self.context.messages
        start = len(messages)
        while start and messages[start - 1].role != "assistant":
            start -= 1
        while start and messages[start - 1].role == "assistant":
            start -= 1
        newest = [message for group in groups(messages[start:]) for message in group.messages]
        found = [newest[at].parts[part] for at, part in pair(newest).open]
        return [call for call in found if type(call) is ToolCall and not call.hosted]

    def body(self, *, copied: bool = False, recall: bool = True) -> JsonObject:
        """Return the request body. Only new messages are rendered, unless earlier ones changed.

        The list of messages grows with the session. ``copied`` returns a list of its own, at the cost of its length.
        ``recall=False`` omits the recall tool.
        """
        shown = self.context.project()
        if shown is not self._shown:
            self._items, self._shown, self._rendered = [], shown, 0
        self._items += [item for message in shown[self._rendered :] for item in self._wire.render(message)]
        self._rendered = len(shown)
        envelope = self._with_recall if recall and self.offers_recall and self._with_recall else self.envelope
        body = {**envelope, self._wire.messages_key: list(self._items) if copied else self._items}
        return api.repair(body, self._wire.format).payload if self._needs_repair else body

    # --- write ----------------------------------------------------------------------------------------------------

    async def append_items(self, items: Sequence[Json]) -> list[Message]:
        """Append items in the client's format, such as those of a reply."""
        return await self._append(self._wire.parse(items, None))

    async def _append(self, messages: Iterable[Message]) -> list[Message]:
        new = list(messages)
        if new:
            await self.session.append(self._request.with_messages(new))
            self.context.extend(new)
            self._rows += len(new)  # rows of other writers are not counted, so is_current() notices them
        return new

    async def append_messages(self, messages: Sequence[Message], *, opening: Sequence[Json] = ()) -> None:
        """Append messages from any source, after the ``opening`` of a new session."""
        last = self.context.messages[-1:]
        new = [*self._wire.parse(opening, None)]
        if messages and last and last[0].results and not self._wire.contract.merges_results:
            new.append(Message("assistant", (Text(CUT_SHORT),), source_id=SOURCE))
        for message in messages:
            new += [_with_source(one, message.source_id) for one in self._wire.parse(self._wire.render(message), None)]
        await self._append(new)
        unanswered = bool(last) and last[0].role != "assistant"
        if unanswered or len(messages) > 1:  # consecutive messages of one role, which not every provider accepts
            self._needs_repair = bool(api.check(self._history(), resting=True))

    async def save_result(self, result: ToolResult) -> None:
        """Save the result of one tool while other tools of the same step still run."""

        async def make(head: Head) -> Draft:
            draft = Draft(head, self.session.codec(head.format))
            item = {
                "call": result.call_id,
                "output": result.output,
                "is_error": result.is_error,
                "name": result.name,
                "status": result.status,
                "started_at": result.started_at,
                "finished_at": result.finished_at,
            }
            draft.add(draft.codec.cleaned(item), Message("tool", (result,)), kind="finished")
            return draft

        await self.session.write(make)
        self._rows += 1

    async def append_results(self, results: Sequence[ToolResult]) -> list[Message]:
        """Append all results of a step at once and return their messages."""
        return await self._append(self.result_messages(results))

    def result_messages(self, results: Sequence[ToolResult]) -> list[Message]:
        """Return results as messages in the provider's format."""
        if self._wire.contract.results == "next-user-message":
            messages = [Message("user", tuple(results))]
        else:
            messages = [Message("tool", (result,)) for result in results]
        items = [item for message in messages for item in self._wire.render(message)]
        return [with_facts(message, results) for message in self._wire.parse(items, None)]

    async def update_system_prompt(self, opening: Sequence[Json]) -> None:
        """Show the system prompt of ``opening`` in place of the stored one, if they differ.

        This concerns formats in which the system prompt is a message, such as OpenAI Chat; elsewhere it is part of the
        envelope. The stored message stays. The replacement is recorded, and can be undone, like a compaction. The
        provider's prompt cache is lost once, as with every change of a system prompt.
        """
        wanted = next((message for message in self._wire.parse(opening, None) if message.role == "system"), None)
        if wanted is None:
            return
        shown = next((message for message in self.context.project() if message.role == "system"), None)
        if shown is None:
            _log.warning("session %r has no system prompt; the agent's system prompt is not used", self.session.id)
            return
        if shown.text == wanted.text:
            return

        async def system_text(context: Context) -> bool:
            at = next((at for at in context.shown_indices() if context.shown(at).role == "system"), None)
            if at is not None:
                context.visibility.put(at, wanted)
            return at is not None

        if (await self.session.apply(system_text)).changed:
            await self.load()


def _has_hidden(reader: SessionReader, found: ResumedSession) -> bool:
    """Return whether messages or outputs of a session are hidden; a changed system prompt alone does not count."""
    pivot = reader.timeline.pivot
    if pivot is None:
        return False
    system = {seq for seq, message in zip(found.seqs, found.history, strict=True) if message.role == "system"}
    return pivot.covers_to > 0 or found.context.hides or bool(found.altered - system)


def _with_source(message: Message, source_id: str | None) -> Message:
    return message if source_id is None else msgspec.structs.replace(message, source_id=source_id)

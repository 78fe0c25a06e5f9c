"""A stored session with its context in memory: what a step costs is what the step adds.

Everything is written to the store before it counts here. After a compaction, or when somebody else wrote, the context
is made again from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kompakt import api
from kompakt.agent.tools import interrupted
from kompakt.engine.context.context import Context
from kompakt.model.groups import groups
from kompakt.model.messages import History, Json, JsonObject, Message, Text, ToolCall, ToolResult
from kompakt.model.pairs import pair
from kompakt.model.phrases import CUT_SHORT
from kompakt.model.tokens import Tokenizer, counter_of
from kompakt.session.draft import Draft
from kompakt.session.projection import ResumedSession, resume_session
from kompakt.session.reader import SessionReader
from kompakt.session.row_codec import with_facts
from kompakt.session.session import Session
from kompakt.store.records import Head
from kompakt.wire.registry import WIRES

SOURCE = "kompakt"


class Live:
    """The request of a session as it grows."""

    context: Context

    def __init__(
        self,
        session: Session,
        envelope: JsonObject,
        *,
        format: str,
        model: str,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.session = session
        self.envelope = envelope
        self.format = format
        self.model = model
        self.tokenizer = tokenizer
        self._wire = WIRES[format]
        self._request = self._wire.parse([], {**envelope, self._wire.messages_key: []})
        self._items: list[Json] = []
        self._shown: Sequence[Message] = ()
        self._written = 0
        self._rows = 0
        self._events = 0
        self._mends = False
        """Whether the stored history is broken, so that every request has to be mended."""

    # --- read -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Make the context from the store; close what a run that was cut short has left open."""
        reader = await self.session.reader()
        found = await resume_session(reader, model=self.model, tokenizer=self.tokenizer)
        self.context, self._shown, self._written = found.context, (), 0
        self._rows, self._events = reader.head.rows, reader.head.events
        left = self.open_calls()
        if left:
            await self.answer(await self._remembered(reader, found, left))
        self._mends = bool(api.check(self._whole(), resting=True))

    def begin(self) -> None:
        """Begin with nothing: there is no such session yet."""
        history = self._wire.parse([], self.envelope)
        self.context = Context(history, counter=counter_of(self.tokenizer, self.model).own())

    def _whole(self) -> History:
        history = self._wire.parse([], self.envelope)
        return history.with_messages(self.context.project())

    async def _remembered(
        self, reader: SessionReader, found: ResumedSession, calls: Sequence[ToolCall]
    ) -> list[ToolResult]:
        """Answer calls of a run that ended: with what a tool had answered, else that it was interrupted."""
        wanted = {call.id for call in calls}
        made = [
            seq
            for seq, one in zip(found.seqs, found.history, strict=True)
            if any(call.id in wanted for call in one.calls)
        ]
        behind = await reader.all(after=max(made, default=0))  # ids may come again in other steps
        done = {
            result.call_id: result for one in behind if one.row.kind == "finished" for result in one.message.results
        }
        return [_named(done.get(call.id) or interrupted(call), call) for call in calls]

    async def is_current(self) -> bool:
        """Tell whether nobody else has written to the session."""
        head = await self.session.records.head(self.session.key)
        return head is None or (head.rows, head.events) == (self._rows, self._events)

    @property
    def rests(self) -> bool:
        """Whether the model had the last word, so that there is nothing to go on with."""
        messages = self.context.messages
        return bool(messages) and messages[-1].role == "assistant" and not self.open_calls()

    def open_calls(self) -> list[ToolCall]:
        """List the calls of the newest answer that nothing has answered yet."""
        messages = self.context.messages
        start = len(messages)
        while start and messages[start - 1].role != "assistant":
            start -= 1
        while start and messages[start - 1].role == "assistant":
            start -= 1
        newest = [message for group in groups(messages[start:]) for message in group.messages]
        found = [newest[at].parts[part] for at, part in pair(newest).open]
        return [call for call in found if type(call) is ToolCall and not call.hosted]

    def body(self, *, copied: bool = False) -> JsonObject:
        """Return the request as it would be sent now; written anew only where something was rewritten.

        Its messages grow with the session, unless they are ``copied``: at each step that would cost what it is long.
        """
        shown = self.context.project()
        if shown is not self._shown:
            self._items, self._shown, self._written = [], shown, 0
        self._items += [item for message in shown[self._written :] for item in self._wire.render(message)]
        self._written = len(shown)
        body = {**self.envelope, self._wire.messages_key: list(self._items) if copied else self._items}
        return api.repair(body, self._wire.format).payload if self._mends else body

    # --- write ----------------------------------------------------------------------------------------------------

    async def say(self, items: Sequence[Json]) -> list[Message]:
        """Append items of the client's format: to the store first, then here."""
        return await self._append(self._wire.parse(items, None))

    async def _append(self, messages: Iterable[Message]) -> list[Message]:
        new = list(messages)
        if new:
            await self.session.append(self._request.with_messages(new))
            self.context.extend(new)
            self._rows += len(new)  # others who write meanwhile are noticed: there are more rows than these
        return new

    async def add(self, messages: Sequence[Message], *, opening: Sequence[Json] = ()) -> None:
        """Append messages that were not said in the client's words, behind what a conversation opens with."""
        follows = self.context.messages[-1:]
        new = [*self._wire.parse(opening, None)]
        if messages and follows and follows[0].results and not self._wire.contract.merges_results:
            new.append(Message("assistant", (Text(CUT_SHORT),), source_id=SOURCE))
        for message in messages:
            new += [_sourced(one, message.source_id) for one in self._wire.parse(self._wire.render(message), None)]
        await self._append(new)
        unanswered = bool(follows) and follows[0].role != "assistant"
        if unanswered or len(messages) > 1:  # two messages of one side in a row, which not every provider takes
            self._mends = bool(api.check(self._whole(), resting=True))

    async def remember(self, result: ToolResult) -> None:
        """Keep what a tool answered while others of its step are still at work."""

        async def make(head: Head) -> Draft:
            draft = Draft(head, self.session.codec(head.format))
            times = {"started_at": result.started_at, "finished_at": result.finished_at}
            item = {
                "call": result.call_id,
                "output": result.output,
                "is_error": result.is_error,
                "name": result.name,
                "status": result.status,
                **times,
            }
            draft.add(draft.codec.cleaned(item), Message("tool", (result,)), kind="finished")
            return draft

        await self.session.write(make)
        self._rows += 1

    async def answer(self, results: Sequence[ToolResult]) -> list[Message]:
        """Append the results of a step, laid out as the provider wants them, all at once; return their messages."""
        return await self._append(self.laid_out(results))

    def laid_out(self, results: Sequence[ToolResult]) -> list[Message]:
        """Write results as messages of the provider's format."""
        made = [item for message in self._grouped(results) for item in self._wire.render(message)]
        return [with_facts(message, results) for message in self._wire.parse(made, None)]

    def _grouped(self, results: Sequence[ToolResult]) -> list[Message]:
        if self._wire.contract.results == "next-user-message":
            return [Message("user", tuple(results))]
        return [Message("tool", (result,)) for result in results]


def _sourced(message: Message, source_id: str | None) -> Message:
    return message if source_id is None else msgspec.structs.replace(message, source_id=source_id)


def _named(result: ToolResult, call: ToolCall) -> ToolResult:
    return msgspec.structs.replace(result, name=call.name)

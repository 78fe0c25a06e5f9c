"""A session: one conversation in a store, with its lifecycle.

Each call reads what it needs, works on values and commits one batch. The only state of the object is the last head it
wrote, a cache that saves a read and that the commit verifies. So any number of objects in any number of processes can
use the same session, and a process that dies leaves nothing half written.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from kompakt import api
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.recall import DEFAULT_TOKENS, Recalled
from kompakt.engine.recall.restore import read_query
from kompakt.engine.strategies import Strategy
from kompakt.errors import Conflict, StoreUnavailable, UsageError
from kompakt.model.budget import Budget
from kompakt.model.groups import page_end, safe_cuts
from kompakt.model.json import encode
from kompakt.model.messages import History, Json, Marker, Message
from kompakt.model.references import linked
from kompakt.model.tokens import Tokenizer, counter_for
from kompakt.session import compaction, replacement, undo, verify
from kompakt.session.compaction import CompactionOptions, SessionCompaction
from kompakt.session.lock import COMPACTION, LEASE, PATIENCE, TURN, hold
from kompakt.session.reader import (
    SessionProjection,
    SessionReader,
    export,
    project_session,
    read_timeline,
    resume_session,
)
from kompakt.session.rows import Draft, Redact, RowCodec, envelope_of
from kompakt.session.timeline import LinkEvent, PinEvent, SessionEvent, Timeline
from kompakt.session.undo import CompactionInfo
from kompakt.store.codec import ValueCodec
from kompakt.store.records import LONGEST_NAME, Batch, Fence, Head, Records, key_of

Payload = Json | History | Sequence[Message]
"""Messages of one provider: a request body, a list of messages, or a parsed ``History``."""

BATCH = 1_000
"""Messages per commit when a whole history is saved. An interrupted save continues where it stopped."""

MAX_CHILDREN = 50
"""Newest sessions of sub-agents that a recall searches."""

MIN_CHILD_TOKENS = 50
"""Tokens below which the session of a sub-agent is not searched."""

_CONFLICTS = 200
"""How often a write is retried after another writer committed first."""

_DROPS = 3
"""How often a commit is sent when the connection is lost. A batch is applied once, however often it is sent."""


class Session:
    """One conversation in a store."""

    def __init__(
        self, records: Records, id: str, *, tenant: str = "", value_codec: ValueCodec, redact: Redact | None = None
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.records = records
        self.key = key_of(tenant, id)
        self.value_codec = value_codec
        self.redact = redact
        self.seal_key = value_codec.seal_key(tenant)
        self._head: Head | None = None

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    def sibling(self, id: str) -> Session:
        """Return another session of the same tenant."""
        return Session(self.records, id, tenant=self.tenant, value_codec=self.value_codec, redact=self.redact)

    # --- read -----------------------------------------------------------------------------------------------------

    async def exists(self) -> bool:
        """Return whether the session is in the store."""
        return await self.records.head(self.key) is not None

    async def head(self) -> Head:
        """Return the head of the session: its counts, format and times.

        Raises:
            UsageError: there is no such session.
        """
        head = await self.records.head(self.key)
        if head is None:
            raise UsageError(f"there is no session {self.id!r} in this store; append to it first, or list the sessions")
        return head

    async def reader(self) -> SessionReader:
        """Read the head and the events; the reader then reads the rest."""
        head = await self.head()
        timeline = await read_timeline(self.records, head, self.value_codec) if head.events else Timeline(())
        return SessionReader(self.records, head, self.codec(head.format), timeline)

    def codec(self, format: str, *, model: str | None = None) -> RowCodec:
        """Return the codec of the session's messages."""
        return RowCodec(format, self.value_codec, redact=self.redact, counter=counter_for(model))

    async def pages(self) -> AsyncIterator[list[Message]]:
        """Iterate over all messages in pages that never end inside a group."""
        async for page in (await self.reader()).pages():
            messages = [one.message for one in page if one.row.kind == "message"]
            if messages:
                yield messages

    async def project(self, *, model: str | None = None) -> SessionProjection:
        """Return what the model will see, repaired if it is broken. The cost depends on what is shown."""
        return project_session(await resume_session(await self.reader(), model=model))

    async def count(self, *, model: str | None = None) -> int:
        """Count the tokens of what the model will see."""
        return (await resume_session(await self.reader(), model=model)).context.projected_tokens

    async def recall(self, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Search or restore any message of the session, and of its sub-agents' sessions; see ``kompakt.recall``.

        What is found in the session of a sub-agent follows a line with its name, in up to half of the tokens.
        """
        reader = await self.reader()
        found = await reader.recall(query_or_reference, tokens=tokens)
        children = reader.timeline.children[-MAX_CHILDREN:]
        if not children or (found and read_query(query_or_reference)[0] is not None):
            return found
        room = None if tokens is None else tokens // 2 if found else tokens
        parts = await self._recalled_from(children, query_or_reference, room)
        if not parts:
            return found
        rest = None if tokens is None else max(1, tokens - sum(part.tokens for part in parts))
        own = await reader.recall(query_or_reference, tokens=rest) if found else None
        every = [*([own] if own is not None else ()), *parts]
        return Recalled(
            text="\n".join(part.text for part in every),
            references=tuple(name for part in every for name in part.references),
            tokens=sum(part.tokens for part in every),
            rest=every[0].rest if len(every) == 1 else None,
            hits=tuple(hit for part in every for hit in part.hits),
            parts=every[0].parts if len(every) == 1 else (),
        )

    async def _recalled_from(self, children: Sequence[str], query: str, tokens: int | None) -> list[Recalled]:
        """Search the sessions of sub-agents, newest first; each answer starts with a line that names its session."""
        found: list[Recalled] = []
        counter = counter_for(None)
        for id in reversed(children):
            title = f"[kompakt] In the session {id!r} of a sub-agent:"
            size = counter.scaled(counter.text(title)) + 1
            if tokens is not None and tokens < size + MIN_CHILD_TOKENS:
                break
            child = self.sibling(id)
            one = await child.recall(query, None if tokens is None else tokens - size) if await child.exists() else None
            if one:
                one = msgspec.structs.replace(one, text=f"{title}\n{one.text}", tokens=one.tokens + size)
                found.append(one)
                tokens = None if tokens is None else tokens - one.tokens
        return found

    async def link(self, parent: str) -> None:
        """Record that this is the session of a sub-agent of ``parent``; ``recall`` on the parent then searches it, too.

        Raises:
            UsageError: one of the sessions does not exist, this one has another parent, or it is above ``parent``.
        """
        known = (await self.reader()).timeline.parent
        if known == parent:
            return
        if known is not None:
            raise UsageError(f"session {self.id!r} already belongs to {known!r}")
        above: str | None = parent
        while above is not None:
            if above == self.id:
                raise UsageError(f"session {self.id!r} cannot belong to {parent!r}, which belongs to it")
            above = (await self.sibling(above).reader()).timeline.parent
        await self.sibling(parent).do(lambda _: [LinkEvent(session=self.id)])
        await self.do(lambda _: [LinkEvent(session=parent, is_parent=True)])

    async def verify(self) -> list[str]:
        """Recompute all derived values and list the differences; an empty list means the session is intact."""
        return await verify.verify(await self.reader())

    async def is_served(self) -> bool:
        """Return whether a gateway records the session for its client. Such a session has a label."""
        name = label_name(self.id)
        is_possible = self.id.isascii() and len(name) <= LONGEST_NAME
        return is_possible and name in await self.records.notes(self.tenant, [name])

    # --- write ----------------------------------------------------------------------------------------------------

    async def append(self, messages: Payload, *, format: str | None = None, key: str | None = None) -> list[str]:
        """Append messages in one commit; return their references.

        ``key`` makes the call idempotent: messages with a key that was used before are not written, and the list is
        empty.
        """
        history = await self._parsed(messages, format)
        refs: list[str] = []

        async def make(head: Head) -> Draft:
            return self._drafted(head, history, history.messages)

        await self.write(make, history=history, id=None if key is None else f"key {key_of('', key)}", names=refs)
        return refs

    async def save(
        self,
        messages: Payload,
        *,
        format: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Append the new messages of a whole history; stored messages are not written again.

        Raises:
            UsageError: the history does not start with the stored messages.
        """
        history = await self._parsed(messages, format)
        refs: list[str] = []
        chain, cuts = b"", safe_cuts(history.messages)
        chains = [chain := linked(chain, message) for _, message in self.codec(history.format).items(history)]

        async def make(head: Head) -> Draft:
            known = await self._known(head, chains)  # again, because another writer may have been first
            return self._drafted(head, history, history.messages[known : page_end(cuts, known, size=BATCH)])

        while True:
            head = self._head = await self.records.head(self.key)
            if head is not None:
                self._check_format(head, history)
            known = await self._known(head, chains)
            if progress is not None:
                progress(known, len(history))
            if known >= len(history) and head is not None and not self._has_new_envelope(head, history, chains):
                return refs
            await self.write(make, history=history, names=refs)

    def _has_new_envelope(self, head: Head, history: History, chains: Sequence[bytes]) -> bool:
        """Return whether a history without new messages has another envelope than the stored one."""
        is_all = (chains[-1] if chains else b"") == head.chain
        return is_all and self._envelope(self.codec(head.format), head, history) is not None

    async def _known(self, head: Head | None, chains: Sequence[bytes]) -> int:
        """Count the messages at the start of a history that are stored; ``chains`` has the chain hash after each."""
        if head is None or not head.messages:
            return 0
        if len(chains) >= head.messages and chains[head.messages - 1] == head.chain:
            return head.messages
        if not chains or chains[-1] in [row.chain async for rows in (await self.reader()).rows() for row in rows]:
            return len(chains)
        raise UsageError(
            f"the history does not continue session {self.id!r}: it differs from the stored messages; "
            "revert or fork the session, or save under another id"
        )

    def _drafted(self, head: Head, history: History, messages: Sequence[Message]) -> Draft:
        codec = self.codec(head.format, model=history.model)
        draft = Draft(head, codec)
        envelope = self._envelope(codec, head, history)
        if envelope is not None:
            draft.change(envelope=self.value_codec.pack_whole(envelope))
        for item, message in codec.items(messages):
            draft.add(item, message)
        return draft

    def _envelope(self, codec: RowCodec, head: Head, history: History) -> Json:
        """Return the envelope of a history if it differs from the stored one. Reading that one detects a wrong key."""
        before = self.value_codec.unpack(head.envelope, where="the envelope of the session")
        envelope = codec.cleaned(envelope_of(history))
        return None if envelope is None or encode(envelope) == encode(before) else envelope

    async def _parsed(self, messages: Payload, format: str | None) -> History:
        if isinstance(messages, History):
            return messages
        if format is None:
            head = self._head or await self.records.head(self.key)
            format = head.format if head is not None else None
        if isinstance(messages, Sequence) and messages and all(isinstance(one, Message) for one in messages):
            return History(messages, format=format or "openai-chat")
        return api.parse(messages, format)

    def _check_format(self, head: Head, history: History) -> None:
        if history.format != head.format:
            raise UsageError(f"session {self.id!r} is in {head.format}, not in {history.format}; render it first")

    async def write(
        self,
        make: Callable[[Head], Awaitable[Draft]],
        *,
        history: History | None = None,
        id: str | None = None,
        fence: Fence | None = None,
        names: list[str] | None = None,
    ) -> bool:
        """Make a draft from the newest head and commit it; retry if another writer committed first."""
        for attempt in range(_CONFLICTS):
            head = self._head if not attempt and self._head is not None else await self.records.head(self.key)
            begun = head or self._beginning(history)
            if history is not None:
                self._check_format(begun, history)
            draft = await make(begun)
            batch = await draft.batch(self.records, id)
            try:
                new = await self._commit(batch, seen=None if head is None else draft.seen, fence=fence)
            except Conflict:
                self._head = None
                if fence is not None and not await self.records.renew(self.key, fence, lease=LEASE):
                    raise
                await asyncio.sleep(random.uniform(0, 0.002 * min(attempt + 1, 20)))
                continue
            written = new or id is None  # a batch with a random id is ours, even if a retry found it written
            self._head = batch.head if written else None
            if names is not None and written:
                names.extend(row.name for row in batch.rows)
            return written
        raise Conflict(f"session {self.id!r} has too many concurrent writers; use session.turn() to take turns")

    def _beginning(self, history: History | None) -> Head:
        """Return the head of a session that does not exist yet."""
        if history is None:
            raise UsageError(f"there is no session {self.id!r} in this store; append to it first, or list the sessions")
        return Head(
            key=self.key,
            tenant=self.tenant,
            id=self.id.encode("utf-8", "surrogatepass"),
            format=history.format,
            envelope=self.value_codec.pack_whole(None),
            created=time.time(),
        )

    async def _commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None) -> bool:
        for drop in range(_DROPS):
            try:
                return await self.records.commit(batch, seen=seen, fence=fence)
            except StoreUnavailable:
                if drop == _DROPS - 1:
                    raise
                await asyncio.sleep(0.05 * (drop + 1))
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def turn(self, *, patience: float = PATIENCE) -> AsyncGenerator[Session]:
        """Hold the session's turn lock: other callers of ``turn`` wait until the block ends.

        Raises:
            Busy: the lock was held by others for ``patience`` seconds.
        """
        async with hold(self.records, self.key, TURN, session=self.id, patience=patience):
            self._head = None
            yield self

    async def pin(self, text: str, *, pinned: bool = True) -> None:
        """Pin a text, so that it survives every compaction unchanged; or remove the pin."""
        if not text:
            raise UsageError("an empty text cannot be pinned")
        await self.change(lambda reader: [PinEvent(text=reader.codec.cleaned(text), pinned=pinned)])

    async def change(self, events: Callable[[SessionReader], Sequence[SessionEvent]]) -> None:
        """Record events as ``do`` does, so that a gateway notices them."""
        async with self.change_lock() as fence:
            await self.do(events, fence=fence)

    @asynccontextmanager
    async def change_lock(self) -> AsyncGenerator[Fence | None]:
        """Hold the lock for a change by a person, if a gateway records the session. The next request notices it.

        Raises:
            Busy: a compaction of the session did not end in time.
        """
        if not await self.is_served():
            yield None
            return
        async with hold(self.records, self.key, COMPACTION, session=self.id, patience=PATIENCE) as fence:
            await self._mark()
            yield fence

    async def _mark(self) -> None:
        """Mark the session as changed by a person: from now on its timeline decides what a gateway sends."""
        await self.head()  # a deleted session gets no mark
        await self.records.note(self.tenant, self.key, {changed_name(self.key): b"1"})
        self._head = None

    async def do(
        self, events: Callable[[SessionReader], Sequence[SessionEvent]], *, fence: Fence | None = None
    ) -> Timeline:
        """Record the events that ``events`` returns for the session as it is now; return the new timeline."""

        async def make(_: Head) -> Draft:
            reader = await self.reader()
            draft = Draft(reader.head, reader.codec)
            for event in events(reader):
                draft.add_event(event)
            return draft

        self._head = None
        await self.write(make, fence=fence)
        return (await self.reader()).timeline

    # --- compaction -----------------------------------------------------------------------------------------------

    async def request_compaction(
        self, *, auto: bool = False, instructions: str | None = None, reason: str | None = None
    ) -> int:
        """Store a request to compact; the next call of ``compact`` answers it. Return the row of the request.

        ``reason`` appears in the report of the compaction.
        """
        seqs: list[int] = []

        async def make(head: Head) -> Draft:
            draft = Draft(head, self.codec(head.format))
            seqs[:] = [compaction.add_marker(draft, Marker(auto, instructions, reason))]
            return draft

        await self.write(make)
        return seqs[0]

    async def pending(self) -> dict[int, Marker]:
        """Return the pending requests to compact, by row."""
        return await (await self.reader()).markers()

    async def compact(
        self,
        budget: int | Budget | None = None,
        *,
        policy: AnyPolicy = "default",
        summarizer: Summarizer | None = None,
        instructions: str | None = None,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
        resume: bool | str = True,
        question: str | None = None,
        reason: str | None = None,
        patience: float = PATIENCE,
    ) -> SessionCompaction:
        """Answer pending requests, or compact if the budget is exceeded or a trigger fires; otherwise change nothing.

        ``policy`` is a name, a ``Policy`` or one strategy.

        ``tokenizer`` counts instead of the model's own counter. With ``reason`` the session is always compacted, and
        the report has that reason.

        After an automatic compaction a message asks the agent to continue. ``resume`` replaces its text, or omits it if
        ``False``. ``question`` replaces the words of the user message before the summary, from this compaction on; an
        empty text restores the usual ones.

        Raises:
            DoesNotFit: what must stay is larger than the budget; only the failure is recorded.
            Busy: another compaction of the session ran for ``patience`` seconds.
        """
        options = CompactionOptions(
            budget=budget,
            policy=policy,
            summarizer=summarizer,
            instructions=instructions,
            model=model,
            tokenizer=tokenizer,
            resume=resume,
            question=question,
            reason=reason,
        )
        async with hold(self.records, self.key, COMPACTION, session=self.id, patience=patience) as fence:
            if await self.is_served():
                await self._mark()
                return await compaction.compact_served(self, options, fence)
            return await compaction.compact(self, options, fence)

    async def apply(
        self,
        strategy: Strategy,
        *,
        tokenizer: Tokenizer | None = None,
        reason: str | None = None,
        patience: float = PATIENCE,
    ) -> SessionCompaction:
        """Run a strategy on what the model sees; the change is recorded, and undone, like a compaction."""
        async with hold(self.records, self.key, COMPACTION, session=self.id, patience=patience) as fence:
            return await compaction.apply(self, strategy, fence, tokenizer=tokenizer, reason=reason)

    async def replace(
        self, messages: Payload, *, format: str | None = None, reason: str = "asked for"
    ) -> SessionCompaction:
        """Show the model these messages from now on. Stored messages stay, and undo restores the previous view."""
        return await replacement.replace(self, await self._parsed(messages, format), reason=reason)

    async def compactions(self) -> list[CompactionInfo]:
        """List all compactions, oldest first, including those that were undone."""
        return undo.list_compactions((await self.reader()).timeline)

    # --- time -----------------------------------------------------------------------------------------------------

    async def undo(self, id: str | None = None) -> str:
        """Undo a compaction and those after it, or without an id the last compaction, revert or edit.

        Returns what was undone. A later compaction continues from an earlier one, so it cannot count without that.
        """
        return await undo.undo(self, id)

    async def redo(self) -> str:
        """Take back the newest undo of a compaction or an edit; return the description of what counts again.

        Raises:
            UsageError: nothing was undone, or the session was compacted, edited or reverted since.
        """
        return await undo.redo(self)

    async def revert(self, turn: int) -> int:
        """Go back to the end of a turn; return the number of messages taken back."""
        return await undo.revert(self, turn)

    async def edit_summary(self, text: str, id: str | None = None) -> None:
        """Replace the text of a summary, by default of the newest."""
        await undo.edit_summary(self, text, id)

    async def fork(self, id: str | None = None, *, turn: int | None = None) -> Session:
        """Create another session with all of this one, or with its first turns."""
        return await undo.fork(self, id, turn)

    async def replay(self, turn: int, *, format: str | None = None) -> Json:
        """Return the messages from a turn on, as a request that can be sent again."""
        return await export(await self.reader(), first=turn, format=format)

    async def export(
        self, *, view: Literal["full", "model"] = "full", format: str | None = None, turns: int | None = None
    ) -> Json:
        """Return the session as a request: all messages or what the model sees, whole or only the last turns."""
        return await export(await self.reader(), view=view, format=format, last=turns)

    async def delete(self) -> bool:
        """Delete the session; return whether it existed. ``Store.scrub`` removes its bytes from the store's files."""
        removed = await self.records.delete([self.key])
        self._head = None
        return bool(removed)


# Note names are stored; do not change them.


def label_name(session: str) -> str:
    """Return the name of the note that holds the label of a session, which a gateway writes."""
    return f"label {session}"


def changed_name(key: str) -> str:
    """Return the name of the note that marks a session, by its key, as changed by a person."""
    return f"changed {key}"

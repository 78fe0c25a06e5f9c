"""Read a session from its store: rows in pages that end between groups, search and restore, and the projection.

Reading takes no lock. Rows are never rewritten, and the head says how far to read.

The model sees the view of the newest pivot and all later messages. Reading it costs what is shown, not what is stored.
A session that is broken on disk is repaired in the projection, and the repairs are listed; stored rows do not change.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple, ParamSpec, TypeVar

import msgspec

from kompakt import api
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import full_ledger
from kompakt.engine.pivot.saved_state import FULL_LEDGER, SavedContext, resume
from kompakt.engine.recall import Memory, Recalled
from kompakt.engine.recall.restore import read_query
from kompakt.engine.recall.terms import DEMAND_WORDS, asks_for_rules
from kompakt.errors import StoreDamaged, UsageError
from kompakt.model.contract import Contract
from kompakt.model.groups import Grouping, cuts_of, groups, pair, sides, turn_cuts
from kompakt.model.json import decode
from kompakt.model.messages import History, Json, JsonObject, Marker, Message, Opaque, Reasoning, ToolResult
from kompakt.model.tokens import Counter, Tokenizer, counter_for, counter_of
from kompakt.session.rows import RowCodec, StoredMessage, history_of
from kompakt.session.timeline import CompactionRecord, Frame, RecordedEvent, SessionEvent, Timeline, ViewEntry
from kompakt.store.codec import ValueCodec, pointed
from kompakt.store.records import Head, Records, StoredEvent, StoredRow
from kompakt.wire.registry import WIRES

PAGE = 500
"""Rows per read."""

MANY = 2_000
"""Messages that are decoded in a thread, because that takes more than a few hundredths of a second."""

CANDIDATES = 400
"""Rows found by the store's index that recall ranks again."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_WORD = re.compile(r"\w[\w.\-/]*", re.UNICODE)


async def off_loop(
    size: int, work: Callable[Parameters, Result], *args: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Run work on many messages in a thread, so that other requests are served meanwhile; on few, at once."""
    return await asyncio.to_thread(work, *args, **options) if size > MANY else work(*args, **options)


class SessionRows(NamedTuple):
    """The messages that a session shows."""

    every: list[StoredMessage]
    kept: int
    """How many of them, from the start, come from the newest compaction."""
    markers: dict[int, Marker]
    """Pending requests to compact, by row."""


class SessionReader:
    """Reads one session as it was when its head was read."""

    def __init__(self, records: Records, head: Head, codec: RowCodec, timeline: Timeline) -> None:
        self.records = records
        self.head = head
        self.codec = codec
        self.timeline = timeline
        self.seal_key = codec.value_codec.seal_key(head.tenant)
        """Seals the pivots of the session; empty without a key."""

    @property
    def envelope(self) -> JsonObject | None:
        value = self.codec.value_codec.unpack(self.head.envelope, where="the envelope of the session")
        if value is not None and not isinstance(value, dict):
            raise StoreDamaged("the envelope of the session is not an object; restore the store from a backup")
        return value

    # --- rows -----------------------------------------------------------------------------------------------------

    async def stored(self, rows: Sequence[StoredRow]) -> list[StoredMessage]:
        """Decode rows, with their blobs."""
        return self.codec.stored(rows, await self.blobs(rows))

    async def blobs(self, rows: Sequence[StoredRow]) -> dict[str, bytes]:
        """Read the blobs that rows refer to."""
        wanted = {hash for row in rows for hash in row.blobs}
        return await self.records.blobs(self.head.tenant, wanted) if wanted else {}

    async def rows(self, *, after: int = 0, upto: int | None = None) -> AsyncIterator[list[StoredRow]]:
        """Iterate over the live rows in pages."""
        last = self.head.rows if upto is None else upto
        for first, end in self.timeline.live_spans(after, last):
            at = first - 1
            while at < end:
                rows = await self.records.rows(self.head.key, after=at, upto=end, limit=PAGE)
                if not rows or rows[-1].seq - at != len(rows):
                    raise StoreDamaged(
                        f"some of messages {at + 1} to {end} are missing; restore the store from a backup"
                    )
                yield rows
                at = rows[-1].seq

    async def message_rows(self) -> Sequence[int]:
        """Return the sequence numbers of the live messages."""
        if self.head.rows == self.head.messages:
            return range(1, self.head.rows + 1)
        return [row.seq async for rows in self.rows() for row in rows if row.kind == "message"]

    async def cuts(self) -> list[int]:
        """Return the rows after which the session may be cut, 0 included.

        Reads the whole session: a result can follow its call at any distance, so safe cuts are known only at the end.
        """
        grouping, seqs = Grouping(), [0]
        async for rows in self.rows():
            for one in await self.stored(rows):
                grouping.add(one.message)
                seqs.append(one.row.seq)
        return [seqs[cut] for cut in cuts_of(grouping)]

    async def pages(self) -> AsyncIterator[list[StoredMessage]]:
        """Iterate over all live rows in pages that never end inside a group."""
        cuts = await self.cuts()
        held: list[StoredRow] = []
        async for rows in self.rows():
            held += rows
            end = cuts[bisect(cuts, held[-1].seq) - 1]
            page = [row for row in held if row.seq <= end]
            if page:
                yield await self.stored(page)
                held = held[len(page) :]

    async def all(self, *, after: int = 0, upto: int | None = None) -> list[StoredMessage]:
        held: list[StoredRow] = []
        async for rows in self.rows(after=after, upto=upto):
            held += rows
        return await self.stored(held)

    async def at(self, seqs: Sequence[int]) -> list[StoredMessage]:
        """Read the rows with these sequence numbers, live or not."""
        return await self.stored(await self.records.rows_at(self.head.key, seqs))

    # --- turns ----------------------------------------------------------------------------------------------------

    async def turn_start(self, turn: int) -> int:
        """Return the first live row of a turn."""
        turns = self.head.turn
        if not 1 <= turn <= turns:
            raise UsageError(f"there is no turn {turn}; the session has {turns} turns")
        seqs = await self.records.turn_seqs(self.head.key, turn)
        live = [seq for seq in seqs if self.timeline.is_live(seq)]
        if not live:
            raise StoreDamaged(f"turn {turn} has no messages; restore the store from a backup")
        return live[0]

    async def turn_end(self, turn: int) -> int:
        """Return the row before the next turn, if the session may be cut there.

        Raises:
            UsageError: a later turn answers a call of this one.
        """
        cuts = set(await self.cuts())
        for earlier in range(turn, -1, -1):
            first = await self.turn_start(earlier + 1)
            spans = self.timeline.live_spans(0, first - 1)
            if (spans[-1][1] if spans else 0) in cuts:
                break
        else:
            earlier, first = 0, 1
        if earlier != turn:
            raise UsageError(f"a later turn answers a call of turn {turn} or before; go to turn {earlier} instead")
        return first - 1

    # --- compactions ----------------------------------------------------------------------------------------------

    async def frame(self, record: CompactionRecord) -> Frame:
        """Read the frame of a compaction, with its summary as last edited."""
        text = await self.text(record.frame, f"compaction {record.id}")
        try:
            frame = msgspec.convert(decode(text.encode("utf-8", "surrogatepass")), Frame)
        except (ValueError, RecursionError) as error:
            raise StoreDamaged(f"compaction {record.id}: {error}; undo it, or restore a backup") from None
        edited = self.timeline.edited_summary(record)
        if edited is None:
            return frame
        summary = await self.text(edited, f"the summary of compaction {record.id}")
        return msgspec.structs.replace(frame, state=msgspec.structs.replace(frame.state, summary=summary))

    async def text(self, value: Json, where: str) -> str:
        """Read a text that may be stored as a blob."""
        hash = pointed(value)
        blobs = await self.records.blobs(self.head.tenant, [hash]) if hash is not None else {}
        return self.codec.value_codec.resolve(value, blobs, where=where)

    async def markers(self) -> dict[int, Marker]:
        """Return the pending requests to compact, by row."""
        pivot = self.timeline.pivot
        found: list[StoredRow] = []
        async for rows in self.rows(after=pivot.tip if pivot is not None else 0):
            found += [row for row in rows if row.kind == "marker"]
        return await self._markers(found)

    async def _markers(self, rows: Sequence[StoredRow]) -> dict[int, Marker]:
        open = [row for row in rows if row.seq not in self.timeline.answered]
        read = [(one.row.seq, one.message.parts[0]) for one in await self.stored(open)] if open else []
        return {seq: part for seq, part in read if type(part) is Marker}

    async def view(self, frame: Frame | None, *, after: int) -> SessionRows:
        """Read what is shown: the view of a compaction, and all rows after ``after``.

        Both are decoded together, so that results find their calls.
        """
        entries = {entry.seq: entry for entry in frame.view} if frame is not None else {}
        found = {row.seq: row for row in await self.records.rows_at(self.head.key, entries)} if entries else {}
        if len(found) != len(entries):
            raise StoreDamaged("a compaction shows messages that are missing; undo it, or restore a backup")
        rows = [found[seq] for seq in entries]
        kept, muted, markers = len(rows), self.timeline.muted, list[StoredRow]()
        async for page in self.rows(after=after):
            rows += [row for row in page if row.kind in ("message", "resume") and row.seq not in muted]
            markers += [row for row in page if row.kind == "marker"]
        instead = {seq: entry.item for seq, entry in entries.items() if entry.item is not None}
        blobs = await self.blobs([row for row in rows if row.seq not in instead])
        read = await off_loop(len(rows), self.codec.stored, rows, blobs, instead)
        every = [_as_shown(one, entries.get(one.row.seq)) for one in read]
        return SessionRows(every, kept, await self._markers(markers))

    # --- recall ---------------------------------------------------------------------------------------------------

    async def recall(self, query: str, *, tokens: int | None) -> Recalled:
        """Restore a reference, or search; both find messages that were hidden, and a reference finds reverted ones.

        A reference takes one lookup. A search costs what the store's index finds, or the whole session without one.
        """
        if not isinstance(query, str):  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"recall takes a query or a reference as text, not {query!r}")
        read, _ = read_query(query)
        seqs = await self.records.named(self.head.key, [read.message]) if read is not None else {}
        found = await self._with_results(list(seqs.values())) if seqs else await self._search(query)
        messages = [one for one in found if one.row.kind == "message"]
        references = [one.row.name for one in messages]
        memory = Memory([one.message for one in messages], counter=counter_for(None), references=references)
        return memory.recall(query, tokens=tokens)

    async def _with_results(self, seqs: list[int]) -> list[StoredMessage]:
        """Read messages, and the rows after a call that may hold its results."""
        found = await self.at(seqs)
        calls = max([len(one.message.calls) for one in found], default=0)
        following = range(max(seqs) + 1, min(max(seqs) + calls, self.head.rows) + 1)
        return [*found, *await self.at(list(following))] if following else found

    async def _search(self, query: str) -> list[StoredMessage]:
        if self.codec.value_codec.is_encrypted:  # encrypted text is not indexed
            return await self.all()
        words = [part for word in _WORD.findall(query) for part in (word, *re.split(r"[._\-/]", word)) if part]
        seqs = await self.records.search(self.head.key, list(dict.fromkeys(words)), limit=CANDIDATES)
        if seqs is None:
            return await self.all()
        if asks_for_rules(query):  # they share no word with the query
            demands = await self.records.search(self.head.key, DEMAND_WORDS, limit=CANDIDATES)
            seqs = list(dict.fromkeys([*seqs, *(demands or ())]))
        return await self.at([seq for seq in seqs if self.timeline.is_live(seq)])


def _as_shown(one: StoredMessage, entry: ViewEntry | None) -> StoredMessage:
    """Mark the hidden outputs of a message that is shown changed, and drop its token count."""
    if entry is None or entry.item is None:
        return one
    times = dict(zip_longest(entry.pruned, entry.pruned_at, fillvalue=0.0))
    shown = [
        msgspec.structs.replace(part, pruned_at=times[j]) if j in times and type(part) is ToolResult else part
        for j, part in enumerate(one.message.parts)
    ]
    message = msgspec.structs.replace(one.message, parts=tuple(shown))
    return StoredMessage(one.row, message, msgspec.structs.replace(one.note, counter=""))


_LARGE = ("compaction", "edit")
"""Events whose blob is read only on demand."""


async def read_timeline(records: Records, head: Head, value_codec: ValueCodec) -> Timeline:
    events = [event for event in await records.events(head.key) if event.number <= head.events]
    wanted = {hash for event in events if event.kind not in _LARGE for hash in event.blobs}
    blobs = await records.blobs(head.tenant, wanted) if wanted else {}
    return Timeline(_recorded(event, value_codec, blobs) for event in events)


def _recorded(stored: StoredEvent, value_codec: ValueCodec, blobs: dict[str, bytes]) -> RecordedEvent:
    where = f"event {stored.number}"
    own = blobs if stored.blobs and stored.kind not in _LARGE else None
    try:
        event = msgspec.convert(value_codec.unpack(stored.data, own, where=where), SessionEvent)
    except msgspec.ValidationError:
        raise StoreDamaged(f"{where} is unknown to this version; a newer kompakt may have written it") from None
    return RecordedEvent(stored.number, event, stored.at, stored.tip)


# --- the projection --------------------------------------------------------------------------------------------------


class SessionProjection(msgspec.Struct, frozen=True):
    """What the model sees."""

    payload: Json
    """A request in the session's format."""
    history: History
    """The same as messages, before repairs."""
    tokens: int
    repairs: tuple[str, ...] = ()
    """What was repaired so that the provider accepts the request."""


class ResumedSession(msgspec.Struct):
    """The context of a stored session, and the row of each of its messages."""

    context: Context
    history: History
    """The messages of the context, in the session's envelope."""
    seqs: list[int]
    names: tuple[str, ...]
    kinds: list[str]
    altered: frozenset[int] = frozenset()
    """Rows that the newest compaction shows changed."""
    markers: dict[int, Marker] = {}
    """Pending requests to compact, by row."""


async def resume_session(
    reader: SessionReader, *, model: str | None = None, tokenizer: Tokenizer | None = None
) -> ResumedSession:
    """Build the context of a session, counted by ``tokenizer``, else for ``model``, else for the session's model."""
    return await resume_rows(reader, *await read_shown(reader), model=model, tokenizer=tokenizer)


async def read_shown(reader: SessionReader) -> tuple[Frame | None, SessionRows]:
    """Read what the model sees: the view of the newest compaction, and the rows after it."""
    pivot = reader.timeline.pivot
    frame = await reader.frame(pivot) if pivot is not None else None
    return frame, await reader.view(frame, after=pivot.tip if pivot is not None else 0)


async def resume_rows(
    reader: SessionReader,
    frame: Frame | None,
    rows: SessionRows,
    *,
    model: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> ResumedSession:
    """Build the context of a session from what ``read_shown`` returned, which can be used again."""
    envelope = history_of((), reader.head.format, reader.envelope)
    counter = counter_of(tokenizer, model or envelope.model).own()
    state = frame.state if frame else SavedContext()
    session = await off_loop(
        len(rows.every), _resumed, envelope, state, rows.every, rows.kept, counter, reader.seal_key
    )
    session.markers = rows.markers
    session.altered = frozenset(entry.seq for entry in (frame.view if frame else ()) if entry.item is not None)
    return session


def _resumed(
    envelope: History,
    state: SavedContext,
    every: Sequence[StoredMessage],
    kept: int,
    counter: Counter,
    seal_key: bytes,
) -> ResumedSession:
    names = tuple(one.row.name for one in every)
    annotations = [one.annotation for one in every if one.note.counter == counter.name]
    context = resume(
        envelope.with_messages(one.message for one in every[:kept]),
        state,
        counter=counter,
        references=names,
        annotations=annotations,
        seal_key=seal_key,
    )
    context.is_resumed = bool(state.ledger)
    context.manual_thinking = WIRES[envelope.format].manual_thinking(envelope.body)
    # Where roles alternate, the next user message is merged with a resume message, so both sides of it are breaks.
    asks = [index for index, one in enumerate(every) if one.row.kind == "resume"]
    context.breaks |= {index for at in asks for index in (at, at + 1)}
    context.extend(one.message for one in every[kept:])
    history = envelope.with_messages(one.message for one in every)
    return ResumedSession(context, history, [one.row.seq for one in every], names, [one.row.kind for one in every])


def project_session(session: ResumedSession) -> SessionProjection:
    """Return what the model sees, repaired if necessary."""
    context = session.context
    history = session.history.with_messages(list(context.project()))
    repaired = api.repair(history, resting=_ends_with_answer(history))
    return SessionProjection(repaired.payload, history, context.projected_tokens, tuple(map(str, repaired.changes)))


def ledger_without(session: ResumedSession, seqs: Collection[int]) -> str:
    """Return the ledger of all messages that will not be shown; ``seqs`` are the rows that will."""
    context = session.context
    snapshot = context.snapshot()
    for group in list(context.live):
        if not any(session.seqs[index] in seqs for index in group.indices):
            context.visibility.hide((group,), "no longer shown")
    ledger = full_ledger(context, FULL_LEDGER)
    context.rollback(snapshot)  # a conflict may require a second draft from the same context
    return ledger


def _ends_with_answer(history: History) -> bool:
    """Return whether the assistant wrote the last message, so that nothing is about to be sent."""
    return bool(history.messages) and history.messages[-1].role == "assistant" and not mid_step(history.messages)


def mid_step(messages: Sequence[Message], contract: Contract | None = None) -> bool:
    """Return whether a step is unfinished, so that no user message may be inserted after the last message.

    A call waits for its result. If the provider allows no text beside results, results wait for the model's answer.
    """
    if not messages:
        return False
    last = messages[-1]
    if last.results and contract is not None and contract.alternates and not contract.merges_results:
        return True
    if last.parts and all(type(part) is Opaque for part in last.parts):  # a provider's item that may have to be last
        return True
    if last.role == "assistant" and all(type(part) is Reasoning for part in last.parts):
        return True
    newest = groups(messages)[-1].messages
    return last in newest and bool(pair(newest).open)


async def export(
    reader: SessionReader,
    *,
    view: Literal["full", "model"] = "full",
    format: str | None = None,
    last: int | None = None,
    first: int | None = None,
) -> Json:
    """Return a session as a request: all messages or what the model sees, whole or only some turns."""
    if last is not None and last < 1:
        raise UsageError(f"turns={last!r} is not possible; give the number of last turns to export, 1 or more")
    if view == "model":
        shown = project_session(await resume_session(reader))
        history = _last_turns(api.parse(shown.payload, reader.head.format), last)
        made = api.render(history, format)
        return made if format in (None, reader.head.format) else api.repair(made, format, resting=True).payload
    if last is not None and reader.head.turn:
        first = max(1, reader.head.turn - last + 1)
    after = 0
    if first is not None:  # start earlier if a group reaches into the turn
        cuts = await reader.cuts()
        after = cuts[bisect(cuts, await reader.turn_start(first) - 1) - 1]
    messages = [one.message for one in await reader.all(after=after) if one.row.kind == "message"]
    return api.render(history_of(messages, reader.head.format, reader.envelope), format)


def _last_turns(history: History, last: int | None) -> History:
    cuts = turn_cuts(history.messages)
    if last is None or last >= len(cuts):
        return history
    return history.with_messages(sides(history.messages, cuts[-last])[1])

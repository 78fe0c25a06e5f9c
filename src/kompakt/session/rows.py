"""Rows of a session: messages encoded, decoded, and collected in a draft that is then committed.

A row holds one item of a message as its provider wrote it, so a message is restored byte for byte. Metadata that the
item does not contain (the id in a transcript, the source, the token count) is in the row's note.

A draft has the rows and events after a head, and the new head that follows from them. It writes nothing. If another
writer commits first, the draft is discarded and a new one is made from the newer head. Making one costs only what is
new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from secrets import token_hex
from types import MappingProxyType
from typing import Any, cast

import msgspec

from kompakt.engine.context.context import Annotation
from kompakt.errors import InputError, StoreDamaged
from kompakt.model.groups import is_request
from kompakt.model.json import json_text, prepare
from kompakt.model.messages import History, Json, JsonObject, Marker, Message, Part, Text, ToolCall, ToolResult
from kompakt.model.references import candidates, digest, linked
from kompakt.model.tokens import Counter
from kompakt.session.timeline import (
    CompactionFailure,
    CompactionRecord,
    EditEvent,
    LinkEvent,
    PinEvent,
    RevertEvent,
    SessionEvent,
    UndoEvent,
)
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Batch, Head, Records, RowKind, StoredEvent, StoredRow
from kompakt.wire.registry import WIRES

Redact = Callable[[str], str]
"""Removes what must not be stored from a text; applied to every text of a message before it is written."""

MAX_WORDS = 200_000
"""Characters of a message that are indexed; the rest can be restored by reference but not found by search."""


class ResultNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a tool result that its item does not contain."""

    part: int
    """Index of the part in its message."""
    name: str | None = None
    status: str | None = None
    started_at: float | None = None
    finished_at: float | None = None


_RESULT_FIELDS = ("name", "status", "started_at", "finished_at")


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a message that its item does not contain."""

    id: str | None = None
    source_id: str | None = None
    is_summary: bool = False
    tokens: int = 0
    counter: str = ""
    results: tuple[ResultNote, ...] = ()


class StoredMessage(msgspec.Struct, frozen=True):
    """A row and its decoded message."""

    row: StoredRow
    message: Message
    note: Note

    @property
    def annotation(self) -> Annotation:
        """The stored token count, as an annotation."""
        return Annotation(0, self.note.tokens, self.note.counter, digest(self.message).hex())


class RowCodec:
    """Encodes and decodes the messages of one session."""

    def __init__(
        self, format: str, value_codec: ValueCodec, *, redact: Redact | None = None, counter: Counter | None = None
    ) -> None:
        self.format = format
        wire = WIRES.get(format)
        if wire is None:
            raise StoreDamaged(f"the session has the unknown format {format!r}; restore the store from a backup")
        self.wire = wire
        self.value_codec = value_codec
        self._redact = redact
        self._counter = counter

    # --- write ----------------------------------------------------------------------------------------------------

    def items(self, messages: Iterable[Message]) -> Iterator[tuple[Json, Message]]:
        """Render messages as redacted items and parse these again, as they will be read later."""
        pairs = [(self.cleaned(item), message) for message in messages for item in self.wire.render(message)]
        parsed = self.wire.parse([item for item, _ in pairs], None)
        for (item, given), message in zip(pairs, parsed, strict=True):
            note = {"id": given.id, "source_id": given.source_id, "is_summary": given.is_summary}
            yield item, with_facts(msgspec.structs.replace(message, **note), given.results)

    def cleaned(self, value: Json) -> Json:
        """Redact every text in a value, including names of fields and types of blocks."""
        if self._redact is None:
            return value
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, list):
            return [self.cleaned(inner) for inner in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self._redact(key): self.cleaned(inner) for key, inner in cast("JsonObject", value).items()}
        return value

    def row(
        self, head: Head, item: Json, message: Message, *, kind: RowKind = "message"
    ) -> tuple[StoredRow, dict[str, bytes]]:
        """Make the row after a head; a message gets its reference later."""
        packed = self.value_codec.pack(item)
        note = Note(
            message.id,
            message.source_id,
            message.is_summary,
            0 if self._counter is None else self._counter.message(message),
            self._counter_name,
            tuple(_result_notes(message)),
        )
        row = StoredRow(
            seq=head.rows + 1,
            turn=max(1, head.turn + begins_turn(message, kind)),
            kind=kind,
            name="" if kind == "message" else f"k{head.rows + 1}",
            chain=linked(head.chain, message) if kind == "message" else head.chain,
            content=packed.content,
            item=packed.data,
            note=self.value_codec.pack_whole(msgspec.to_builtins(note)),
            blobs=tuple(sorted(packed.blobs)),
            words=self.words(message) if kind == "message" else "",
        )
        return row, packed.blobs

    def words(self, message: Message) -> str:
        """Return the text of a message for the index; empty if the store is encrypted."""
        return "" if self.value_codec.is_encrypted else words_of(message)[:MAX_WORDS]

    @property
    def _counter_name(self) -> str:
        return "" if self._counter is None else self._counter.name

    # --- read -----------------------------------------------------------------------------------------------------

    def stored(
        self, rows: Sequence[StoredRow], blobs: dict[str, bytes], instead: Mapping[int, Json] = MappingProxyType({})
    ) -> list[StoredMessage]:
        """Decode rows that form whole groups; ``instead`` replaces the items of some."""
        items = [instead[row.seq] if row.seq in instead else self.item(row, blobs) for row in rows]
        notes = [self.note(row) for row in rows]
        wired = [item for row, item in zip(rows, items, strict=True) if _is_wired(row)]
        try:
            messages = self.wire.parse(wired, None).messages
        except InputError as error:
            raise StoreDamaged(
                f"a message does not have the format {self.format!r}: {error}; restore a backup"
            ) from None
        if len(messages) != len(wired):
            raise StoreDamaged(
                f"{len(wired)} rows decode to {len(messages)} messages of the format {self.format!r}; restore a backup"
            )
        parsed = iter(messages)
        return [
            StoredMessage(row, _noted(next(parsed), note) if _is_wired(row) else _kompakt_message(row, item), note)
            for row, item, note in zip(rows, items, notes, strict=True)
        ]

    def item(self, row: StoredRow, blobs: dict[str, bytes]) -> Json:
        own = {hash: blobs[hash] for hash in row.blobs if hash in blobs} if row.blobs else None
        return self.value_codec.unpack(row.item, own, where=f"message {row.seq} ({row.name})")

    def note(self, row: StoredRow) -> Note:
        where = f"the note of message {row.seq}"
        try:
            return msgspec.convert(self.value_codec.unpack(row.note, where=where), Note)
        except msgspec.ValidationError as error:
            raise StoreDamaged(f"{where}: {error}; restore the store from a backup") from None


def begins_turn(message: Message, kind: RowKind) -> bool:
    """Return whether a row starts a turn: it is a message that the user wrote."""
    return kind == "message" and message.source_id is None and not message.is_summary and is_request(message)


def words_of(message: Message) -> str:
    """Return the text of a message, its calls and results, for the index."""
    texts: list[str] = []
    for part in message.parts:
        if type(part) is Text:
            texts.append(part.text)
        elif type(part) is ToolResult:
            texts.append(part.output)
        elif type(part) is ToolCall:
            texts.append(f"{part.name} {part.input if isinstance(part.input, str) else json_text(part.input)}")
    return "\n".join(texts).encode("utf-8", "replace").decode()


def _is_wired(row: StoredRow) -> bool:
    return row.kind in ("message", "resume", "inserted")


def _noted(message: Message, note: Note) -> Message:
    """Add the metadata of a note to a message."""
    if note.results:
        known, parts = {one.part: one for one in note.results}, list[Part]()
        for place, part in enumerate(message.parts):
            noted = known.get(place)
            parts.append(_filled(part, noted) if noted is not None and type(part) is ToolResult else part)
        message = msgspec.structs.replace(message, parts=tuple(parts))
    if note.id is None and note.source_id is None and not note.is_summary:
        return message
    return msgspec.structs.replace(message, id=note.id, source_id=note.source_id, is_summary=note.is_summary)


def with_facts(message: Message, results: Iterable[ToolResult]) -> Message:
    """Copy what the wire format does not contain (name, status, times) from ``results`` to the results of a message."""
    known = {result.call_id: result for result in results}
    if not known:
        return message
    parts = [_filled(part, known.get(part.call_id)) if type(part) is ToolResult else part for part in message.parts]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _filled(part: ToolResult, known: ToolResult | ResultNote | None) -> ToolResult:
    fields = {name: value for name in _RESULT_FIELDS if (value := getattr(known, name, None)) is not None}
    return msgspec.structs.replace(part, **fields) if fields else part


def _result_notes(message: Message) -> Iterator[ResultNote]:
    """Return notes for results with times; what the wire format contains is parsed again instead."""
    for place, part in enumerate(message.parts):
        if type(part) is ToolResult and (part.started_at is not None or part.finished_at is not None):
            yield ResultNote(place, part.name, part.status, part.started_at, part.finished_at)


def _kompakt_message(row: StoredRow, item: Any) -> Message:
    """Decode a row in kompakt's own format: a marker, a summary, or an early result."""
    try:
        if row.kind == "marker":
            return Message("user", (Marker(item["auto"], item["instructions"], item.get("reason")),))
        if row.kind == "finished":
            fields = {name: item.get(name) for name in _RESULT_FIELDS}
            return Message("tool", (ToolResult(item["call"], item["output"], is_error=item["is_error"], **fields),))
        return Message("assistant", (Text(item["text"]),), is_summary=True)
    except (KeyError, TypeError, AttributeError):
        raise StoreDamaged(f"row {row.seq} is not a {row.kind}; restore the store from a backup") from None


def envelope_of(history: History) -> JsonObject | None:
    """Return a request body without its messages."""
    if history.body is None:
        return None
    key = WIRES[history.format].messages_key
    return {name: [] if name == key and isinstance(value, list) else value for name, value in history.body.items()}


def history_of(messages: Iterable[Message], format: str, envelope: JsonObject | None) -> History:
    """Return messages in the envelope of their session."""
    return WIRES[format].parse([], envelope).with_messages(messages)


# --- drafts --------------------------------------------------------------------------------------------------------

_KINDS: dict[type, str] = {
    CompactionRecord: "compaction",
    CompactionFailure: "failure",
    UndoEvent: "undo",
    RevertEvent: "revert",
    EditEvent: "edit",
    PinEvent: "pin",
    LinkEvent: "link",
}
_FIRST_LENGTHS = 6
"""Lengths of a reference that are looked up first; one of them is nearly always free."""


class Draft:
    """What is to be written after a head."""

    def __init__(self, head: Head, codec: RowCodec) -> None:
        self.seen = head
        self.head = head
        self.codec = codec
        self._rows: list[StoredRow] = []
        self._events: list[StoredEvent] = []
        self._blobs: dict[str, bytes] = {}
        self.notes: dict[str, bytes] = {}
        """Notes of the session that are written with it."""
        self.is_synced = True
        """See ``Batch.synced``."""

    def add(self, item: Json, message: Message, *, kind: RowKind = "message") -> int:
        """Append a row; return its sequence number."""
        row, blobs = self.codec.row(self.head, item, message, kind=kind)
        self._rows.append(row)
        self._blobs |= blobs
        self.change(
            rows=row.seq,
            tip=row.seq,
            turn=self.head.turn + begins_turn(message, kind),
            chain=row.chain,
            messages=self.head.messages + (kind == "message"),
        )
        return row.seq

    def add_event(self, event: SessionEvent) -> int:
        """Append an event; return its number."""
        packed = self.codec.value_codec.pack(msgspec.to_builtins(event))
        number, tip, blobs = self.head.events + 1, self.head.rows, tuple(sorted(packed.blobs))
        self._events.append(StoredEvent(number, _KINDS[type(event)], tip, time.time(), packed.data, blobs))
        self._blobs |= packed.blobs
        self.change(events=number)
        return number

    def copy(self, rows: Iterable[StoredMessage], blobs: dict[str, bytes]) -> None:
        """Append rows of another session, unchanged except for their sequence numbers."""
        for one in rows:
            seq, is_message = self.head.rows + 1, one.row.kind == "message"
            name = one.row.name if is_message else f"k{seq}"
            words = self.codec.words(one.message) if is_message else ""
            self._rows.append(msgspec.structs.replace(one.row, seq=seq, name=name, words=words))
            self.change(rows=seq, tip=seq, chain=one.row.chain, messages=self.head.messages + is_message)
        self._blobs |= blobs

    def change(self, **changes: object) -> None:
        self.head = msgspec.structs.replace(self.head, **changes)

    async def batch(self, records: Records, id: str | None = None) -> Batch:
        """Give each new message a free reference and return the batch."""
        rows = await self._named(records)
        self.change(touched=time.time())
        return Batch(
            id or token_hex(16),
            self.head,
            rows,
            tuple(self._events),
            self._blobs,
            notes=self.notes,
            synced=self.is_synced,
        )

    async def _named(self, records: Records) -> tuple[StoredRow, ...]:
        wanted = {name for row in self._nameless() for name in islice(candidates(row.chain), _FIRST_LENGTHS)}
        taken = set(await records.named(self.head.key, wanted)) if wanted else set[str]()
        tried = _FIRST_LENGTHS
        while any(set(islice(candidates(row.chain), tried)) <= taken for row in self._nameless()):
            tried *= 8
            rest = {name for row in self._nameless() for name in islice(candidates(row.chain), tried)}
            taken = set(await records.named(self.head.key, rest))
        named: list[StoredRow] = []
        for row in self._rows:
            name = row.name or next(name for name in candidates(row.chain) if name not in taken)
            taken.add(name)
            named.append(row if row.name else msgspec.structs.replace(row, name=name))
        return tuple(named)

    def _nameless(self) -> Iterable[StoredRow]:
        return (row for row in self._rows if not row.name)


prepare(Note)

"""Messages as rows, and rows as messages.

A row keeps a message as its provider wrote it, one item each, so what comes back is byte-equal. What no item says (the
id a transcript carried, who added it, what it cost) stands in the note beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import msgspec

from kompakt.engine.context.annotation import Annotation
from kompakt.errors import InputError, StoreDamaged
from kompakt.model.groups import is_request
from kompakt.model.messages import History, Json, JsonObject, Marker, Message, Part, Text, ToolCall, ToolResult
from kompakt.model.references import digest, linked
from kompakt.model.tokens import Counter, json_text
from kompakt.store.codec import ValueCodec
from kompakt.store.records import Head, RowKind, StoredRow
from kompakt.wire.registry import WIRES

Redact = Callable[[str], str]
"""Takes out of a text what may not be stored; run on every text of a message before anything is written."""

RESUME_SOURCE = "kompakt.resume"
"""The source of the message that asks the agent to go on."""

MAX_WORDS = 200_000
"""Characters of a message that the index knows; the rest is found by reference."""


class ResultNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a tool result beside its item."""

    part: int
    """Which part of its message it is."""
    name: str | None = None
    status: str | None = None
    started_at: float | None = None
    finished_at: float | None = None


_RESULT_FIELDS = ("name", "status", "started_at", "finished_at")


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a message beside its item."""

    id: str | None = None
    source_id: str | None = None
    is_summary: bool = False
    tokens: int = 0
    counter: str = ""
    results: tuple[ResultNote, ...] = ()


class StoredMessage(msgspec.Struct, frozen=True):
    """A row and the message in it."""

    row: StoredRow
    message: Message
    note: Note

    @property
    def annotation(self) -> Annotation:
        """Return what a context need not work out again."""
        return Annotation(0, self.note.tokens, self.note.counter, digest(self.message).hex())


class RowCodec:
    """Writes and reads the messages of one session."""

    def __init__(
        self, format: str, value_codec: ValueCodec, *, redact: Redact | None = None, counter: Counter | None = None
    ) -> None:
        self.format = format
        wire = WIRES.get(format)
        if wire is None:
            raise StoreDamaged(
                f"the session's format is {format!r}, which is none that kompakt writes; restore a backup"
            )
        self.wire = wire
        self.value_codec = value_codec
        self._redact = redact
        self._counter = counter

    # --- write ----------------------------------------------------------------------------------------------------

    def items(self, messages: Iterable[Message]) -> Iterator[tuple[Json, Message]]:
        """Write messages as items and read them back, as they will be read later; redacted, where that is asked for."""
        pairs = [(self.cleaned(item), message) for message in messages for item in self.wire.render(message)]
        parsed = self.wire.parse([item for item, _ in pairs], None)
        for (item, given), message in zip(pairs, parsed, strict=True):
            note = {"id": given.id, "source_id": given.source_id, "is_summary": given.is_summary}
            yield item, with_facts(msgspec.structs.replace(message, **note), given.results)

    def cleaned(self, value: Json) -> Json:
        """Redact every text in a value; names of fields and kinds of blocks are texts too and may be left alone."""
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
        """Make the row behind a head's; its name is still to be found."""
        packed = self.value_codec.pack(item)
        note = Note(
            message.id,
            message.source_id,
            message.is_summary,
            self._tokens(message),
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
        """Return what an index may know of a message: nothing where parts are encrypted."""
        return "" if self.value_codec.is_encrypted else words_of(message)[:MAX_WORDS]

    @property
    def _counter_name(self) -> str:
        return "" if self._counter is None else self._counter.name

    def _tokens(self, message: Message) -> int:
        return 0 if self._counter is None else self._counter.message(message)

    # --- read -----------------------------------------------------------------------------------------------------

    def stored(
        self, rows: Sequence[StoredRow], blobs: dict[str, bytes], instead: Mapping[int, Json] = MappingProxyType({})
    ) -> list[StoredMessage]:
        """Read rows, all of them whole groups; ``instead`` has the items that are read in the place of some."""
        items = [instead[row.seq] if row.seq in instead else self.item(row, blobs) for row in rows]
        notes = [self.note(row) for row in rows]
        wired = [item for row, item in zip(rows, items, strict=True) if _is_wired(row)]
        try:
            messages = self.wire.parse(wired, None).messages
        except InputError as error:
            raise StoreDamaged(f"a message is not of the format {self.format!r}: {error}") from None
        if len(messages) != len(wired):
            raise StoreDamaged(f"{len(wired)} rows hold {len(messages)} messages of the format {self.format!r}")
        parsed = iter(messages)
        return [
            StoredMessage(row, _noted(next(parsed), note) if _is_wired(row) else _own(row, item), note)
            for row, item, note in zip(rows, items, notes, strict=True)
        ]

    def item(self, row: StoredRow, blobs: dict[str, bytes]) -> Json:
        """Read the item of a row."""
        own = {hash: blobs[hash] for hash in row.blobs if hash in blobs} if row.blobs else None
        return self.value_codec.unpack(row.item, own, where=f"message {row.seq} ({row.name})")

    def note(self, row: StoredRow) -> Note:
        """Read what stands beside the item of a row."""
        where = f"the note of message {row.seq}"
        try:
            return msgspec.convert(self.value_codec.unpack(row.note, where=where), Note)
        except msgspec.ValidationError as error:
            raise StoreDamaged(f"{where}: {error}; restore the store from a backup") from None


def begins_turn(message: Message, kind: RowKind) -> bool:
    """Tell whether the user speaks in this row."""
    return kind == "message" and message.source_id is None and not message.is_summary and is_request(message)


def words_of(message: Message) -> str:
    """Return what a message says, for an index."""
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
    """Give a message back what its item does not say."""
    if note.results:
        known, parts = {one.part: one for one in note.results}, list[Part]()
        for place, part in enumerate(message.parts):
            told = known.get(place)
            parts.append(_filled(part, told) if told is not None and type(part) is ToolResult else part)
        message = msgspec.structs.replace(message, parts=tuple(parts))
    if note.id is None and note.source_id is None and not note.is_summary:
        return message
    return msgspec.structs.replace(message, id=note.id, source_id=note.source_id, is_summary=note.is_summary)


def with_facts(message: Message, results: Iterable[ToolResult]) -> Message:
    """Give the results of a message what its wire form does not say of them: name, status, times."""
    known = {result.call_id: result for result in results}
    if not known:
        return message
    parts = [_filled(part, known.get(part.call_id)) if type(part) is ToolResult else part for part in message.parts]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _filled(part: ToolResult, known: ToolResult | ResultNote | None) -> ToolResult:
    told = {name: value for name in _RESULT_FIELDS if (value := getattr(known, name, None)) is not None}
    return msgspec.structs.replace(part, **told) if told else part


def _result_notes(message: Message) -> Iterator[ResultNote]:
    """List what is to be kept of results that have a time; what the wire says is read from there again."""
    for place, part in enumerate(message.parts):
        if type(part) is ToolResult and (part.started_at is not None or part.finished_at is not None):
            yield ResultNote(place, part.name, part.status, part.started_at, part.finished_at)


def _own(row: StoredRow, item: Any) -> Message:
    """Read a row that kompakt put into the stream: a marker, a summary, or an early result."""
    try:
        if row.kind == "marker":
            return Message("user", (Marker(item["auto"], item["instructions"], item.get("reason")),))
        if row.kind == "finished":
            told = {name: item.get(name) for name in _RESULT_FIELDS}
            return Message("tool", (ToolResult(item["call"], item["output"], is_error=item["is_error"], **told),))
        return Message("assistant", (Text(item["text"]),), is_summary=True)
    except (KeyError, TypeError, AttributeError):
        raise StoreDamaged(f"row {row.seq} is not a {row.kind}; restore the store from a backup") from None


def envelope_of(history: History) -> JsonObject | None:
    """Take the messages out of a request body."""
    if history.body is None:
        return None
    key = WIRES[history.format].messages_key
    return {name: [] if name == key and isinstance(value, list) else value for name, value in history.body.items()}


def history_of(messages: Iterable[Message], format: str, envelope: JsonObject | None) -> History:
    """Put messages into the envelope of their session."""
    return WIRES[format].parse([], envelope).with_messages(messages)

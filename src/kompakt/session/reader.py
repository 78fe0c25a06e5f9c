"""Read a session from its store: rows in pages that end between groups, events as a timeline, the view of a pivot.

Reading takes no lock: rows are never rewritten, and what was read of the head says how far to read.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import AsyncIterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from kompakt.errors import StoreDamaged
from kompakt.model.groups import Grouping, cuts_of
from kompakt.model.messages import Json, JsonObject, Marker, ToolResult
from kompakt.session.row_codec import RowCodec, StoredMessage
from kompakt.session.timeline import CompactionRecord, Frame, RecordedEvent, SessionEvent, Timeline, ViewEntry
from kompakt.store.codec import ValueCodec, decode, pointed
from kompakt.store.records import Head, Records, StoredEvent, StoredRow

PAGE = 500
"""Rows read at once."""


class SessionRows(NamedTuple):
    """The messages that a session shows."""

    every: list[StoredMessage]
    kept: int
    """How many of them, the first ones, the newest compaction kept."""
    markers: dict[int, Marker]
    """The requests to compact that nothing has answered yet, by their rows."""


class SessionReader:
    """Reads one session as it was when its head was read."""

    def __init__(self, records: Records, head: Head, codec: RowCodec, timeline: Timeline) -> None:
        self.records = records
        self.head = head
        self.codec = codec
        self.timeline = timeline

    @property
    def envelope(self) -> JsonObject | None:
        """The request that the messages belong to."""
        value = self.codec.value_codec.unpack(self.head.envelope, where="the envelope of the session")
        if value is not None and not isinstance(value, dict):
            raise StoreDamaged("the envelope of the session is not an object; restore the store from a backup")
        return value

    async def stored(self, rows: Sequence[StoredRow]) -> list[StoredMessage]:
        """Read rows with their blobs."""
        return self.codec.stored(rows, await self.blobs(rows))

    async def blobs(self, rows: Sequence[StoredRow]) -> dict[str, bytes]:
        """Read the blobs that rows point to."""
        wanted = {hash for row in rows for hash in row.blobs}
        return await self.records.blobs(self.head.tenant, wanted) if wanted else {}

    async def rows(self, *, after: int = 0, upto: int | None = None) -> AsyncIterator[list[StoredRow]]:
        """Go through the live rows in pages, as they are kept."""
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

    async def cuts(self) -> list[int]:
        """List the rows behind which the session may be cut, 0 included; goes through all of it once.

        A result may come any distance behind its call, so where a cut is safe is known at the end only.
        """
        grouping, seqs = Grouping(), [0]
        async for rows in self.rows():
            for one in await self.stored(rows):
                grouping.add(one.message)
                seqs.append(one.row.seq)
        return [seqs[cut] for cut in cuts_of(grouping)]

    async def pages(self) -> AsyncIterator[list[StoredMessage]]:
        """Go through all live rows in pages, none of which ends inside a group."""
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
        """Read live rows, all of them."""
        held: list[StoredRow] = []
        async for rows in self.rows(after=after, upto=upto):
            held += rows
        return await self.stored(held)

    async def frame(self, record: CompactionRecord) -> Frame:
        """Read what a compaction made, in the words its summary has now."""
        told = await self.text(record.frame, f"compaction {record.id}")
        try:
            frame = msgspec.convert(decode(told.encode("utf-8", "surrogatepass")), Frame)
        except (ValueError, RecursionError) as error:
            raise StoreDamaged(f"compaction {record.id}: {error}; undo it, or restore a backup") from None
        edited = self.timeline.rewording(record)
        if edited is None:
            return frame
        text = await self.text(edited, f"the summary of compaction {record.id}")
        return msgspec.structs.replace(frame, state=msgspec.structs.replace(frame.state, summary=text))

    async def text(self, value: Json, where: str) -> str:
        """Read a text that may have been kept as a blob."""
        hash = pointed(value)
        blobs = await self.records.blobs(self.head.tenant, [hash]) if hash is not None else {}
        return self.codec.value_codec.resolve(value, blobs, where=where)

    async def markers(self) -> dict[int, Marker]:
        """Return the requests to compact that nothing has answered yet, by their rows."""
        pivot = self.timeline.pivot
        found: list[StoredRow] = []
        async for rows in self.rows(after=pivot.tip if pivot is not None else 0):
            found += [row for row in rows if row.kind == "marker"]
        return await self._markers(found)

    async def _markers(self, rows: Sequence[StoredRow]) -> dict[int, Marker]:
        """Read marker rows and leave out those that were answered."""
        open = [row for row in rows if row.seq not in self.timeline.answered]
        read = [(one.row.seq, one.message.parts[0]) for one in await self.stored(open)] if open else []
        return {seq: part for seq, part in read if type(part) is Marker}

    async def view(self, frame: Frame | None, *, after: int) -> SessionRows:
        """Read what is shown: what a compaction left to be seen, and everything after a row.

        All of it is read together, so that a result finds its call.
        """
        entries = {entry.seq: entry for entry in frame.view} if frame is not None else {}
        found = {row.seq: row for row in await self.records.rows_at(self.head.key, entries)} if entries else {}
        if len(found) != len(entries):
            raise StoreDamaged("a compaction shows messages that are missing; undo it, or restore a backup")
        rows = [found[seq] for seq in entries]
        kept, mute, markers = len(rows), self.timeline.mute, list[StoredRow]()
        async for page in self.rows(after=after):
            rows += [row for row in page if row.kind in ("message", "resume") and row.seq not in mute]
            markers += [row for row in page if row.kind == "marker"]
        instead = {seq: entry.item for seq, entry in entries.items() if entry.item is not None}
        blobs = await self.blobs([row for row in rows if row.seq not in instead])
        read = self.codec.stored(rows, blobs, instead)
        every = [_as_shown(one, entries.get(one.row.seq)) for one in read]
        return SessionRows(every, kept, await self._markers(markers))


def _as_shown(one: StoredMessage, entry: ViewEntry | None) -> StoredMessage:
    """Mark what is hidden of a message; it was not counted as it is shown."""
    if entry is None or entry.item is None:
        return one
    times = dict(zip_longest(entry.pruned, entry.pruned_at, fillvalue=0.0))
    shown = [
        msgspec.structs.replace(part, pruned_at=times[j]) if j in times and type(part) is ToolResult else part
        for j, part in enumerate(one.message.parts)
    ]
    message = msgspec.structs.replace(one.message, parts=tuple(shown))
    return StoredMessage(one.row, message, msgspec.structs.replace(one.note, counter=""))


async def timeline_of(records: Records, head: Head, value_codec: ValueCodec) -> Timeline:
    """Read the events of a session; what is large in them stays where it is."""
    events = [event for event in await records.events(head.key) if event.number <= head.events]
    wanted = {hash for event in events if event.kind not in _LARGE for hash in event.blobs}
    blobs = await records.blobs(head.tenant, wanted) if wanted else {}
    return Timeline(_done(event, value_codec, blobs) for event in events)


_LARGE = ("compaction", "edit")
"""Events of which the large part is read when somebody asks for it."""


def _done(event: StoredEvent, value_codec: ValueCodec, blobs: dict[str, bytes]) -> RecordedEvent:
    where = f"event {event.number}"
    own = blobs if event.blobs and event.kind not in _LARGE else None
    try:
        deed = msgspec.convert(value_codec.unpack(event.data, own, where=where), SessionEvent)
    except msgspec.ValidationError:
        raise StoreDamaged(f"{where}: not what kompakt writes; a newer version may have written it") from None
    return RecordedEvent(event.number, deed, event.at)

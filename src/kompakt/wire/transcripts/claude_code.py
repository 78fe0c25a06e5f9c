"""Claude Code session files: one record per content block, combined into the sent messages, and written back.

Invariant: all records with one assistant id are one assistant message, however many records lie between its first and
last block. The results of all its calls are in the user message after it.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from kompakt.model.groups import Pairing
from kompakt.model.json import as_object, as_objects
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.transcripts.transcript import (
    MISSING_PARENT,
    REPEATED_RECORD,
    UNUSABLE_RECORD,
    Document,
    Origin,
    Skipped,
    Transcript,
    TranscriptLine,
    encode_line,
    ended,
    match_kept,
    match_parts,
    open_calls,
    seconds,
)
from kompakt.wire.wire import Problem

LABEL = "Claude Code"
FORMAT = "anthropic"

MAX_LOOKED_AT = 200
"""Records checked to recognise a file: more than the headers of any known version."""

SYNTHETIC_MODEL = "<synthetic>"
"""The model name of messages that Claude Code wrote itself: interruptions and API errors."""

_MARKS = {
    "summary": "leafUuid",
    "file-history-snapshot": "snapshot",
    "queue-operation": "operation",
    "progress": "sessionId",
    "system": "sessionId",
    "pr-link": "sessionId",
    "attachment": "sessionId",
}
"""Record types without a message, and a field that distinguishes them from other JSON lines."""

_NAMESPACE = uuid.UUID("8f3c6a5e-2d41-4b7a-9c8e-5a1f0e6b7d24")
"""The namespace of the uuids of added records: the same repair of the same file gives the same bytes."""


def matches(document: Document) -> bool:
    """Return whether Claude Code wrote a document."""
    return any(_wrote(line.record) for line in document.lines[:MAX_LOOKED_AT])


def _wrote(record: JsonObject) -> bool:
    kind = record.get("type")
    if kind in ("user", "assistant"):
        message = record.get("message")
        return isinstance(message, dict) and "content" in message and ("uuid" in record or "sessionId" in record)
    return isinstance(kind, str) and kind in _MARKS and _MARKS[kind] in record


def read(document: Document) -> Iterator[Transcript]:
    """Yield the session of a file; sub-agents are side chains."""
    chains = _Chains()
    skipped = list(document.skipped)
    left_out: Counter[str] = Counter()
    seen: dict[str, JsonObject] = {}
    began: dict[str, float] = {}
    for line in document.lines:
        record = line.record
        if record.get("type") not in ("user", "assistant"):
            if _queued(record) is not None:
                chains.of(record).add(line)
                continue
            left_out[str(record.get("type"))] += 1
            if record.get("subtype") == "compact_boundary":
                chains.of(record).preserve(record)
            continue
        fault = _fault(record, seen)
        if fault is not None:
            skipped.append(Skipped(line.number, fault[1], fault[0]))
        elif _is_copy(record, seen):
            left_out["copy of an earlier record"] += 1
        else:
            chains.of(record).add(line)
            _note_time(record, began)
    main, sidechains = chains.sorted()
    numbers = {one.line for one in skipped}
    yield msgspec.structs.replace(
        main.finish(began),
        sidechains=tuple(chain.finish(began) for chain in sidechains),
        skipped=tuple(sorted(skipped, key=lambda one: one.line)),
        replaced=document.replaced,
        faults=tuple(_missing_parents([line for line in document.lines if line.number not in numbers])),
        left_out=dict(left_out),
        records=len(document.lines),
    )


def _queued(record: JsonObject) -> Json:
    """Return what the user wrote while the agent worked, which is an attachment of the next request; else ``None``."""
    attachment = as_object(record.get("attachment"))
    if record.get("type") != "attachment" or attachment.get("type") != "queued_command":
        return None
    prompt: Json = attachment.get("prompt")
    if isinstance(prompt, list):
        return prompt if prompt and len(as_objects(prompt)) == len(cast("list[Json]", prompt)) else None
    return prompt if isinstance(prompt, str) and prompt else None


def _note_time(record: JsonObject, began: dict[str, float]) -> None:
    """Record the start time of an assistant message: its first record has it."""
    name, moment = record["message"].get("id"), seconds(record.get("timestamp"))
    if isinstance(name, str) and moment is not None:
        began.setdefault(name, moment)


def _fault(record: JsonObject, seen: dict[str, JsonObject]) -> tuple[str, str] | None:
    """Return why a record cannot be used, or ``None``; used records are remembered by their uuid."""
    message: Any = record.get("message")
    if not isinstance(message, dict):
        return UNUSABLE_RECORD, f"a {record['type']} record without a message"
    content: Any = cast("JsonObject", message).get("content")
    if not isinstance(content, str | list):
        return UNUSABLE_RECORD, f"a {record['type']} message whose content is neither a string nor a list of blocks"
    if isinstance(content, list) and len(as_objects(cast("Any", content))) != len(cast("list[Any]", content)):
        return UNUSABLE_RECORD, f"a {record['type']} message with a content block that is not an object"
    if content == [] and record["type"] == "user":
        return UNUSABLE_RECORD, "a user message without content"
    uuid = record.get("uuid")
    if isinstance(uuid, str) and seen.setdefault(uuid, record) is not record and seen[uuid] == record:
        return REPEATED_RECORD, f"a repeated record, uuid {uuid}"
    return None


def _is_copy(record: JsonObject, seen: Mapping[str, JsonObject]) -> bool:
    """Return whether a record repeats the message of an earlier one under its uuid, with another parent.

    A compaction that keeps messages may write them again after its summary. Such a copy links the chain.
    """
    earlier = seen.get(str(record.get("uuid")), record)
    return earlier is not record and earlier.get("type") == record["type"] and earlier["message"] == record["message"]


def _missing_parents(lines: Sequence[TranscriptLine]) -> Iterator[Problem]:
    """List records whose parent is missing; the first record of a truncated file may have a missing parent."""
    uuids = {str(line.record.get("uuid")) for line in lines}
    is_first = True
    for line in lines:
        parent = line.record.get("parentUuid")
        if isinstance(parent, str) and parent not in uuids and not is_first:
            yield Problem(
                MISSING_PARENT, f"line {line.number}", f"the parent {parent} of this record is not in the file"
            )
        is_first = is_first and not line.record.get("uuid")


# --- chains ------------------------------------------------------------------------------------------------------


class _Chains:
    """Separates the conversations of a file: the main one, and one per sub-agent."""

    def __init__(self) -> None:
        self.main = _Conversation()
        self.agents: dict[str, _Conversation] = {}
        self._roots: dict[str, str] = {}

    def of(self, record: JsonObject) -> _Conversation:
        """Return the conversation of a record."""
        if not record.get("isSidechain"):
            return self.main
        uuid, parent, agent = record.get("uuid"), record.get("parentUuid"), record.get("agentId")
        key = f"agent {agent}" if agent else self._roots.get(str(parent)) or str(uuid or parent)
        if uuid:
            self._roots[str(uuid)] = key
        return self.agents.setdefault(key, _Conversation())

    def sorted(self) -> tuple[_Conversation, list[_Conversation]]:
        """Return the main conversation and the others; the file of a single sub-agent is its own main one."""
        agents = list(self.agents.values())
        if self.main.drafts or len(agents) != 1:
            return self.main, agents
        return agents[0], []


class _Draft:
    """A wire message under construction: results first, then everything else in order, with origins."""

    __slots__ = ("answer", "content", "id", "results", "role", "summary", "usage", "words")

    def __init__(self, role: str, *, id: str | None = None, summary: bool = False) -> None:
        self.role = role
        self.id = id
        self.summary = summary
        self.results: list[tuple[Origin, Json]] = []
        self.content: list[tuple[Origin, Json]] = []
        self.words: list[str] = []
        """Contents that were plain strings; a single one is sent as a string."""
        self.usage: JsonObject | None = None
        self.answer: _Draft | None = None
        """The user message with the results of this message's calls."""

    def add(self, content: Json, line: int) -> None:
        """Append the content of a record."""
        if isinstance(content, str):
            self.words.append(content)
            self.content.append((Origin(line, -1), {"type": "text", "text": content}))
        else:
            self.content.extend((Origin(line, index), block) for index, block in enumerate(cast("list[Json]", content)))

    def absorb(self, other: _Draft) -> None:
        """Append the content of another message."""
        self.results.extend(other.results)
        self.content.extend(other.content)
        self.words.extend(other.words)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return the origin of each block."""
        return tuple(origin for origin, _ in (*self.results, *self.content))

    def render(self) -> JsonObject:
        """Return the wire message: only role and content."""
        blocks = [block for _, block in (*self.results, *self.content)]
        plain = len(blocks) == 1 and len(self.words) == 1
        return {"role": self.role, "content": self.words[0] if plain else blocks}


class _Conversation:
    """Combines the records of one conversation into messages."""

    def __init__(self) -> None:
        self.drafts: list[_Draft] = []
        self._pairing: Pairing[_Draft] = Pairing()
        self._assistant: _Draft | None = None
        self._after = 0
        """Index of the first message after the latest assistant message."""
        self._model: str | None = None
        self._places: dict[str, _Draft] = {}
        """The message of each record, by uuid."""
        self._preserved: dict[str, Sequence[str]] = {}
        """Records that a compaction kept, by the uuid of the record that they follow."""

    def add(self, line: TranscriptLine) -> None:
        """Add the next record."""
        message = as_object(line.record.get("message")) or {"content": _queued(line.record)}
        uuid = str(line.record.get("uuid"))
        if line.record["type"] == "assistant":
            self._places[uuid] = self._add_assistant(message, line.number)
        elif line.record.get("isCompactSummary"):
            self._add_summary(message["content"], line.number, self._preserved.get(uuid, ()))
        else:
            self._add_user(message["content"], line.number)
            self._places[uuid] = self.drafts[-1]

    def preserve(self, boundary: JsonObject) -> None:
        """Remember which messages a compaction kept after its summary; in the file they are before it.

        If they follow the boundary itself, the summary is about what came after them, and their place is right.
        """
        metadata = as_object(boundary.get("compactMetadata") or boundary.get("compact_metadata"))
        kept = as_object(metadata.get("preservedMessages") or metadata.get("preserved_messages"))
        segment = as_object(metadata.get("preservedSegment") or metadata.get("preserved_segment"))
        anchor = kept.get("anchorUuid") or segment.get("anchorUuid") or segment.get("anchor_uuid")
        listed = kept.get("uuids") or [segment.get("headUuid") or segment.get("head_uuid")]
        if isinstance(anchor, str) and isinstance(listed, list):
            self._preserved[anchor] = [str(one) for one in cast("list[Json]", listed)]

    def finish(self, began: Mapping[str, float]) -> Transcript:
        """Return the transcript."""
        drafts = list(self._in_order())
        body: JsonObject = {"model": self._model} if self._model else {}
        body["messages"] = [draft.render() for draft in drafts]
        return Transcript(
            kind="claude-code",
            format=FORMAT,
            body=body,
            ids=tuple(draft.id for draft in drafts),
            summaries=frozenset(index for index, draft in enumerate(drafts) if draft.summary),
            usages=tuple((index, draft.usage) for index, draft in enumerate(drafts) if draft.usage is not None),
            times=tuple(
                (index, began[draft.id]) for index, draft in enumerate(drafts) if draft.id and draft.id in began
            ),
            origins=tuple(draft.origins for draft in drafts),
            notes=tuple(open_calls(body["messages"])),
        )

    def _in_order(self) -> Iterator[_Draft]:
        for draft in self.drafts:
            yield draft
            if draft.answer is not None:
                yield draft.answer

    def _add_assistant(self, message: JsonObject, line: int) -> _Draft:
        message_id, model, usage = message.get("id"), message.get("model"), message.get("usage")
        draft = self._assistant
        if draft is None or draft.id is None or draft.id != message_id:
            draft = _Draft("assistant", id=message_id if isinstance(message_id, str) else None)
            self._pairing.begin_run()
            self.drafts.append(draft)
            self._assistant, self._after = draft, len(self.drafts)
        draft.add(message["content"], line)
        for block in as_objects(message["content"]):
            if block.get("type") == "tool_use":
                self._pairing.expect(str(block.get("id")), draft)
        if isinstance(model, str) and model != SYNTHETIC_MODEL:
            self._model = model
            draft.usage = usage if isinstance(usage, dict) else draft.usage
        return draft

    def _add_summary(self, content: Json, line: int, preserved: Sequence[str]) -> None:
        """Add the summary of a compaction before the messages that the compaction kept."""
        draft = _Draft("user", summary=True)
        draft.add(content, line)
        kept = [self._places[uuid] for uuid in preserved if uuid in self._places]
        place = min((i for i, one in enumerate(self.drafts) if one in kept or one.answer in kept), default=None)
        if place is None:
            self.drafts.append(draft)
            return
        self.drafts.insert(place, draft)
        self._after += place < self._after

    def _add_user(self, content: Json, line: int) -> None:
        if isinstance(content, str):
            self._last_or_new().add(content, line)
            return
        rest: list[tuple[Origin, Json]] = []
        for index, block in enumerate(as_objects(content)):
            if block.get("type") == "tool_result":
                self._add_result(block, Origin(line, index))
            else:
                rest.append((Origin(line, index), block))
        if rest:
            self._last_or_new().content.extend(rest)

    def _add_result(self, block: JsonObject, origin: Origin) -> None:
        """Add a result to the message after its call; without a call it stays in place."""
        call_id = str(block.get("tool_use_id"))
        caller = self._pairing.answer(call_id) or self._pairing.latest(call_id)
        if caller is not None:
            self._answer(caller).results.append((origin, block))
            return
        last = self._last()
        if last is None or last.role != "user" or last.summary or not last.results:
            last = _Draft("user")
            self.drafts.append(last)
        last.results.append((origin, block))

    def _answer(self, caller: _Draft) -> _Draft:
        """Return the message for the results of a caller; earlier user messages move into it."""
        if caller.answer is not None:
            return caller.answer
        caller.answer = _Draft("user")
        while caller is self._assistant and len(self.drafts) > self._after and not self.drafts[self._after].summary:
            caller.answer.absorb(self.drafts.pop(self._after))
        return caller.answer

    def _last_or_new(self) -> _Draft:
        """Return the message for text: the one whose results it follows, else a new one."""
        last = self._last()
        if last is None or not last.results or last.summary:
            last = _Draft("user")
            self.drafts.append(last)
        return last

    def _last(self) -> _Draft | None:
        """Return the newest message."""
        if not self.drafts:
            return None
        last = self.drafts[-1]
        return last if last.answer is None else last.answer


# --- writing back ------------------------------------------------------------------------------------------------


def write(raw: Sequence[bytes], document: Document, transcript: Transcript, repaired: JsonObject) -> bytes:
    """Edit a session file to match the repair of its conversation.

    ``raw`` are the lines of the file, ``repaired`` is the repaired body. Unchanged lines are copied byte for byte.
    Lines without a record and records that the reader skipped are removed. A record whose parent was removed gets the
    parent of that record.
    """
    editor = _Editor(document, transcript)
    editor.apply(transcript, repaired["messages"])
    return editor.render(raw)


class _Editor:
    """The records of a file during editing, by line number."""

    def __init__(self, document: Document, transcript: Transcript) -> None:
        self._records = {line.number: line.record for line in document.lines}
        self._changed: dict[int, JsonObject] = {number: self._records[number] for number in transcript.replaced}
        self._gone = {one.line for one in transcript.skipped}
        self._added: defaultdict[int, list[JsonObject]] = defaultdict(list)
        self._parents: dict[str, str] = {}
        """The uuid of a record, and that of the record added after it, which becomes the parent of its children."""

    def apply(self, transcript: Transcript, repaired: Sequence[JsonObject]) -> None:
        """Apply the differences between the messages as read and as repaired."""
        old = [
            (origin, block)
            for origins, message in zip(transcript.origins, transcript.body["messages"], strict=True)
            for origin, block in zip(origins, _blocks(message["content"]), strict=True)
        ]
        new = [(message, block) for message in repaired for block in _blocks(message["content"])]
        found = match_parts([block for _, block in old], [block for _, block in new])
        calls = {
            str(block.get("id")): old[place][0].line
            for (_, block), place in zip(new, found, strict=True)
            if block.get("type") == "tool_use" and place is not None
        }
        for index, (_, block) in enumerate(new):  # a result that preceded its call is written again after it
            place = found[index]
            if place is not None and old[place][0].line < calls.get(str(block.get("tool_use_id")), 0):
                found[index] = None
        kept = {place: block for place, (_, block) in zip(found, new, strict=True) if place is not None}
        edits: defaultdict[int, dict[int, Json]] = defaultdict(dict)
        for place, (origin, block) in enumerate(old):
            if place not in kept:
                edits[origin.line][origin.block] = None
            elif kept[place] is not block and kept[place] != block:
                edits[origin.line][origin.block] = kept[place]
        for number, changes in edits.items():
            self._edit(number, changes)
        lines = [old[place][0].line if place is not None else None for place in found]
        self._add(new, lines)

    def _edit(self, number: int, changes: dict[int, Json]) -> None:
        """Change or remove blocks of one record; a record without blocks is removed."""
        record = self._changed.get(number, self._records[number])
        message = as_object(record.get("message")) or {"content": _queued(record)}
        blocks: list[Json]
        if -1 in changes:
            blocks = [changes[-1]] if changes[-1] is not None else []
        else:
            blocks = [changes.get(i, block) for i, block in enumerate(cast("list[Json]", message["content"]))]
            blocks = [block for block in blocks if block is not None]
        if not blocks:
            self._gone.add(number)
            return
        content: Json = blocks
        if -1 in changes and set(as_block := cast("JsonObject", blocks[0])) == {"type", "text"}:
            content = as_block["text"]
        if "message" in record:
            self._changed[number] = {**record, "message": {**message, "content": content}}
        else:
            self._changed[number] = {**record, "attachment": {**record["attachment"], "prompt": content}}

    def _add(self, new: Sequence[tuple[JsonObject, JsonObject]], lines: Sequence[int | None]) -> None:
        """Add records for new parts: a result after the message with its call, other parts in place."""
        calls = {str(block.get("id")): index for index, (_, block) in enumerate(new) if block.get("type") == "tool_use"}
        place = 0
        for (message, block), line in zip(new, lines, strict=True):
            if line is not None:
                place = line
                continue
            caller = calls.get(str(block.get("tool_use_id"))) if block.get("type") == "tool_result" else None
            called = lines[caller] if caller is not None else None
            if called is None:
                self._insert(place, message["role"], block)
            else:
                self._insert(self._end_of_message(called), "user", block, caller=self._records[called])

    def _end_of_message(self, number: int) -> int:
        """Return the last line of the assistant message of a record."""
        record = self._records[number]
        name = record["message"].get("id")
        if name is None:
            return number
        return max(
            other
            for other, one in self._records.items()
            if other not in self._gone
            and one.get("type") == "assistant"
            and bool(one.get("isSidechain")) == bool(record.get("isSidechain"))
            and isinstance(one.get("message"), dict)
            and one["message"].get("id") == name
        )

    def _insert(self, number: int, role: str, block: JsonObject, *, caller: JsonObject | None = None) -> None:
        """Add a record after a line; children of the record there become its children."""
        before = self._added[number][-1] if self._added.get(number) else self._records.get(number, {})
        model = before or next((one for one in self._records.values() if one.get("uuid")), {})
        name = f"{model.get('sessionId')} {number} {len(self._added[number])} {msgspec.json.encode(block).decode()}"
        fresh = str(uuid.uuid5(_NAMESPACE, name))
        shared = ("isSidechain", "userType", "entrypoint", "cwd", "sessionId", "version", "gitBranch", "timestamp")
        record: JsonObject = {
            "parentUuid": before.get("uuid"),
            **{key: model[key] for key in (*shared, "agentId", "slug") if key in model},
            "type": role,
            "message": {"role": role, "content": [block]},
            "uuid": fresh,
        }
        if caller is not None:
            record["toolUseResult"] = block.get("content")
            record["sourceToolAssistantUUID"] = caller.get("uuid")
        self._added[number].append(record)
        self._parents[str(before.get("uuid"))] = fresh

    def render(self, raw: Sequence[bytes]) -> bytes:
        """Return the bytes of the file."""
        links = self._links()
        out: list[bytes] = [encode_line(record) for record in self._added.get(0, [])]
        for number, line in enumerate(raw, start=1):
            if number in self._gone or (number not in self._records and line.strip()):
                continue
            record = self._changed.get(number)
            if number in links:
                parent = links[number]
                record = {**(record or self._records[number]), **parent}
            out.append(encode_line(record) if record is not None else ended(line))
            out.extend(encode_line(one) for one in self._added.get(number, []))
        return b"".join(out)

    def _links(self) -> dict[int, JsonObject]:
        """Return the records whose reference to another record must change, with the new value."""
        alive = {
            str(one["uuid"]) for number, one in self._records.items() if number not in self._gone and one.get("uuid")
        }
        above = {str(one.get("uuid")): one.get("parentUuid") for one in self._records.values() if one.get("uuid")}
        latest: dict[bool, str | None] = {False: None, True: None}
        links: dict[int, JsonObject] = {}
        for number in sorted(self._records):
            record = self._records[number]
            if number in self._gone:
                continue
            changes: JsonObject = {}
            side = bool(record.get("isSidechain"))
            parent = record.get("parentUuid")
            if isinstance(parent, str):
                living = parent
                while living not in alive and isinstance(above.get(living), str):
                    living = str(above[living])
                if living not in alive:  # the first record of a truncated file has no other parent
                    top = self._added[0][-1]["uuid"] if self._added.get(0) and not side else parent
                    living = latest[side] or str(top)
                while living in self._parents:
                    living = self._parents[living]
                changes = {"parentUuid": living} if living != parent else {}
            elif "parentUuid" in record and latest[side] is None and "None" in self._parents:
                changes = {"parentUuid": self._added[0][-1]["uuid"]}
            leaf = record.get("leafUuid")
            if isinstance(leaf, str) and leaf in above and leaf not in alive:
                while leaf not in alive and isinstance(above.get(leaf), str):
                    leaf = str(above[leaf])
                changes["leafUuid"] = leaf
            if changes:
                links[number] = changes
            if record.get("uuid"):
                latest[side] = str(record["uuid"])
        return links


# --- writing a compacted session ---------------------------------------------------------------------------------

_NOT_RESUMED = frozenset(["api-request", "api-request-blob", "api-request-shape", "progress", "queue-operation"])
"""Logs of requests, hooks and input that a resumed session does not read."""

_LATEST = frozenset(
    ["agent-name", "ai-title", "atis-latch", "cost-state", "custom-title", "mode", "permission-mode", "tag"]
)
"""Records about the session of which the newest one is valid."""

_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def write_compacted(raw: Sequence[bytes], document: Document, transcript: Transcript, compacted: JsonObject) -> bytes:
    """Write a session file with the messages of a compacted body, one after the other.

    A message that the compaction kept has its record, with the uuid that it had, and the attachments after that record.
    Sub-agents and earlier compactions are left out: the new file has one chain without a boundary.
    """
    return _CompactedFile(raw, document, transcript).write(compacted["messages"])


class _CompactedFile:
    """Builds the file of a compacted session."""

    def __init__(self, raw: Sequence[bytes], document: Document, transcript: Transcript) -> None:
        self._raw = raw
        self._records = {line.number: line.record for line in document.lines}
        self._exact = {line.number for line in document.lines} - set(transcript.replaced)
        self._old = [
            (origin, str(message["role"]), block)
            for origins, message in zip(transcript.origins, transcript.body["messages"], strict=True)
            for origin, block in zip(origins, _blocks(message["content"]), strict=True)
        ]
        self._attached = self._attachments({origin.line for origin, _, _ in self._old})
        self._out: list[bytes] = []
        self._uuids: set[str] = set()
        self._parent: str | None = None
        self._template = next((one for one in self._records.values() if one.get("uuid")), {})
        self._model = transcript.body.get("model") or SYNTHETIC_MODEL

    def _attachments(self, messages: set[int]) -> dict[int, list[int]]:
        """Return the other records of the chain after each message record."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        latest = 0
        for number, record in self._records.items():
            if number in messages:
                latest = number
            elif record.get("type") == "attachment" and not record.get("isSidechain"):
                found[latest].append(number)
        return found

    def write(self, messages: Sequence[JsonObject]) -> bytes:
        """Return the bytes of the file."""
        new = [(str(message["role"]), block) for message in messages for block in _blocks(message["content"])]
        found = match_kept([(role, block) for _, role, block in self._old], new)
        last = {self._old[place][0].line: index for index, place in enumerate(found) if place is not None}
        at = 0
        for message in messages:
            blocks = _blocks(message["content"])
            places = found[at : at + len(blocks)]
            self._write_message(message, blocks, places)
            for line in dict.fromkeys(self._old[place][0].line for place in places if place is not None):
                if last[line] < at + len(blocks):
                    for number in self._attached.get(line, ()):
                        self._chain(self._records[number], number)
            at += len(blocks)
        self._write_others()
        return b"".join(self._out)

    def _write_message(self, message: JsonObject, blocks: Sequence[JsonObject], places: Sequence[int | None]) -> None:
        """Write the records of one message: adjacent blocks of one record stay together."""
        lines = [self._old[place][0].line if place is not None else None for place in places]
        kept = [line for line in lines if line is not None]
        caller = self._records[kept[0]].get("message") if kept else None
        start = 0
        for end in range(1, len(blocks) + 1):
            if end < len(blocks) and lines[end] == lines[start]:
                continue
            line, part = lines[start], list(blocks[start:end])
            if line is None or self._records[line].get("uuid") in self._uuids:
                self._chain(self._fresh(str(message["role"]), part, caller))
            else:
                originals = [self._old[place][2] for place in places[start:end] if place is not None]
                self._chain(self._kept(line, part, originals), line)
            start = end

    def _kept(self, line: int, blocks: list[JsonObject], originals: list[JsonObject]) -> JsonObject:
        """Return a kept record, with the blocks that are left of it, and without counts of the longer history."""
        record = self._records[line]
        if "message" not in record:
            return record
        message: JsonObject = record["message"]
        whole = [block for origin, _, block in self._old if origin.line == line]
        usage = message.get("usage")
        if isinstance(usage, dict) and any(usage.get(key) for key in _COUNTS):
            # Claude Code takes the size of the context from here and would compact again at once.
            message = {**message, "usage": {**usage, **dict.fromkeys(_COUNTS, 0)}}
        if blocks != whole:
            message = {**message, "content": blocks}
            if "toolUseResult" in record and blocks != originals:
                # What the terminal shows; it has the whole output.
                record = {**record, "toolUseResult": blocks[0].get("content")}
        return record if message is record["message"] else {**record, "message": message}

    def _fresh(self, role: str, blocks: list[JsonObject], caller: JsonObject | None) -> JsonObject:
        """Return a record for blocks that the compaction wrote."""
        name = f"{self._template.get('sessionId')} {len(self._out)} {msgspec.json.encode(blocks).decode()}"
        fresh = str(uuid.uuid5(_NAMESPACE, name))
        message: JsonObject = {"role": role, "content": blocks}
        if role == "assistant":
            own = {"id": f"msg_{fresh.replace('-', '')}", "type": "message", "model": self._model}
            known = {key: caller[key] for key in own if caller is not None and key in caller}
            usage = dict.fromkeys(_COUNTS, 0)
            message = {**own, **known, **message, "stop_reason": None, "stop_sequence": None, "usage": usage}
        shared = ("userType", "entrypoint", "cwd", "sessionId", "version", "gitBranch", "timestamp", "slug")
        return {
            "parentUuid": None,
            "isSidechain": False,
            **{key: self._template[key] for key in shared if key in self._template},
            "type": role,
            "message": message,
            "uuid": fresh,
        }

    def _chain(self, record: JsonObject, line: int | None = None) -> None:
        """Write a record as the child of the one before it."""
        if isinstance(record.get("uuid"), str) and record["uuid"] in self._uuids:
            return
        if record.get("parentUuid") != self._parent:
            record = {**record, "parentUuid": self._parent}
        is_same = line is not None and record is self._records[line] and line in self._exact
        self._out.append(ended(self._raw[line - 1]) if is_same and line is not None else encode_line(record))
        if isinstance(record.get("uuid"), str):
            self._parent = record["uuid"]
            self._uuids.add(record["uuid"])
            self._template = record

    def _write_others(self) -> None:
        """Write records about the session; one that names the newest record of the chain names the new one."""
        newest = {str(record.get("type")): number for number, record in self._records.items()}
        for number, record in self._records.items():
            kind = str(record.get("type"))
            if record.get("uuid") or "message" in record or kind in _NOT_RESUMED:
                continue
            if (kind in _LATEST or "leafUuid" in record) and newest[kind] != number:
                continue
            if "leafUuid" in record:
                self._out.append(encode_line({**record, "leafUuid": self._parent}))
            elif kind != "file-history-snapshot" or record.get("messageId") in self._uuids:
                self._out.append(ended(self._raw[number - 1]) if number in self._exact else encode_line(record))


def _blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[JsonObject]", content)

"""Codex rollout files: Responses items between records about the session, read and written back.

Invariant: items that the API knows are in the input unchanged and in order. Only outputs and arguments that a version
wrote in its own type get the type of the API. A compaction replaces nothing here: earlier items stay, and what it added
is marked as a summary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from kompakt.model.json import as_objects
from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.transcript import (
    NO_HEADER,
    REPEATED_RECORD,
    UNUSABLE_RECORD,
    Document,
    Origin,
    Skipped,
    Transcript,
    encode_line,
    ended,
    match_kept,
    match_parts,
    seconds,
)
from kompakt.wire.wire import Problem

LABEL = "Codex"
FORMAT = "openai-responses"

MAX_LOOKED_AT = 200
"""Records checked to recognise a file: more than the headers of any known version."""

RECORDS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state")
"""Record types that only Codex writes, all with a payload."""

NOT_SENT = ("ghost_snapshot", "other")
"""Items that Codex does not send."""

COMPACTIONS = {"compaction_summary": "compaction", "context_compaction": "compaction"}
"""Names of the compaction item in older rollouts, and the one of the API."""

MODEL_ITEMS = ("reasoning", "program", "mcp_approval_request")


def matches(document: Document) -> bool:
    """Return whether Codex wrote a document; before version 0.32 items had no wrapper."""
    return any(_wrote(line.record) for line in document.lines[:MAX_LOOKED_AT])


def _wrote(record: JsonObject) -> bool:
    if record.get("type") in RECORDS and isinstance(record.get("payload"), dict):
        return True
    return record.get("record_type") == "state" or _is_old_header(record)


def _is_old_header(record: JsonObject) -> bool:
    return "type" not in record and {"id", "timestamp", "instructions"} <= record.keys()


def read(document: Document) -> Iterator[Transcript]:
    """Yield the session of a rollout."""
    rollout = _Rollout(document)
    for line in document.lines:
        rollout.add(line.number, line.record)
    yield rollout.finish()


class _Rollout:
    """Collects the items of one rollout."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._input: list[JsonObject] = []
        self._origins: list[Origin] = []
        self._known: set[bytes] = set()
        self._summaries: set[int] = set()
        self._usages: dict[int, JsonObject] = {}
        self._times: list[tuple[int, float]] = []
        self._skipped = list(document.skipped)
        self._left_out: Counter[str] = Counter()
        self._previous: bytes | None = None
        self._has_header = False
        self._model: str | None = None
        self._instructions: str | None = None

    def add(self, number: int, record: JsonObject) -> None:
        """Add the next record."""
        kind, payload = _unwrap(record)
        if not isinstance(payload, dict):
            self._skipped.append(Skipped(number, f"a {kind} record without a payload", UNUSABLE_RECORD))
            return
        content = cast("JsonObject", payload)
        if self._repeats(kind, content):
            self._skipped.append(Skipped(number, f"a repeated {content.get('type')}", REPEATED_RECORD))
            return
        match kind:
            case "response_item":
                began = seconds(record.get("timestamp"))
                if self._add_item(content, Origin(number, -1)) and began is not None and _by_model(content):
                    self._times.append((len(self._input) - 1, began))
            case "compacted":
                self._add_compaction(content, number)
            case _:
                self._left_out[kind] += 1
                self._note(kind, content)

    def _repeats(self, kind: str, payload: JsonObject) -> bool:
        """Return whether an item directly repeats the one before it, as after a retried write.

        Only calls, outputs and items with an id count: the user may write the same text twice.
        """
        if kind != "response_item":
            return False
        named = isinstance(payload.get("call_id"), str) or isinstance(payload.get("id"), str)
        whole = msgspec.json.encode(payload, order="sorted") if named else None
        repeats = whole is not None and whole == self._previous
        self._previous = whole
        return repeats

    def finish(self) -> Transcript:
        """Return the transcript."""
        body: JsonObject = {"model": self._model} if self._model else {}
        if self._instructions:
            body["instructions"] = self._instructions
        body["input"] = self._input
        body["store"] = False
        header = Problem(NO_HEADER, "line 1", "the session_meta record is missing; Codex does not open the file", False)
        return Transcript(
            kind="codex",
            format=FORMAT,
            body=body,
            ids=(None,) * len(self._input),
            summaries=frozenset(self._summaries),
            usages=tuple(sorted(self._usages.items(), key=lambda entry: entry[0])),
            times=tuple(self._times),
            origins=tuple((origin,) for origin in self._origins),
            skipped=tuple(sorted(self._skipped, key=lambda one: one.line)),
            replaced=self._document.replaced,
            faults=() if self._has_header else (header,),
            left_out=dict(self._left_out),
            records=len(self._document.lines),
        )

    def _add_item(self, item: JsonObject, origin: Origin) -> bool:
        """Append an item that the API accepts; return whether there was one."""
        kind = item.get("type")
        if kind in NOT_SENT or not isinstance(kind, str):
            self._left_out[str(kind)] += 1
            return False
        if kind == "agent_message":
            item = self._as_words(item)
        elif kind in COMPACTIONS:
            item = {**item, "type": COMPACTIONS[kind]}
        else:
            item = _typed(item, kind)
        self._known.add(_gist(item))
        self._input.append(item)
        self._origins.append(origin)
        return True

    def _as_words(self, item: JsonObject) -> JsonObject:
        """Convert a message of another agent to a user message; the API has no item for it."""
        content = as_objects(item.get("content"))
        parts = [part for part in content if part.get("type") == "input_text"]
        self._left_out["agent_message sealed"] += len(content) - len(parts)
        source = {"type": "input_text", "text": f"Message from {item.get('author') or 'another agent'}:"}
        return {"type": "message", "role": "user", "content": [source, *parts]}

    def _add_compaction(self, payload: JsonObject, number: int) -> None:
        """Append what a compaction added; copies of messages that are already in the input are left out."""
        replacement = as_objects(payload.get("replacement_history"))
        message = payload.get("message")
        words = "\n".join(text_of(item.get("content")) for item in replacement)
        if isinstance(message, str) and message and message not in words:
            part = {"type": "input_text", "text": message}
            replacement.append({"type": "message", "role": "user", "content": [part]})
        for index, item in enumerate(replacement):
            if _gist(item) in self._known:
                self._left_out["compacted copy"] += 1
            elif self._add_item(item, Origin(number, index)):
                self._known.add(_gist(item))
                self._summaries.add(len(self._input) - 1)

    def _note(self, kind: str, payload: JsonObject) -> None:
        """Store request fields of a record: model, instructions, usage."""
        if kind == "session_meta":
            self._has_header = True
            base = payload.get("base_instructions") or payload.get("instructions")
            self._instructions = text_of(base) or self._instructions
        elif kind == "turn_context" and isinstance(payload.get("model"), str):
            self._model = payload["model"]
        elif kind == "event_msg" and payload.get("type") == "token_count":
            info = payload.get("info")
            usage = cast("Any", info).get("last_token_usage") if isinstance(info, dict) else None
            index = self._latest_model_item()
            if isinstance(usage, dict) and index is not None:
                self._usages[index] = _usage(cast("JsonObject", usage))

    def _latest_model_item(self) -> int | None:
        """Return the last item that the model wrote; outputs of its calls may follow it."""
        return next((i for i in reversed(range(len(self._input))) if _by_model(self._input[i])), None)


def _unwrap(record: JsonObject) -> tuple[str, object]:
    """Return the type and payload of a record of any version."""
    kind = record.get("type")
    if kind in RECORDS or "payload" in record:
        return str(kind), record.get("payload")
    if record.get("record_type") == "state":
        return "state", record
    return ("session_meta", record) if _is_old_header(record) else ("response_item", record)


# --- writing back ------------------------------------------------------------------------------------------------


def write(raw: Sequence[bytes], document: Document, transcript: Transcript, repaired: JsonObject) -> bytes:
    """Edit a rollout to match the repair of its conversation.

    ``raw`` are the lines of the file, ``repaired`` is the repaired body. Items keep their records, in the order of the
    repair. A record without an item follows the item that it followed before. Unchanged lines are copied byte for byte,
    except that records are renumbered where the file has numbers and a record was added or moved.
    """
    editor = _Editor(document, transcript)
    editor.apply(transcript, repaired["input"])
    return editor.render(raw)


class _Editor:
    """The records of a rollout during editing, by line number."""

    def __init__(self, document: Document, transcript: Transcript) -> None:
        self._records = {line.number: line.record for line in document.lines}
        self._changed: dict[int, JsonObject] = {number: self._records[number] for number in transcript.replaced}
        self._gone = {one.line for one in transcript.skipped}
        self._order: list[int | JsonObject] = []
        """Lines with items in output order, and added records."""

    def apply(self, transcript: Transcript, repaired: Sequence[JsonObject]) -> None:
        """Apply the differences between the items as read and as repaired."""
        old: list[JsonObject] = transcript.body["input"]
        origins = [origin for (origin,) in transcript.origins]
        found = match_parts(old, repaired)
        kept = {place: item for place, item in zip(found, repaired, strict=True) if place is not None}
        changes: dict[Origin, JsonObject | None] = {}
        gists: dict[bytes, JsonObject | None] = {}
        for place, item in enumerate(old):
            new = kept.get(place)
            if new is not item and new != item:
                changes[origins[place]] = gists[_gist(item)] = new
        self._edit_compactions(changes, gists)
        for origin, new in changes.items():
            if origin.block >= 0:
                continue
            if new is None:
                self._gone.add(origin.line)
            else:
                self._changed[origin.line] = _rewrap(self._changed.get(origin.line, self._records[origin.line]), new)
        written: set[int] = set()
        calls: dict[str, int] = {}
        for place, item in zip(found, repaired, strict=True):
            if place is None:
                # Codex sends items in the order of the file: an output directly follows its call.
                call = calls.get(str(item.get("call_id")))
                self._order.insert(len(self._order) if call is None else self._order.index(call) + 1, item)
                continue
            line = origins[place].line
            if line not in written:  # a compaction contains several items
                self._order.append(line)
                written.add(line)
            if str(item.get("type")).endswith("_call") and origins[place].block < 0:
                calls[str(item.get("call_id"))] = line

    def _edit_compactions(
        self, changes: dict[Origin, JsonObject | None], gists: dict[bytes, JsonObject | None]
    ) -> None:
        """Change items inside the replacement of a compaction, including copies of items that changed elsewhere."""
        for number, record in self._records.items():
            kind, payload = _unwrap(record)
            if kind != "compacted" or not isinstance(payload, dict) or number in self._gone:
                continue
            listed: Any = cast("JsonObject", payload).get("replacement_history")
            if not isinstance(listed, list):
                continue
            items: list[Any] = []
            index = -1
            for item in cast("list[Any]", listed):
                index += isinstance(item, dict)
                new = item
                if isinstance(item, dict):
                    new = changes.get(Origin(number, index), gists.get(_gist(cast("JsonObject", item)), item))
                if new is not None:
                    items.append(new)
            if items != listed:
                self._changed[number] = {
                    **record,
                    "payload": {**cast("JsonObject", payload), "replacement_history": items},
                }

    def render(self, raw: Sequence[bytes]) -> bytes:
        """Return the bytes of the file."""
        out: list[tuple[int | None, JsonObject | None]] = []
        tails: defaultdict[int, list[int]] = defaultdict(list)
        carriers = {entry for entry in self._order if isinstance(entry, int)}
        latest = 0
        for number in range(1, len(raw) + 1):
            if number in carriers:
                latest = number
            elif number not in self._gone and (number in self._records or not raw[number - 1].strip()):
                tails[latest].append(number)
        out += [(number, None) for number in tails[0]]
        model = next(iter(self._records.values()), {})
        last = -1
        is_moved = False
        for entry in self._order:
            if isinstance(entry, int):
                is_moved, last = is_moved or entry < last, entry
                model = self._records[entry]
                out += [(number, None) for number in (entry, *tails[entry])]
            else:
                is_moved = True
                out.append((None, _wrapped(entry, model)))
        return b"".join(self._lines(raw, out, is_moved))

    def _lines(
        self, raw: Sequence[bytes], out: Sequence[tuple[int | None, JsonObject | None]], is_moved: bool
    ) -> Iterator[bytes]:
        ordinal = -1
        for number, added in out:
            record = added if number is None else self._changed.get(number)
            known = added if number is None else self._records.get(number, {})
            if is_moved and known is not None and isinstance(known.get("ordinal"), int):
                ordinal = max(ordinal + 1, 0 if ordinal >= 0 else known["ordinal"])
                if known["ordinal"] != ordinal or number is None:
                    record = {**(record or known), "ordinal": ordinal}
            if record is not None:
                yield encode_line(record)
            elif number is not None:
                yield ended(raw[number - 1])


# --- writing a compacted session ---------------------------------------------------------------------------------

_NOT_RESUMED = ("compacted", "token_usage_record")
"""Records that a compacted rollout does not have: Codex drops all items before a compaction that it reads."""


def write_compacted(raw: Sequence[bytes], document: Document, transcript: Transcript, compacted: JsonObject) -> bytes:
    """Write a rollout with the items of a compacted body.

    An item that the compaction kept has its record. Records about the session stay where they were among kept items,
    except token counts: Codex takes the size of the context from them and would compact again at once.
    """
    records = {line.number: line.record for line in document.lines}
    old: list[JsonObject] = transcript.body["input"]
    origins = [origin for (origin,) in transcript.origins]
    items: list[JsonObject] = compacted["input"]
    found = match_kept([("", item) for item in old], [("", item) for item in items])
    names = [{str(item[key]) for key in ("id", "call_id") if isinstance(item.get(key), str)} for item in old]
    kept = set().union(*(names[place] for place in found if place is not None))
    events = _events(records, {origin.line for origin in origins}, set().union(*names) - kept)
    out: list[tuple[int | None, JsonObject]] = [(number, records[number]) for number in events.pop(0, [])]
    model = next(iter(records.values()), {})
    for place, item in zip(found, items, strict=True):
        origin = origins[place] if place is not None else None
        if origin is None or origin.block >= 0:
            out.append((None, _wrapped(item, model)))
            continue
        model = records[origin.line]
        same = place is not None and item == old[place] and origin.line not in transcript.replaced
        out.append((origin.line, model) if same else (None, _rewrap(model, item)))
        out += [(number, records[number]) for number in events.pop(origin.line, [])]
    turns = [number for number, record in records.items() if record.get("type") == "turn_context"]
    if turns and turns[-1] not in {number for number, _ in out}:  # it has the settings of the next turn
        out.append((turns[-1], records[turns[-1]]))
    return b"".join(_numbered(raw, out))


def _events(records: dict[int, JsonObject], items: set[int], dropped: set[str]) -> dict[int, list[int]]:
    """Return the records about the session after each line with an item; 0 is the start of the file."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    latest = 0
    for number, record in records.items():
        kind, payload = _unwrap(record)
        if number in items:
            latest = number
        if number in items or kind in (*_NOT_RESUMED, "response_item") or not isinstance(payload, dict):
            continue
        event = cast("JsonObject", payload)
        item: Any = event.get("item")
        name = cast("JsonObject", item).get("id") if isinstance(item, dict) else event.get("call_id")
        if event.get("type") != "token_count" and name not in dropped:
            found[0 if kind == "session_meta" else latest].append(number)
    return found


def _numbered(raw: Sequence[bytes], out: Sequence[tuple[int | None, JsonObject]]) -> Iterator[bytes]:
    """Yield the lines of a file; where records have ordinals they are consecutive."""
    ordinal = -1
    for number, record in out:
        if isinstance(record.get("ordinal"), int):
            ordinal = ordinal + 1 if ordinal >= 0 else record["ordinal"]
            if record["ordinal"] != ordinal:
                yield encode_line({**record, "ordinal": ordinal})
                continue
        yield encode_line(record) if number is None else ended(raw[number - 1])


def _rewrap(record: JsonObject, item: JsonObject) -> JsonObject:
    """Replace the item of a record of any version."""
    return {**record, "payload": item} if "payload" in record else item


def _wrapped(item: JsonObject, model: JsonObject) -> JsonObject:
    """Build a record for a new item, like the record before it."""
    if model and "payload" not in model:
        return item
    shared = {key: model[key] for key in ("timestamp", "ordinal") if key in model}
    return {**shared, "type": "response_item", "payload": item}


# --- items -------------------------------------------------------------------------------------------------------


def _typed(item: JsonObject, kind: str) -> JsonObject:
    """Convert output and arguments to the type of the API; their content does not change."""
    output, arguments = item.get("output"), item.get("arguments")
    if isinstance(output, dict) and kind in ("function_call_output", "custom_tool_call_output"):
        words = cast("JsonObject", output).get("content")
        return {**item, "output": words if isinstance(words, str | list) else [output]}
    if kind == "function_call" and "arguments" in item and not isinstance(arguments, str):
        return {**item, "arguments": msgspec.json.encode(arguments).decode()}
    return item


def _by_model(item: JsonObject) -> bool:
    kind = str(item.get("type"))
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in MODEL_ITEMS or kind.endswith("_call")


def _gist(item: JsonObject) -> bytes:
    """Return the content of an item without ids, to recognise a copy with other ids."""
    content = {key: item[key] for key in ("content", "encrypted_content") if key in item}
    gist = {**content, "type": item.get("type"), "role": item.get("role")} if content else item
    return msgspec.json.encode(gist, order="sorted")


def _usage(counts: JsonObject) -> JsonObject:
    """Convert the flat counts of Codex to the usage object of the API."""
    return {
        "input_tokens": counts.get("input_tokens", 0),
        "input_tokens_details": {"cached_tokens": counts.get("cached_input_tokens", 0)},
        "output_tokens": counts.get("output_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_output_tokens", 0)},
        "total_tokens": counts.get("total_tokens", 0),
    }

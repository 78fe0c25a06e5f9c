"""Codex rollout files: Responses items between records about the session.

One invariant: an item that the API knows stands in the input as it was written, in order; only an output or arguments
that some version wrote in a type of its own get the type the API takes. A compaction replaces nothing here: what
precedes it stays, and what it added is marked as a summary.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import msgspec

from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.transcript import Lines, Skipped, Transcript, objects

FORMAT = "openai-responses"

RECORDS = frozenset(
    ["session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"],
)
"""Record types that only Codex writes, each with a payload."""

NOT_SENT = frozenset(["ghost_snapshot", "other"])
"""Items that Codex keeps for itself."""

COMPACTIONS = {"compaction_summary": "compaction", "context_compaction": "compaction"}
"""Names of the compaction item in older rollouts, and the one the API takes."""

MODEL_ITEMS = frozenset(["reasoning", "program", "mcp_approval_request"])


def wrote(record: JsonObject) -> bool:
    """Tell whether Codex writes records like this; before version 0.32 items stood in the file without a wrapper."""
    if record.get("type") in RECORDS and isinstance(record.get("payload"), dict):
        return True
    return record.get("record_type") == "state" or _is_old_header(record)


def _is_old_header(record: JsonObject) -> bool:
    return "type" not in record and {"id", "timestamp", "instructions"} <= record.keys()


def read(lines: Lines) -> Transcript:
    """Read the records of a rollout."""
    rollout = _Rollout(lines)
    for line in lines.lines:
        rollout.add(line.number, line.record)
    return rollout.finish()


class _Rollout:
    """Gathers the items of one rollout."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._input: list[JsonObject] = []
        self._known: set[bytes] = set()
        self._summaries: set[int] = set()
        self._usages: dict[int, JsonObject] = {}
        self._skipped = list(lines.skipped)
        self._left_out: Counter[str] = Counter()
        self._model: str | None = None
        self._instructions: str | None = None

    def add(self, number: int, record: JsonObject) -> None:
        """Take the next record."""
        kind, payload = _unwrap(record)
        if not isinstance(payload, dict):
            self._skipped.append(Skipped(number, f"a {kind} record without a payload"))
            return
        content = cast("JsonObject", payload)
        match kind:
            case "response_item":
                self._add_item(content)
            case "compacted":
                self._add_compaction(content)
            case _:
                self._left_out[kind] += 1
                self._note(kind, content)

    def finish(self) -> Transcript:
        """Return what was gathered."""
        body: JsonObject = {"model": self._model} if self._model else {}
        if self._instructions:
            body["instructions"] = self._instructions
        body["input"] = self._input
        body["store"] = False
        return Transcript(
            kind="codex",
            format=FORMAT,
            body=body,
            ids=(None,) * len(self._input),
            summaries=frozenset(self._summaries),
            usages=tuple(sorted(self._usages.items(), key=_index)),
            skipped=tuple(self._skipped),
            mended=self._lines.mended,
            left_out=dict(self._left_out),
            records=len(self._lines.lines),
        )

    def _add_item(self, item: JsonObject) -> bool:
        """Append an item that the API takes; say whether there was one."""
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
        return True

    def _as_words(self, item: JsonObject) -> JsonObject:
        """Write what another agent said as a message; the API has no item for it, and none for its sealed part."""
        content = objects(item.get("content"))
        parts = [part for part in content if part.get("type") == "input_text"]
        self._left_out["agent_message sealed"] += len(content) - len(parts)
        source = {"type": "input_text", "text": f"Message from {item.get('author') or 'another agent'}:"}
        return {"type": "message", "role": "user", "content": [source, *parts]}

    def _add_compaction(self, payload: JsonObject) -> None:
        """Append what a compaction added; copies of messages that stand in the input already are left out."""
        replacement = objects(payload.get("replacement_history"))
        message = payload.get("message")
        words = "\n".join(text_of(item.get("content")) for item in replacement)
        if isinstance(message, str) and message and message not in words:
            part = {"type": "input_text", "text": message}
            replacement.append({"type": "message", "role": "user", "content": [part]})
        for item in replacement:
            if _gist(item) in self._known:
                self._left_out["compacted copy"] += 1
            elif self._add_item(item):
                self._known.add(_gist(item))
                self._summaries.add(len(self._input) - 1)

    def _note(self, kind: str, payload: JsonObject) -> None:
        """Keep what a record says about the request: model, instructions, usage."""
        if kind == "session_meta":
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
        """Find the item that the model wrote last; outputs of its calls may stand behind it."""
        return next((i for i in reversed(range(len(self._input))) if _by_model(self._input[i])), None)


def _index(entry: tuple[int, JsonObject]) -> int:
    return entry[0]


def _unwrap(record: JsonObject) -> tuple[str, object]:
    """Return a record's type and payload, whichever version wrote it."""
    kind = record.get("type")
    if kind in RECORDS or "payload" in record:
        return str(kind), record.get("payload")
    if record.get("record_type") == "state":
        return "state", record
    return ("session_meta", record) if _is_old_header(record) else ("response_item", record)


def _typed(item: JsonObject, kind: str) -> JsonObject:
    """Give output and arguments the type the API takes; everything in them stays."""
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
    """Reduce an item to what it says, so that a copy with other ids is known again."""
    said = {key: item[key] for key in ("content", "encrypted_content") if key in item}
    gist = {**said, "type": item.get("type"), "role": item.get("role")} if said else item
    return msgspec.json.encode(gist, order="sorted")


def _usage(counts: JsonObject) -> JsonObject:
    """Write Codex's flat counts as the usage object of the API they come from."""
    return {
        "input_tokens": counts.get("input_tokens", 0),
        "input_tokens_details": {"cached_tokens": counts.get("cached_input_tokens", 0)},
        "output_tokens": counts.get("output_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_output_tokens", 0)},
        "total_tokens": counts.get("total_tokens", 0),
    }

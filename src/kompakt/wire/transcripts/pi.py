"""pi session files, read as Anthropic request bodies.

From version 2 on entries form a tree: the conversation is the path to the newest entry, and entries on other branches
are a side chain. The summary of a compaction precedes the entries that the compaction kept, as in pi's own requests;
what it replaced stays here. Edits of the context (``context_edit``) are not applied: the originals are read. An
assistant entry without content (a request aborted before the first token) is left out and noted, because no provider
would accept it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import Json, JsonObject, text_of
from kompakt.wire.transcripts.transcript import (
    UNUSABLE_RECORD,
    Document,
    Skipped,
    Transcript,
    TranscriptLine,
    open_calls,
    seconds,
)

LABEL = "pi"

_USAGE = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
}

_SUMMARIES = ("compaction", "branch_summary")
"""Entries that summarize earlier entries or an abandoned branch."""


def matches(document: Document) -> bool:
    """Return whether a document is a pi session: a header, then entries with messages."""
    first = document.first
    return document.is_lines and first.get("type") == "session" and ("id" in first or "cwd" in first)


def read(document: Document) -> Iterator[Transcript]:
    """Yield the session of a file."""
    path, rest = _branches(document.lines)
    main = _Gathering()
    main.add_all(_with_summaries_first(path))
    side = _Gathering()
    side.add_all(rest)
    transcript = main.finish()
    yield msgspec.structs.replace(
        transcript,
        sidechains=(side.finish(),) if side.messages else (),
        skipped=(*document.skipped, *main.skipped, *side.skipped),
        replaced=document.replaced,
        records=len(document.lines),
    )


def _branches(lines: Sequence[TranscriptLine]) -> tuple[list[TranscriptLine], list[TranscriptLine]]:
    """Split entries into the path to the newest one and the others; without ids all are on the path."""
    parents = {line.record["id"]: line.record.get("parentId") for line in lines if _is_linked(line.record)}
    if not parents:
        return list(lines), []
    place: object = next((line.record["id"] for line in reversed(lines) if _is_linked(line.record)), None)
    path: set[object] = set()
    while isinstance(place, str) and place not in path and place in parents:
        path.add(place)
        place = parents[place]
    if isinstance(place, str) and place not in path:  # the parent is missing: keep all earlier entries
        return list(lines), []
    on_path = [line for line in lines if not _is_linked(line.record) or line.record["id"] in path]
    return on_path, [line for line in lines if _is_linked(line.record) and line.record["id"] not in path]


def _with_summaries_first(lines: Sequence[TranscriptLine]) -> list[TranscriptLine]:
    """Move each compaction before the first entry that it kept."""
    ordered: list[TranscriptLine] = []
    for line in lines:
        kept = line.record.get("firstKeptEntryId") if line.record.get("type") == "compaction" else None
        places = (i for i, one in enumerate(ordered) if one.record.get("id") == kept) if kept else ()
        ordered.insert(next(iter(places), len(ordered)), line)
    return ordered


def _is_linked(record: JsonObject) -> bool:
    return record.get("type") != "session" and isinstance(record.get("id"), str) and "parentId" in record


class _Gathering:
    """Combines entries into messages."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.skipped: list[Skipped] = []
        self._notes: list[str] = []
        self._usages: list[tuple[int, JsonObject]] = []
        self._times: list[tuple[int, float]] = []
        self._summaries: set[int] = set()
        self._left_out: Counter[str] = Counter()
        self._model: str | None = None
        self._answered = -1
        """The message with the results of the latest calls."""
        self._prompt: dict[str, str] = {}
        """The sections of the system prompt, and texts without a section by number."""
        self._tools: dict[str, JsonObject] = {}

    def add_all(self, lines: Iterable[TranscriptLine]) -> None:
        """Add entries in order."""
        for line in lines:
            self._add(line.number, line.record)

    def finish(self) -> Transcript:
        """Return the transcript."""
        return Transcript(
            kind="pi",
            format="anthropic",
            body=self._body(),
            ids=(None,) * len(self.messages),
            summaries=frozenset(self._summaries),
            usages=tuple(self._usages),
            times=tuple(self._times),
            left_out=dict(self._left_out),
            notes=(*self._notes, *open_calls(self.messages)),
        )

    def _body(self) -> JsonObject:
        body: JsonObject = {"model": self._model} if self._model else {}
        prompt = "\n\n".join(filter(None, self._prompt.values()))
        if prompt:
            body["system"] = prompt
        if self._tools:
            body["tools"] = list(self._tools.values())
        return {**body, "messages": self.messages}

    def _add(self, number: int, record: JsonObject) -> None:
        kind = as_text(record.get("type"))
        if kind in ("session", "model_change") and isinstance(record.get("modelId"), str):
            self._model = record["modelId"]
        if kind in _SUMMARIES and isinstance(record.get("summary"), str):
            self._summarize(record["summary"])
            if isinstance(record.get("systemMessage"), dict):  # the whole prompt, in place of all earlier ones
                self._prompt, self._tools = {}, {}
                self._add_system(record["systemMessage"])
        elif kind == "custom_message":
            self._add_words(_blocks(record.get("content")))
        elif kind == "message":
            self._add_message(number, record)
        else:
            self._left_out[kind or "no type"] += 1

    def _add_message(self, number: int, record: JsonObject) -> None:
        message = as_object(record.get("message"))
        match message.get("role"):
            case "assistant":
                if (began := seconds(record.get("timestamp"))) is not None:
                    self._times.append((len(self.messages), began))
                self._add_assistant(number, message)
            case "toolResult":
                self._add_result(number, message)
            case "bashExecution":
                if message.get("excludeFromContext"):
                    self._left_out["bashExecution"] += 1
                else:
                    ran = f"Ran `{as_text(message.get('command'))}`\n```\n{as_text(message.get('output'))}\n```"
                    self._add_words([{"type": "text", "text": ran}])
            case "system":
                self._add_system(message)
            case "branchSummary" | "compactionSummary":
                self._summarize(as_text(message.get("summary")))
            case str() if _blocks(message.get("content")):
                self._add_words(_blocks(message.get("content")))
            case role:
                reason = f"a message of {role!r} without content" if role else "a message entry without a message"
                self.skipped.append(Skipped(number, reason, UNUSABLE_RECORD))

    def _add_system(self, message: JsonObject) -> None:
        """Apply a system message: it adds, replaces or removes sections and tools."""
        for name, words in as_object(message.get("sections")).items():
            self._prompt.pop(name, None)
            if isinstance(words, str):
                self._prompt[name] = words
        words = text_of(message.get("content"))
        if words:
            self._prompt[f"text {len(self._prompt)}"] = words
        for tool in as_objects(message.get("toolsRemoved")):
            self._tools.pop(as_text(tool.get("name")), None)
        for tool in as_objects(message.get("toolsAdded")):
            name, description = as_text(tool.get("name")), as_text(tool.get("description"))
            schema = as_object(tool.get("parameters")) or {"type": "object"}
            if name:
                self._tools[name] = {"name": name, "description": description, "input_schema": schema}

    def _add_assistant(self, number: int, message: JsonObject) -> None:
        blocks = _blocks(message.get("content"))
        reason = message.get("stopReason")
        if not blocks:
            self._notes.append(f"entry {number} is an assistant message without content ({reason}) and was left out")
            return
        if reason in ("aborted", "error"):
            self._notes.append(f"message {len(self.messages)} is an assistant message that was cut off ({reason})")
        if any(block.get("type") == "thinking" and "signature" not in block for block in blocks):
            self._notes.append(f"message {len(self.messages)} has thinking without a signature")
        index = len(self.messages)
        self.messages.append({"role": "assistant", "content": blocks})
        self._answered = -1
        if self._model is None and isinstance(message.get("model"), str):
            self._model = message["model"]
        usage = message.get("usage")
        if isinstance(usage, dict) and reason not in ("aborted", "error"):
            self._usages.append((index, {key: usage.get(name, 0) for key, name in _USAGE.items()}))

    def _add_result(self, number: int, message: JsonObject) -> None:
        call_id = message.get("toolCallId")
        if not isinstance(call_id, str):
            self.skipped.append(Skipped(number, "a tool result without a call id", UNUSABLE_RECORD))
            return
        result: JsonObject = {"type": "tool_result", "tool_use_id": call_id}
        result["content"] = _blocks(message.get("content"))
        if message.get("isError"):
            result["is_error"] = True
        if self._answered < 0:
            self._answered = len(self.messages)
            self.messages.append({"role": "user", "content": []})
        content = self.messages[self._answered]["content"]
        results = sum(block["type"] == "tool_result" for block in content)
        content.insert(results, result)

    def _add_words(self, blocks: list[JsonObject]) -> None:
        if self._answered == len(self.messages) - 1 and self._answered >= 0:
            self.messages[-1]["content"].extend(blocks)
        elif blocks:
            self.messages.append({"role": "user", "content": blocks})

    def _summarize(self, summary: str) -> None:
        self._summaries.add(len(self.messages))
        self._answered = -1
        self.messages.append({"role": "user", "content": [{"type": "text", "text": summary}]})


def _blocks(content: Json) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(block) for block in as_objects(content)]


def _block(block: JsonObject) -> JsonObject:
    """Convert a content block to the provider's names."""
    match block.get("type"):
        case "toolCall":
            call_id, name = as_text(block.get("id")), as_text(block.get("name"))
            return {"type": "tool_use", "id": call_id, "name": name, "input": block.get("arguments") or {}}
        case "thinking" if block.get("redacted") and isinstance(block.get("thinkingSignature"), str):
            return {"type": "redacted_thinking", "data": block["thinkingSignature"]}
        case "thinking":
            signature = block.get("thinkingSignature")
            sealed = {"signature": signature} if signature else {}
            return {"type": "thinking", "thinking": as_text(block.get("thinking")), **sealed}
        case "image":
            source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
            return {"type": "image", "source": source}
        case "text":
            return {"type": "text", "text": as_text(block.get("text"))}
        case _:
            return {**block, "type": as_text(block.get("type"))}

"""opencode sessions, read as Chat messages: the output of ``opencode export``, or the same from its database.

A tool part contains the call and its result; a message ends where the model answers again after a result. A compaction
is a user message with a ``compaction`` part and an assistant message marked as summary; earlier messages stay here.
Both precede the messages that the compaction kept (``tail_start_id``), as in opencode's own requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.transcripts.transcript import ChatBuilder, Document, Transcript, decode_value

if TYPE_CHECKING:
    import sqlite3

LABEL = "opencode"

_SILENT = ("step-start", "step-finish", "snapshot", "patch", "agent", "retry")
"""Parts that are not sent."""

INTERRUPTED_STATES = ("pending", "running")


_TABLES = {"session", "message", "part"}


def rows(connection: sqlite3.Connection, session: str | None = None) -> Json:
    """Return the sessions of a database in the shape of ``opencode export``, newest first; ``None`` for other tables.

    With ``session`` only that one is read, or none.

    Raises:
        sqlite3.Error: the database is damaged.
    """
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= _TABLES:
        return None
    own = (session, session)
    parts: dict[str, list[Json]] = {}
    of_session = "message_id IN (SELECT id FROM message WHERE session_id = ?)"
    query = f"SELECT message_id, data FROM part WHERE ? IS NULL OR {of_session} ORDER BY id"
    for message, data in connection.execute(query, own):
        parts.setdefault(message, []).append(_column(data))
    messages: dict[str, list[Json]] = {}
    query = "SELECT id, session_id, data FROM message WHERE ? IS NULL OR session_id = ? ORDER BY id"
    for id, name, data in connection.execute(query, own):
        info = {**as_object(_column(data)), "id": id}
        messages.setdefault(name, []).append({"info": info, "parts": parts.get(id, [])})
    query = "SELECT id, title FROM session ORDER BY parent_id IS NOT NULL, time_updated DESC, id"
    return [
        {"info": {"id": id, "title": title}, "messages": messages[id]}
        for id, title in connection.execute(query)
        if id in messages
    ]


def _column(data: object) -> Json:
    """Decode a column; ``None`` when it is not JSON."""
    try:
        return decode_value(data.encode() if isinstance(data, str) else bytes(cast("Any", data)))[0]
    except (ValueError, TypeError, RecursionError):
        return None


def matches(document: Document) -> bool:
    """Return whether a document is an export: a session with messages, or a list of sessions."""
    return any(_is_export(entry) for entry in _exports(document))


def _exports(document: Document) -> list[JsonObject]:
    value = [line.record for line in document.lines] if document.is_lines else document.value
    return as_objects(value if isinstance(value, list) else [value])


def _is_export(value: JsonObject) -> bool:
    session, messages = as_object(value.get("info")), as_objects(value.get("messages"))
    if not isinstance(value.get("messages"), list) or not isinstance(session.get("id"), str):
        return False
    return session["id"].startswith("ses") or any("info" in message and "parts" in message for message in messages)


def read(document: Document) -> Iterator[Transcript]:
    """Yield one conversation per session."""
    exports = [value for value in _exports(document) if _is_export(value)]
    for number, value in enumerate(exports):
        session = as_object(value.get("info"))
        collector = _Collector()
        for message in _with_summaries_first(as_objects(value.get("messages"))):
            collector.add(as_object(message.get("info")), as_objects(message.get("parts")))
        messages = collector.chat.finish()
        body: JsonObject = {"model": collector.model} if collector.model else {}
        body["messages"] = messages
        yield Transcript(
            kind="opencode",
            format="openai-chat",
            name=as_text(session.get("id")) if len(exports) > 1 else "",
            body=body,
            ids=(None,) * len(messages),
            summaries=frozenset(collector.chat.summaries),
            usages=tuple(collector.chat.usages),
            times=tuple(collector.chat.times),
            skipped=document.skipped if number == 0 else (),
            replaced=document.replaced if number == 0 else (),
            left_out=dict(collector.left_out),
            notes=tuple(collector.notes),
            records=len(as_objects(value.get("messages"))),
        )


def _with_summaries_first(messages: list[JsonObject]) -> list[JsonObject]:
    """Move each compaction, with its summary, before the first message that it kept."""
    ordered: list[JsonObject] = []
    tails: dict[object, object] = {}
    """The first message that a compaction kept, by the id of the compaction."""
    for message in messages:
        info = as_object(message.get("info"))
        parts = as_objects(message.get("parts"))
        tail = next((part.get("tail_start_id") for part in parts if part.get("type") == "compaction"), None)
        if isinstance(tail, str):
            tails[info.get("id")] = tail
        elif info.get("summary") is True and isinstance(info.get("parentID"), str):
            tail = tails.get(info["parentID"])
        places = (i for i, one in enumerate(ordered) if as_object(one.get("info")).get("id") == tail) if tail else ()
        ordered.insert(next(iter(places), len(ordered)), message)
    return ordered


class _Collector:
    """Collects the messages of one session."""

    def __init__(self) -> None:
        self.chat = ChatBuilder()
        self.model: str | None = None
        self.notes: list[str] = []
        self.left_out: Counter[str] = Counter()

    def add(self, info: JsonObject, parts: list[JsonObject]) -> None:
        """Add the next message."""
        for part in parts:
            if part.get("type") in _SILENT:
                self.left_out[str(part["type"])] += 1
        if info.get("role") == "assistant":
            self._add_assistant(info, [part for part in parts if part.get("type") not in _SILENT])
        else:
            self._add_user(parts)

    def _add_user(self, parts: list[JsonObject]) -> None:
        content: list[JsonObject] = []
        for part in parts:
            match part.get("type"):
                case "text" if part.get("ignored") is True:  # shown to the user only
                    self.left_out["ignored text"] += 1
                case "text" if as_text(part.get("text")):
                    content.append({"type": "text", "text": part["text"]})
                case "file":
                    content.append(_file(part))
                case "subtask":
                    content.append({"type": "text", "text": as_text(part.get("prompt"))})
                case "compaction":
                    content.append({"type": "text", "text": "What did we do so far?"})
                case kind if kind not in _SILENT:
                    self.left_out[str(kind)] += 1
                case _:
                    pass
        if len(content) == 1 and content[0]["type"] == "text":
            self.chat.add("user", content[0]["text"])
        elif content:
            self.chat.add("user", content)

    def _add_assistant(self, info: JsonObject, parts: list[JsonObject]) -> None:
        if isinstance(info.get("modelID"), str):
            self.model = info["modelID"]
        error = as_object(info.get("error"))
        if error:
            self.notes.append(
                f"message {len(self.chat.messages)} ended with {as_text(error.get('name')) or 'an error'}"
            )
        if info.get("summary") is True:
            words = "\n\n".join(as_text(part.get("text")) for part in parts if part.get("type") == "text")
            self.chat.add_summary("assistant", words)
            return
        words, thoughts, tools = [], [], []
        usage, created = _usage(as_object(info.get("tokens"))), as_object(info.get("time")).get("created")
        began = created / 1000 if isinstance(created, int) else None
        for part in parts:
            kind = part.get("type")
            if kind in ("text", "reasoning") and tools:  # the model answered again: a new message starts
                self._put(words, thoughts, tools, None, began)
                words, thoughts, tools = [], [], []
            if kind == "text":
                words.append(as_text(part.get("text")))
            elif kind == "reasoning":
                thoughts.append(as_text(part.get("text")))
            elif kind == "tool":
                tools.append(part)
            else:
                self.left_out[str(kind)] += 1
        self._put(words, thoughts, tools, usage, began)

    def _put(
        self,
        words: list[str],
        thoughts: list[str],
        tools: list[JsonObject],
        usage: JsonObject | None,
        began: float | None,
    ) -> None:
        """Add an answer of the model with its calls and their results."""
        text, thought = "\n".join(filter(None, words)), "\n".join(filter(None, thoughts))
        if not (text or thought or tools):
            return
        message: JsonObject = {"role": "assistant", "content": text or None}
        if thought:
            message["reasoning_content"] = thought
        if tools:
            message["tool_calls"] = [_call(part) for part in tools]
        elif not text:
            message["content"] = ""
        self.chat.add_calls(message, usage=usage, time=began)
        for part in tools:
            self._add_result(part)

    def _add_result(self, part: JsonObject) -> None:
        state, call_id = as_object(part.get("state")), as_text(part.get("callID"))
        if state.get("status") in INTERRUPTED_STATES:
            self.notes.append(f"call {call_id} has no result: it was {state['status']}")
            return
        failed = state.get("status") == "error"
        words = as_text(state.get("error")) if failed else as_text(state.get("output"))
        attachments = [_file(file) for file in as_objects(state.get("attachments"))]
        self.chat.add_result(call_id, [{"type": "text", "text": words}, *attachments] if attachments else words)


def _call(part: JsonObject) -> JsonObject:
    arguments = msgspec.json.encode(as_object(as_object(part.get("state")).get("input"))).decode()
    function = {"name": as_text(part.get("tool")), "arguments": arguments}
    return {"id": as_text(part.get("callID")), "type": "function", "function": function}


def _file(part: JsonObject) -> JsonObject:
    """Convert an attached file: an image as such, anything else by its name."""
    url, mime = as_text(part.get("url")), as_text(part.get("mime"))
    if mime.startswith("image/") and url:
        return {"type": "image_url", "image_url": {"url": url}}
    name = as_text(part.get("filename")) or (url if not url.startswith("data:") else "") or "a file"
    return {"type": "text", "text": f"[attached {mime or 'file'}: {name}]"}


def _usage(tokens: JsonObject) -> JsonObject | None:
    """Convert the counts of opencode to the usage object of Chat Completions."""
    if not any(isinstance(tokens.get(key), int) and tokens[key] for key in ("input", "output")):
        return None
    cache = as_object(tokens.get("cache"))
    numbers = [
        value if isinstance(value := found, int) else 0
        for found in (
            tokens.get("input"),
            cache.get("read"),
            cache.get("write"),
            tokens.get("output"),
            tokens.get("reasoning"),
        )
    ]
    prompt, completion = sum(numbers[:3]), sum(numbers[3:])
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": numbers[1]},
        "completion_tokens": completion,
        "completion_tokens_details": {"reasoning_tokens": numbers[4]},
        "total_tokens": prompt + completion,
    }

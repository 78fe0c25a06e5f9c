"""Gemini CLI session files, read as Gemini contents.

New versions write one record per line, older ones a single JSON object; ``/chat save`` writes the contents themselves.
A message is written again under its id whenever it grows, and the newest version counts. What a compression replaced
stays here, and what it added is marked as a summary. What the user rewound is a side chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

import msgspec

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.transcripts.transcript import UNUSABLE_RECORD, Document, Skipped, Transcript, seconds

LABEL = "Gemini CLI"

MAX_LOOKED_AT = 50

_UNSENT = ("info", "error", "warning")
"""Messages for the user at the terminal."""

_USAGE = {
    "promptTokenCount": "input",
    "candidatesTokenCount": "output",
    "cachedContentTokenCount": "cached",
    "thoughtsTokenCount": "thoughts",
    "toolUsePromptTokenCount": "tool",
    "totalTokenCount": "total",
}


def matches(document: Document) -> bool:
    """Return whether Gemini CLI wrote a document."""
    if document.is_lines:
        return any(_wrote(line.record) for line in document.lines[:MAX_LOOKED_AT])
    value = as_object(document.value)
    return (_wrote(value) and isinstance(value.get("messages"), list)) or _is_checkpoint(value)


def _wrote(record: JsonObject) -> bool:
    return isinstance(record.get("sessionId"), str) and isinstance(record.get("projectHash"), str)


def _is_checkpoint(value: JsonObject) -> bool:
    """Return whether ``/chat save`` wrote a document."""
    history = as_objects(value.get("history"))
    return bool(history) and all(isinstance(entry.get("parts"), list) for entry in history)


def read(document: Document) -> Iterator[Transcript]:
    """Yield the session of a file."""
    value = as_object(document.value)
    if _is_checkpoint(value):
        contents = as_objects(value["history"])
        ids = (None,) * len(contents)
        yield Transcript(kind="gemini-cli", format="gemini", body={"contents": contents}, ids=ids, records=len(ids))
        return
    log = _Log()
    if document.is_lines:
        for line in document.lines:
            log.add(line.number, line.record)
    else:
        log.add(1, value)
    main = _contents(log.messages.values(), log.summaries)
    rewound = _contents(log.rewound, frozenset())
    yield msgspec.structs.replace(
        main,
        sidechains=(rewound,) if log.rewound else (),
        skipped=tuple(sorted((*document.skipped, *log.skipped), key=lambda one: one.line)),
        replaced=document.replaced,
        left_out={**main.left_out, **log.left_out},
        records=len(document.lines) or 1,
    )


class _Log:
    """The messages of a session after all its records."""

    def __init__(self) -> None:
        self.messages: dict[str, JsonObject] = {}
        self.rewound: list[JsonObject] = []
        self.summaries: set[str] = set()
        self.skipped: list[Skipped] = []
        self.left_out: Counter[str] = Counter()

    def add(self, number: int, record: JsonObject) -> None:
        """Add the next record."""
        update = as_object(record.get("$set"))
        if isinstance(record.get("$rewindTo"), str):
            self._rewind(record["$rewindTo"])
        elif isinstance(update.get("messages"), list):
            self._replace(as_objects(update["messages"]))
        elif isinstance(record.get("messages"), list):
            self._replace(as_objects(record["messages"]))
        elif isinstance(record.get("id"), str):
            self.messages[record["id"]] = record
        elif update or _wrote(record):
            self.left_out["$set" if update else "header"] += 1
        else:
            self.skipped.append(Skipped(number, "a record without an id", UNUSABLE_RECORD))

    def _rewind(self, to: str) -> None:
        """Remove a message and all after it; an unknown id removes everything, as in the CLI."""
        names = list(self.messages)
        first = names.index(to) if to in self.messages else 0
        self.rewound.extend(self.messages.pop(name) for name in names[first:])

    def _replace(self, messages: list[JsonObject]) -> None:
        """Replace the history; messages that it leaves out were compressed into what is new in it."""
        named = {str(message.get("id") or f"entry {index}"): message for index, message in enumerate(messages)}
        is_compression = any(name not in named for name in self.messages)
        for name, message in named.items():
            if name not in self.messages and is_compression:
                self.summaries.add(name)
            self.messages[name] = message


def _contents(messages: Iterable[JsonObject], summaries: Iterable[str]) -> Transcript:
    """Convert messages to contents; results with a record of their own are not read from the call again."""
    messages, flagged = list(messages), set(summaries)
    answered = {
        str(as_object(part.get("functionResponse")).get("id"))
        for message in messages
        for part in as_objects(message.get("content"))
        if isinstance(part.get("functionResponse"), dict)
    }
    contents: list[JsonObject] = []
    usages: list[tuple[int, JsonObject]] = []
    times: list[tuple[int, float]] = []
    marked: set[int] = set()
    left_out: Counter[str] = Counter()
    model: str | None = None
    for message in messages:
        kind = message.get("type")
        if kind in _UNSENT:
            left_out[str(kind)] += 1
            continue
        is_model = kind == "gemini"
        parts = _model_parts(message) if is_model else _parts(message.get("content"))
        if not parts:
            continue
        is_summary = str(message.get("id")) in flagged
        index = _put(contents, "model" if is_model else "user", parts, apart=is_summary or len(contents) - 1 in marked)
        marked |= {index} if is_summary else set()
        if not is_model:
            continue
        model = message["model"] if isinstance(message.get("model"), str) else model
        tokens = as_object(message.get("tokens"))
        if tokens:
            usages.append((index, {key: tokens.get(name, 0) for key, name in _USAGE.items()}))
        if (began := seconds(message.get("timestamp"))) is not None:
            times.append((index, began))
        results = [part for call in as_objects(message.get("toolCalls")) for part in _results(call, answered)]
        if results:
            _put(contents, "user", results)
    return Transcript(
        kind="gemini-cli",
        format="gemini",
        body={**({"model": model} if model else {}), "contents": contents},
        ids=(None,) * len(contents),
        summaries=frozenset(marked),
        usages=tuple(usages),
        times=tuple(times),
        left_out=dict(left_out),
    )


def _put(contents: list[JsonObject], role: str, parts: list[JsonObject], *, apart: bool = False) -> int:
    """Add parts and return the index of their content; parts of one role are merged, because roles alternate."""
    if contents and contents[-1]["role"] == role and not apart:
        contents[-1] = {"role": role, "parts": [*contents[-1]["parts"], *parts]}
    else:
        contents.append({"role": role, "parts": parts})
    return len(contents) - 1


def _parts(content: Json) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if isinstance(content, dict):
        return [content]
    entries = content if isinstance(content, list) else []
    return [{"text": entry} if isinstance(entry, str) else entry for entry in entries if isinstance(entry, str | dict)]


def _model_parts(message: JsonObject) -> list[JsonObject]:
    """Collect thoughts, text and calls of the model; calls only if the content does not contain them."""
    parts = _parts(message.get("content"))
    if any("functionCall" in part or part.get("thought") for part in parts):
        return parts
    thoughts = [_thought(thought) for thought in as_objects(message.get("thoughts"))]
    calls = [
        {"functionCall": {key: call[key] for key in ("id", "name", "args") if key in call}}
        for call in as_objects(message.get("toolCalls"))
    ]
    return [*filter(None, thoughts), *parts, *calls]


def _thought(thought: JsonObject) -> JsonObject:
    subject, description = as_text(thought.get("subject")), as_text(thought.get("description"))
    words = f"**{subject}** {description}" if subject else description
    return {"text": words, "thought": True} if words else {}


def _results(call: JsonObject, answered: Container[object]) -> list[JsonObject]:
    """Return the result inside a call, in any of its shapes."""
    result = call.get("result")
    if str(call.get("id")) in answered or not result:
        return []
    if isinstance(result, str):
        response = {"id": call.get("id"), "name": call.get("name"), "response": {"output": result}}
        return [{"functionResponse": response}]
    return _parts(result)

"""pi session files, as Anthropic request bodies.

An assistant entry without content (a request that was aborted before the first token) says nothing and no provider
would take it back, so it is left out and noted.
"""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.evals.session import Document, Session, seconds
from kompakt.model.messages import Json, JsonObject

_USAGE = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
}


def matches(document: Document) -> bool:
    """Tell whether a file is a pi session: a header, then entries that wrap messages."""
    return bool(document.lines) and document.first.get("type") == "session" and "id" in document.first


def read(document: Document) -> Iterator[Session]:
    """Yield the one session of a file."""
    gathering = _Gathering(document)
    for number, record in enumerate(document.records, start=1):
        gathering.add(number, record)
    yield gathering.finish()


class _Gathering:
    """Gathers the entries of a session file into messages."""

    def __init__(self, document: Document) -> None:
        self._name = document.name
        self._notes = list(document.notes)
        self._messages: list[JsonObject] = []
        self._usages: list[tuple[int, JsonObject]] = []
        self._times: list[tuple[int, float]] = []
        self._open: dict[str, int] = {}
        self._model: str | None = None
        self._answered = -1
        """The message that holds the results of the latest calls."""

    def add(self, number: int, record: JsonObject) -> None:
        """Take the next entry; model and thinking changes carry no message."""
        if record.get("type") in ("session", "model_change") and isinstance(record.get("modelId"), str):
            self._model = record["modelId"]
        if record.get("type") != "message":
            return
        message: JsonObject = record["message"]
        match message["role"]:
            case "assistant":
                began = seconds(record.get("timestamp"))
                self._times += [(len(self._messages), began)] if began is not None else []
                self._add_assistant(number, message)
            case "toolResult":
                self._add_result(message)
            case _:
                self._add_words(_blocks(message["content"]))

    def finish(self) -> Session:
        """Return what was gathered."""
        missing = [f"call {call_id} in message {index} has no result" for call_id, index in self._open.items()]
        return Session(
            name=self._name,
            source="pi",
            format="anthropic",
            body={**({"model": self._model} if self._model else {}), "messages": self._messages},
            usages=tuple(self._usages),
            times=tuple(self._times),
            notes=(*self._notes, *missing),
        )

    def _add_assistant(self, number: int, message: JsonObject) -> None:
        blocks = [_block(block) for block in _blocks(message["content"])]
        reason = message.get("stopReason")
        if not blocks:
            self._notes.append(f"entry {number} is an assistant message without content ({reason}) and was left out")
            return
        if reason in ("aborted", "error"):
            self._notes.append(f"message {len(self._messages)} is an assistant message that was cut off ({reason})")
        if any(block["type"] == "thinking" and "signature" not in block for block in blocks):
            self._notes.append(f"message {len(self._messages)} has thinking without a signature")
        index = len(self._messages)
        self._open.update({block["id"]: index for block in blocks if block["type"] == "tool_use"})
        self._messages.append({"role": "assistant", "content": blocks})
        self._answered = -1
        usage = message.get("usage")
        if isinstance(usage, dict) and reason not in ("aborted", "error"):
            self._usages.append((index, {key: usage.get(name, 0) for key, name in _USAGE.items()}))

    def _add_result(self, message: JsonObject) -> None:
        result: JsonObject = {"type": "tool_result", "tool_use_id": message["toolCallId"]}
        result["content"] = [_block(block) for block in _blocks(message["content"])]
        if message.get("isError"):
            result["is_error"] = True
        self._open.pop(message["toolCallId"], None)
        if self._answered < 0:
            self._answered = len(self._messages)
            self._messages.append({"role": "user", "content": []})
        content = self._messages[self._answered]["content"]
        results = sum(block["type"] == "tool_result" for block in content)
        content.insert(results, result)

    def _add_words(self, blocks: list[JsonObject]) -> None:
        blocks = [_block(block) for block in blocks]
        if self._answered == len(self._messages) - 1 and self._answered >= 0:
            self._messages[-1]["content"].extend(blocks)
        else:
            self._messages.append({"role": "user", "content": blocks})


def _blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _block(block: JsonObject) -> JsonObject:
    """Write a content block the way the provider names it."""
    match block["type"]:
        case "toolCall":
            return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": block["arguments"]}
        case "thinking":
            signature = block.get("thinkingSignature")
            sealed = {"signature": signature} if signature else {}
            return {"type": "thinking", "thinking": block["thinking"], **sealed}
        case "image":
            source = {"type": "base64", "media_type": block["mimeType"], "data": block["data"]}
            return {"type": "image", "source": source}
        case _:
            return {"type": "text", "text": block["text"]} if block["type"] == "text" else block

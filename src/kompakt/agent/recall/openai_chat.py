"""Recall in Chat Completions: one message for all rounds, with the texts of each round in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.agent.recall.sse import DONE, event, read_data
from kompakt.agent.recall.turn import (
    GAP,
    DeltaBuffer,
    ModelTurn,
    RecallRound,
    RoundStream,
    add_tokens,
    as_list,
    sum_usages,
)
from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject, ToolCall

_SENT = ("tool_calls", "refusal", "reasoning_content", "reasoning", "reasoning_details", "extra_content")
"""Fields of an answer that are sent back to the provider; others are for clients only."""

_TEXTS = ("content", "reasoning_content", "reasoning")
"""Fields of an answer that hold a text."""

_CUT = ("length", "content_filter")
"""Finish reasons after which a call may be incomplete."""


class ChatRecall:
    format = "openai-chat"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
        choice = as_object((as_list(response.get("choices")) or [None])[0])
        return _turn(as_object(choice.get("message")), choice.get("finish_reason"), name)

    def merge(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        last = responses[-1]
        choices = as_list(last.get("choices"))
        if not choices:
            return last
        messages = [as_object(as_object(choice).get("message")) for one in responses for choice in one["choices"][:1]]
        message = _visible(messages[-1], name)
        for field in _TEXTS:
            texts = [one[field] for one in messages if isinstance(one.get(field), str) and one[field]]
            if texts:
                message[field] = (GAP if field == "content" else "").join(texts)
        reason = _finish_reason(choices[0].get("finish_reason"), bool(message.get("tool_calls")))
        first = {**choices[0], "message": message, "finish_reason": reason}
        merged = {**last, "id": responses[0].get("id"), "choices": [first, *choices[1:]]}
        usages = [self.usage(one) for one in responses]
        return {**merged, "usage": sum_usages(usages)} if any(usages) else merged

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Json]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)
        ]

    def without_shown(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        item = as_object(items[0])
        if not any(_joined(shown, field) for field in _TEXTS):
            return 0, []
        left = {**item, "content": _text_left(item.get("content"), _joined(shown, "content"))}
        for field in _TEXTS[1:]:
            if isinstance(item.get(field), str):
                left[field] = _text_left(item[field], _joined(shown, field)) or ""
        if left["content"] is None:
            return None
        if not left["content"]:
            if not item.get("tool_calls"):
                return None
            left["content"] = None
        return 1, [left]

    def with_results(self, kept: RecallRound, following: Json) -> list[Json] | None:
        """Insert the results before the client's; each result is a message of its own."""
        if as_object(following).get("role") != "tool":
            return None
        return [*kept.results, following]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        return as_object(response.get("usage"))

    def with_more_input(self, response: JsonObject, tokens: int) -> JsonObject:
        usage = response.get("usage")
        return {**response, "usage": _add_input(as_object(usage), tokens)} if isinstance(usage, dict) else response

    def stream(self, name: str, body: JsonObject, extra_input: int) -> RoundStream:
        return ChatRecallStream(name, extra_input)


def _add_input(usage: JsonObject, tokens: int) -> JsonObject:
    return add_tokens(usage, tokens, "prompt_tokens", "total_tokens")


def _turn(message: JsonObject, reason: Json, name: str) -> ModelTurn:
    more = {key: message[key] for key in _SENT if message.get(key) is not None}
    sent: JsonObject = {"role": "assistant", "content": message.get("content") or None, **more}
    functions = [as_object(call) for call in as_list(message.get("tool_calls"))]
    calls = tuple(
        ToolCall(str(call.get("id") or ""), str(inner.get("name") or ""), inner.get("arguments"))
        for call in functions
        for inner in [as_object(call.get("function") or call.get("custom"))]
    )
    return ModelTurn(items=[sent], calls=calls, is_complete=reason not in _CUT, shown=[_visible(sent, name)])


def _visible(message: JsonObject, name: str) -> JsonObject:
    left = [call for call in as_list(message.get("tool_calls")) if as_object(call.get("function")).get("name") != name]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "tool_calls": left} if left else rest


def _finish_reason(reason: Json, has_calls: bool) -> Json:
    """Return the finish reason of an answer whose hidden calls were removed."""
    return "stop" if reason in ("tool_calls", "function_call") and not has_calls else reason


def _joined(shown: Sequence[Json], field: str) -> str:
    texts = [as_object(one).get(field) for one in shown]
    return (GAP if field == "content" else "").join(text for text in texts if isinstance(text, str) and text)


def _text_left(content: Json, seen: str) -> Json:
    """Remove a text from the start of a content; ``None`` when the content does not start with it."""
    if not seen:
        return content if content is not None else ""
    if isinstance(content, str):
        return content.removeprefix(seen).removeprefix(GAP) if content.startswith(seen) else None
    parts = as_list(content)
    text = as_object(parts[0]).get("text") if parts else None
    if not isinstance(text, str) or not text.startswith(seen):
        return None
    left = text.removeprefix(seen).removeprefix(GAP)
    return [{**parts[0], "text": left}, *parts[1:]] if left else parts[1:]


class _StreamedCall:
    """A tool call that is streamed in deltas."""

    def __init__(self) -> None:
        self._fields: JsonObject = {"id": "", "type": "function"}
        self._functions: dict[str, DeltaBuffer] = {}
        self.has_input = False
        self.name = ""

    def add(self, delta: JsonObject) -> None:
        for key, value in delta.items():
            if key == "index" or value is None:
                continue
            if key not in ("function", "custom"):
                self._fields[key] = value
                continue
            fields = as_object(value)
            inner = self._functions.setdefault(key, DeltaBuffer({}))
            for name, piece in fields.items():
                if piece is not None:
                    inner.add(name, piece)
            if key == "function":
                self.name += str(fields.get("name") or "")
            self.has_input = self.has_input or key == "custom" or bool(fields.get("arguments"))

    def value(self) -> JsonObject:
        return {**self._fields, **{key: inner.value() for key, inner in self._functions.items()}}


class ChatRecallStream:
    """Reads the chunks of all rounds.

    Text is passed on at once, a call when its name shows that it is not a call of the recall tool, and the end when it
    is the end of the answer.
    """

    def __init__(self, name: str, extra_input: int) -> None:
        self._name, self._extra_input = name, extra_input
        self._id: Json = None
        self._earlier_usages: list[JsonObject] = []
        self._has_text = self._needs_gap = False
        self._indexes: dict[int, int] = {}
        """The client's index of each visible call."""
        self._start_round()
        self._is_first = True

    def _start_round(self) -> None:
        self.is_over = self.has_failed = False
        self._message = DeltaBuffer({"role": "assistant", "content": None})
        self._calls: dict[int, _StreamedCall] = {}
        self._held: dict[int, list[JsonObject]] = {}
        """Deltas of calls that may be calls of the recall tool."""
        self._reason: Json = None
        self._closing: list[JsonObject] = []
        self._usage: JsonObject = {}
        self._is_done = False

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        if data == DONE:
            self._is_done = self.is_over = True
            return []
        chunk = read_data(data)
        if chunk is None:
            return [raw]
        if "error" in chunk and not chunk.get("choices"):
            self.has_failed = True
            return [raw]
        self._id = self._id if self._id is not None else chunk.get("id")
        choices = as_list(chunk.get("choices"))
        has_usage = isinstance(chunk.get("usage"), dict)
        if has_usage:
            self._usage = as_object(chunk["usage"])
            chunk = {**chunk, "usage": _add_input(sum_usages([*self._earlier_usages, self._usage]), self._extra_input)}
        if choices:
            return self._choice(chunk, as_object(choices[0]), raw)
        if has_usage:  # follows the finish reason
            self._closing.append(chunk)
            return []
        return [raw] if self._is_first else []

    def _choice(self, chunk: JsonObject, choice: JsonObject, raw: bytes) -> list[bytes]:
        delta = as_object(choice.get("delta"))
        self._collect(delta)
        passed = self._visible_delta(delta)
        reason = choice.get("finish_reason")
        if reason is not None and reason not in _CUT and (held := self._release()):
            passed = {**passed, "tool_calls": [*as_list(passed.get("tool_calls")), *held]}
        if reason is None:
            if passed == delta and self._is_first and not isinstance(chunk.get("usage"), dict):
                return [raw]
            return [self._event(chunk, {**choice, "delta": passed})] if passed else []
        self._reason, self.is_over = reason, True
        self._closing.append({**chunk, "choices": [{**choice, "delta": {}}]})
        if not passed:
            return []
        without_usage = {key: value for key, value in chunk.items() if key != "usage"}
        return [self._event(without_usage, {**choice, "delta": passed, "finish_reason": None})]

    def _event(self, chunk: JsonObject, choice: JsonObject) -> bytes:
        return event({**chunk, "id": self._id, "choices": [choice]})

    def _collect(self, delta: JsonObject) -> None:
        for key, value in delta.items():
            if key not in ("role", "tool_calls") and value is not None:
                self._message.add(key, value)
        for at, piece in enumerate(as_list(delta.get("tool_calls"))):
            self._calls.setdefault(as_object(piece).get("index", at), _StreamedCall()).add(as_object(piece))

    def _visible_delta(self, delta: JsonObject) -> JsonObject:
        kept = {key: value for key, value in delta.items() if key != "tool_calls"}
        if not self._is_first:
            kept.pop("role", None)
            kept = {key: value for key, value in kept.items() if value not in (None, "")}
        content = kept.get("content")
        if isinstance(content, str) and content:
            if self._needs_gap:
                kept["content"], self._needs_gap = GAP + content, False
            self._has_text = True
        if not isinstance(delta.get("tool_calls"), list):
            return {**kept, "tool_calls": None} if "tool_calls" in delta and self._is_first else kept
        pieces: list[JsonObject] = []
        for at, piece in enumerate(as_list(delta["tool_calls"])):
            pieces += self._visible_calls(as_object(piece), at)
        return {**kept, "tool_calls": pieces} if pieces else kept

    def _visible_calls(self, piece: JsonObject, at: int) -> list[JsonObject]:
        """Return the deltas of a call that can be passed on: none as long as it may be a call of the recall tool."""
        index = piece.get("index", at)
        if index in self._indexes:
            return [{**piece, "index": self._indexes[index]}]
        call = self._calls[index]
        self._held.setdefault(index, []).append(piece)
        may_be_recall = self._name.startswith(call.name) and not call.has_input
        if self._name and (call.name == self._name or may_be_recall):
            return []
        return self._pass_on(index)

    def _release(self) -> list[JsonObject]:
        """Return the held calls whose complete name is not that of the recall tool."""
        others = [index for index in self._held if self._calls[index].name != self._name]
        return [piece for index in others for piece in self._pass_on(index)]

    def _pass_on(self, index: int) -> list[JsonObject]:
        self._indexes[index] = len(self._indexes)
        return [{**piece, "index": self._indexes[index]} for piece in self._held.pop(index)]

    def turn(self) -> ModelTurn:
        calls = [self._calls[index].value() for index in sorted(self._calls)]
        return _turn({**self._message.value(), "tool_calls": calls or None}, self._reason, self._name)

    def next_round(self) -> None:
        self._earlier_usages.append(self._usage)
        self._is_first = False
        self._needs_gap = self._has_text
        self._start_round()

    def end(self) -> list[bytes]:
        events: list[bytes] = []
        for chunk in self._closing:
            choices = [
                {**choice, "finish_reason": _finish_reason(choice.get("finish_reason"), bool(self._indexes))}
                for choice in as_list(chunk.get("choices"))
            ]
            events.append(event({**chunk, "id": self._id, "choices": choices}))
        return [*events, b"data: [DONE]\n\n"] if self._is_done else events

    def error(self, body: JsonObject) -> list[bytes]:
        return [event(body)]

"""Recall in Anthropic Messages: one message for all rounds, with the blocks of each round in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.agent.recall.sse import event, read_data
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

_THINKING = ("thinking", "redacted_thinking")
_CUT = ("max_tokens", "model_context_window_exceeded", "refusal", "pause_turn")
"""Stop reasons after which the provider expects no tool results."""


class AnthropicRecall:
    format = "anthropic"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
        return _turn(as_list(response.get("content")), response.get("stop_reason"), name)

    def merge(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        last = responses[-1]
        if "content" not in last:
            return last
        content = [block for one in responses for block in _visible(as_list(one.get("content")), name)]
        merged = {
            **last,
            "id": responses[0].get("id"),
            "content": content,
            "stop_reason": _stop_reason(last.get("stop_reason"), content),
        }
        usages = [self.usage(one) for one in responses]
        return {**merged, "usage": sum_usages(usages)} if any(usages) else merged

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Json]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]
        return [{"role": "user", "content": blocks}]

    def without_shown(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        item = as_object(items[0])
        seen = [block for one in shown for block in as_list(as_object(one).get("content"))]
        if not seen:
            return 0, []
        left = _blocks(item.get("content"))
        for block in seen:
            if left and _comparable(as_object(left[0])) == _comparable(as_object(block)):
                del left[0]
            elif left and _starts_with(left[0], block):
                left[0] = {**left[0], "text": left[0]["text"].removeprefix(block["text"]).removeprefix(GAP)}
            elif block.get("type") not in _THINKING:
                return None
        return (1, [{**item, "content": left}]) if left else None

    def with_results(self, kept: RecallRound, following: Json) -> list[Json] | None:
        """Put all results into the client's message, those of the recall tool first."""
        item = as_object(following)
        if item.get("role") != "user":
            return None
        return [{**item, "content": [*kept.results[0]["content"], *_blocks(item.get("content"))]}]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        return as_object(response.get("usage"))

    def with_more_input(self, response: JsonObject, tokens: int) -> JsonObject:
        if "usage" in response:
            return {**response, "usage": add_tokens(as_object(response["usage"]), tokens, "input_tokens")}
        return add_tokens(response, tokens, "input_tokens")  # the answer of count_tokens

    def stream(self, name: str, body: JsonObject, extra_input: int) -> RoundStream:
        return AnthropicRecallStream(name, extra_input)


def _turn(content: list[Json], reason: Json, name: str) -> ModelTurn:
    uses = [as_object(block) for block in content if as_object(block).get("type") == "tool_use"]
    calls = tuple(ToolCall(str(use.get("id")), str(use.get("name")), use.get("input")) for use in uses)
    seen = _visible(content, name)
    return ModelTurn(
        items=[{"role": "assistant", "content": [block for block in content if _can_send(as_object(block))]}],
        calls=calls,
        is_complete=reason not in _CUT,
        shown=[{"role": "assistant", "content": seen}] if seen else [],
    )


def _blocks(content: Json) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(as_list(content))


def _visible(content: list[Json], name: str) -> list[Json]:
    return [block for block in content if not _is_hidden(as_object(block), name)]


def _can_send(block: JsonObject) -> bool:
    """Return whether the provider accepts a block in a request: it rejects empty texts."""
    return block.get("type") != "text" or bool(block.get("text"))


def _is_hidden(block: JsonObject, name: str) -> bool:
    return bool(name) and block.get("type") == "tool_use" and block.get("name") == name


def _stop_reason(reason: Json, content: list[Json]) -> Json:
    """Return the stop reason of an answer whose hidden calls were removed."""
    calls = any(as_object(block).get("type") == "tool_use" for block in content)
    return "end_turn" if reason == "tool_use" and not calls else reason


def _comparable(block: JsonObject) -> JsonObject:
    return {key: value for key, value in block.items() if key not in ("cache_control", "citations") and value}


def _starts_with(block: Json, seen: Json) -> bool:
    """Return whether a client joined the text of an earlier round with the text that follows."""
    one, two = as_object(block), as_object(seen)
    is_text = one.get("type") == two.get("type") == "text"
    return is_text and str(one.get("text", "")).startswith(str(two.get("text", "")))


class AnthropicRecallStream:
    """Reads the events of all rounds and renumbers the content blocks."""

    def __init__(self, name: str, extra_input: int) -> None:
        self._name, self._extra_input = name, extra_input
        self._earlier_usages: list[JsonObject] = []
        self._sent_blocks = 0
        self._start_round()
        self._is_first = True

    def _start_round(self) -> None:
        self.is_over = self.has_failed = False
        self._starts: dict[int, JsonObject] = {}
        self._deltas: dict[int, DeltaBuffer] = {}
        self._indexes: dict[int, int] = {}
        """The client's index of each visible block."""
        self._usage: JsonObject = {}
        self._reason: Json = None
        self._closing: list[JsonObject] = []

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        received = read_data(data) or {}
        match received.get("type"):
            case "message_start":
                return self._message_start(received, raw)
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._block(received, raw)
            case "message_delta":
                self._usage = {**self._usage, **as_object(received.get("usage"))}
                self._reason = as_object(received.get("delta")).get("stop_reason")
                self._closing.append(received)
                return []
            case "message_stop":
                self.is_over = True
                self._closing.append(received)
                return []
            case "error":
                self.has_failed = True
                return [raw]
            case _:
                return [raw]

    def _message_start(self, received: JsonObject, raw: bytes) -> list[bytes]:
        message = as_object(received.get("message"))
        self._usage = as_object(message.get("usage"))
        if not self._is_first:
            return []
        if not self._extra_input:
            return [raw]
        usage = add_tokens(self._usage, self._extra_input, "input_tokens")
        return [event({**received, "message": {**message, "usage": usage}}, "message_start")]

    def _block(self, received: JsonObject, raw: bytes) -> list[bytes]:
        at = received.get("index", 0)
        if received["type"] == "content_block_start":
            block = as_object(received.get("content_block"))
            self._starts[at], self._deltas[at] = block, DeltaBuffer(block)
            if not _is_hidden(block, self._name):
                self._indexes[at], self._sent_blocks = self._sent_blocks, self._sent_blocks + 1
        elif received["type"] == "content_block_delta":
            deltas = self._deltas.setdefault(at, DeltaBuffer({}))
            for key, value in as_object(received.get("delta")).items():
                if key == "citation":
                    deltas.add("citations", [value])
                elif key != "type":
                    deltas.add(key, value)
        index = self._indexes.get(at)
        if index is None:
            return []
        return [raw] if index == at else [event({**received, "index": index}, received["type"])]

    def turn(self) -> ModelTurn:
        content = [_block_of(self._deltas[at].value()) for at in sorted(self._deltas)]
        return _turn(content, self._reason, self._name)

    def next_round(self) -> None:
        self._earlier_usages.append(self._usage)
        self._is_first = False
        self._start_round()

    def end(self) -> list[bytes]:
        content = [self._starts[at] for at in self._indexes]
        events: list[bytes] = []
        for received in self._closing:
            if received["type"] == "message_delta":
                delta = as_object(received.get("delta"))
                reason = _stop_reason(delta.get("stop_reason"), content)
                usage = sum_usages([*self._earlier_usages, self._usage]) if self._earlier_usages else None
                usage = add_tokens(usage or as_object(received.get("usage")), self._extra_input, "input_tokens")
                received = {**received, "delta": {**delta, "stop_reason": reason}, "usage": usage}
            events.append(event(received, str(received["type"])))
        return events

    def error(self, body: JsonObject) -> list[bytes]:
        return [event({"type": "error", **body}, "error")]


def _block_of(streamed: JsonObject) -> JsonObject:
    """Decode the streamed input of a call. It is incomplete when ``max_tokens`` cut the call off."""
    block = {key: value for key, value in streamed.items() if key != "partial_json"}
    if "partial_json" in streamed:
        block["input"] = read_data(str(streamed["partial_json"]).encode("utf-8", "surrogatepass")) or {}
    return block

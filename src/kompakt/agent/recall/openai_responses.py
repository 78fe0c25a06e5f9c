"""Recall in OpenAI Responses: one list of output items for all rounds, without the hidden calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.agent.recall.sse import event, read_data
from kompakt.agent.recall.turn import ModelTurn, RecallRound, RoundStream, add_tokens, as_list, sum_usages
from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject, ToolCall

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_BEGINS = ("response.created", "response.in_progress", "response.queued")
_CALLS = ("function_call", "custom_tool_call")


class ResponsesRecall:
    format = "openai-responses"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
        return _turn(as_list(response.get("output")), response, name, body)

    def merge(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        last = responses[-1]
        if "output" not in last:
            return last
        output = [item for one in responses for item in _visible(as_list(one.get("output")), name)]
        merged = _without_tool({**last, "id": responses[0].get("id"), "output": output}, name)
        usages = [self.usage(one) for one in responses]
        return {**merged, "usage": sum_usages(usages)} if any(usages) else merged

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def without_shown(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        seen = list(map(as_object, shown))
        gone = {at for at, item in enumerate(items) if any(_is_same(as_object(item), one) for one in seen)}
        if gone == set(range(len(gone))):
            return len(gone), []
        return len(items), [item for at, item in enumerate(items) if at not in gone]

    def with_results(self, kept: RecallRound, following: Json) -> list[Json] | None:
        """Insert the results before the client's; each result is an item of its own."""
        if not str(as_object(following).get("type")).endswith("_output"):
            return None
        return [*kept.results, following]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        return as_object(response.get("usage"))

    def with_more_input(self, response: JsonObject, tokens: int) -> JsonObject:
        usage = response.get("usage")
        return {**response, "usage": _add_input(as_object(usage), tokens)} if isinstance(usage, dict) else response

    def stream(self, name: str, body: JsonObject, extra_input: int) -> RoundStream:
        return ResponsesRecallStream(name, body, extra_input)


def _add_input(usage: JsonObject, tokens: int) -> JsonObject:
    return add_tokens(usage, tokens, "input_tokens", "total_tokens")


def _turn(output: list[Json], response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
    called = [as_object(item) for item in output if as_object(item).get("type") in _CALLS]
    calls = tuple(
        ToolCall(str(item.get("call_id")), str(item.get("name")), item.get("arguments", item.get("input")))
        for item in called
    )
    sent = [item for item in output if not _is_lost(as_object(item), body)]
    is_complete = response.get("status") == "completed"
    id = str(response.get("id") or "")
    return ModelTurn(items=sent, calls=calls, is_complete=is_complete, shown=_visible(sent, name), id=id)


def _is_lost(item: JsonObject, body: JsonObject) -> bool:
    """Return whether an item cannot be sent back: reasoning that is neither stored nor included in encrypted form."""
    return item.get("type") == "reasoning" and body.get("store") is False and not item.get("encrypted_content")


def _visible(output: list[Json], name: str) -> list[Json]:
    return [item for item in output if not _is_hidden(as_object(item), name)]


def _is_hidden(item: JsonObject, name: str) -> bool:
    return bool(name) and item.get("type") == "function_call" and item.get("name") == name


def _without_tool(response: JsonObject, name: str) -> JsonObject:
    """Remove the recall tool from the list of tools that an answer repeats."""
    tools = response.get("tools")
    if not name or not isinstance(tools, list):
        return response
    return {**response, "tools": [tool for tool in as_list(tools) if as_object(tool).get("name") != name]}


def _is_same(item: JsonObject, seen: JsonObject) -> bool:
    """Return whether a client's item is one that it was shown, by id or by content."""
    if item.get("type", "message") != seen.get("type", "message"):
        return False
    if item.get("id") and seen.get("id"):
        return item["id"] == seen["id"]
    if seen.get("type") == "message":
        return _text(item.get("content")) == _text(seen.get("content"))
    return item.get("encrypted_content") == seen.get("encrypted_content")


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(as_object(part).get("text", "")) for part in as_list(content))


class ResponsesRecallStream:
    """Reads the events of all rounds and renumbers items and events."""

    def __init__(self, name: str, body: JsonObject, extra_input: int) -> None:
        self._name, self._body, self._extra_input = name, body, extra_input
        self._earlier_usages: list[JsonObject] = []
        self._shown: list[Json] = []
        self._id: Json = None
        self._next_event = self._sent_items = 0
        self._start_round()
        self._is_first = True

    def _start_round(self) -> None:
        self.is_over = self.has_failed = False
        self._items: dict[int, JsonObject] = {}
        self._indexes: dict[int, int] = {}
        """The client's index of each visible item."""
        self._end: JsonObject = {}

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        received = read_data(data) or {}
        kind = received.get("type")
        if not kind:
            return [raw]
        if kind == "error":
            self.has_failed = True
            return [self._event(received)]
        if kind in _ENDS:
            return self._response_end(received)
        if kind in _BEGINS:
            return self._response_start(received)
        if "output_index" in received:
            return self._item_event(received, raw)
        return [raw if "sequence_number" not in received else self._event(received)]

    def _response_start(self, received: JsonObject) -> list[bytes]:
        response = as_object(received.get("response"))
        self._id = self._id if self._id is not None else response.get("id")
        return [self._event({**received, "response": _without_tool(response, self._name)})] if self._is_first else []

    def _response_end(self, received: JsonObject) -> list[bytes]:
        self._end = received
        if received["type"] != "response.failed":
            self.is_over = True
            return []
        self.has_failed = True
        return self.end()

    def _item_event(self, received: JsonObject, raw: bytes) -> list[bytes]:
        """Pass on the events of visible items."""
        at = received["output_index"]
        item = as_object(received.get("item"))
        if received["type"] == "response.output_item.added" and not _is_hidden(item, self._name):
            self._indexes[at], self._sent_items = self._sent_items, self._sent_items + 1
        elif received["type"] == "response.output_item.done":
            self._items[at] = item
        index = self._indexes.get(at)
        if index is None:
            return []
        if index == at and received.get("sequence_number") == self._next_event:
            self._next_event += 1
            return [raw]
        return [self._event({**received, "output_index": index})]

    def _event(self, received: JsonObject) -> bytes:
        number, self._next_event = self._next_event, self._next_event + 1
        made = {**received, "sequence_number": number} if "sequence_number" in received else received
        return event(made, received["type"])

    def _output(self) -> list[Json]:
        """Return the items of this round: those of the final event, or else those that were streamed."""
        final = as_list(as_object(self._end.get("response")).get("output"))
        return final or [self._items[at] for at in sorted(self._items)]

    def turn(self) -> ModelTurn:
        return _turn(self._output(), as_object(self._end.get("response")), self._name, self._body)

    def next_round(self) -> None:
        self._earlier_usages.append(as_object(as_object(self._end.get("response")).get("usage")))
        self._shown += _visible(self._output(), self._name)
        self._is_first = False
        self._start_round()

    def end(self) -> list[bytes]:
        if not self._end:
            return []
        response = as_object(self._end.get("response"))
        output = [*self._shown, *_visible(self._output(), self._name)]
        merged = _without_tool({**response, "id": self._id or response.get("id"), "output": output}, self._name)
        if isinstance(response.get("usage"), dict):
            usage = response["usage"]
            if self._earlier_usages:
                usage = sum_usages([*self._earlier_usages, as_object(usage)])
            merged["usage"] = _add_input(usage, self._extra_input) if self._extra_input else usage
        return [self._event({**self._end, "response": merged})]

    def error(self, body: JsonObject) -> list[bytes]:
        error = as_object(body.get("error"))
        fields = {name: error.get(name) for name in ("code", "message", "param")}
        return [self._event({"type": "error", "sequence_number": 0, **fields})]

"""Responses: one list of output items for all rounds, without the calls that nobody sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.gateway.recall.sse import event, read_data
from kompakt.gateway.recall.turn import Call, Round, Stream, Turn, as_list, as_object
from kompakt.gateway.recall.usage import plus, summed
from kompakt.model.messages import Json, JsonObject

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_BEGINS = ("response.created", "response.in_progress", "response.queued")
_CALLS = ("function_call", "custom_tool_call")


class Responses:
    """The dialect."""

    format = "openai-responses"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> Turn:
        """Read an answer."""
        return _turn(as_list(response.get("output")), response.get("status"), name, body)

    def whole(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Make one answer of all."""
        last = responses[-1]
        if "output" not in last:
            return last
        output = [item for one in responses for item in _visible(as_list(one.get("output")), name)]
        whole = _unoffered({**last, "id": responses[0].get("id"), "output": output}, name)
        usages = [self.usage(one) for one in responses]
        return {**whole, "usage": summed(usages)} if any(usages) else whole

    def results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        """Write an item for each answer."""
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def rest(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Take the items of earlier rounds off an answer; they are sent with the round that they belong to."""
        seen = list(map(as_object, shown))
        gone = {at for at, item in enumerate(items) if any(_is_same(as_object(item), one) for one in seen)}
        if gone == set(range(len(gone))):
            return len(gone), []
        return len(items), [item for at, item in enumerate(items) if at not in gone]

    def merged(self, kept: Round, following: Json) -> list[Json] | None:
        """Leave the client's items alone: results are items of their own."""
        if not str(as_object(following).get("type")).endswith("_output"):
            return None
        return [*kept.results, following]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return what was used."""
        return as_object(response.get("usage"))

    def raised(self, response: JsonObject, tokens: int) -> JsonObject:
        """Raise the input, and the total with it."""
        usage = response.get("usage")
        return {**response, "usage": _raised(as_object(usage), tokens)} if isinstance(usage, dict) else response

    def stream(self, name: str, body: JsonObject, raised: int) -> Stream:
        """Begin to read a stream."""
        return ResponsesStream(name, body, raised)


def _raised(usage: JsonObject, tokens: int) -> JsonObject:
    return plus(usage, tokens, "input_tokens", "total_tokens")


def _turn(output: list[Json], status: Json, name: str, body: JsonObject) -> Turn:
    called = [as_object(item) for item in output if as_object(item).get("type") in _CALLS]
    calls = tuple(
        Call(str(item.get("call_id")), str(item.get("name")), item.get("arguments", item.get("input")))
        for item in called
    )
    sent = [item for item in output if not _is_lost(as_object(item), body)]
    return Turn(items=sent, calls=calls, ends=status == "completed", shown=_visible(sent, name))


def _is_lost(item: JsonObject, body: JsonObject) -> bool:
    """Tell whether an item cannot be sent back: reasoning that neither the provider nor the answer holds."""
    return item.get("type") == "reasoning" and body.get("store") is False and not item.get("encrypted_content")


def _visible(output: list[Json], name: str) -> list[Json]:
    return [item for item in output if not _is_hidden(as_object(item), name)]


def _is_hidden(item: JsonObject, name: str) -> bool:
    return bool(name) and item.get("type") == "function_call" and item.get("name") == name


def _unoffered(response: JsonObject, name: str) -> JsonObject:
    """Leave the tool out of those that an answer says were offered."""
    tools = response.get("tools")
    if not name or not isinstance(tools, list):
        return response
    return {**response, "tools": [tool for tool in as_list(tools) if as_object(tool).get("name") != name]}


def _is_same(item: JsonObject, seen: JsonObject) -> bool:
    """Tell whether a client's item is one that it was shown, by id or by what it says."""
    if item.get("type", "message") != seen.get("type", "message"):
        return False
    if item.get("id") and seen.get("id"):
        return item["id"] == seen["id"]
    if seen.get("type") == "message":
        return _words(item.get("content")) == _words(seen.get("content"))
    return item.get("encrypted_content") == seen.get("encrypted_content")


def _words(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(as_object(part).get("text", "")) for part in as_list(content))


class ResponsesStream:
    """Reads events; items and events are numbered anew."""

    def __init__(self, name: str, body: JsonObject, raised: int) -> None:
        self._name, self._body, self._raised = name, body, raised
        self._used: list[JsonObject] = []
        self._shown: list[Json] = []
        self._id: Json = None
        self._number = self._count = 0
        self._begin()
        self._is_first = True

    def _begin(self) -> None:
        self.is_over = self.has_failed = False
        self._items: dict[int, JsonObject] = {}
        self._places: dict[int, int] = {}
        self._end: JsonObject = {}

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Take an event."""
        told = read_data(data) or {}
        kind = told.get("type")
        if not kind:
            return [raw]
        if kind == "error":
            self.has_failed = True
            return [self._numbered(told)]
        if kind in _ENDS:
            return self._ended(told)
        if kind in _BEGINS:
            return self._begun(told)
        if "output_index" in told:
            return self._inside(told, raw)
        return [self._numbered(told)]

    def _begun(self, told: JsonObject) -> list[bytes]:
        response = as_object(told.get("response"))
        self._id = self._id if self._id is not None else response.get("id")
        return [self._numbered({**told, "response": _unoffered(response, self._name)})] if self._is_first else []

    def _ended(self, told: JsonObject) -> list[bytes]:
        self._end = told
        if told["type"] != "response.failed":
            self.is_over = True
            return []
        self.has_failed = True
        return self.end()

    def _inside(self, told: JsonObject, raw: bytes) -> list[bytes]:
        """Pass on what belongs to an item that the client sees."""
        at = told["output_index"]
        item = as_object(told.get("item"))
        if told["type"] == "response.output_item.added" and not _is_hidden(item, self._name):
            self._places[at], self._count = self._count, self._count + 1
        elif told["type"] == "response.output_item.done":
            self._items[at] = item
        place = self._places.get(at)
        if place is None:
            return []
        if place == at and told.get("sequence_number") == self._number:
            self._number += 1
            return [raw]
        return [self._numbered({**told, "output_index": place})]

    def _numbered(self, told: JsonObject) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({**told, "sequence_number": number} if "sequence_number" in told else told, told["type"])

    def _output(self) -> list[Json]:
        """Return the items of this round, as the end tells them or else as they came."""
        told = as_list(as_object(self._end.get("response")).get("output"))
        return told or [self._items[at] for at in sorted(self._items)]

    def turn(self) -> Turn:
        """Return what the model said."""
        status = as_object(self._end.get("response")).get("status")
        return _turn(self._output(), status, self._name, self._body)

    def again(self) -> None:
        """Begin the next round."""
        self._used.append(as_object(as_object(self._end.get("response")).get("usage")))
        self._shown += _visible(self._output(), self._name)
        self._is_first = False
        self._begin()

    def end(self) -> list[bytes]:
        """Return the event with the whole answer."""
        if not self._end:
            return []
        response = as_object(self._end.get("response"))
        output = [*self._shown, *_visible(self._output(), self._name)]
        whole = _unoffered({**response, "id": self._id or response.get("id"), "output": output}, self._name)
        if isinstance(response.get("usage"), dict):
            usage = summed([*self._used, as_object(response["usage"])]) if self._used else response["usage"]
            whole["usage"] = _raised(usage, self._raised) if self._raised else usage
        return [self._numbered({**self._end, "response": whole})]

    def error(self, body: JsonObject) -> list[bytes]:
        """Say that the provider refused."""
        error = as_object(body.get("error"))
        told = {name: error.get(name) for name in ("code", "message", "param")}
        return [self._numbered({"type": "error", "sequence_number": 0, **told})]

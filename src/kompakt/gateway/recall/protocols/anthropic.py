"""Anthropic Messages: one message for all rounds, its blocks one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.gateway.recall.sse import event, read_data
from kompakt.gateway.recall.turn import GAP, Call, Round, Stream, Turn, as_list, as_object
from kompakt.gateway.recall.usage import plus, summed
from kompakt.model.messages import Json, JsonObject

_THOUGHTS = ("thinking", "redacted_thinking")
_CUT = ("max_tokens", "model_context_window_exceeded", "refusal", "pause_turn")
"""Ends behind which no results are waited for."""


class Anthropic:
    """The dialect."""

    format = "anthropic"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> Turn:
        """Read an answer."""
        return _turn(as_list(response.get("content")), response.get("stop_reason"), name)

    def whole(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Make one answer of all."""
        last = responses[-1]
        if "content" not in last:
            return last
        content = [block for one in responses for block in _visible(as_list(one.get("content")), name)]
        whole = {
            **last,
            "id": responses[0].get("id"),
            "content": content,
            "stop_reason": _fitting(last.get("stop_reason"), content),
        }
        usages = [self.usage(one) for one in responses]
        return {**whole, "usage": summed(usages)} if any(usages) else whole

    def results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        """Write all answers into one message."""
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]
        return [{"role": "user", "content": blocks}]

    def rest(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Take the blocks of earlier rounds off a message."""
        item = as_object(items[0])
        seen = [block for one in shown for block in as_list(as_object(one).get("content"))]
        if not seen:
            return 0, []
        content = item.get("content")
        left = [{"type": "text", "text": content}] if isinstance(content, str) else list(as_list(content))
        for block in seen:
            if left and _is_same(left[0], block):
                del left[0]
            elif left and _begins(left[0], block):
                left[0] = {**left[0], "text": left[0]["text"].removeprefix(block["text"]).removeprefix(GAP)}
            elif block.get("type") not in _THOUGHTS:
                return None
        return (1, [{**item, "content": left}]) if left else None

    def merged(self, kept: Round, following: Json) -> list[Json] | None:
        """Put all results into the client's message, the tool's own first."""
        item = as_object(following)
        content = item.get("content")
        if item.get("role") != "user":
            return None
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)
        return [{**item, "content": [*kept.results[0]["content"], *blocks]}]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return what was used."""
        return as_object(response.get("usage"))

    def raised(self, response: JsonObject, tokens: int) -> JsonObject:
        """Raise the input; an answer to a count has nothing else."""
        if "usage" in response:
            return {**response, "usage": plus(as_object(response["usage"]), tokens, "input_tokens")}
        return plus(response, tokens, "input_tokens")

    def stream(self, name: str, body: JsonObject, raised: int) -> Stream:
        """Begin to read a stream."""
        return AnthropicStream(name, raised)


def _turn(content: list[Json], reason: Json, name: str) -> Turn:
    uses = [as_object(block) for block in content if as_object(block).get("type") == "tool_use"]
    calls = tuple(Call(str(use.get("id")), str(use.get("name")), use.get("input")) for use in uses)
    seen = _visible(content, name)
    return Turn(
        items=[{"role": "assistant", "content": [block for block in content if _is_sent(as_object(block))]}],
        calls=calls,
        ends=reason not in _CUT,
        shown=[{"role": "assistant", "content": seen}] if seen else [],
    )


def _visible(content: list[Json], name: str) -> list[Json]:
    return [block for block in content if not _is_hidden(as_object(block), name)]


def _is_sent(block: JsonObject) -> bool:
    """Tell whether a block may be sent back: an empty text may not."""
    return block.get("type") != "text" or bool(block.get("text"))


def _is_hidden(block: JsonObject, name: str) -> bool:
    return bool(name) and block.get("type") == "tool_use" and block.get("name") == name


def _fitting(reason: Json, content: list[Json]) -> Json:
    """Say why an answer ended that may have lost its calls."""
    calls = any(as_object(block).get("type") == "tool_use" for block in content)
    return "end_turn" if reason == "tool_use" and not calls else reason


def _is_same(one: Json, two: Json) -> bool:
    return _said(as_object(one)) == _said(as_object(two))


def _said(block: JsonObject) -> JsonObject:
    return {key: value for key, value in block.items() if key not in ("cache_control", "citations") and value}


def _begins(block: Json, seen: Json) -> bool:
    """Tell whether a client glued a text of an earlier round to what follows."""
    one, two = as_object(block), as_object(seen)
    is_text = one.get("type") == two.get("type") == "text"
    return is_text and str(one.get("text", "")).startswith(str(two.get("text", "")))


class AnthropicStream:
    """Reads the events of a message; blocks are numbered anew."""

    def __init__(self, name: str, raised: int) -> None:
        self._name, self._raised = name, raised
        self._used: list[JsonObject] = []
        self._count = 0
        self._begin()
        self._is_first = True

    def _begin(self) -> None:
        self.is_over = self.has_failed = False
        self._blocks: dict[int, JsonObject] = {}
        self._places: dict[int, int] = {}
        self._inputs: dict[int, str] = {}
        self._usage: JsonObject = {}
        self._reason: Json = None
        self._ends: list[JsonObject] = []

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Take an event."""
        told = read_data(data) or {}
        match told.get("type"):
            case "message_start":
                return self._started(told, raw)
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._block(told, raw)
            case "message_delta":
                self._usage = {**self._usage, **as_object(told.get("usage"))}
                self._reason = as_object(told.get("delta")).get("stop_reason")
                self._ends.append(told)
                return []
            case "message_stop":
                self.is_over = True
                self._ends.append(told)
                return []
            case "error":
                self.has_failed = True
                return [raw]
            case _:
                return [raw]

    def _started(self, told: JsonObject, raw: bytes) -> list[bytes]:
        message = as_object(told.get("message"))
        self._usage = as_object(message.get("usage"))
        if not self._is_first:
            return []
        if not self._raised:
            return [raw]
        usage = plus(self._usage, self._raised, "input_tokens")
        return [event({**told, "message": {**message, "usage": usage}}, "message_start")]

    def _block(self, told: JsonObject, raw: bytes) -> list[bytes]:
        at = told.get("index", 0)
        if told["type"] == "content_block_start":
            block = dict(as_object(told.get("content_block")))
            self._blocks[at] = block
            if not _is_hidden(block, self._name):
                self._places[at], self._count = self._count, self._count + 1
        elif told["type"] == "content_block_delta":
            self._grow(at, as_object(told.get("delta")))
        elif at in self._inputs:
            # A call cut off by max_tokens ends in the middle of its input.
            self._blocks[at]["input"] = read_data(self._inputs.pop(at).encode("utf-8", "surrogatepass")) or {}
        place = self._places.get(at)
        if place is None:
            return []
        return [raw] if place == at else [event({**told, "index": place}, told["type"])]

    def _grow(self, at: int, delta: JsonObject) -> None:
        """Put a piece to a block."""
        block = self._blocks.setdefault(at, {})
        for key, value in delta.items():
            if key == "partial_json":
                self._inputs[at] = self._inputs.get(at, "") + value
            elif key == "citation":
                block["citations"] = [*(block.get("citations") or []), value]
            elif key != "type":
                block[key] = (block.get(key) or "") + value if isinstance(value, str) else value

    def turn(self) -> Turn:
        """Return what the model said."""
        return _turn([self._blocks[at] for at in sorted(self._blocks)], self._reason, self._name)

    def again(self) -> None:
        """Begin the next round."""
        self._used.append(self._usage)
        self._is_first = False
        self._begin()

    def end(self) -> list[bytes]:
        """Return why the answer ended and what was used."""
        content = [self._blocks[at] for at in self._places]
        ends: list[bytes] = []
        for told in self._ends:
            if told["type"] == "message_delta":
                delta = as_object(told.get("delta"))
                reason = _fitting(delta.get("stop_reason"), content)
                told = {**told, "delta": {**delta, "stop_reason": reason}, "usage": self._total(told)}
            ends.append(event(told, str(told["type"])))
        return ends

    def _total(self, told: JsonObject) -> JsonObject:
        own = as_object(told.get("usage"))
        usage = summed([*self._used, self._usage]) if self._used else own
        return plus(usage, self._raised, "input_tokens")

    def error(self, body: JsonObject) -> list[bytes]:
        """Say that the provider refused."""
        return [event({"type": "error", **body}, "error")]

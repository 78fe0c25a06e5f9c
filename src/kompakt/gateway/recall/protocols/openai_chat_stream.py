"""Chunks of Chat Completions: text goes on at once, calls when their name is known, the end when it is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kompakt.gateway.recall.sse import DONE, event, read_data
from kompakt.gateway.recall.turn import GAP, Turn, as_list, as_object
from kompakt.gateway.recall.usage import plus, summed
from kompakt.model.messages import Json, JsonObject

TurnOf: TypeAlias = Callable[[JsonObject, Json, str], Turn]

_DONE = b"data: [DONE]\n\n"


CUT = ("length", "content_filter")
"""Reasons after which a call may be incomplete."""


def fitting(reason: Json, has_calls: bool) -> Json:
    """Say why an answer ended that may have lost its calls."""
    return "stop" if reason in ("tool_calls", "function_call") and not has_calls else reason


class ChatStream:
    """Reads chunks."""

    def __init__(self, name: str, raised: int, turn_of: TurnOf) -> None:
        self._name, self._raised, self._turn_of = name, raised, turn_of
        self._id: Json = None
        self._used: list[JsonObject] = []
        self._has_text = self._needs_gap = False
        self._places: dict[int, int] = {}
        self._begin()
        self._is_first = True

    def _begin(self) -> None:
        self.is_over = self.has_failed = False
        self._message: JsonObject = {"role": "assistant", "content": None}
        self._calls: dict[int, JsonObject] = {}
        self._waiting: dict[int, list[JsonObject]] = {}
        self._reason: Json = None
        self._ends: list[JsonObject] = []
        self._usage: JsonObject = {}
        self._is_done = False

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Take a chunk."""
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
        if isinstance(chunk.get("usage"), dict):
            self._usage = as_object(chunk["usage"])
            chunk = {**chunk, "usage": self._total()}
        if not choices:
            return self._beside(chunk, raw)
        return self._chosen(chunk, as_object(choices[0]), raw)

    def _beside(self, chunk: JsonObject, raw: bytes) -> list[bytes]:
        """Keep the usage that comes behind the end; pass on what else comes without an answer."""
        if not isinstance(chunk.get("usage"), dict):
            return [raw] if self._is_first else []
        self._ends.append(chunk)
        return []

    def _chosen(self, chunk: JsonObject, choice: JsonObject, raw: bytes) -> list[bytes]:
        delta = as_object(choice.get("delta"))
        self._note(delta)
        passed = self._passed(delta)
        reason = choice.get("finish_reason")
        if reason is not None and reason not in CUT and (held := self._released()):
            passed = {**passed, "tool_calls": [*as_list(passed.get("tool_calls")), *held]}
        if reason is None:
            if passed == delta and self._is_first and not isinstance(chunk.get("usage"), dict):
                return [raw]
            return [self._written(chunk, {**choice, "delta": passed})] if passed else []
        self._reason, self.is_over = reason, True
        self._ends.append({**chunk, "choices": [{**choice, "delta": {}}]})
        if not passed:
            return []
        told = {key: value for key, value in chunk.items() if key != "usage"}
        return [self._written(told, {**choice, "delta": passed, "finish_reason": None})]

    def _written(self, chunk: JsonObject, choice: JsonObject) -> bytes:
        return event({**chunk, "id": self._id, "choices": [choice]})

    def _total(self) -> JsonObject:
        return plus(summed([*self._used, self._usage]), self._raised, "prompt_tokens", "total_tokens")

    # --- what is said ---------------------------------------------------------------------------------------------

    def _note(self, delta: JsonObject) -> None:
        """Put a piece to what the message says so far."""
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            before = self._message.get(key)
            if isinstance(before, str) and isinstance(value, str):
                self._message[key] = before + value
            elif isinstance(before, list) and isinstance(value, list):
                self._message[key] = [*as_list(before), *as_list(value)]
            else:
                self._message[key] = value
        for place, piece in enumerate(as_list(delta.get("tool_calls"))):
            self._note_call(as_object(piece), place)

    def _note_call(self, piece: JsonObject, place: int) -> None:
        call = self._calls.setdefault(piece.get("index", place), {"id": "", "type": "function"})
        for key, value in piece.items():
            if key == "index" or value is None:
                continue
            if key in ("function", "custom"):
                inner = call.setdefault(key, {})
                for name, text in as_object(value).items():
                    known = inner.get(name)
                    inner[name] = known + text if isinstance(known, str) and isinstance(text, str) else text
            else:
                call[key] = value

    def _passed(self, delta: JsonObject) -> JsonObject:
        """Choose what the client gets of a piece."""
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
        for place, piece in enumerate(as_list(delta["tool_calls"])):
            pieces += self._pieces(as_object(piece), place)
        return {**kept, "tool_calls": pieces} if pieces else kept

    def _pieces(self, piece: JsonObject, place: int) -> list[JsonObject]:
        """Return the pieces of a call that can go on: none while it may be a call of the tool, none when it is."""
        index = piece.get("index", place)
        if index in self._places:
            return [{**piece, "index": self._places[index]}]
        function = as_object(self._calls[index].get("function"))
        held = self._waiting.setdefault(index, [])
        held.append(piece)
        name, begun = str(function.get("name") or ""), bool(function.get("arguments"))
        may_be = self._name.startswith(name) and not begun and "custom" not in self._calls[index]
        if self._name and (name == self._name or may_be):
            return []
        self._places[index] = len(self._places)
        return [{**one, "index": self._places[index]} for one in self._waiting.pop(index)]

    def _released(self) -> list[JsonObject]:
        """Return the calls held back whose names only begin like the tool's: the answer is complete now."""
        names = {index: as_object(self._calls[index].get("function")).get("name") for index in self._waiting}
        pieces: list[JsonObject] = []
        for index in [index for index, name in names.items() if name != self._name]:
            self._places[index] = len(self._places)
            pieces += [{**one, "index": self._places[index]} for one in self._waiting.pop(index)]
        return pieces

    # --- rounds ---------------------------------------------------------------------------------------------------

    def turn(self) -> Turn:
        """Return what the model said."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        return self._turn_of({**self._message, "tool_calls": calls or None}, self._reason, self._name)

    def again(self) -> None:
        """Begin the next round."""
        self._used.append(self._usage)
        self._is_first = False
        self._needs_gap = self._has_text
        self._begin()

    def end(self) -> list[bytes]:
        """Return why the answer ended, what was used, and the end itself."""
        ends: list[bytes] = []
        for chunk in self._ends:
            choices = [{**one, "finish_reason": self._fitting(one)} for one in as_list(chunk.get("choices"))]
            ends.append(event({**chunk, "id": self._id, "choices": choices}))
        return [*ends, _DONE] if self._is_done else ends

    def _fitting(self, choice: JsonObject) -> Json:
        return fitting(choice.get("finish_reason"), bool(self._places))

    def error(self, body: JsonObject) -> list[bytes]:
        """Say that the provider refused."""
        return [event(body)]

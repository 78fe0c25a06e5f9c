"""OpenAI Chat Completions, and every server that speaks it.

The system text is a message here, so it is the ``opening`` of a session and not in the envelope.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from uuid import uuid4

from kompakt.agent.client import Delta, Stop, ToolSpec
from kompakt.agent.clients.base import Answer, fields, is_whole, objects, without_nulls
from kompakt.agent.clients.failures import Failed, failed_in_stream
from kompakt.agent.clients.openai_common import OpenAICaller
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.openai_chat import messages as openai_chat

_STOPS: dict[str, Stop] = {
    "length": "length",
    "content_filter": "refused",
    "model_context_window_exceeded": "overflow",
}
"""Finish reasons; the others mean that the model was done, or wants tools when there are calls."""

_ANSWER_ONLY = frozenset({"annotations", "parsed", "logprobs"})
"""Fields of an answer's message that requests do not take."""

_SPOKEN: dict[str, str] = {
    "content": "text",
    "refusal": "text",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
}

_FIXED = frozenset({"id", "type", "name", "role", "index", "format", "signature", "object"})
"""Fields that come whole: the first one counts when a server repeats them."""


class OpenAIChat(OpenAICaller):
    """Talks to a model over ``/chat/completions``."""

    format = openai_chat.FORMAT
    path = "/chat/completions"
    _counts = True
    """Whether the server takes ``stream_options``; old ones refuse what they do not know."""

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, output limit, tools; the system text is an ``opening``."""
        del system
        # OpenAI's own models refuse max_tokens, some compatible servers the newer name.
        limit = "max_tokens" if self._compatible else "max_completion_tokens"
        body: JsonObject = {"model": self.model, limit: self.output_limit}
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "messages": []}

    def opening(self, system: str | None) -> list[Json]:
        """List the messages that a session begins with: the system text."""
        return [{"role": "system", "content": system}] if system else []

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        from openai import APIStatusError

        counted = {**body, "stream_options": {"include_usage": True, **fields(body.get("stream_options"))}}
        if self._counts:
            try:
                async with aclosing(super()._listen(counted, headers)) as events:
                    async for event in events:
                        yield event
                return
            except APIStatusError as error:
                if error.status_code not in (400, 422) or "stream_options" not in str(error):
                    raise
                self._counts = False
        async with aclosing(super()._listen(body, headers)) as events:
            async for event in events:
                yield event

    def _assembly(self) -> _Chunks:
        return _Chunks()

    def _read(self, answer: JsonObject) -> Answer:
        choices = objects(answer.get("choices"))
        if not choices:
            if answer.get("error"):
                raise failed_in_stream(answer["error"])
            raise Failed("the answer holds no choice", again=True)
        message, reason = fields(choices[0].get("message")), choices[0].get("finish_reason")
        stop = _STOPS.get(str(reason), "end")
        item = _item(message, cut=stop in ("length", "overflow"))
        if stop == "end":
            stop = "tools" if item.get("tool_calls") or item.get("function_call") else stop
            stop = "refused" if item.get("refusal") else stop
        said = any(item.get(key) for key in item if key != "role")
        return Answer([item] if said else [], stop, fields(answer.get("usage")) or None)


def _item(message: JsonObject, *, cut: bool) -> JsonObject:
    """Make of an answer's message the one to send back."""
    item = {key: value for key, value in without_nulls(message).items() if key not in _ANSWER_ONLY}
    calls = [call for call in _calls(item.pop("tool_calls", None)) if not cut or is_whole(_arguments(call))]
    if "audio" in item:
        item["audio"] = {"id": fields(item["audio"]).get("id")}
    content = message.get("content")
    speaks = calls or item.get("function_call") or item.get("audio")
    shown = {"role": item.pop("role", "assistant"), "content": content if content is not None or speaks else ""}
    item.pop("content", None)
    return {**shown, **item, **({"tool_calls": calls} if calls else {})}


def _calls(listed: object) -> list[JsonObject]:
    """Write calls as requests take them: each with an id of its own, its arguments a text that holds JSON."""
    found: list[JsonObject] = []
    seen: set[object] = set()
    for raw in objects(listed):
        call = {key: value for key, value in without_nulls(raw).items() if key != "index"}
        if not call.get("id") or call["id"] in seen:
            call = {**call, "id": f"call_{uuid4().hex}"}
        seen.add(call["id"])
        function = fields(call.get("function"))
        if function:
            arguments = function.get("arguments")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments or {}, ensure_ascii=False)
            call["function"] = {**function, "arguments": arguments or "{}"}
        found.append({"id": call.pop("id"), "type": call.pop("type", "function"), **call})
    return found


def _arguments(call: JsonObject) -> object:
    return fields(call.get("function")).get("arguments")


class _Chunks:
    """Puts the chunks of a stream together."""

    def __init__(self) -> None:
        self.message: JsonObject = {}
        self.calls: list[JsonObject] = []
        self.reason: object = None
        self.usage: object = None
        self.error: object = None

    def add(self, event: JsonObject) -> Iterable[Delta]:
        self.usage = event.get("usage") or self.usage
        self.error = event.get("error") or self.error
        for choice in objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            self.reason = choice.get("finish_reason") or self.reason
            delta = dict(fields(choice.get("delta")))
            calls = objects(delta.pop("tool_calls", None))
            _lay(self.message, delta)
            for key, kind in _SPOKEN.items():
                if isinstance(said := delta.get(key), str):
                    yield Delta("text" if kind == "text" else "reasoning", said)
            for call in calls:
                self._add_call(call)
                yield Delta("call", str(_arguments(call) or ""))

    def answer(self) -> JsonObject | None:
        if self.error is not None:
            return {"error": self.error}
        if self.reason is None:
            return None
        message = {**self.message, **({"tool_calls": self.calls} if self.calls else {})}
        return {"choices": [{"message": message, "finish_reason": self.reason}], "usage": self.usage}

    def _add_call(self, piece: JsonObject) -> None:
        """Lay a piece over the call it belongs to: the one of its index, unless it brings another id."""
        index = piece.get("index")
        same = [call for call in self.calls if index is None or call.get("index") == index]
        known = same[-1] if same else None
        new_id = piece.get("id")
        if known is None or (new_id and known.get("id") and new_id != known["id"]):
            known = {}
            self.calls.append(known)
        _lay(known, piece)


def _lay(whole: JsonObject, piece: JsonObject) -> None:
    """Lay a piece over what has come: texts grow, entries of a list meet by index, the rest is as it came last."""
    for key, value in piece.items():
        held = whole.get(key)
        if value is None or (held and key in _FIXED):
            continue
        if isinstance(held, str) and isinstance(value, str):
            whole[key] = held + value
        elif isinstance(held, dict) and isinstance(value, dict):
            _lay(fields(held), fields(value))
        elif isinstance(value, list):
            whole[key] = _joined(objects(held), objects(value))
        else:
            whole[key] = dict(fields(value)) if isinstance(value, dict) else value


def _joined(held: list[JsonObject], pieces: list[JsonObject]) -> list[JsonObject]:
    for piece in pieces:
        index = piece.get("index")
        known = next((entry for entry in held if index is not None and entry.get("index") == index), None)
        if known is None:
            held.append(dict(piece))
        else:
            _lay(known, piece)
    return held

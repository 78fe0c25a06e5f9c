"""OpenAI Chat Completions and compatible servers, and what both OpenAI clients share.

The system prompt is a message here, so it is part of the session's ``opening`` and not of the envelope.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from kompakt.agent.client import Delta, Stop, ToolSpec
from kompakt.agent.clients.base import (
    MAX_RETRIES,
    TIMEOUT,
    Answer,
    SDKClient,
    is_complete,
    key_for,
    missing_sdk,
    without_nulls,
)
from kompakt.agent.clients.failures import AttemptFailed, failure_in_body
from kompakt.errors import UsageError
from kompakt.model.json import as_object, as_objects
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.openai_chat import messages as openai_chat

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_STOPS: dict[str, Stop] = {
    "length": "length",
    "content_filter": "refused",
    "model_context_window_exceeded": "overflow",
}
"""Finish reasons. Any other reason means ``tools`` if there are calls, else ``end``."""

_ANSWER_ONLY = frozenset({"annotations", "parsed", "logprobs"})
"""Fields of an answer's message that requests do not accept."""

_DELTA_KINDS: dict[str, Literal["text", "reasoning"]] = {
    "content": "text",
    "refusal": "text",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
}

_FIXED = frozenset({"id", "type", "name", "role", "index", "format", "signature", "object"})
"""Fields that are not streamed in pieces: if a server repeats them, the first value counts."""


class OpenAIClient(SDKClient):
    """A client of an OpenAI-compatible server."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context_window: int | None = None,
        output_limit: int | None = None,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT,
        client: AsyncOpenAI | None = None,
    ) -> None:
        super().__init__(model, context_window=context_window, output_limit=output_limit, max_retries=max_retries)
        self._use(client, lambda: _connect(base_url, api_key, timeout))
        self._compatible = base_url is not None

    def _stream_class(self) -> object:
        from openai import AsyncStream

        return AsyncStream[object]

    def _errors(self) -> tuple[type[Exception], ...]:
        from openai import OpenAIError

        return (OpenAIError,)

    def _secrets(self) -> list[object]:
        return [self._client.api_key]


def _connect(base_url: str | None, api_key: str | None, timeout: float) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI, OpenAIError
    except ImportError:
        raise missing_sdk("openai") from None
    try:
        return AsyncOpenAI(api_key=key_for(base_url, api_key), base_url=base_url, timeout=timeout, max_retries=0)
    except OpenAIError as error:
        raise UsageError(f"no API key: pass api_key=… or set OPENAI_API_KEY ({error})") from None


class OpenAIChat(OpenAIClient):
    """A client for ``/chat/completions``."""

    format = openai_chat.FORMAT
    path = "/chat/completions"
    _takes_stream_options = True
    """Whether the server accepts ``stream_options``; some older servers reject unknown fields."""

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, output limit, tools. The system prompt is in ``opening``."""
        del system
        # OpenAI's own models reject max_tokens; some compatible servers reject the newer name.
        limit = "max_tokens" if self._compatible else "max_completion_tokens"
        body: JsonObject = {"model": self.model, limit: self.output_limit}
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "messages": []}

    def opening(self, system: str | None) -> list[Json]:
        """Return the first messages of a session: the system prompt."""
        return [{"role": "system", "content": system}] if system else []

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        from openai import APIStatusError

        with_usage = {**body, "stream_options": {"include_usage": True, **as_object(body.get("stream_options"))}}
        if self._takes_stream_options:
            try:
                async with aclosing(super()._listen(with_usage, headers)) as events:
                    async for event in events:
                        yield event
                return
            except APIStatusError as error:
                if error.status_code not in (400, 422) or "stream_options" not in str(error):
                    raise
                self._takes_stream_options = False
        async with aclosing(super()._listen(body, headers)) as events:
            async for event in events:
                yield event

    def _assembly(self) -> _Chunks:
        return _Chunks()

    def _read(self, answer: JsonObject) -> Answer:
        choices = as_objects(answer.get("choices"))
        if not choices:
            if answer.get("error"):
                raise failure_in_body(answer["error"])
            raise AttemptFailed("the answer has no choices", retryable=True)
        message, reason = as_object(choices[0].get("message")), choices[0].get("finish_reason")
        stop = _STOPS.get(str(reason), "end")
        item = _item(message, cut=stop in ("length", "overflow"))
        if stop == "end":
            stop = "tools" if item.get("tool_calls") or item.get("function_call") else stop
            stop = "refused" if item.get("refusal") else stop
        has_content = any(item.get(key) for key in item if key != "role")
        return Answer([item] if has_content else [], stop, as_object(answer.get("usage")) or None)


def _item(message: JsonObject, *, cut: bool) -> JsonObject:
    """Convert an answer's message to the message that later requests contain."""
    item = {key: value for key, value in without_nulls(message).items() if key not in _ANSWER_ONLY}
    calls = [call for call in _calls(item.pop("tool_calls", None)) if not cut or is_complete(_arguments(call))]
    if "audio" in item:
        item["audio"] = {"id": as_object(item["audio"]).get("id")}
    content = message.get("content")
    is_call = calls or item.get("function_call") or item.get("audio")
    shown = {"role": item.pop("role", "assistant"), "content": content if content is not None or is_call else ""}
    item.pop("content", None)
    return {**shown, **item, **({"tool_calls": calls} if calls else {})}


def _calls(listed: object) -> list[JsonObject]:
    """Convert calls to the shape of requests: each with a unique id, and with arguments as JSON text."""
    found: list[JsonObject] = []
    seen: set[object] = set()
    for raw in as_objects(listed):
        call = {key: value for key, value in without_nulls(raw).items() if key != "index"}
        if not call.get("id") or call["id"] in seen:
            call = {**call, "id": f"call_{uuid4().hex}"}
        seen.add(call["id"])
        function = as_object(call.get("function"))
        if function:
            arguments = function.get("arguments")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments or {}, ensure_ascii=False)
            call["function"] = {**function, "arguments": arguments or "{}"}
        found.append({"id": call.pop("id"), "type": call.pop("type", "function"), **call})
    return found


def _arguments(call: JsonObject) -> object:
    return as_object(call.get("function")).get("arguments")


class _Chunks:
    """Assembles the chunks of a stream."""

    def __init__(self) -> None:
        self.message: JsonObject = {}
        self.calls: list[JsonObject] = []
        self.reason: object = None
        self.usage: object = None
        self.error: object = None

    def add(self, event: JsonObject) -> Iterable[Delta]:
        self.usage = event.get("usage") or self.usage
        self.error = event.get("error") or self.error
        for choice in as_objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            self.reason = choice.get("finish_reason") or self.reason
            delta = dict(as_object(choice.get("delta")))
            calls = as_objects(delta.pop("tool_calls", None))
            _merge(self.message, delta)
            for key, kind in _DELTA_KINDS.items():
                if isinstance(text := delta.get(key), str):
                    yield Delta(kind, text)
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
        """Merge a piece into the call with its index; a piece with another id starts a new call."""
        index = piece.get("index")
        same = [call for call in self.calls if index is None or call.get("index") == index]
        known = same[-1] if same else None
        new_id = piece.get("id")
        if known is None or (new_id and known.get("id") and new_id != known["id"]):
            known = {}
            self.calls.append(known)
        _merge(known, piece)


def _merge(whole: JsonObject, piece: JsonObject) -> None:
    """Merge a piece into a value: append text, match list entries by index, replace everything else."""
    for key, value in piece.items():
        held = whole.get(key)
        if value is None or (held and key in _FIXED):
            continue
        if isinstance(held, str) and isinstance(value, str):
            whole[key] = held + value
        elif isinstance(held, dict) and isinstance(value, dict):
            _merge(as_object(held), as_object(value))
        elif isinstance(value, list):
            whole[key] = _merged_list(as_objects(held), as_objects(value))
        else:
            whole[key] = dict(as_object(value)) if isinstance(value, dict) else value


def _merged_list(held: list[JsonObject], pieces: list[JsonObject]) -> list[JsonObject]:
    for piece in pieces:
        index = piece.get("index")
        known = next((entry for entry in held if index is not None and entry.get("index") == index), None)
        if known is None:
            held.append(dict(piece))
        else:
            _merge(known, piece)
    return held

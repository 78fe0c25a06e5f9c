"""Google Gemini generateContent, on the Gemini API and on Vertex AI.

The SDK's public calls read bodies and answers into types of their own, which refuse fields they do not know and write
signatures anew. So requests go through the client that those calls stand on, as objects of JSON.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kompakt.agent.client import Delta, Stop, ToolSpec
from kompakt.agent.clients.base import (
    MAX_RETRIES,
    PLACEHOLDER,
    TIMEOUT,
    Answer,
    Caller,
    fields,
    missing_sdk,
    objects,
    without_nulls,
)
from kompakt.agent.clients.failures import Failed
from kompakt.errors import UsageError
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.gemini import contents as gemini

if TYPE_CHECKING:
    from google.genai import Client

_STOPS: dict[str, Stop] = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"), "refused"
    ),
}

_SIGNATURE = "thoughtSignature"


class Gemini(Caller):
    """Talks to a model over ``:generateContent``."""

    format = gemini.FORMAT

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
        client: Client | None = None,
    ) -> None:
        super().__init__(model, context_window=context_window, output_limit=output_limit, max_retries=max_retries)
        self._owned = client is None
        self._client = _make(base_url, api_key, timeout) if client is None else client
        self._api: Any = getattr(self._client, "_api_client")  # noqa: B009 — see the module's docstring

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, output limit, system text, tools.

        The model is part of the address; it stands in the body for whoever reads it and is taken out when sent.
        """
        body: JsonObject = {"model": self.model, "generationConfig": {"maxOutputTokens": self.output_limit}}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if tools:
            # One entry for all functions: several entries are taken for tools of different kinds.
            declared = [function for tool in self._tools(tools) for function in tool["functionDeclarations"]]
            body["tools"] = [{"functionDeclarations": declared}]
        return {**body, "contents": []}

    async def close(self) -> None:
        """Let go of connections, unless the SDK's client was handed in: then they are its owner's."""
        if self._owned:
            await self._client.aio.aclose()
            self._client.close()

    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        path, bare = self._address(body, "generateContent")
        answer = await self._api.async_request("post", path, bare, _options(headers))
        return answer.body

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        path, bare = self._address(body, "streamGenerateContent?alt=sse")
        stream = await self._api.async_request_streamed("post", path, bare, _options(headers))
        try:
            async for chunk in stream:
                yield fields(json.loads(chunk.body))
        finally:
            await stream.aclose()

    def _address(self, body: JsonObject, method: str) -> tuple[str, JsonObject]:
        """Take the model out of a body and make the path of it."""
        bare = {key: value for key, value in body.items() if key not in ("model", "stream")}
        model = str(body.get("model") or self.model)
        if not self._api.vertexai:
            place = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        elif model.startswith(("projects/", "publishers/", "models/")):
            place = model
        else:
            maker, _, name = model.rpartition("/")
            place = f"publishers/{maker or 'google'}/models/{name}"
        return f"{place}:{method}", bare

    def _assembly(self) -> _Chunks:
        return _Chunks()

    def _read(self, answer: JsonObject) -> Answer:
        usage = fields(answer.get("usageMetadata")) or None
        candidates = objects(answer.get("candidates"))
        if not candidates:
            if fields(answer.get("promptFeedback")).get("blockReason"):
                return Answer([], "refused", usage)
            raise Failed("the answer holds no candidate", again=True)
        content, reason = fields(candidates[0].get("content")), str(candidates[0].get("finishReason"))
        parts = [part for part in map(without_nulls, objects(content.get("parts"))) if not _is_empty(part)]
        if reason in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL") and not parts:
            raise Failed(f"the model stopped with {reason}", again=True)
        stop = _STOPS.get(reason, "end")
        if stop == "end" and any("functionCall" in part for part in parts):
            stop = "tools"
        items = [{**content, "role": content.get("role") or "model", "parts": parts}] if parts else []
        return Answer(items, stop, usage)

    def _errors(self) -> tuple[type[Exception], ...]:
        from google.genai.errors import APIError, UnknownApiResponseError

        return (APIError, UnknownApiResponseError)

    def _secrets(self) -> list[object]:
        return [self._api.api_key]


def _make(base_url: str | None, api_key: str | None, timeout: float) -> Client:
    try:
        from google.genai import Client
        from google.genai.types import HttpOptions
    except ImportError:
        raise missing_sdk("google-genai") from None
    if base_url is not None and api_key is None:
        api_key = PLACEHOLDER
    try:
        return Client(api_key=api_key, http_options=HttpOptions(base_url=base_url, timeout=int(timeout * 1000)))
    except ValueError as error:
        raise UsageError(f"there is no key: pass api_key=… or set GEMINI_API_KEY ({error})") from None


def _options(headers: dict[str, str]) -> object:
    from google.genai.types import HttpOptions, HttpRetryOptions

    return HttpOptions(headers=headers, retry_options=HttpRetryOptions(attempts=1))


def _is_empty(part: JsonObject) -> bool:
    return part.get("text") == "" and not set(part) - {"text", "thought"}


class _Chunks:
    """Puts the chunks of a stream together: a run of words is one part, and a signature ends it."""

    def __init__(self) -> None:
        self.parts: list[JsonObject] = []
        self.content: JsonObject = {}
        self.candidate: JsonObject = {}
        self.rest: JsonObject = {}

    def add(self, event: JsonObject) -> Iterable[Delta]:
        self.rest |= {key: value for key, value in event.items() if key != "candidates"}
        for candidate in objects(event.get("candidates")):
            if candidate.get("index", 0) != 0:
                continue
            self.candidate |= candidate
            content = fields(candidate.get("content"))
            self.content |= content
            for part in objects(content.get("parts")):
                self._add(part)
                if isinstance(said := part.get("text"), str):
                    yield Delta("reasoning" if part.get("thought") else "text", said)
                elif "functionCall" in part:
                    arguments: Json = fields(part["functionCall"]).get("args") or {}
                    yield Delta("call", json.dumps(arguments, ensure_ascii=False))

    def answer(self) -> JsonObject | None:
        if not self.candidate.get("finishReason"):
            return self.rest if fields(self.rest.get("promptFeedback")).get("blockReason") else None
        content = {**self.content, "parts": self.parts}
        return {**self.rest, "candidates": [{**self.candidate, "content": content}]}

    def _add(self, part: JsonObject) -> None:
        last = self.parts[-1] if self.parts else {}
        if _is_words(part) and _is_words(last) and _SIGNATURE not in last:
            if bool(part.get("thought")) == bool(last.get("thought")):
                self.parts[-1] = {**last, **part, "text": last["text"] + part["text"]}
                return
        self.parts.append(dict(part))


def _is_words(part: JsonObject) -> bool:
    return isinstance(part.get("text"), str) and not set(part) - {"text", "thought", _SIGNATURE}

"""Google Gemini generateContent, on the Gemini API and on Vertex AI.

The SDK's public methods convert bodies and answers to their own types, which reject unknown fields and re-encode
signatures. So requests use the SDK's internal API client, which takes and returns plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kompakt.agent.client import Delta, Stop, ToolSpec
from kompakt.agent.clients.base import (
    MAX_RETRIES,
    TIMEOUT,
    Answer,
    BaseClient,
    key_for,
    missing_sdk,
    without_nulls,
)
from kompakt.agent.clients.failures import AttemptFailed
from kompakt.errors import UsageError
from kompakt.model.json import as_object, as_objects
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


class Gemini(BaseClient):
    """A client for ``:generateContent``."""

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
        self._client = _connect(base_url, api_key, timeout) if client is None else client
        self._api: Any = getattr(self._client, "_api_client")  # noqa: B009 — see the module docstring

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, output limit, system prompt, tools.

        The API takes the model from the URL. The body names it for other readers; it is removed before sending.
        """
        body: JsonObject = {"model": self.model, "generationConfig": {"maxOutputTokens": self.output_limit}}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if tools:
            # One entry for all functions: the API takes several entries for tools of different kinds.
            declared = [function for tool in self._tools(tools) for function in tool["functionDeclarations"]]
            body["tools"] = [{"functionDeclarations": declared}]
        return {**body, "contents": []}

    async def close(self) -> None:
        """Close the connections, unless the caller passed the SDK client and therefore owns them."""
        if self._owned:
            await self._client.aio.aclose()
            self._client.close()

    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        path, bare = self._path_and_body(body, "generateContent")
        answer = await self._api.async_request("post", path, bare, _options(headers))
        return answer.body

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        path, bare = self._path_and_body(body, "streamGenerateContent?alt=sse")
        stream = await self._api.async_request_streamed("post", path, bare, _options(headers))
        try:
            async for chunk in stream:
                yield as_object(json.loads(chunk.body))
        finally:
            await stream.aclose()

    def _path_and_body(self, body: JsonObject, method: str) -> tuple[str, JsonObject]:
        """Return the URL path for a body's model, and the body without the model."""
        bare = {key: value for key, value in body.items() if key not in ("model", "stream")}
        model = str(body.get("model") or self.model)
        if not self._api.vertexai:
            resource = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        elif model.startswith(("projects/", "publishers/", "models/")):
            resource = model
        else:
            publisher, _, name = model.rpartition("/")
            resource = f"publishers/{publisher or 'google'}/models/{name}"
        return f"{resource}:{method}", bare

    def _assembly(self) -> _Chunks:
        return _Chunks()

    def _read(self, answer: JsonObject) -> Answer:
        usage = as_object(answer.get("usageMetadata")) or None
        candidates = as_objects(answer.get("candidates"))
        if not candidates:
            if as_object(answer.get("promptFeedback")).get("blockReason"):
                return Answer([], "refused", usage)
            raise AttemptFailed("the answer has no candidates", retryable=True)
        content, reason = as_object(candidates[0].get("content")), str(candidates[0].get("finishReason"))
        parts = [part for part in map(without_nulls, as_objects(content.get("parts"))) if not _is_empty(part)]
        if reason in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL") and not parts:
            raise AttemptFailed(f"the model stopped with {reason}", retryable=True)
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


def _connect(base_url: str | None, api_key: str | None, timeout: float) -> Client:
    try:
        from google.genai import Client
        from google.genai.types import HttpOptions
    except ImportError:
        raise missing_sdk("google-genai") from None
    options = HttpOptions(base_url=base_url, timeout=int(timeout * 1000))
    try:
        return Client(api_key=key_for(base_url, api_key), http_options=options)
    except ValueError as error:
        raise UsageError(f"no API key: pass api_key=… or set GEMINI_API_KEY ({error})") from None


def _options(headers: dict[str, str]) -> object:
    from google.genai.types import HttpOptions, HttpRetryOptions

    return HttpOptions(headers=headers, retry_options=HttpRetryOptions(attempts=1))


def _is_empty(part: JsonObject) -> bool:
    return part.get("text") == "" and not set(part) - {"text", "thought"}


class _Chunks:
    """Assembles the chunks of a stream: consecutive text is one part, and a signature ends the part."""

    def __init__(self) -> None:
        self.parts: list[JsonObject] = []
        self.content: JsonObject = {}
        self.candidate: JsonObject = {}
        self.rest: JsonObject = {}

    def add(self, event: JsonObject) -> Iterable[Delta]:
        self.rest |= {key: value for key, value in event.items() if key != "candidates"}
        for candidate in as_objects(event.get("candidates")):
            if candidate.get("index", 0) != 0:
                continue
            self.candidate |= candidate
            content = as_object(candidate.get("content"))
            self.content |= content
            for part in as_objects(content.get("parts")):
                self._add(part)
                if isinstance(text := part.get("text"), str):
                    yield Delta("reasoning" if part.get("thought") else "text", text)
                elif "functionCall" in part:
                    arguments: Json = as_object(part["functionCall"]).get("args") or {}
                    yield Delta("call", json.dumps(arguments, ensure_ascii=False))

    def answer(self) -> JsonObject | None:
        if not self.candidate.get("finishReason"):
            return self.rest if as_object(self.rest.get("promptFeedback")).get("blockReason") else None
        content = {**self.content, "parts": self.parts}
        return {**self.rest, "candidates": [{**self.candidate, "content": content}]}

    def _add(self, part: JsonObject) -> None:
        last = self.parts[-1] if self.parts else {}
        if _is_text(part) and _is_text(last) and _SIGNATURE not in last:
            if bool(part.get("thought")) == bool(last.get("thought")):
                self.parts[-1] = {**last, **part, "text": last["text"] + part["text"]}
                return
        self.parts.append(dict(part))


def _is_text(part: JsonObject) -> bool:
    return isinstance(part.get("text"), str) and not set(part) - {"text", "thought", _SIGNATURE}

"""A provider's model as the summarizer of pivots (``--summarize``).

The narrative of a pivot is asked for at the provider of the request that needs the pivot, with the credential of that
request, so that the client pays for it and no tenant uses another's key. Pivots are built in threads. The connections
belong to the event loop of the gateway, so a thread hands each request over to that loop and waits.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from types import SimpleNamespace
from typing import Any

import httpx
from starlette.requests import Request

from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from kompakt.agent.clients.failures import AttemptFailed
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.pivots.budget import window_for
from kompakt.gateway.routes import Route
from kompakt.gateway.upstream import forwarded_headers
from kompakt.model.json import encode
from kompakt.model.messages import JsonObject

AUTO = "auto"
"""Value of ``--summarize`` for the model of the request."""

MAX_SECONDS = 60.0
"""Time for one narrative: a request may wait for it, and clients give up after some minutes."""

MAX_OUTPUT = 16_000
"""Output limit of a request for a narrative: several times its length, because some models reason first."""

_OPENAI = "https://api.openai.com"
_REPLACED = frozenset([b"content-type", b"content-encoding", b"accept", b"accept-encoding"])


class _OpenAIChat(OpenAIChat):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()  # the SDK, whose errors these would be, need not be installed


class _OpenAIResponses(OpenAIResponses):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


class _AnthropicMessages(AnthropicMessages):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


class _Gemini(Gemini):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


_CLIENTS = {
    "openai-chat": _OpenAIChat,
    "openai-responses": _OpenAIResponses,
    "anthropic": _AnthropicMessages,
    "gemini": _Gemini,
}


def narrator_for(
    request: Request, route: Route, settings: GatewayConfig, client: httpx.AsyncClient, *, model: str | None
) -> Summarizer | None:
    """Return the summarizer for the pivots of a request; ``None`` if code writes summaries alone."""
    named = model if settings.summarize == AUTO else settings.summarize
    if not settings.summarize or not named or route.format not in _CLIENTS:
        return None
    sdk: Any = _UpstreamSDK(request, route, settings, client)
    limits = window_for(named, settings)
    window = limits.context or None
    output = min(limits.output or MAX_OUTPUT, MAX_OUTPUT, *([window // 4] if window else []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gateway itself warns of unknown models
        made = _CLIENTS[route.format](named, context_window=window, output_limit=output, max_retries=1, client=sdk)
    return LLMSummarizer(made, max_seconds=MAX_SECONDS)


class _UpstreamSDK:
    """What the chat clients use of an SDK, over the connections of the gateway."""

    api_key = ""
    vertexai = False

    def __init__(self, request: Request, route: Route, settings: GatewayConfig, client: httpx.AsyncClient) -> None:
        self._client, self._route = client, route
        self._loop = asyncio.get_running_loop()
        headers = forwarded_headers(request.headers.raw, settings)
        self._headers = [(name, value) for name, value in headers if name not in _REPLACED]
        self._query = {name: value for name, value in request.query_params.items() if name != "alt"}

    def with_options(self, **_: Any) -> _UpstreamSDK:
        return self

    @property
    def _api_client(self) -> _UpstreamSDK:
        return self

    async def post(self, path: str, *, body: JsonObject, **_: Any) -> object:
        """Post to the endpoint of the request."""
        del path
        if self._route.upstream.url != _OPENAI and "max_completion_tokens" in body:
            body = {**body, "max_tokens": body["max_completion_tokens"]}  # the name that compatible servers know
            del body["max_completion_tokens"]
        return await self._posted(self._route.url, body)

    async def async_request(self, method: str, path: str, body: JsonObject, options: object) -> SimpleNamespace:
        """Post to a model of Gemini."""
        del method, options
        base = self._route.url.rpartition("/models/")[0]
        return SimpleNamespace(body=await self._posted(f"{base}/{path}", body))

    async def _posted(self, url: str, body: JsonObject) -> object:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._send(url, body), self._loop))

    async def _send(self, url: str, body: JsonObject) -> object:
        headers = [*self._headers, (b"content-type", b"application/json")]
        try:
            answer = await self._client.post(url, content=encode(body), headers=headers, params=self._query or None)
        except httpx.HTTPError as error:
            raise AttemptFailed(f"no answer ({type(error).__name__})", retryable=True) from None
        if answer.status_code >= 400:
            retryable = answer.status_code == 429 or answer.status_code >= 500
            raise AttemptFailed(
                f"status {answer.status_code}", retryable=retryable, status=answer.status_code, body=answer.text
            )
        try:
            return json.loads(answer.content)
        except ValueError:
            raise AttemptFailed("the answer is not JSON", retryable=False) from None

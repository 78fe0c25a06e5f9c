"""The openai package, as far as its two protocols share it.

Bodies go through the SDK's own ``post``: nothing is added to them or left out, whatever the SDK knows of their fields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from kompakt.agent.clients.base import MAX_RETRIES, PLACEHOLDER, TIMEOUT, Caller, fields, missing_sdk
from kompakt.errors import UsageError
from kompakt.model.messages import JsonObject

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAICaller(Caller):
    """A client that posts to one path of an OpenAI-compatible server."""

    path: str

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
        self._owned = client is None
        made = _make(base_url, api_key, timeout) if client is None else client
        # A copy that shares the connections, so that nobody's client is changed.
        self._client = made.with_options(max_retries=0)
        self._compatible = base_url is not None

    async def close(self) -> None:
        """Let go of connections, unless the SDK's client was handed in: then they are its owner's."""
        if self._owned:
            await self._client.close()

    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        return await self._post(self.path, body, headers)

    async def _post(self, path: str, body: JsonObject, headers: dict[str, str]) -> object:
        return await self._client.post(path, cast_to=object, body=body, options={"headers": headers})

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        from openai import AsyncStream

        body = {**body, "stream": True}
        stream = await self._client.post(
            self.path,
            cast_to=object,
            body=body,
            options={"headers": headers},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        try:
            async for event in stream:
                yield fields(event)
        finally:
            await stream.close()

    def _errors(self) -> tuple[type[Exception], ...]:
        from openai import OpenAIError

        return (OpenAIError,)

    def _secrets(self) -> list[object]:
        return [self._client.api_key]


def _make(base_url: str | None, api_key: str | None, timeout: float) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI, OpenAIError
    except ImportError:
        raise missing_sdk("openai") from None
    if base_url is not None and api_key is None:
        api_key = PLACEHOLDER
    try:
        return AsyncOpenAI(api_key=api_key, base_url=base_url, timeout=timeout, max_retries=0)
    except OpenAIError as error:
        raise UsageError(f"there is no key: pass api_key=… or set OPENAI_API_KEY ({error})") from None

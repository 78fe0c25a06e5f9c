"""``wrap``: an SDK client whose requests are compacted, with nothing else changed.

The given client is copied, and the copy gets a subclass of its class, so ``isinstance`` checks still hold. Before it
sends a request, the SDK calls a hook. There the body of a chat, response or message request is compacted; other
requests are not changed. So streaming, parsing, raw responses, Azure and ``with_options`` work as before.

A request that the provider rejects as too long is shortened where it grew and sent again, a limited number of times.
The accepted size is remembered for the model, so that later requests are not rejected first.

With ``summarizer`` a model writes a part of each summary. It is asked through the client itself, once for each
compaction, while the request that needs it waits.

A compacted request offers the model the recall tool. Before the SDK reads a response, the calls of that tool are
answered and the request is sent again, so the caller gets one answer or one stream without them.

``requests`` has what all SDKs share, ``openai_anthropic`` and ``genai`` have the hooks of the SDKs. Each step is a
coroutine. A synchronous client runs it with ``run_sync``: its requests block, so the coroutine never suspends.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from kompakt.agent.clients import AnthropicMessages, OpenAIChat, OpenAIResponses
from kompakt.agent.recall.exchange import RoundCache
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.agent.wrap.genai import wrapped_genai
from kompakt.agent.wrap.openai_anthropic import wrapped_class
from kompakt.agent.wrap.requests import WrapOptions
from kompakt.engine.compaction.policies import AnyPolicy, policy_named
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.errors import UsageError
from kompakt.model.budget import Budget
from kompakt.model.tokens import Tokenizer
from kompakt.session.store import Store

Client = TypeVar("Client")


def wrap(
    client: Client,
    *,
    budget: int | Budget | None = None,
    policy: AnyPolicy = "default",
    store: Store | None = None,
    tokenizer: Tokenizer | None = None,
    summarizer: Summarizer | str | None = None,
    recall: bool = True,
) -> Client:
    """Return a copy of an SDK client that compacts its requests.

    The client is ``OpenAI``, ``AsyncOpenAI``, ``Anthropic``, ``AsyncAnthropic`` or Google's ``genai.Client``.

    ``budget`` defaults to the budget of the model. ``policy`` is a name, a ``Policy`` or one strategy. ``tokenizer``, a
    ``Counter`` or a function from a text to its tokens, replaces the model's own counter. With ``store`` (asynchronous
    clients only) compacted conversations are saved in a session that is named after their first messages. A history
    that cannot be made to fit is sent unchanged.

    By default code writes summaries alone. With ``summarizer`` a model writes the narrative: ``"auto"`` asks the model
    of the request through this client, another text names the model to ask, and a summarizer such as ``LLMSummarizer``
    decides itself. The request that needs a compaction waits for it. The cost is in ``Report.narrative``, which
    ``on_compaction`` reports.

    A compacted request that has tools also offers the model the tool ``recall``, which searches and restores what is no
    longer shown. Its calls are answered here: the caller gets one answer or one stream without them, with the usage of
    all requests. ``recall=False`` does not offer it.

    Requests raise ``Overflowed``, which is also the SDK's own error, if the provider still rejects the request as too
    long after everything that can go was removed.

    Raises:
        UsageError: the client is of another class.
    """
    found: Any = type(client)
    is_genai = hasattr(getattr(client, "_api_client", None), "async_request_streamed")
    if is_genai and (store is not None or isinstance(summarizer, str)):
        raise UsageError("a genai.Client takes no store and no model name as summarizer; pass an LLMSummarizer")
    if not is_genai and not (hasattr(client, "_prepare_options") and hasattr(client, "copy")):
        raise UsageError(
            f"{found.__name__} cannot be wrapped; pass OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic or genai.Client"
        )
    base = found.__mro__[1] if hasattr(found, "kompakt_options") else found
    is_async = not is_genai and inspect.iscoroutinefunction(base._prepare_options)
    if store is not None and not is_async:
        raise UsageError("store=… needs an asynchronous client; wrap AsyncOpenAI or AsyncAnthropic")
    options = WrapOptions(
        budget=budget,
        policy=policy_named(policy),
        store=store,
        tokenizer=tokenizer,
        summarizer=_narrator(client, summarizer, is_async=is_async),
        rounds=RoundCache() if recall else None,
    )
    if is_genai:
        return wrapped_genai(client, options)
    copied = cast("Any", client).copy()
    copied.__class__ = wrapped_class(base, options, is_async=is_async)
    return copied


_CLIENTS = {"openai-chat": OpenAIChat, "openai-responses": OpenAIResponses, "anthropic": AnthropicMessages}


def _narrator(
    client: object, summarizer: Summarizer | str | None, *, is_async: bool
) -> Callable[[str, str], Summarizer] | None:
    """Return a function from format and model of a request to the summarizer for it; ``None`` for code alone."""
    if summarizer is None:
        return None
    if not isinstance(summarizer, str):
        return lambda _, model: summarizer
    sdk: Any = client if is_async else _ThreadedSDK(client)

    def narrator(format: str, model: str) -> Summarizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the request itself has warned about an unknown model
            return LLMSummarizer(_CLIENTS[format](model if summarizer == "auto" else summarizer, client=sdk))

    return narrator


class _ThreadedSDK:
    """A synchronous SDK client for callers that await: each request runs in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.api_key = client.api_key

    def with_options(self, **options: Any) -> _ThreadedSDK:
        return _ThreadedSDK(self._client.with_options(**options))

    async def post(self, path: str, **how: Any) -> object:
        return await asyncio.to_thread(self._client.post, path, **how)

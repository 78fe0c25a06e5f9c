"""What all chat clients share: sending, retries, and one way to report failures.

A client supplies what only its SDK knows: how to post a body, how to read a stream, how to assemble streamed events
into a whole answer, and how to read that answer. Streamed and unstreamed answers pass the same ``_read`` method, so
both give the same reply.

A broken stream is retried from the beginning, because a reply is complete or not returned at all. Deltas that were
already delivered are then delivered again: treat them as a preview of the reply.

Invariant: no exception raised here, and no exception in its chain, contains an API key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from kompakt.agent.client import Delta, Reply, Stop, ToolSpec
from kompakt.agent.clients.failures import AttemptFailed, failure_from, redact, secrets_in
from kompakt.agent.config import CompactionConfig
from kompakt.errors import Overflowed, ProviderError, ProviderRefused, ProviderUnavailable, UsageError
from kompakt.model.budget import OUTPUT_CAP
from kompakt.model.json import as_object
from kompakt.model.limits import ASSUMED_OUTPUT, limits
from kompakt.model.messages import Json, JsonObject
from kompakt.version import install_command
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

MAX_RETRIES = 4
TIMEOUT = 600.0
"""Seconds without data after which a request fails."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
"""Seconds between two attempts. The pause doubles each time. The maximum also limits a ``retry-after`` header."""

PLACEHOLDER = "unused"
"""API key for a ``base_url`` that was given without one, so that no key from the environment is sent to that server."""

_GARBLED = (json.JSONDecodeError, UnicodeDecodeError)
_NETWORK = (("httpx", "HTTPError"), ("httpx2", "HTTPError"), ("aiohttp", "ClientError"))


class Answer(NamedTuple):
    """The parts of a provider's answer that make a ``Reply``."""

    items: Sequence[Json]
    stop: Stop
    usage: JsonObject | None


class Assembly(Protocol):
    """Assembles a streamed answer."""

    def add(self, event: JsonObject) -> Iterable[Delta]:
        """Add one event and yield its deltas."""
        ...

    def answer(self) -> JsonObject | None:
        """Return the answer in its unstreamed shape, or ``None`` if the stream did not reach its end."""
        ...


class BaseClient(ABC):
    """A chat client without its SDK."""

    format: str
    compaction: CompactionConfig | None = None
    """Compaction settings for sessions on this client. Settings of the call and of the agent take precedence."""

    def __init__(self, model: str, *, context_window: int | None, output_limit: int | None, max_retries: int) -> None:
        if not model:
            raise UsageError("model='' is empty; pass the name of a model")
        if max_retries < 0:
            raise UsageError(f"max_retries={max_retries!r} is negative; use 0 for a single attempt")
        self.model = model
        self.context_window, self.output_limit = _sizes(model, context_window, output_limit)
        self._attempts = max_retries + 1

    @abstractmethod
    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, output limit, system prompt, tools."""

    def opening(self, system: str | None) -> list[Json]:
        """Return the first messages of a session: what the envelope cannot hold."""
        del system
        return []

    @abstractmethod
    async def close(self) -> None:
        """Close the connections, unless the caller passed the SDK client and therefore owns them."""

    @abstractmethod
    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        """Post a body and return the decoded response."""

    @abstractmethod
    def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        """Post a body and yield the events of the response stream."""

    @abstractmethod
    def _assembly(self) -> Assembly:
        """Return a new assembly for one stream."""

    @abstractmethod
    def _read(self, answer: JsonObject) -> Answer:
        """Read an answer; raise ``AttemptFailed`` if it is not a valid one."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions that the SDK raises."""

    @abstractmethod
    def _secrets(self) -> list[object]:
        """Return the values that must not appear in error messages."""

    async def send(
        self, body: JsonObject, *, on_delta: Callable[[Delta], None] | None = None, changes: JsonObject | None = None
    ) -> Reply:
        """Send a request. With ``on_delta`` the answer is streamed and each delta passed on as it arrives.

        Raises:
            Overflowed: the provider rejects the request as too long.
            ProviderRefused: the provider rejects the request for another reason.
            ProviderUnavailable: the provider could not be reached, or failed, in every attempt.
        """
        changes = changes or {}
        body = {**body, **(changes.get("parameters") or {})}
        headers = {str(name): str(value) for name, value in (changes.get("headers") or {}).items()}
        return await self._retry(lambda: self._answer(body, headers, on_delta), headers)

    async def _retry(self, ask: Callable[[], Awaitable[JsonObject]], headers: dict[str, str]) -> Reply:
        """Call ``ask`` until it succeeds, fails for good, or the attempts are used up."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._reply(await ask())
            except AttemptFailed as error:
                failed = error
            if not failed.retryable or attempt >= self._attempts:
                break
            wait = _pause(attempt, failed.wait)
            _log.info("%s: retry in %.1f s: %s", self.model, wait, self._redacted(failed.message, headers))
            await asyncio.sleep(wait)
        raise self._error(failed, attempt, headers)

    async def _answer(
        self, body: JsonObject, headers: dict[str, str], on_delta: Callable[[Delta], None] | None
    ) -> JsonObject:
        if on_delta is None and not body.get("stream"):
            return await self._whole(self._ask(body, headers))
        assembly = self._assembly()
        events = self._listen(body, headers)
        try:
            while True:
                with self._reading():
                    event = await anext(events, None)
                if event is None:
                    break
                for delta in assembly.add(event):
                    if on_delta is not None and delta.text:
                        on_delta(delta)
        finally:
            await events.aclose()
        answer = assembly.answer()
        if answer is None:
            raise AttemptFailed("the stream ended before the answer was complete", retryable=True)
        return answer

    async def _whole(self, asked: Awaitable[object]) -> JsonObject:
        with self._reading():
            return _object(await asked)

    def _reply(self, answer: JsonObject) -> Reply:
        items, stop, usage = self._read(answer)
        size = WIRES[self.format].usage(usage)
        if stop == "length" and not items and size.output == 0:
            stop = "overflow"  # no room for a single output token: the prompt fills the window
        return Reply(tuple(items), stop, size, WIRES[self.format].billed_usage(usage))

    @contextmanager
    def _reading(self) -> Generator[None, None, None]:
        """Convert exceptions of the SDK and the network to ``AttemptFailed``."""
        try:
            yield
        except (*self._errors(), *network_errors(), OSError, EOFError, *_GARBLED) as error:
            raise failure_from(error) from None

    def _redacted(self, text: str, headers: dict[str, str]) -> str:
        return redact(text, [*self._secrets(), *secrets_in(headers)])

    def _error(self, failed: AttemptFailed, attempts: int, headers: dict[str, str]) -> ProviderError:
        message = self._redacted(failed.message, headers)
        status = f" ({failed.status})" if failed.status is not None else ""
        if failed.overflow is not None:
            stated = self._redacted(failed.overflow.message, headers)
            overflow = msgspec.structs.replace(failed.overflow, message=stated)
            return Overflowed(
                f"{self.model}: request too long{status}: {message}", status=failed.status, overflow=overflow
            )
        if not failed.retryable:
            return ProviderRefused(f"{self.model} refused the request{status}: {message}", status=failed.status)
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return ProviderUnavailable(f"{self.model} unavailable after {tries}{status}: {message}", status=failed.status)

    def _tools(self, tools: Sequence[ToolSpec]) -> list[Json]:
        return [
            WIRES[self.format].define_tool(name=tool.name, description=tool.description, schema=tool.schema)
            for tool in tools
        ]


class SDKClient(BaseClient):
    """A client on the ``openai`` or ``anthropic`` package, which share their request methods.

    Bodies go through the SDK's ``post`` method. The SDK neither adds nor removes fields there, whether or not it knows
    them.
    """

    path: str
    """The path that requests are posted to."""
    _client: Any
    _owned: bool

    def _use(self, given: object, connect: Callable[[], object]) -> None:
        """Use the SDK client of the caller, or a new one. Retries are made here and not by the SDK."""
        self._owned = given is None
        # with_options copies the client and shares its connections, so the caller's client is not changed.
        self._client = cast("Any", connect() if given is None else given).with_options(max_retries=0)

    @abstractmethod
    def _stream_class(self) -> object:
        """Return the SDK's ``AsyncStream[object]``."""

    async def close(self) -> None:
        """Close the connections, unless the caller passed the SDK client and therefore owns them."""
        if self._owned:
            await self._client.close()

    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        return await self._post(self.path, body, headers)

    async def _post(self, path: str, body: JsonObject, headers: dict[str, str]) -> object:
        return await self._client.post(path, cast_to=object, body=body, options={"headers": headers})

    async def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        stream = await self._client.post(
            self.path,
            cast_to=object,
            body={**body, "stream": True},
            options={"headers": headers},
            stream=True,
            stream_cls=self._stream_class(),
        )
        try:
            async for event in stream:
                yield as_object(event)
        finally:
            await stream.close()


def key_for(base_url: str | None, api_key: str | None) -> str | None:
    """Return the API key to use with a server; the SDK reads its environment variable for ``None``."""
    return PLACEHOLDER if base_url is not None and api_key is None else api_key


def network_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the loaded HTTP libraries: SDKs do not convert all of them."""
    found: list[type[Exception]] = []
    for name, error in _NETWORK:
        module = sys.modules.get(name)
        kind: object = getattr(module, error, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            found.append(kind)
    return tuple(found)


def missing_sdk(package: str) -> UsageError:
    return UsageError(f"this client needs the package {package}; install it with: {install_command('agent')}")


def is_complete(arguments: object) -> bool:
    """Return whether a call's arguments are complete JSON; those of a truncated answer are not."""
    if not isinstance(arguments, str):
        return True
    try:
        json.loads(arguments or "{}")
    except ValueError:
        return False
    return True


def without_nulls(value: JsonObject) -> JsonObject:
    """Copy an object without nulls: answers contain null fields, requests must omit them."""
    return {key: inner for key, inner in value.items() if inner is not None}


def _object(answer: object) -> JsonObject:
    """Return an answer as an object; SDKs return text if the server sends JSON with another content type."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            shown = re.sub(r"\s+", " ", answer)[:200]
            raise AttemptFailed(f"the answer is not JSON: {shown!r}", retryable=True) from None
    if not isinstance(answer, dict):
        raise AttemptFailed("the answer is not a JSON object", retryable=True)
    return cast("JsonObject", answer)


def _pause(attempt: int, asked: float | None) -> float:
    """Return the seconds to wait: what the provider asks for, else exponential backoff with 25 % jitter."""
    if asked is not None:
        return min(asked, LONGEST_PAUSE)
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)


def _sizes(model: str, window: int | None, output: int | None) -> tuple[int, int]:
    """Return context window and output limit.

    The default output limit is at most what budgets reserve for output, and at most half of the window.
    """
    for name, value in (("context_window", window), ("output_limit", output)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value!r} is not a number of tokens; use a whole number above 0")
    if window is not None and output is not None:
        return window, output
    with warnings.catch_warnings():
        if window is not None:  # nothing is assumed, so the unknown-model warning does not apply
            warnings.simplefilter("ignore")
        known = limits(model)
    window = known.context if window is None else window
    if output is None:
        output = min(known.output or ASSUMED_OUTPUT, OUTPUT_CAP, *([window // 2] if window else []))
    return window, max(1, output)

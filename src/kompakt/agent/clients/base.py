"""What every client does alike: ask, ask again where that is worth it, and tell what went wrong in one way.

A client gives this class four things that only its SDK knows: how a body is posted, how a stream is read, how the
pieces of a stream become the answer that would have come in one piece, and what an answer says. Everything goes through
the same reading, so a streamed answer and a whole one give the same reply.

A stream that broke is asked again from the beginning: a reply is whole or it is not given. Pieces told by then are told
again, so whoever shows them shows them as what they are: a sketch of the reply.

Invariant: nothing raised here, and nothing it was raised from, carries a key.
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
from kompakt.agent.clients.failures import Failed, failed_of, plain, secrets_in
from kompakt.agent.config import CompactionConfig
from kompakt.errors import Overflowed, ProviderError, ProviderRefused, ProviderUnavailable, UsageError
from kompakt.model.budget import OUTPUT_CAP
from kompakt.model.limits import ASSUMED_OUTPUT, limits
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

MAX_RETRIES = 4
TIMEOUT = 600.0
"""Seconds of silence after which a request counts as lost."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
"""Seconds between two tries: the first, doubled each time, and the most, whatever the provider asks for."""

PLACEHOLDER = "unused"
"""Sent as the key to a server that was named without one, so that no key from the environment goes there."""

_GARBLED = (json.JSONDecodeError, UnicodeDecodeError)
_NETWORK = (("httpx", "HTTPError"), ("httpx2", "HTTPError"), ("aiohttp", "ClientError"))


class Answer(NamedTuple):
    """What one answer says."""

    items: Sequence[Json]
    stop: Stop
    usage: JsonObject | None


class Assembly(Protocol):
    """Puts a streamed answer together."""

    def add(self, event: JsonObject) -> Iterable[Delta]:
        """Take one event and tell what it adds."""
        ...

    def answer(self) -> JsonObject | None:
        """Give the answer as it would have come in one piece, or nothing when its end has not come."""
        ...


class Caller(ABC):
    """A chat client without its SDK."""

    format: str
    compaction: CompactionConfig | None = None
    """How sessions on this client are compacted, where neither the call nor the agent says; set it as you like."""

    def __init__(self, model: str, *, context_window: int | None, output_limit: int | None, max_retries: int) -> None:
        if not model:
            raise UsageError("model='' names no model; say which one to ask")
        if max_retries < 0:
            raise UsageError(f"max_retries={max_retries!r} is negative; use 0 to ask once")
        self.model = model
        self.context_window, self.output_limit = _sizes(model, context_window, output_limit)
        self._tries = max_retries + 1

    @abstractmethod
    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, output limit, system text, tools."""

    def opening(self, system: str | None) -> list[Json]:
        """List the messages that a session begins with: those that say what the envelope cannot."""
        del system
        return []

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections, unless the SDK's client was handed in: then they are its owner's."""

    @abstractmethod
    async def _ask(self, body: JsonObject, headers: dict[str, str]) -> object:
        """Post a body and return what came back, decoded."""

    @abstractmethod
    def _listen(self, body: JsonObject, headers: dict[str, str]) -> AsyncGenerator[JsonObject, None]:
        """Post a body and go through the events of the stream that comes back."""

    @abstractmethod
    def _assembly(self) -> Assembly:
        """Begin to put a stream together."""

    @abstractmethod
    def _read(self, answer: JsonObject) -> Answer:
        """Say what an answer says; raises ``Failed`` when it is none."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """List what the SDK raises."""

    @abstractmethod
    def _secrets(self) -> list[object]:
        """List what must not be told."""

    async def send(
        self, body: JsonObject, *, on_delta: Callable[[Delta], None] | None = None, changes: JsonObject | None = None
    ) -> Reply:
        """Send a request; with ``on_delta`` the answer is streamed and each piece told as it arrives.

        Raises:
            Overflowed: the provider says that the request is too long.
            ProviderRefused: the provider refuses the request for another reason.
            ProviderUnavailable: the provider could not be reached, or failed, for as often as is tried.
        """
        changes = changes or {}
        body = {**body, **(changes.get("parameters") or {})}
        headers = {str(name): str(value) for name, value in (changes.get("headers") or {}).items()}
        return await self._tried(lambda: self._answer(body, headers, on_delta), headers)

    async def _tried(self, ask: Callable[[], Awaitable[JsonObject]], headers: dict[str, str]) -> Reply:
        """Ask, again where that is worth it, and say what came of it."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._reply(await ask())
            except Failed as error:
                failed = error
            if not failed.again or attempt >= self._tries:
                break
            wait = _pause(attempt, failed.wait)
            _log.info("%s: asked again in %.1f s: %s", self.model, wait, self._told(failed, headers))
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
            raise Failed("the stream ended before the answer did", again=True)
        return answer

    async def _whole(self, asked: Awaitable[object]) -> JsonObject:
        """Wait for an answer in one piece."""
        with self._reading():
            return _object(await asked)

    def _reply(self, answer: JsonObject) -> Reply:
        items, stop, usage = self._read(answer)
        size = WIRES[self.format].usage(usage)
        if stop == "length" and not items and size.output == 0:
            stop = "overflow"  # no room for a single token: the prompt fills the window
        return Reply(tuple(items), stop, size, WIRES[self.format].billed_usage(usage))

    @contextmanager
    def _reading(self) -> Generator[None, None, None]:
        """Turn whatever an SDK or a network raises into one kind of failure."""
        try:
            yield
        except (*self._errors(), *network_errors(), OSError, EOFError, *_GARBLED) as error:
            raise failed_of(error) from None

    def _told(self, failed: Failed, headers: dict[str, str]) -> str:
        return plain(failed.words, [*self._secrets(), *secrets_in(headers)])

    def _error(self, failed: Failed, attempts: int, headers: dict[str, str]) -> ProviderError:
        words = self._told(failed, headers)
        status = f" ({failed.status})" if failed.status is not None else ""
        if failed.overflow is not None:
            message = plain(failed.overflow.message, [*self._secrets(), *secrets_in(headers)])
            overflow = msgspec.structs.replace(failed.overflow, message=message)
            return Overflowed(f"{self.model}: too long{status}: {words}", status=failed.status, overflow=overflow)
        if not failed.again:
            return ProviderRefused(f"{self.model} refuses the request{status}: {words}", status=failed.status)
        tries = "one try" if attempts == 1 else f"{attempts} tries"
        return ProviderUnavailable(f"{self.model} gave no answer in {tries}{status}: {words}", status=failed.status)

    def _tools(self, tools: Sequence[ToolSpec]) -> list[Json]:
        return [
            WIRES[self.format].define_tool(name=tool.name, description=tool.description, schema=tool.schema)
            for tool in tools
        ]


def network_errors() -> tuple[type[Exception], ...]:
    """List what the HTTP libraries raise that are loaded; an SDK brings its own and lets some of it through."""
    found: list[type[Exception]] = []
    for name, error in _NETWORK:
        module = sys.modules.get(name)
        kind: object = getattr(module, error, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            found.append(kind)
    return tuple(found)


def missing_sdk(package: str) -> UsageError:
    """Say what to install."""
    return UsageError(f"this client needs the package {package}; install it with: pip install 'kompakt[agent]'")


def is_whole(arguments: object) -> bool:
    """Tell whether a call's arguments are JSON to the end: those of an answer that was cut are not."""
    if not isinstance(arguments, str):
        return True
    try:
        json.loads(arguments or "{}")
    except ValueError:
        return False
    return True


def without_nulls(value: JsonObject) -> JsonObject:
    """Copy an object without its nulls: answers state what is absent, requests leave it out."""
    return {key: inner for key, inner in value.items() if inner is not None}


def fields(value: object) -> JsonObject:
    """Give an object as it is, and anything else as an object without fields."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def objects(value: object) -> list[JsonObject]:
    """List the objects of an array; anything else holds none."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", inner) for inner in listed if isinstance(inner, dict)]


def _object(answer: object) -> JsonObject:
    """Take an answer for an object; a server that mislabels its JSON gives a text."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            shown = re.sub(r"\s+", " ", answer)[:200]
            raise Failed(f"the answer is no JSON: {shown!r}", again=True) from None
    if not isinstance(answer, dict):
        raise Failed("the answer is no JSON object", again=True)
    return cast("JsonObject", answer)


def _pause(attempt: int, asked: float | None) -> float:
    """Choose how long to wait: as long as was asked for, or twice as long each time, give or take a quarter."""
    if asked is not None:
        return min(asked, LONGEST_PAUSE)
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)


def _sizes(model: str, window: int | None, output: int | None) -> tuple[int, int]:
    """Choose window and output limit.

    Unless it is stated, no more output is asked for than budgets keep free, nor than half the window.
    """
    for name, value in (("context_window", window), ("output_limit", output)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value!r} is not a count of tokens; use a whole number above 0")
    if window is not None and output is not None:
        return window, output
    with warnings.catch_warnings():
        if window is not None:  # stated: nothing is assumed that would need a warning
            warnings.simplefilter("ignore")
        known = limits(model)
    window = known.context if window is None else window
    if output is None:
        output = min(known.output or ASSUMED_OUTPUT, OUTPUT_CAP, *([window // 2] if window else []))
    return window, max(1, output)

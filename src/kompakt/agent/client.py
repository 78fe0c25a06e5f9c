"""The protocol of a chat client, which sends requests to one model and returns replies in the provider's format.

A client knows an SDK and nothing about compaction. It retries temporary failures (a lost connection, status 429 or 500)
a limited number of times, and never a request that the provider rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from kompakt.model.budget import Usage
from kompakt.model.limits import Limits, lookup, with_window
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.registry import WIRES

if TYPE_CHECKING:
    from kompakt.agent.config import CompactionConfig

Stop: TypeAlias = Literal["end", "tools", "length", "refused", "overflow"]
"""Why the model stopped: done, calls tools, output limit reached, refused to answer, context window full."""


Managing: TypeAlias = Literal["threshold", "edits"]
"""What a provider can do by itself: compact above a threshold, or clear old tool outputs."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a streamed answer."""

    kind: Literal["text", "reasoning", "call"]
    text: str


class Reply(msgspec.Struct, frozen=True):
    """The answer to one request."""

    items: tuple[Json, ...]
    """The answer as items of the client's format, ready to be appended to the messages of the next request."""
    stop: Stop
    usage: Usage
    """The size of the context after the step."""
    billed: Usage
    """The tokens to pay for."""


class ToolSpec(msgspec.Struct, frozen=True):
    """The definition of a tool."""

    name: str
    description: str
    schema: JsonObject
    """JSON Schema of the arguments, an object."""


class ChatClient(Protocol):
    """Sends requests to one model of one provider."""

    format: str
    """The wire format of its requests."""
    model: str
    context_window: int
    """Tokens of prompt and output together."""
    output_limit: int
    """Most output tokens of an answer."""

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, system prompt, tools, output limit."""
        ...

    def opening(self, system: str | None) -> list[Json]:
        """Return the first messages of a session: the system prompt, in formats where it is a message."""
        ...

    async def send(
        self,
        body: JsonObject,
        *,
        on_delta: Callable[[Delta], None] | None = None,
        changes: JsonObject | None = None,
    ) -> Reply:
        """Send a request. With ``on_delta`` the answer is streamed and each delta passed on as it arrives.

        ``changes`` are additional headers and parameters (``Compaction.request_changes``).

        Raises:
            Overflowed: the provider rejects the request as too long.
            ProviderRefused: the provider rejects the request for another reason, and would do so again.
            ProviderUnavailable: the provider could not be reached, or failed, in every attempt.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class ConfiguredClient(Protocol):
    """A client with compaction settings. Settings of the call and of the agent take precedence."""

    compaction: CompactionConfig | None


@runtime_checkable
class CompactingClient(Protocol):
    """A client whose provider can compact, on request or automatically."""

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Let the provider compact a request; the items of the reply replace everything that was sent.

        Raises:
            ProviderError: the provider did not compact.
        """
        ...

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that make the provider act above ``tokens``; ``None`` if it cannot."""
        ...


def limits_of(client: ChatClient) -> Limits:
    """Return the token limits of a client: its window and output limit, and the model's prompt limit."""
    separate = WIRES[client.format].contract.separate_output
    found = with_window(lookup(client.model), client.context_window, separate=separate)
    return msgspec.structs.replace(found, output=client.output_limit)

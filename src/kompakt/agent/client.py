"""What a chat client is: sends one request to one provider and gives back what the model said, in the wire's own words.

A client knows an SDK and nothing of compaction. It never repeats a request that the provider refused for its content;
what is worth repeating (a lost connection, a 429, a 500) it repeats itself, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from kompakt.model.budget import Usage
from kompakt.model.messages import Json, JsonObject

if TYPE_CHECKING:
    from kompakt.agent.config import CompactionConfig

Stop: TypeAlias = Literal["end", "tools", "length", "refused", "overflow"]
"""Why the model stopped: it was done, it wants tools, its answer was cut, it declined, its window was full."""


Managing: TypeAlias = Literal["threshold", "edits"]
"""What a provider may be told to do by itself: summarise from a size on, or hide old tool outputs."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer as it arrives."""

    kind: Literal["text", "reasoning", "call"]
    text: str


class Reply(msgspec.Struct, frozen=True):
    """What the model said."""

    items: tuple[Json, ...]
    """The answer as items of the client's format, ready to be appended to the messages of the next request."""
    stop: Stop
    usage: Usage
    """The size of the context after the step."""
    billed: Usage
    """What was paid for."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: JsonObject
    """JSON Schema of its arguments, an object."""


class ChatClient(Protocol):
    """Talks to one model of one provider."""

    format: str
    """The wire format of its requests."""
    model: str
    context_window: int
    """Tokens the model reads and writes in all."""
    output_limit: int
    """Tokens the model writes at most."""

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, system text, tools, output limit."""
        ...

    def opening(self, system: str | None) -> list[Json]:
        """Return what a conversation begins with: the system text, where it is a message."""
        ...

    async def send(
        self,
        body: JsonObject,
        *,
        on_delta: Callable[[Delta], None] | None = None,
        changes: JsonObject | None = None,
    ) -> Reply:
        """Send a request; with ``on_delta`` the answer is streamed and each piece told as it arrives.

        ``changes`` are headers and parameters that the body cannot say (``Compaction.request_changes``).

        Raises:
            Overflowed: the provider says that the request is too long.
            ProviderRefused: the provider refuses the request for another reason; it would do so again.
            ProviderUnavailable: the provider could not be reached, or failed, for as often as is tried.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class ConfiguredClient(Protocol):
    """A client that says how its sessions are compacted, where neither the call nor the agent does."""

    compaction: CompactionConfig | None


@runtime_checkable
class CompactingClient(Protocol):
    """A client whose provider compacts, when it is asked to or by itself."""

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Have the provider compact a request; its items stand for all that was sent, and go back as they are.

        Raises:
            ProviderError: the provider does not.
        """
        ...

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that let the provider act from so many tokens on; ``None`` where it cannot."""
        ...

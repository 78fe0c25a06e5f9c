"""Messages and parts: the values everything else is made of.

One invariant: a value is frozen and remembers the wire form it came from (``raw``), so what nobody
edited is rendered byte-equal. ``raw`` is shared with the caller's payload and never written to; an edit
makes a new value with ``edited`` set, and the wire module lays the edit over a copy of ``raw``.

Structs rather than dataclasses: a history of 10,000 messages is parsed at every request of a stateless
caller, and a frozen dataclass costs ten times as much to build. ``gc=False`` is safe because a value never
refers back to what holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, overload

import msgspec

from kompakt.model.contract import Contract

Json: TypeAlias = Any
"""A decoded JSON value. Providers add fields at will, so kompakt trusts its shape only where it has looked."""

JsonObject: TypeAlias = dict[str, Any]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""Developer messages count as system; a result that travels in a user message keeps the role user."""


class Text(msgspec.Struct, frozen=True, gc=False):
    """Words, whoever wrote them."""

    text: str
    raw: Json = None
    edited: bool = False


class Media(msgspec.Struct, frozen=True, gc=False):
    """An image, a recording, a document: inline or by address."""

    media: Literal["image", "audio", "video", "document", "file"]
    mime: str | None = None
    data: str | None = None
    """Base64 when inline."""
    url: str | None = None
    detail: str | None = None
    name: str | None = None
    raw: Json = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """What the model thought; ``blob`` is the provider's opaque proof of it and is never edited."""

    text: str = ""
    blob: str | None = None
    redacted: bool = False
    raw: Json = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A request to run a tool, by the model or (``hosted``) by the provider on its behalf."""

    id: str
    name: str
    input: Json = None
    """JSON text where the wire carries text, a JSON value where it carries a value."""
    hosted: bool = False
    follows: str | None = None
    """The approval that this call carries out."""
    raw: Json = None
    edited: bool = False
    fixed: bool = False
    """Whether no other input can stand in its place: it is signed, or the provider acts on it."""
    asks: bool = False
    """Whether it asks a person for approval, so that an answer may come much later."""


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """What a tool answered."""

    call_id: str
    output: str
    name: str | None = None
    is_error: bool = False
    media: tuple[Media, ...] = ()
    hosted: bool = False
    fixed: bool = False
    """Whether no other output can stand in its place: a screenshot that must be a picture, say."""
    status: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    pruned_at: float | None = None
    """When the output was hidden from the model; the output itself stays here."""
    raw: Json = None
    edited: bool = False


class Marker(msgspec.Struct, frozen=True, gc=False):
    """A durable request to compact: by the overflow check (``auto``) or by a person."""

    auto: bool = True
    instructions: str | None = None
    reason: str | None = None
    """Why the compaction was requested, for its report."""


class Opaque(msgspec.Struct, frozen=True, gc=False):
    """Something a provider added that kompakt does not interpret: kept whole or dropped whole."""

    type: str
    raw: Json = None


Part: TypeAlias = Text | Media | Reasoning | ToolCall | ToolResult | Marker | Opaque


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a history."""

    role: Role
    parts: tuple[Part, ...]
    id: str | None = None
    """The provider's id of an assistant message, where the wire or the transcript carries one."""
    raw: Json = None
    edited: bool = False
    is_summary: bool = False
    source_id: str | None = None
    """Which context provider added it; ``None`` for the conversation itself."""

    @property
    def text(self) -> str:
        """Join the words of the message."""
        return "\n".join(part.text for part in self.parts if type(part) is Text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """List the tool calls of the message."""
        return tuple(part for part in self.parts if type(part) is ToolCall)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """List the tool results of the message."""
        return tuple(part for part in self.parts if type(part) is ToolResult)

    def with_parts(self, parts: Iterable[Part]) -> Message:
        """Return this message with other parts; its remaining wire fields stay."""
        return msgspec.structs.replace(self, parts=tuple(parts), edited=True)


class History(Sequence[Message]):
    """The messages of one request with the envelope they came in: model, system, tools and all else.

    Equal to a list in use; ``body`` is the caller's own request, or ``None`` when the payload was a bare list.
    """

    __slots__ = ("body", "contract", "format", "messages", "model", "system", "tools")

    def __init__(
        self,
        messages: Iterable[Message],
        *,
        format: str,
        body: JsonObject | None = None,
        system: Iterable[Message] = (),
        tools: Sequence[Json] = (),
        model: str | None = None,
        contract: Contract | None = None,
    ) -> None:
        self.messages = tuple(messages)
        self.contract = contract
        self.format = format
        self.body = body
        self.system = tuple(system)
        self.tools = tuple(tools)
        self.model = model

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return (self.messages, self.format, self.body) == (other.messages, other.format, other.body)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<History of {len(self.messages)} messages, {self.format}>"

    def with_messages(self, messages: Iterable[Message], *, body: JsonObject | None = None) -> History:
        """Return the same envelope, or another body in its place, around other messages."""
        return History(
            messages,
            format=self.format,
            body=self.body if body is None else body,
            system=self.system,
            tools=self.tools,
            model=self.model,
            contract=self.contract,
        )


def text_of(value: object) -> str:
    """Read the words out of a content value: a string, one text block, or a list of them."""
    if isinstance(value, str):
        return value
    blocks: list[Any] = value if isinstance(value, list) else [value]
    return "\n".join(filter(None, map(_block_text, blocks)))


def _block_text(block: Any) -> str:
    """Read the words of one text block, whatever provider shaped it."""
    if isinstance(block, dict):
        block = block.get("text")
    return block if isinstance(block, str) else ""

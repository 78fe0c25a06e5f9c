"""Messages and parts: the values that everything else uses.

Invariant: a value is frozen and keeps the wire form it came from (``raw``), so an unedited value is rendered
byte-equal. ``raw`` is shared with the caller's payload and never modified. An edit makes a new value with ``edited``
set, and the wire module applies the edit to a copy of ``raw``.

Structs instead of dataclasses: a history of 10,000 messages is parsed for every stateless request, and a frozen
dataclass takes ten times as long to build. ``gc=False`` is safe because a value never refers to its container.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, overload

import msgspec

from kompakt.model.contract import Contract

Json: TypeAlias = Any
"""A decoded JSON value. Providers may add fields, so a shape is trusted only where it was verified."""

JsonObject: TypeAlias = dict[str, Any]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""Developer messages count as system; a result inside a user message keeps the role user."""


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text of any role."""

    text: str
    raw: Json = None
    edited: bool = False


class Media(msgspec.Struct, frozen=True, gc=False):
    """An image, audio, video or document: inline or by URL."""

    media: Literal["image", "audio", "video", "document", "file"]
    mime: str | None = None
    data: str | None = None
    """Base64 when inline."""
    url: str | None = None
    detail: str | None = None
    name: str | None = None
    raw: Json = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Reasoning of the model; ``blob`` is the provider's signature or encrypted form and is never edited."""

    text: str = ""
    blob: str | None = None
    redacted: bool = False
    raw: Json = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call by the model; with ``hosted`` the provider runs it."""

    id: str
    name: str
    input: Json = None
    """JSON text where the wire has text, a JSON value where it has a value."""
    hosted: bool = False
    follows: str | None = None
    """The approval request that this call carries out."""
    raw: Json = None
    edited: bool = False
    fixed: bool = False
    """Whether the input must not be replaced: it is signed, or the provider acts on it."""
    asks: bool = False
    """Whether it asks a person for approval, so the answer may come much later."""


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a tool call."""

    call_id: str
    output: str
    name: str | None = None
    is_error: bool = False
    media: tuple[Media, ...] = ()
    hosted: bool = False
    fixed: bool = False
    """Whether the output must not be replaced, such as a screenshot that must be an image."""
    status: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    pruned_at: float | None = None
    """The time at which the output was hidden from the model; the output itself stays here."""
    raw: Json = None
    edited: bool = False


class Marker(msgspec.Struct, frozen=True, gc=False):
    """A stored request to compact: by the overflow check (``auto``) or by a person."""

    auto: bool = True
    instructions: str | None = None
    reason: str | None = None
    """The reason of the request, for the report."""


class Opaque(msgspec.Struct, frozen=True, gc=False):
    """A part that kompakt does not interpret; it is kept or dropped as a whole."""

    type: str
    raw: Json = None


Part: TypeAlias = Text | Media | Reasoning | ToolCall | ToolResult | Marker | Opaque


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a history."""

    role: Role
    parts: tuple[Part, ...]
    id: str | None = None
    """The provider's id of an assistant message, where the wire or the transcript has one."""
    raw: Json = None
    edited: bool = False
    is_summary: bool = False
    source_id: str | None = None
    """The context provider that added the message; ``None`` for the conversation itself."""

    @property
    def text(self) -> str:
        """Return the text of the message."""
        return "\n".join(part.text for part in self.parts if type(part) is Text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls of the message."""
        return tuple(part for part in self.parts if type(part) is ToolCall)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Return the tool results of the message."""
        return tuple(part for part in self.parts if type(part) is ToolResult)

    def with_parts(self, parts: Iterable[Part]) -> Message:
        """Return this message with other parts; other wire fields are kept."""
        return msgspec.structs.replace(self, parts=tuple(parts), edited=True)


class History(Sequence[Message]):
    """The messages of one request with their envelope: model, system, tools and the rest of the body.

    It behaves like a list; ``body`` is the caller's request, or ``None`` when the payload was a list.
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
        """Return a history with other messages and the same envelope, or with another body."""
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
    """Return the text of a content value: a string, one text block, or a list of them."""
    if isinstance(value, str):
        return value
    blocks: list[Any] = value if isinstance(value, list) else [value]
    return "\n".join(filter(None, map(_block_text, blocks)))


def _block_text(block: Any) -> str:
    """Return the text of one text block of any provider."""
    if isinstance(block, dict):
        block = block.get("text")
    return block if isinstance(block, str) else ""

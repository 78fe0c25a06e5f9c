"""The values of a context: groups, summary and snapshot, and predicates on messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kompakt.engine.ledger.extract.user_words import is_injected, is_notice
from kompakt.engine.pivot.pivot import PivotFrame
from kompakt.model.groups import GroupKind, is_user_message
from kompakt.model.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_own


class ContextGroup:
    """A group of a context. Only the context changes it."""

    __slots__ = ("excluded", "indices", "kind", "number", "pinned", "reason", "source_id", "summarized_by", "tokens")

    def __init__(self, number: int, kind: GroupKind) -> None:
        self.number = number
        self.kind: GroupKind = kind
        self.indices: list[int] = []
        self.tokens = 0
        """Tokens of its messages as they are shown."""
        self.excluded: str | None = None
        """Why it is hidden; ``None`` if it is visible."""
        self.reason = ""
        """Why it was last excluded; stays after it is included again."""
        self.pinned = False
        self.summarized_by: int | None = None
        """The number of the summary that replaces this group."""
        self.source_id: str | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        state = f", excluded: {self.excluded}" if self.excluded else ""
        return f"<{self.kind} group {self.number}, {self.tokens} tokens{state}>"


class Load(msgspec.Struct, frozen=True):
    """The size of what a pivot replaces."""

    hidden: int = 0
    """Tokens of the hidden messages in their original form."""
    weight: int = 0
    """Estimated tokens of a ledger that contains all of it."""

    def __add__(self, other: Load) -> Load:
        return Load(self.hidden + other.hidden, self.weight + other.weight)

    def __sub__(self, other: Load) -> Load:
        return Load(self.hidden - other.hidden, self.weight - other.weight)


class Summary(msgspec.Struct, frozen=True):
    """The replacement of groups: a text, a ledger if there is room for one, and the links to the groups."""

    number: int
    text: str
    taken: tuple[int, ...]
    """The numbers of the groups that this summary was made for."""
    covers_to: int
    """Index of the last message it replaces; it is shown right after that position."""
    tokens: int
    """Its tokens; with a ledger, the reserved room."""
    earlier: Summary | None = None
    """The summary that it replaced, whose groups it covers too."""
    room: int = 0
    """Tokens for text and ledger together; 0 for text alone."""
    upto: int = 0
    """Number of messages when it was made; the ledger covers no later ones."""
    load: Load = Load()
    """The size of what it replaces."""
    frame: PivotFrame = PivotFrame()

    @property
    def covers(self) -> tuple[int, ...]:
        """The numbers of all groups it replaces, those of earlier summaries first."""
        chain: list[tuple[int, ...]] = []
        summary: Summary | None = self
        while summary is not None:
            chain.append(summary.taken)
            summary = summary.earlier
        return tuple(number for taken in reversed(chain) for number in taken)


class Snapshot(msgspec.Struct, frozen=True):
    """A state for ``rollback``. Its size depends on what is visible, not on the history."""

    messages: int
    """Number of messages; groups that began later are not part of the state."""
    live: tuple[int, ...]
    pinned: frozenset[int]
    shown: dict[int, Message]
    summary: Summary | None
    inherited: str | None
    unsummarized: bool
    stripped_to: int
    actions: int


def speaks(message: Message) -> bool:
    """Return whether a message contains a request: words of the user, not of a tool, a provider or a summary."""
    if message.role != "user" or message.source_id is not None or message.is_summary:
        return False
    if is_user_message(message):
        return not message.parts or not all(map(_is_note, message.parts))
    return any(type(part) is Text and bool(part.text.strip()) and not _is_note(part) for part in message.parts)


def _is_note(part: Part) -> bool:
    return type(part) is Text and (is_own(part.text) or is_notice(part.text))


def states_task(message: Message) -> bool:
    """Return whether a request contains a person's words, and not only a skill or command file that an agent loaded."""
    others = (part for part in message.parts if type(part) is not ToolResult)
    return any(type(part) is not Text or not (is_own(part.text) or is_injected(part.text)) for part in others)


def is_own_part(part: Part) -> bool:
    """Return whether a part is a text that kompakt itself wrote."""
    return type(part) is Text and is_own(part.text)


def byte_size(message: Message) -> int:
    """Count the bytes of text and media in a message, without JSON syntax."""
    total = 0
    for part in message.parts:
        if type(part) is Text:
            total += _bytes(part.text)
        elif type(part) is ToolResult:
            total += _bytes(part.output) + (sum(len(item.data or "") for item in part.media) if part.media else 0)
        elif type(part) is ToolCall:
            total += _bytes(part.input) if type(part.input) is str else 0
        elif type(part) is Reasoning:
            total += _bytes(part.text) + len(part.blob or "")
        else:
            total += len(getattr(part, "data", None) or "")
    return total


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def words_of(part: Part) -> str:
    """Return the text of a part that a model reads as text."""
    if type(part) is Text:
        return part.text
    return part.output if type(part) is ToolResult else ""


STEP_SAMPLE = 32
"""Latest steps whose median is the size of an ordinary step: one huge output does not change it."""


def step_size(messages: Sequence[Message], counts: Sequence[int], upto: int) -> int:
    """Return the tokens of an ordinary step among the first ``upto`` messages."""
    sizes: list[int] = []
    size = 0
    for index in range(upto - 1, -1, -1):
        size += counts[index]
        if messages[index].role == "assistant" and (not index or messages[index - 1].role != "assistant"):
            sizes.append(size)
            size = 0
            if len(sizes) == STEP_SAMPLE:
                break
    return sorted(sizes)[len(sizes) // 2] if sizes else size

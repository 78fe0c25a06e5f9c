"""The archive: the append-only history with its groups and references, and predicates on messages.

Messages, groups and references never depend on what the model sees; ``Visibility`` tracks that.

A reference is a prefix of a hash chain: each message is hashed together with the hash before it. The same history gives
the same references in every process and fork, and a changed message changes all references after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from kompakt.engine.ledger.extract.user_words import is_injected, is_notice
from kompakt.model.groups import Grouping, GroupKind, is_user_message
from kompakt.model.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_own
from kompakt.model.references import References
from kompakt.model.tokens import Counter

_NUMBER = re.compile(r"\d+")

_AHEAD = 128
"""References computed at once, because those of the next messages are usually asked for too."""


class ContextGroup(msgspec.Struct, eq=False, gc=False):
    """A group of a context. Only the context changes it."""

    number: int
    kind: GroupKind
    source_id: str | None = None
    indices: list[int] = []
    tokens: int = 0
    """Tokens of its messages as they are shown."""
    excluded: str | None = None
    """Why it is hidden; ``None`` if it is visible."""
    reason: str = ""
    """Why it was last excluded; stays after it is included again."""
    pinned: bool = False
    summarized_by: int | None = None
    """The number of the summary that replaces this group."""

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        state = f", excluded: {self.excluded}" if self.excluded else ""
        return f"<{self.kind} group {self.number}, {self.tokens} tokens{state}>"


class Archive:
    """All messages of a conversation, in groups."""

    __slots__ = (
        "_grouping",
        "_instructions",
        "_needed",
        "_references",
        "_waiting",
        "first_request",
        "groups",
        "messages",
        "newest",
        "newest_answer",
        "newest_request",
        "newest_words",
        "superseded",
        "tokens",
    )

    def __init__(self, references: Sequence[str] = ()) -> None:
        self.messages: list[Message] = []
        self.groups: dict[int, ContextGroup] = {}
        self.newest = -1
        """Index of the newest message that is not a system message."""
        self.first_request: int | None = None
        self.newest_request: int | None = None
        self.newest_words: int | None = None
        """Index of the newest user text, also in a message with tool results."""
        self.newest_answer = -1
        """Index of the newest assistant message."""
        self._needed: set[int] | None = None
        """Numbers of the groups of requests and open calls; ``None`` if it must be computed again."""
        self._waiting: dict[str, tuple[int, bool]] = {}
        """Calls without a result that may still get one: those of the newest answer, and all that ask for approval."""
        self.tokens = 0
        """Tokens of all messages in their original form."""
        self.superseded: set[int] = set()
        """System messages inside the conversation that a later one repeats."""
        self._instructions: dict[str, int] = {}
        self._grouping = Grouping()
        self._references = References(given=references)

    def add(self, message: Message) -> tuple[ContextGroup, list[ContextGroup]]:
        """Append a message; return its group and the groups that were merged into it."""
        index = len(self.messages)
        self.messages.append(message)
        self._needed = None
        if message.role != "system":
            self.newest = index
        elif self.newest >= 0:
            self._note_instruction(message, index)
        grouping, rounds = self._grouping, self._grouping.runs
        number = grouping.add(message)
        if grouping.runs > rounds:
            if self._waiting:
                self._waiting = {id: call for id, call in self._waiting.items() if call[1]}
            self.newest_answer = index
        elif message.role == "user" and speaks(message):
            self._note_request(message, index)
        for part in message.parts:
            if type(part) is ToolCall and (part.asks or not part.hosted):
                self._waiting[part.id] = (index, part.asks)
            elif type(part) is ToolResult:
                self._waiting.pop(part.call_id, None)
        group = self.groups.get(number)
        if group is None:
            group = self.groups[number] = ContextGroup(number, grouping.kinds[number], message.source_id)
        else:
            group.kind = grouping.kinds[number]
        group.indices.append(index)
        return group, self._absorbed(group) if grouping.merges else []

    @property
    def rounds(self) -> int:
        """Number of answers of the model, each of one or more messages: the steps of the run."""
        return self._grouping.runs

    def _note_instruction(self, message: Message, index: int) -> None:
        """Record a system message inside the conversation; it replaces an earlier one that differs only in numbers."""
        if any(type(part) is not Text for part in message.parts):
            return
        said = _NUMBER.sub("0", message.text.strip())
        earlier = self._instructions.get(said)
        if earlier is not None:
            self.superseded.add(earlier)
        self._instructions[said] = index

    def _note_request(self, message: Message, index: int) -> None:
        if self.first_request is None and states_task(message):
            self.first_request = index
        self.newest_words = index
        if not message.results:
            self.newest_request = index

    def _absorbed(self, group: ContextGroup) -> list[ContextGroup]:
        """Move the members of merged groups over."""
        others = [self.groups.pop(number, None) for number in self._grouping.take_merges()]
        absorbed = [other for other in others if other is not None and other is not group]
        for other in absorbed:
            group.indices = sorted([*group.indices, *other.indices])
            group.tokens += other.tokens
            group.pinned = group.pinned or other.pinned
        return absorbed

    def group(self, number: int) -> ContextGroup:
        """Return a group by its number, or the one it became part of."""
        return self.groups[self._grouping.root(number)]

    def known(self, numbers: Iterable[int]) -> list[ContextGroup]:
        """Return groups by their numbers."""
        return [self.group(number) for number in numbers]

    def group_at(self, index: int) -> ContextGroup:
        """Return the group of a message."""
        return self.groups[self._grouping.root(self._grouping.owners[index])]

    def requests(self) -> tuple[ContextGroup | None, ContextGroup | None]:
        """Return the groups of the first and the newest request."""
        first, newest = self.first_request, self.newest_request
        return (
            None if first is None else self.group_at(first),
            None if newest is None else self.group_at(newest),
        )

    def is_newest(self, group: ContextGroup) -> bool:
        """Return whether a group contains the newest message."""
        return group.indices[-1] in (self.newest, len(self.messages) - 1)

    def is_unread(self, group: ContextGroup) -> bool:
        """Return whether a group is the newest, or a tool group with results after the latest answer."""
        return self.is_newest(group) or (group.kind == "tool" and group.indices[-1] > self.newest_answer >= 0)

    def protected(self, groups: Iterable[ContextGroup]) -> list[ContextGroup]:
        """Return the groups that survive every strategy.

        System, first and newest request, pins, the newest group, and calls that may still be answered. A system
        message that a later one repeats may go.
        """
        if self._needed is None:
            requests = (self.first_request, self.newest_request, self.newest_words)
            indices = [index for index, _ in self._waiting.values()]
            indices += [index for index in requests if index is not None]
            self._needed = {self.group_at(index).number for index in indices}
        numbers, recent = self._needed, min(self.newest, self.newest_answer)
        return [
            group
            for group in groups
            if group.pinned
            or group.number in numbers
            or (group.indices[-1] >= recent and self.is_unread(group))
            or (group.kind == "system" and not self.superseded.issuperset(group.indices))
        ]

    def reference(self, index: int, part: int | None = None) -> str:
        """Return the reference of a message or part; references are computed on first use."""
        names = self._references.names
        if len(names) <= index:
            self._references.extend(self.messages[len(names) : index + _AHEAD])
        return names[index] if part is None else f"{names[index]}.{part}"

    def tally(self, groups: list[ContextGroup], counter: Counter) -> dict[str, int]:
        """Count groups, messages, tool calls and tokens, and those of tool groups alone, as the messages are."""
        counts = {"groups": len(groups), "messages": 0, "tool_calls": 0, "tokens": 0, "tool_call_tokens": 0}
        for group in groups:
            own = sum(counter.message(self.messages[index]) for index in group.indices)
            counts["messages"] += len(group.indices)
            counts["tool_calls"] += sum(len(self.messages[index].calls) for index in group.indices)
            counts["tokens"] += own
            counts["tool_call_tokens"] += own if group.kind == "tool" else 0
        return counts


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

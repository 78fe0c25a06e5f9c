"""What the model sees: the visible groups of an archive, the summary of the others, and the projection of both.

``Visibility`` maintains totals incrementally: hiding, showing and replacing a message adjust them.

The projection has the messages in a shape that their provider accepts. It is rebuilt from the visible groups after a
modification and extended after an append. Two rules keep it valid. Where roles
must alternate, messages that became adjacent are merged or separated by a fixed line; messages that were adjacent in
the input stay unchanged. Signed reasoning after a changed prefix is removed, since providers verify it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from kompakt.engine.context.archive import Archive, ContextGroup, byte_size, is_own_part
from kompakt.engine.pivot.pivot import PivotFrame, pivot_messages, pivot_text
from kompakt.model.json import json_text
from kompakt.model.messages import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from kompakt.model.phrases import (
    ASSISTANT_LINE,
    OPEN_ROUND_NOTE,
    PINNED_NOTE,
    RUNTIME_LINE,
    is_pivot_question,
    seal,
    summary_note,
    unseal,
)
from kompakt.model.tokens import Counter

if TYPE_CHECKING:
    from kompakt.engine.context.context import Context


class Visibility:
    """The visible groups of an archive and the replacements of their messages."""

    __slots__ = (
        "_bytes",
        "_found",
        "_live",
        "_sizes",
        "admitted",
        "archive",
        "counter",
        "counts",
        "groups",
        "messages",
        "replacements",
        "rewritten_to",
        "tokens",
        "version",
    )

    def __init__(self, archive: Archive, counter: Counter) -> None:
        self.archive = archive
        self.counter = counter
        self.tokens = 0
        self.messages = 0
        """How many messages are shown."""
        self.groups = 0
        """How many groups are shown."""
        self.counts: list[int] = []
        self._sizes: list[int] = []
        """Bytes of the first messages, as many as were measured: few policies ask for them."""
        self._bytes = 0
        """Bytes of those of them that are shown."""
        self.replacements: dict[int, Message] = {}
        """Messages that are shown in another form, by index."""
        self.admitted: set[int] = set()
        """The replaced messages that the model never saw in their original form."""
        self.version = 0
        """Changes with every modification except an append, so a cached projection knows whether it is still valid."""
        self.rewritten_to = 0
        """Number of messages at the last modification; later messages are unchanged."""
        self._live: list[int] = []
        self._found: tuple[tuple[int, int], list[ContextGroup], list[int]] = (0, 0), [], []
        """Cache of the visible groups and indices, with the version and message count it was built for."""

    def add(self, message: Message, tokens: int) -> ContextGroup | None:
        """Show a new message; return its group if that was hidden and is now visible again."""
        group, absorbed = self.archive.add(message)
        if len(group.indices) == 1:
            self._live.append(group.number)
            self.groups += 1
        for other in absorbed:
            self._absorb(group, other)
        self.counts.append(tokens)
        self.archive.tokens += tokens
        group.tokens += tokens
        if group.excluded is None:
            self.tokens += tokens
            self.messages += 1
            return None
        group.summarized_by = None  # the newest message is always shown, and no group in part
        self.unhide(group)
        return group

    def _absorb(self, group: ContextGroup, other: ContextGroup) -> None:
        """Show two groups that became one: a group is visible or hidden as a whole."""
        members = {index for index in group.indices if index < len(self.counts)}
        hidden = set(other.indices) if other.excluded is not None else set[int]()
        self.groups += 1 - (group.excluded is None) - (other.excluded is None)
        if group.excluded is not None:
            hidden |= members - set(other.indices)
        self.tokens += sum(self.counts[index] for index in hidden)
        self._bytes += self._measured(hidden)
        self.messages += len(hidden)
        group.excluded = group.summarized_by = None
        self._live = sorted({number for number in self._live if number != other.number} | {group.number})
        self.touch()

    def touch(self) -> None:
        """Mark caches as outdated."""
        self.version += 1
        self.rewritten_to = len(self.archive.messages)

    @property
    def live(self) -> list[ContextGroup]:
        """The visible groups, in order; the cost depends on these only."""
        return self._listed()[0].copy()

    def indices(self) -> list[int]:
        """List the messages that are shown, in order."""
        return self._listed()[1].copy()

    def _listed(self) -> tuple[list[ContextGroup], list[int]]:
        """List visible groups and indices; cached until something changes."""
        state = (self.version, len(self.archive.messages))
        if self._found[0] != state:
            groups = self.archive.groups
            self._live = [number for number in self._live if groups[number].excluded is None]
            live = [groups[number] for number in self._live]
            self._found = state, live, sorted([index for group in live for index in group.indices])
        return self._found[1:]

    def shown_messages(self) -> list[Message]:
        """List the messages that are shown as they are shown, in order."""
        messages, replacements = self.archive.messages, self.replacements
        return [replacements.get(index, messages[index]) for index in self._listed()[1]]

    def shown(self, index: int) -> Message:
        """Return a message as it is shown."""
        return self.replacements.get(index, self.archive.messages[index])

    def hide(self, groups: Iterable[ContextGroup], reason: str) -> None:
        """Hide the groups that are shown."""
        for group in groups:
            if group.excluded is None:
                group.excluded = group.reason = reason
                self._adjust(group, -1)
        self.touch()

    def unhide(self, group: ContextGroup) -> None:
        """Show a group that is hidden."""
        if group.excluded is not None:
            group.excluded = None
            if group.number not in self._live:
                self._live = sorted([*self._live, group.number])
            self._adjust(group, 1)
            self.touch()

    def _adjust(self, group: ContextGroup, sign: int) -> None:
        self.tokens += sign * group.tokens
        if self._sizes:
            self._bytes += sign * self._measured(group.indices)
        self.messages += sign * len(group.indices)
        self.groups += sign

    def put(self, index: int, message: Message | None) -> int:
        """Replace a message, or restore the original for ``None``; return the tokens saved."""
        self.admitted.discard(index)
        self.touch()
        return self._replace(index, message)

    def admit(self, index: int, message: Message) -> int:
        """Replace the newest message before the model sees it, which changes no prefix."""
        self.admitted.add(index)
        return self._replace(index, message)

    def _replace(self, index: int, message: Message | None) -> int:
        if message is None:
            self.replacements.pop(index, None)
        else:
            self.replacements[index] = message
        shown = self.shown(index)
        tokens = self.counter.message(shown)
        saved, self.counts[index] = self.counts[index] - tokens, tokens
        group = self.archive.group_at(index)
        group.tokens -= saved
        if group.excluded is None:
            self.tokens -= saved
        if index < len(self._sizes):
            size = byte_size(shown)
            self._bytes += size - self._sizes[index] if group.excluded is None else 0
            self._sizes[index] = size
        return saved

    @property
    def bytes(self) -> int:
        """Bytes of text and media that are shown. Each message is measured once, when this is first asked for."""
        for index in range(len(self._sizes), len(self.archive.messages)):
            self._sizes.append(byte_size(self.shown(index)))
            if self.archive.group_at(index).excluded is None:
                self._bytes += self._sizes[index]
        return self._bytes

    def _measured(self, indices: Iterable[int]) -> int:
        """Return the bytes of messages, as far as they were measured."""
        return sum([self._sizes[index] for index in indices if index < len(self._sizes)])

    def group_bytes(self, group: ContextGroup) -> int:
        """Return the bytes of a group as it would be shown."""
        return sum([byte_size(self.shown(index)) for index in group.indices])


class Load(msgspec.Struct, frozen=True, gc=False):
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


class ProjectedMessage(msgspec.Struct, gc=False):
    """A message of the projection and its index in the history; -1 for text that kompakt adds."""

    message: Message
    index: int
    tokens: int


class CachedProjection:
    """A cached projection of one context. The context owns it and is not stored here: a cycle would delay its end."""

    __slots__ = ("_built_to", "_version", "messages", "tokens")

    def __init__(self) -> None:
        self._version = -1
        self._built_to = 0
        self.messages: list[Message] = []
        self.tokens = 0
        """Tokens of the whole request, exactly as it is shown."""

    def refresh(self, context: Context) -> list[Message]:
        """Update and return the projection; the list is extended in place while nothing is rewritten."""
        if self._version != context.visibility.version:
            placed = build(context)
            self.messages = [entry.message for entry in placed]
            self.tokens = context.fixed_tokens + sum(entry.tokens for entry in placed)
            self._version = context.visibility.version
        else:
            visibility, archive = context.visibility, context.archive
            for index in range(self._built_to, len(archive.messages)):
                if archive.group_at(index).excluded is None:
                    self.messages.append(visibility.shown(index))
                    self.tokens += visibility.counts[index]
        self._built_to = len(context.messages)
        return self.messages


def build(context: Context) -> list[ProjectedMessage]:
    """Build the projection from scratch."""
    entries = _stripped(context, list(_chosen(context)))
    if context.single_message:
        return [_single(context, entries)]
    contract = context.contract
    if contract is None or not contract.alternates or not context.is_rewritten:
        return entries
    return _alternating(context, entries)


def _chosen(context: Context) -> Iterator[ProjectedMessage]:
    """Iterate over the shown messages in order, with pinned texts and the pivot in their places."""
    first, _ = context.archive.requests()
    note = _pinned_note(context)
    summary = context.summary_text
    place = 0 if summary is None else _pivot_place(context, summary.covers_to)
    for index in context.shown_indices():
        if summary is not None and index >= place:
            yield from _pivot(context)
            summary = None
        yield ProjectedMessage(context.shown(index), index, context.message_tokens(index))
        if note is not None and first is not None and index == first.indices[-1]:
            yield note
            note = None
    if summary is not None:
        yield from _pivot(context)
    if note is not None:
        yield note


def _pivot_place(context: Context, covers_to: int) -> int:
    """Find the message before which the pivot goes: the first after what it covers, never inside a group."""
    place = covers_to + 1
    shown = {group.indices[0]: group for group in map(context.archive.group_at, context.shown_indices())}
    while spanning := [first for first, group in shown.items() if first < place <= group.indices[-1]]:
        place = min(spanning)
    return place


def _pivot(context: Context) -> Iterator[ProjectedMessage]:
    text, summary = pivot_text(context), context.summary_text
    if not text or summary is None:
        return
    for message, tokens in pivot_messages(context, text, summary.frame):
        yield ProjectedMessage(message, -1, tokens)


def _pinned_note(context: Context) -> ProjectedMessage | None:
    """Carry the pinned texts that no shown message contains."""
    missing = context.missing_pins if context.is_rewritten else []
    if not missing:
        return None
    message = pinned_message(missing)
    return ProjectedMessage(message, -1, context.counter.message(message))


def pinned_message(texts: Sequence[str]) -> Message:
    """Return the message that carries pinned texts."""
    return Message("user", (Text(seal("\n".join([PINNED_NOTE, *texts]))),))


def _stripped(context: Context, entries: list[ProjectedMessage]) -> list[ProjectedMessage]:
    """Remove signed reasoning after a changed prefix, and messages that contain nothing else."""
    contract = context.contract
    if contract is None or contract.prefix_rule != "strip-all" or not context.stripped_to:
        return entries
    kept: list[ProjectedMessage] = []
    for entry in entries:
        parts = entry.message.parts
        if 0 <= entry.index < context.stripped_to and any(type(part) is Reasoning for part in parts):
            message = entry.message.with_parts(part for part in parts if type(part) is not Reasoning)
            entry = ProjectedMessage(message, entry.index, context.counter.message(message))
            if not message.parts:
                continue
        kept.append(entry)
    return kept


# --- roles -------------------------------------------------------------------------------------------------------


def _alternating(context: Context, entries: list[ProjectedMessage]) -> list[ProjectedMessage]:
    """Merge user messages and separate assistant messages that became adjacent."""
    out: list[ProjectedMessage] = []
    for entry in _settled_system(context, entries):
        previous = out[-1] if out else None
        if entry.message.role == "assistant":
            if previous is None or (previous.message.role == "assistant" and not _follows(context, previous, entry)):
                out.append(_line(context, "user", RUNTIME_LINE))
            out.append(entry)
        elif previous is None or not _neighbours(context, previous, entry):
            out.append(entry)
        elif _mixes(context, previous) and not _both_speak(previous, entry):
            out[-1] = _joined(context, previous, entry)
        else:
            out += [_line(context, "assistant", ASSISTANT_LINE), entry]
    return out


def _settled_system(context: Context, entries: Sequence[ProjectedMessage]) -> Iterator[ProjectedMessage]:
    """Move system messages inside the conversation to where providers accept them: after a user, before an assistant.

    Adjacent ones are merged.
    """
    waiting: list[ProjectedMessage] = []
    previous = "system"
    for entry in entries:
        role = entry.message.role
        if role == "system":
            waiting.append(entry)
            continue
        if role == "assistant":
            yield from _instruction(context, waiting, previous)
            waiting = []
        yield entry
        previous = role
    yield from _instruction(context, waiting, previous)


def _instruction(context: Context, waiting: Sequence[ProjectedMessage], previous: str) -> Iterator[ProjectedMessage]:
    """Merge system messages into one, after a line of the user if no user message precedes it."""
    if waiting and previous not in ("user", "tool"):
        yield _line(context, "user", RUNTIME_LINE)
    if len(waiting) > 1:
        message = waiting[-1].message.with_parts(part for one in waiting for part in one.message.parts)
        yield ProjectedMessage(message, waiting[-1].index, context.counter.message(message))
    else:
        yield from waiting


def _follows(context: Context, one: ProjectedMessage, other: ProjectedMessage) -> bool:
    """Return whether a message came directly after another."""
    return one.index == other.index - 1 and one.index >= 0 and other.index not in context.breaks


def _neighbours(context: Context, one: ProjectedMessage, other: ProjectedMessage) -> bool:
    """Return whether two messages of the user's side must not be adjacent as they are."""
    if one.message.role not in ("user", "tool") or other.message.role not in ("user", "tool"):
        return False
    return not (_follows(context, one, other) and one.index >= context.visibility.rewritten_to)


def _mixes(context: Context, one: ProjectedMessage) -> bool:
    """Return whether a message may also carry what the user says next."""
    if context.contract is None or context.contract.merges_results:
        return True
    return not any(type(part) is ToolResult for part in one.message.parts)


def _both_speak(one: ProjectedMessage, other: ProjectedMessage) -> bool:
    """Return whether both messages contain words of the user that kompakt did not write.

    Such messages are not merged: a later pass could not tell an old request from the first one in the same message.
    """
    return _has_words(one.message) and _has_words(other.message)


def _has_words(message: Message) -> bool:
    return any(type(part) is not ToolResult and not is_own_part(part) for part in message.parts)


def _joined(context: Context, one: ProjectedMessage, other: ProjectedMessage) -> ProjectedMessage:
    message = Message("user", (*one.message.parts, *other.message.parts))
    return ProjectedMessage(message, other.index, context.counter.message(message))


def _line(context: Context, role: Role, text: str) -> ProjectedMessage:
    message = Message(role, (Text(text),))
    return ProjectedMessage(message, -1, context.counter.message(message))


# --- one message -------------------------------------------------------------------------------------------------


def _single(context: Context, entries: Sequence[ProjectedMessage]) -> ProjectedMessage:
    """Write everything as one user message: the user's own parts, a note of the pivot, a transcript of the rest.

    A line separates one request from the next, so that a later pass can tell them apart.
    """
    parts: list[Part] = []
    transcript: list[str] = []
    for entry in entries:
        summary = _summary_of(entry.message, context.seal_key if entry.index >= 0 else b"")
        asked = parts[-1] if parts else None
        if summary is not None and type(asked) is Text and is_pivot_question(asked.text):
            parts[-1] = Text(summary_note(summary, context.seal_key))
            continue
        own = [part for part in entry.message.parts if type(part) is not ToolResult]
        if entry.message.role in ("assistant", "tool") or len(own) < len(entry.message.parts):
            transcript += _transcript_lines(entry.message)
            own = own if entry.message.role == "user" else []
        if own and transcript:
            parts.append(_transcript(transcript, context.seal_key))
            transcript = []
        if own and parts and not is_own_part(own[0]) and not is_own_part(parts[-1]):
            parts.append(Text(RUNTIME_LINE))
        parts += own
    if transcript:
        parts.append(_transcript(transcript, context.seal_key))
    message = Message("user", tuple(parts))
    return ProjectedMessage(message, entries[-1].index, context.counter.message(message))


def _summary_of(message: Message, key: bytes) -> str | None:
    """Return what the answer of a pivot says; ``None`` for any other message."""
    alone = message.parts[0] if message.role == "assistant" and len(message.parts) == 1 else None
    return unseal(alone.text, key) if type(alone) is Text else None


def _transcript(lines: list[str], key: bytes) -> Text:
    """Seal a transcript, so that the next pass does not take it for the user's words."""
    return Text(seal("\n".join([OPEN_ROUND_NOTE, *lines]), key))


def _transcript_lines(message: Message) -> Iterator[str]:
    for part in message.parts:
        if type(part) is Text and message.role == "assistant":
            yield f"said: {part.text}"
        elif type(part) is ToolCall:
            yield f"called {part.name} {json_text(part.input)}"
        elif type(part) is ToolResult:
            yield f"answered: {part.output}"

"""Which groups of an archive the model sees, in which form, and their size.

Totals are maintained incrementally: hiding, showing and replacing a message adjust them. ``version`` changes with every
modification except an append, so a cached projection knows whether it is still valid.
"""

from __future__ import annotations

from kompakt.engine.context.archive import Archive
from kompakt.engine.context.values import ContextGroup, byte_size
from kompakt.model.messages import Message
from kompakt.model.tokens import Counter


class Visibility:
    """The visible groups of an archive and the replacements of their messages."""

    __slots__ = (
        "_found",
        "_live",
        "admitted",
        "archive",
        "bytes",
        "counter",
        "counts",
        "groups",
        "messages",
        "replacements",
        "rewritten_to",
        "sizes",
        "tokens",
        "version",
    )

    def __init__(self, archive: Archive, counter: Counter) -> None:
        self.archive = archive
        self.counter = counter
        self.tokens = 0
        self.bytes = 0
        self.messages = 0
        """How many messages are shown."""
        self.groups = 0
        """How many groups are shown."""
        self.counts: list[int] = []
        self.sizes: list[int] = []
        self.replacements: dict[int, Message] = {}
        """Messages that are shown in another form, by index."""
        self.admitted: set[int] = set()
        """The replaced messages that the model never saw in their original form."""
        self.version = 0
        self.rewritten_to = 0
        """Number of messages at the last modification; later messages are unchanged."""
        self._live: list[int] = []
        self._found: tuple[tuple[int, int], list[ContextGroup], list[int]] = (0, 0), [], []
        """Cache of the visible groups and indices, with the version and message count it was built for."""

    def add(self, message: Message, tokens: int) -> ContextGroup | None:
        """Show a new message; return its group if that was hidden and is now visible again."""
        size = byte_size(message)
        group, absorbed = self.archive.add(message)
        if len(group.indices) == 1:
            self._live.append(group.number)
            self.groups += 1
        for other in absorbed:
            self._absorb(group, other)
        self.counts.append(tokens)
        self.archive.tokens += tokens
        self.sizes.append(size)
        group.tokens += tokens
        if group.excluded is None:
            self.tokens += tokens
            self.bytes += size
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
        self.bytes += sum(self.sizes[index] for index in hidden)
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

    def hide(self, group: ContextGroup, reason: str) -> None:
        """Hide a group that is shown."""
        if group.excluded is None:
            group.excluded = group.reason = reason
            self._adjust(group, -1)

    def unhide(self, group: ContextGroup) -> None:
        """Show a group that is hidden."""
        if group.excluded is not None:
            group.excluded = None
            if group.number not in self._live:
                self._live = sorted([*self._live, group.number])
            self._adjust(group, 1)

    def _adjust(self, group: ContextGroup, sign: int) -> None:
        self.tokens += sign * group.tokens
        self.bytes += sign * sum([self.sizes[index] for index in group.indices])
        self.messages += sign * len(group.indices)
        self.groups += sign
        self.touch()

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
        tokens, size = self.counter.message(shown), byte_size(shown)
        saved, shrunk = self.counts[index] - tokens, self.sizes[index] - size
        self.counts[index], self.sizes[index] = tokens, size
        group = self.archive.group_at(index)
        group.tokens -= saved
        if group.excluded is None:
            self.tokens -= saved
            self.bytes -= shrunk
        return saved

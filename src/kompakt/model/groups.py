"""Atomic groups, rounds and turns: the only place that decides where a history may be cut.

A tool call, its results and the reasoning that led to the call stay together. Everything that slices a history (split,
page, revert, replay, export, truncation) uses these functions, so no cut can orphan anything. All of them take one pass
over the messages, and none raises on a malformed history.

A result answers the call with its id in the model's run directly before it; otherwise the oldest unanswered call with
that id, at any distance. So repeated ids pair by occurrence, and a late result still finds its call.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from kompakt.errors import UsageError
from kompakt.model.messages import Message, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_marked

Owner = TypeVar("Owner")


class Pairing(Generic[Owner]):
    """Finds the owner of the call that a result answers, in one pass over calls and results."""

    __slots__ = ("_latest", "_run", "_waiting")

    def __init__(self) -> None:
        self._run: dict[str, list[Owner]] = {}
        self._waiting: dict[str, deque[Owner]] = {}
        self._latest: dict[str, Owner] = {}

    def begin_run(self) -> None:
        """Start another answer of the model; open calls keep waiting."""
        if self._run:
            for call_id, owners in self._run.items():
                self._waiting.setdefault(call_id, deque()).extend(owners)
            self._run.clear()

    def expect(self, call_id: str, owner: Owner) -> None:
        """Register a call."""
        owners = self._run.get(call_id)
        if owners is None:
            self._run[call_id] = [owner]
        else:
            owners.append(owner)
        self._latest[call_id] = owner

    def answer(self, call_id: str) -> Owner | None:
        """Return the owner of the call that this result answers, and mark it as answered."""
        owners = self._run.get(call_id)
        if owners:
            return owners.pop(0) if len(owners) > 1 else self._run.pop(call_id)[0]
        waiting = self._waiting.get(call_id)
        return waiting.popleft() if waiting else None

    def latest(self, call_id: str) -> Owner | None:
        """Return the owner of the newest call with this id, answered or not."""
        return self._latest.get(call_id)


class RunWatch:
    """Detects where another answer of the model starts: not between messages with the same id, nor next to one without
    an id.
    """

    __slots__ = ("adjacent", "id")

    def __init__(self) -> None:
        self.id: str | None = None
        self.adjacent = False

    def begins(self, message: Message) -> bool:
        """Add the next message and return whether an answer starts with it."""
        if message.role != "assistant":
            self.adjacent = False
            return False
        same_id = message.id is not None and message.id == self.id
        begins = not same_id and not (self.adjacent and (message.id is None or self.id is None))
        self.adjacent = True
        if begins or message.id is not None:
            self.id = message.id
        return begins


class PartPlace(NamedTuple):
    """The position of a part: message index, part index."""

    message: int
    part: int


class Pairs(msgspec.Struct, frozen=True):
    """All calls and results of a history, matched."""

    answers: dict[PartPlace, PartPlace]
    """Call to result; of several results the last one counts."""
    open: list[PartPlace]
    orphans: list[PartPlace]
    duplicates: list[PartPlace]
    """Results that a later result of the same call replaces."""


def pair(messages: Sequence[Message]) -> Pairs:
    """Match every call of a history with its result."""
    pairing: Pairing[PartPlace] = Pairing()
    answers: dict[PartPlace, PartPlace] = {}
    calls: list[PartPlace] = []
    orphans: list[PartPlace] = []
    duplicates: list[PartPlace] = []
    watch = RunWatch()
    for i, message in enumerate(messages):
        if watch.begins(message):
            pairing.begin_run()
        for j, part in enumerate(message.parts):
            if type(part) is ToolCall:
                calls.append(PartPlace(i, j))
                pairing.expect(part.id, PartPlace(i, j))
            elif type(part) is ToolResult:
                call = pairing.answer(part.call_id) or pairing.latest(part.call_id)
                if call is None:
                    orphans.append(PartPlace(i, j))
                    continue
                if call in answers:
                    duplicates.append(answers[call])
                answers[call] = PartPlace(i, j)
    unanswered = [call for call in calls if call not in answers]
    if orphans and unanswered:
        _match_early(messages, answers, unanswered, orphans)
    return Pairs(answers, unanswered, orphans, duplicates)


def _match_early(
    messages: Sequence[Message],
    answers: dict[PartPlace, PartPlace],
    unanswered: list[PartPlace],
    orphans: list[PartPlace],
) -> None:
    """Match results that precede their call, if there is exactly one of each; otherwise it would be a guess."""
    waiting: dict[str, list[PartPlace]] = {}
    early: dict[str, list[PartPlace]] = {}
    for places, table in ((unanswered, waiting), (orphans, early)):
        for place in places:
            part = messages[place.message].parts[place.part]
            table.setdefault(part.id if type(part) is ToolCall else getattr(part, "call_id", ""), []).append(place)
    for call_id, results in early.items():
        calls = waiting.get(call_id, [])
        if len(results) == len(calls) == 1 and results[0].message < calls[0].message:
            answers[calls[0]] = results[0]
            unanswered.remove(calls[0])
            orphans.remove(results[0])


GroupKind: TypeAlias = Literal["system", "user", "assistant", "tool", "summary"]


class Group(msgspec.Struct, frozen=True, gc=False):
    """The smallest set of messages that may be removed together; usually, but not always, adjacent."""

    kind: GroupKind
    indices: tuple[int, ...]
    messages: tuple[Message, ...]

    def __len__(self) -> int:
        return len(self.indices)


class Round(msgspec.Struct, frozen=True, gc=False):
    """One API round trip: from one assistant message id to the next."""

    index: int
    assistant_id: str | None
    opened_by: str
    start: int
    messages: tuple[Message, ...]

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def name(self) -> str:
        """Return a name for logs, errors and reports."""
        return f"round {self.index} ({self.assistant_id or 'no assistant yet'}, opened by {self.opened_by})"


class Turn(msgspec.Struct, frozen=True, gc=False):
    """From a user message up to the next one; messages before the first belong to the first turn."""

    index: int
    start: int
    messages: tuple[Message, ...]

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def request(self) -> Message | None:
        """Return the user message that opened the turn."""
        return next((message for message in self.messages if is_request(message)), None)


def is_user_message(message: Message) -> bool:
    """Return whether a message is a user message without tool results."""
    return message.role == "user" and not any(type(part) is ToolResult for part in message.parts)


def is_request(message: Message) -> bool:
    """Return whether a user (or a program in their place) wrote a message, and not kompakt itself."""
    if not is_user_message(message):
        return False
    parts = message.parts
    return not parts or not all(type(part) is Text and is_marked(part.text) for part in parts)


# --- rounds ------------------------------------------------------------------------------------------------------


def round_ids(messages: Sequence[Message]) -> list[str | None]:
    """Return for each message the assistant id of its round; ``None`` before the first assistant message.

    Where the wire has no ids, an assistant message gets one derived from its position, and adjacent assistant messages
    share one.
    """
    ids: list[str | None] = []
    current: str | None = None
    derived = 0
    adjacent = False
    named = False
    for message in messages:
        if message.role != "assistant":
            adjacent = False
        elif message.id is not None:
            if not (adjacent and not named):
                current = message.id
            named = True
            adjacent = True
        else:
            if not adjacent:
                current, derived, named = f"assistant-{derived}", derived + 1, False
            adjacent = True
        ids.append(current)
    return ids


def rounds(messages: Sequence[Message]) -> list[Round]:
    """Split a history into API rounds, including an unfinished last one."""
    ids = round_ids(messages)
    starts = [i for i in range(len(ids)) if i == 0 or ids[i] != ids[i - 1]]
    found: list[Round] = []
    for index, (start, stop) in enumerate(_spans(starts, len(messages))):
        first = messages[start]
        opener = _opener(first) if first.role == "assistant" else "the start of the history"
        found.append(Round(index, ids[start], opener, start, tuple(messages[start:stop])))
    return found


def _opener(message: Message) -> str:
    """Describe the first distinctive action of an assistant message."""
    for part in message.parts:
        if type(part) is ToolCall:
            return f"a call of {part.name or 'a nameless tool'}"
    if any(type(part) is Text for part in message.parts):
        return "an answer"
    return "reasoning" if any(type(part) is Reasoning for part in message.parts) else "an assistant message"


# --- turns -------------------------------------------------------------------------------------------------------


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the start of each turn; the first starts with the history."""
    starts = [i for i, message in enumerate(messages) if is_request(message)]
    if not messages:
        return []
    return [0, *starts[1:]] if starts else [0]


def turns(messages: Sequence[Message]) -> list[Turn]:
    """Split a history into turns."""
    spans = enumerate(_spans(turn_starts(messages), len(messages)))
    return [Turn(index, start, tuple(messages[start:stop])) for index, (start, stop) in spans]


def _spans(starts: Sequence[int], length: int) -> Iterator[tuple[int, int]]:
    return zip(starts, [*starts[1:], length], strict=True) if starts else iter(())


# --- groups ------------------------------------------------------------------------------------------------------


class _Run(msgspec.Struct, gc=False):
    """Adjacent assistant messages, or those with the same id: one answer, whose calls are one group."""

    id: str | None = None
    adjacent: bool = False
    group: int = -1
    bound: bool = False
    """A message of only reasoning binds the next message of the run."""
    tool_group: int = -1


class Grouping:
    """Assigns messages to groups one by one.

    ``add`` takes time proportional to the parts of the new message. Groups are numbered in order of their start;
    ``root`` resolves merges, which happen when one message answers calls of two groups.
    """

    __slots__ = ("_merged", "_pairing", "_run", "kinds", "merges", "owners", "runs")

    def __init__(self) -> None:
        self.kinds: list[GroupKind] = []
        self.owners: list[int] = []
        self.merges: list[int] = []
        """Merged groups that ``take_merges`` has not returned yet."""
        self.runs = 0
        """Answers of the model so far, each of one or more messages."""
        self._merged: dict[int, int] = {}
        self._pairing: Pairing[int] = Pairing()
        self._run = _Run()

    def root(self, group: int) -> int:
        """Return the group that this one is now part of."""
        while group in self._merged:
            group = self._merged[group]
        return group

    def take_merges(self) -> list[int]:
        """Return the groups merged since the last call."""
        merges, self.merges = self.merges, []
        return merges

    def add(self, message: Message) -> int:
        """Assign the next message to a group and return its number, with merges resolved."""
        if message.role == "assistant":
            group = self._add_assistant(message)
        else:
            self._run.adjacent = False
            group = self._add_other(message)
        self.owners.append(group)
        return group

    def _begin(self, kind: GroupKind) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def _add_other(self, message: Message) -> int:
        """Assign a message that is not the model's: to the calls it answers, else to its own group."""
        group = -1
        for part in message.parts:
            if type(part) is ToolResult:
                group = self._answer(part, group)
            elif type(part) is ToolCall:  # wrong role, but still a call: its result must stay with it
                group = group if group >= 0 else self._begin("tool")
                self.kinds[group] = "tool"
                self._pairing.expect(part.id, group)
        return group if group >= 0 else self._begin(_kind_alone(message))

    def _add_assistant(self, message: Message) -> int:
        calls = [part for part in message.parts if type(part) is ToolCall]
        group = self._continued(message, bool(calls))
        if group < 0:
            group = self._begin("summary" if message.is_summary else "assistant")
        run = self._run
        if calls:
            self.kinds[group] = "tool"
            group = self._merge(group, run.tool_group) if run.tool_group >= 0 else group
        for part in message.parts:
            if type(part) is ToolCall:
                group = self._expect(part, group)
            elif type(part) is ToolResult:
                group = self._answer(part, group)
        if calls:
            run.tool_group = group
        run.adjacent, run.group = True, group
        if message.id is not None:
            run.id = message.id
        if not calls and not run.bound:
            run.bound = _only_reasons(message)
        return group

    def _continued(self, message: Message, calls: bool) -> int:
        """Return the group that an assistant message continues; -1 when it starts a new run."""
        run = self._run
        same_id = message.id is not None and message.id == run.id
        if not same_id and not (run.adjacent and (message.id is None or run.id is None)):
            self._pairing.begin_run()
            self._run = _Run()
            self.runs += 1
            return -1
        if same_id or run.bound:
            return self.root(run.group)
        return self.root(run.tool_group) if calls and run.tool_group >= 0 else -1

    def _expect(self, call: ToolCall, group: int) -> int:
        """Register a call, so that its result finds this group."""
        if call.follows is not None:
            approval = self._pairing.latest(call.follows)
            group = group if approval is None else self._merge(group, approval)
        self._pairing.expect(call.id, group)
        return group

    def _answer(self, result: ToolResult, group: int) -> int:
        """Join the group of the answered call; an orphan stays in its group or starts one."""
        found = self._pairing.answer(result.call_id)
        if found is None:
            found = self._pairing.latest(result.call_id)
        if found is not None:
            return self._merge(group, found) if group >= 0 else self.root(found)
        return group if group >= 0 else self._begin("tool")

    def _merge(self, one: int, other: int) -> int:
        """Merge two groups and return the result."""
        one, other = self.root(one), self.root(other)
        if one == other:
            return one
        first, second = sorted((one, other))
        self._merged[second] = first
        self.merges.append(second)
        self.kinds[first] = "tool"
        return first


def _kind_alone(message: Message) -> GroupKind:
    if message.is_summary:
        return "summary"
    if message.role == "system":
        return "system"
    return "tool" if message.role == "tool" else "user"


def _only_reasons(message: Message) -> bool:
    return bool(message.parts) and all(type(part) is Reasoning for part in message.parts)


def groups(messages: Sequence[Message]) -> list[Group]:
    """Split a history into atomic groups, in order of their start."""
    grouping = Grouping()
    owners = list(map(grouping.add, messages))
    if grouping.merges:
        owners = list(map(grouping.root, owners))
    # Sorting is fast, because they are nearly sorted; a list per group would slow down the garbage collector.
    owner, message, kinds = owners.__getitem__, messages.__getitem__, grouping.kinds
    found: list[Group] = []
    for number, places in groupby(sorted(range(len(owners)), key=owner), owner):
        indices = tuple(places)
        found.append(Group(kinds[number], indices, tuple(map(message, indices))))
    return found


# --- cuts --------------------------------------------------------------------------------------------------------


def safe_cuts(messages: Sequence[Message]) -> list[int]:
    """Return the positions where no group is on both sides, including both ends."""
    grouping = Grouping()
    list(map(grouping.add, messages))
    return cuts_of(grouping)


def cuts_of(grouping: Grouping) -> list[int]:
    """Return the safe cuts of all grouped messages, for callers that cannot hold all messages at once."""
    owners = list(map(grouping.root, grouping.owners))
    last = {owner: index for index, owner in enumerate(owners)}
    cuts, furthest = [0], 0
    for index, owner in enumerate(owners):
        furthest = max(furthest, last[owner])
        if furthest == index:
            cuts.append(index + 1)
    return cuts


def page_end(cuts: Sequence[int], start: int, *, size: int) -> int:
    """Return the cut at the end of a page: at most ``size`` messages from ``start``, unless a group is larger."""
    at = bisect(cuts, start + size) - 1
    return cuts[at] if cuts[at] > start else cuts[min(at + 1, len(cuts) - 1)]


def turn_cuts(messages: Sequence[Message]) -> list[int]:
    """Return the safe cuts at which a turn starts; 0 is always one."""
    return sorted({0}.union(turn_starts(messages)).intersection(safe_cuts(messages)))


def cut_before(cuts: Sequence[int], position: int) -> int:
    """Return the last cut that is not after ``position``."""
    return max((cut for cut in cuts if cut <= position), default=0)


def split_at(messages: Sequence[Message], *, min_keep_tail: int) -> int:
    """Return where to split so that the tail has at least ``min_keep_tail`` messages and starts a turn.

    A single turn gives 0, an empty head.

    Raises:
        UsageError: ``min_keep_tail`` is negative.
    """
    if not isinstance(min_keep_tail, int) or min_keep_tail < 0:  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"min_keep_tail={min_keep_tail!r} is not a number of messages; give the least number to keep")
    latest = len(messages) - min_keep_tail
    if latest <= 0:
        return 0
    return cut_before(turn_cuts(messages), latest)


def sides(messages: Sequence[Message], at: int) -> tuple[Sequence[Message], Sequence[Message]]:
    """Divide a history at a cut from one of the functions above."""
    return messages[:at], messages[at:]


def without_last(messages: Sequence[Message], last: Message) -> Sequence[Message]:
    """Remove a message that was added at the end, also when it was merged into another."""
    if not messages or messages[-1] is last:
        return messages[:-1]
    kept = [part for part in messages[-1].parts if not any(part is one for one in last.parts)]
    return messages if len(kept) == len(messages[-1].parts) else [*messages[:-1], messages[-1].with_parts(kept)]

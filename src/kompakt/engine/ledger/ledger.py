"""The ledger of one history: what is no longer shown, written by code within a number of tokens.

Messages are read once, in order. A ledger is written from the events themselves, so it is as good after the tenth
compaction as after the first. The same history with the same messages hidden gives the same text. Writing costs time
linear in the hidden events, with a small factor for old ones that only looked at something.

Not all items fit. They are chosen greedily by value per cost, which is within one item of the best choice for a
knapsack whose items are small. The cost is raised to a power below one: otherwise short fragments crowd out the longer
sentences that explain them. Sizes are estimated from characters while choosing, and only the finished text is counted,
so the work follows the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from kompakt.engine.ledger.events import THOUGHT, Event, Spoken, ToolUse
from kompakt.engine.ledger.extract.records import identifiers
from kompakt.engine.ledger.extract.tool_calls import only_reads_files
from kompakt.engine.ledger.items import CELL_GAP, CHANGES, FINDINGS, LOOKED, RUNS, USER, Item, entries, parse, write
from kompakt.engine.ledger.statements import Statements
from kompakt.model.messages import Message, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_own, unseal

OPEN_CALLS = 50
"""Messages after which a call without an answer is no longer waited for."""


class LedgerRequest(msgspec.Struct, frozen=True):
    """What a ledger is written for."""

    room: int
    """Tokens it may take."""
    count: Callable[[str], int]
    is_hidden: Callable[[int], bool]
    """Whether the model no longer sees a message as it was."""
    reference: Callable[[int], str]
    upto: int
    """Number of messages that this ledger knows of."""
    earlier: str | None = None
    """What an earlier pass wrote."""
    strips: bool = False
    """Whether reasoning is removed from every message, also from those that are shown."""
    prose: bool = True
    """Whether the assistant's own words are included. A model's narrative replaces them."""
    sections: frozenset[str] | None = None
    """The sections to write; ``None`` for all."""
    narrative: str = ""
    """A model's text beside the ledger; rows of lookups that it repeats are left out."""
    may_be_talk: bool = True
    """Whether a session without tool calls is read as a conversation, in which nobody asks for work."""


class Ledger:
    """Reads a history as it grows and writes down what left the view."""

    __slots__ = ("_open", "_seal_key", "_weights", "events", "read_to")

    def __init__(self, seal_key: bytes = b"") -> None:
        self._seal_key = seal_key
        self.events: list[Event] = []
        self.read_to = 0
        self._open: dict[str, ToolUse] = {}
        self._weights: dict[int, int] = {}

    def read(self, messages: Sequence[Message], upto: int) -> None:
        """Read the messages that are new, up to a number of them."""
        for index in range(self.read_to, upto):
            self._read_one(index, messages[index])
        self.read_to = max(self.read_to, upto)

    def _read_one(self, at: int, message: Message) -> None:
        speaks = message.role == "assistant" or (message.role == "user" and message.source_id is None)
        for part in message.parts:
            if type(part) is Text and speaks and part.text.strip() and not self._is_own(message, part.text):
                self.events.append(Spoken(at, message.role, part.text))
            elif type(part) is Reasoning and part.text.strip():
                self.events.append(Spoken(at, THOUGHT, part.text))
            elif type(part) is ToolCall:
                # Only a message whose calls read files and nothing else has no weight.
                called = ToolUse(at, part, _only_looks=True if self._weights.get(at) == 0 else None)
                self._open[part.id] = called
                self.events.append(called)
            elif type(part) is ToolResult:
                answered = self._open.pop(part.call_id, None)
                if answered is not None:
                    answered.answered_at, answered.result = at, part

    def _is_own(self, message: Message, text: str) -> bool:
        """Return whether kompakt itself wrote a text: one of its lines, or the answer of a pivot."""
        return is_own(text) or (message.role != "user" and unseal(text, self._seal_key) is not None)

    def write(self, request: LedgerRequest) -> str:
        """Write the ledger of what is hidden; empty if nothing is, or if there is no room."""
        upto, is_hidden = request.upto, request.is_hidden
        events = [event for event in self.events if event.at < upto]

        def hidden(event: Event) -> bool:
            if type(event) is ToolUse:
                if event.result is None or event.answered_at >= upto:
                    return is_hidden(event.at) and upto - event.at >= OPEN_CALLS
                return is_hidden(event.at) or is_hidden(event.answered_at)
            is_stripped = type(event) is Spoken and event.role == THOUGHT and request.strips
            return is_stripped or is_hidden(event.at)

        table_chars = int(request.room * CHARS_PER_CELL * TABLE_SHARE)
        earlier = parse(request.earlier or "")
        statements = Statements(earlier, request.reference, upto, table_chars=table_chars)
        items = statements.read(events, hidden, may_be_talk=request.may_be_talk)
        if not request.prose:
            items = [item for item in items if item.section != FINDINGS]
        if request.sections is not None:
            items = [item for item in items if item.section in request.sections]
        if request.narrative:
            named = identifiers(request.narrative)
            items = [item for item in items if not _is_repeated(item, named)]
        return _chosen(items, earlier.left_out, request.room, request.count)

    def weight(self, index: int, message: Message) -> int:
        """Estimate the tokens that a ledger would use for a message; worked out once."""
        found = self._weights.get(index)
        if found is None:
            found = self._weights[index] = sum(map(_part_weight, message.parts))
        return found


def _is_repeated(item: Item, named: set[str]) -> bool:
    """Return whether an item is about looking at something whose names are all known."""
    own = identifiers(item.text) if item.section == LOOKED else set[str]()
    return bool(own) and own <= named


MAX_TEXT = 2_000
"""Characters of a text that a ledger is expected to quote at most."""

CALL_TOKENS = 45
"""Tokens of a statement about a call, about."""


def _part_weight(part: object) -> int:
    if type(part) is Text:
        return 8 + min(len(part.text), MAX_TEXT) // 4
    if type(part) is not ToolCall or only_reads_files(part):  # files that were only read share a line
        return 0
    return CALL_TOKENS


COST_POWER = 0.75
"""Weight of an item's size: 1 prefers short items, 0 ignores the size."""

OVERHEAD = 6
"""Tokens added to each size when items are compared, so that the shortest ones do not always win."""

CHARS_PER_TOKEN = 3.6
"""Characters of a token, about; corrected by counting the text that was chosen."""

CHARS_PER_CELL = 2.0
"""The same in a row of a table, which consists of numbers and names."""

TABLE_SHARE = 0.4
"""Share of the room from which the rows of a table become narrow."""

LEAST_VALUE = 1.0
"""Items below this value are left out even if there is room for them."""

SHARES = {USER: 0.4, FINDINGS: 0.5, CHANGES: 0.35, RUNS: 0.3}
"""Share of the room that a section may take before the others. A reader needs the requests, their results and the
current state; the thirtieth request is worth less than the first finding.
"""

_ATTEMPTS = 6
_SLACK = 0.03
"""Share of the room that may stay empty while there are items left."""


def _chosen(items: Sequence[Item], left_out: Counter[str], room: int, count: Callable[[str], int]) -> str:
    """Write the most valuable items that fit into a number of tokens."""
    ranked = sorted(
        (item for item in items if item.value >= LEAST_VALUE),
        key=lambda item: (-item.value / (_tokens(item) ** COST_POWER + OVERHEAD), -item.at, item.passage),
    )
    totals = entries(items) + left_out
    # An estimate that fits and one that does not close in on the room. The measured size places the next attempt.
    estimate, fitting, over, best = float(room), 0.0, float("inf"), ""
    for attempt in range(_ATTEMPTS):
        chosen, is_complete = _filled(ranked, estimate)
        text = write(chosen, totals, left_out)
        if not text:
            break
        tokens = count(text)
        if tokens <= room:
            best, fitting = text, estimate
            if is_complete or tokens >= room * (1 - _SLACK):
                break
        else:
            over = estimate
            if not best and attempt == _ATTEMPTS - 1:
                best = _shrunk(chosen, totals, left_out, room, count)
        wanted = estimate * room / tokens * (1 - _SLACK / 2)
        if not fitting < wanted < over:
            wanted = (fitting + min(over, 2 * room)) / 2
        estimate = wanted
    return best


def _tokens(item: Item) -> float:
    per_token = CHARS_PER_CELL if CELL_GAP in item.text else CHARS_PER_TOKEN
    return len(item.text) / per_token + (12 if item.reference else 4)


def _filled(ranked: Sequence[Item], room: float) -> tuple[list[Item], bool]:
    """Choose items by rank, first within the share of their section, then whatever fits.

    Returns them, and whether they are all there are.
    """
    left = room - 60  # headings
    shares = {section: share * room for section, share in SHARES.items()}
    chosen: dict[int, Item] = {}
    shorter: dict[tuple[float, str], Item] = {}
    """Chosen items that a longer one may replace, by position and text."""
    extended: set[tuple[float, str]] = set()
    skipped: list[Item] = []
    is_complete = True
    for by_share, candidates in ((True, ranked), (False, skipped)):
        for item in candidates:
            if item.section == CHANGES and (item.at, item.text) in extended:
                continue
            replaced = shorter.get((item.at, item.extends)) if item.extends else None
            tokens = _tokens(item) - (_tokens(replaced) if replaced is not None else 0)
            share = shares.get(item.section, room)
            if by_share and tokens > share:
                skipped.append(item)
            elif tokens <= left:
                if replaced is not None:
                    del chosen[id(replaced)], shorter[item.at, item.extends]
                if item.extends:
                    extended.add((item.at, item.extends))
                elif item.section == CHANGES:
                    shorter[item.at, item.text] = item
                chosen[id(item)] = item
                left -= tokens
                shares[item.section] = share - tokens
            else:
                is_complete = False
                if left < OVERHEAD:
                    break
    return list(chosen.values()), is_complete


def _shrunk(
    chosen: list[Item], totals: Counter[str], left_out: Counter[str], room: int, count: Callable[[str], int]
) -> str:
    """Drop the least valuable items until the text fits."""
    while chosen:
        chosen = chosen[: len(chosen) * 3 // 4]
        text = write(chosen, totals, left_out)
        if count(text) <= room:
            return text
    return ""

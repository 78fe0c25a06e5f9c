"""The values that the inspector shows: frozen structs, the same for web pages, the terminal and the HTML export.

Every text in them can come from a model, a tool or a web page that a tool read. It is data, never markup.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kompakt.view.status import CompactionStatus

ContentKind: TypeAlias = Literal["system", "tools", "user", "assistant", "tool_results", "ledger"]
"""What a part of a request is: ``tools`` are their definitions, ``ledger`` is what replaces hidden messages."""

KINDS: tuple[ContentKind, ...] = ("system", "tools", "user", "assistant", "tool_results", "ledger")


def kind_name(kind: str) -> str:
    """Return a kind of content as a person reads it."""
    return "summary" if kind == "ledger" else kind.replace("_", " ")


MessageState: TypeAlias = Literal["sent", "shortened", "replaced", "undone"]
"""How the next request contains a message: as it is, shortened, not at all, or not because it was taken back."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One session in the list."""

    id: str
    title: str
    """The first words of the first request."""
    client: str | None = None
    model: str | None = None
    format: str
    tokens: int | None = None
    """Tokens of the next request; ``None`` until they are counted."""
    window: int | None = None
    fullness: float | None = None
    """Share of the window that is in use, from 0 to 1; ``None`` if either number is unknown."""
    messages: int
    steps: int | None = None
    """Answers of the model; ``None`` until the session is indexed."""
    compactions: int = 0
    """Compactions that count."""
    tokens_saved: int = 0
    """Tokens that these compactions removed."""
    money_saved: float | None = None
    """USD, estimated from the price of the model; ``None`` if that is unknown, or until the session is indexed."""
    cached: float | None = None
    """Share of all input that was read from the prompt cache, from 0 to 1; ``None`` until the session is indexed."""
    last_activity: str
    """UTC, in ISO 8601."""
    parent: str | None = None
    """The session that a sub-agent works for."""


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session in the list of the command line: what is known without reading all of its messages."""

    id: str
    title: str = ""
    client: str | None = None
    model: str | None = None
    format: str
    messages: int
    turns: int
    compactions: int | None = None
    """Compactions that count; ``None`` when they cannot be read."""
    created: str
    touched: str
    """UTC, in ISO 8601."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list, the newest session first."""

    rows: tuple[SessionRow, ...]
    next: str | None = None
    """The cursor of the next page."""
    total: int | None = None


class CacheClasses(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all requests of a session by how they were billed, and their price in USD."""

    fresh: int = 0
    """Input that was neither read from the cache nor written to it."""
    cached: int = 0
    """Input that was read from the cache."""
    written: int = 0
    """Input that was written to the cache."""
    output: int = 0
    money: float | None = None
    money_fresh: float | None = None
    money_cached: float | None = None
    money_written: float | None = None
    money_output: float | None = None
    reported: bool = False
    """Whether the provider reported the tokens. Otherwise they are estimated: a request reads from the cache what it
    has in common with the previous one."""

    @property
    def share(self) -> float | None:
        """Share of the input that was read from the cache; ``None`` without input."""
        total = self.fresh + self.cached + self.written
        return self.cached / total if total else None


class SessionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One session: its row, its compactions, pins and costs."""

    row: SessionRow
    created: str | None = None
    messages: int
    turns: int
    recallable: int
    """Messages that the model no longer sees as they were, and that recall restores."""
    compactions: tuple[CompactionStatus, ...] = ()
    pins: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    pending: int = 0
    """Requests to compact that were not answered yet."""
    events: int = 0
    """Compactions, edits, pins and what was undone, counted; new messages do not change it."""
    can_undo: bool = False
    can_redo: bool = False
    cache: CacheClasses
    policies: tuple[str, ...] = ()
    """Policies that a preview may use."""
    actions: tuple[str, ...] = ()
    """Actions that are allowed."""
    writable: bool = False
    """Whether any action is allowed."""
    complete: bool = True
    """Whether all numbers are known. A long session that is still being read reports a change when they are."""
    live: bool = True
    """Whether changes are reported as events."""
    read_only_reason: str = ""
    """Why actions are not allowed, and how to allow them."""


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one request."""

    step: int
    seq: int
    """The first message of the answer; for the next request, the number that its answer will have."""
    at: str | None = None
    tokens: dict[str, int]
    """Tokens by kind."""
    total: int
    cached: int
    """Tokens that were read from the cache."""


class CompactionMark(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction in the growth chart."""

    id: str
    step: int
    """The first step whose request has the compacted history."""
    before: int | None = None
    after: int | None = None
    undone: bool = False


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The size of each request of a session."""

    window: int | None = None
    reserve: int = 0
    trigger: int | None = None
    target: int | None = None
    kinds: tuple[ContentKind, ...] = KINDS
    steps: int
    points: tuple[GrowthPoint, ...]
    """At most 1,500 of them. The last one is the next request."""
    compactions: tuple[CompactionMark, ...] = ()
    reported: bool = False
    """Whether totals are those that the provider reported."""


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message in a list."""

    seq: int
    role: str
    kind: ContentKind
    tool: str | None = None
    title: str
    """One line of at most 120 characters."""
    subject: str = ""
    """The file, command or URL that a tool result is about."""
    tokens: int
    at: str | None = None
    pinned: bool = False
    state: MessageState = "sent"
    ref: str
    step: int
    """Number of the newest answer that the message is part of, or that comes before it; 0 before the first."""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of messages, in order."""

    rows: tuple[MessageRow, ...]
    start: int
    total: int
    """Rows of the list, which also has pivots and messages that were taken back."""
    messages: int
    """Messages of the session, as everywhere."""
    notes: int = 0
    """Rows that kompakt added: pivots, and requests to continue."""
    complete: bool = True
    """Whether ``total`` is final; false while a long session is still being read."""


class MessageText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message, in pages."""

    row: MessageRow
    text: str
    offset: int
    next: int | None = None
    """The offset of the next page."""
    total: int
    """Characters of the whole text."""
    shown: str | None = None
    """The start of what the model sees instead, for a message that is shortened."""


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent, and the answer."""

    step: int
    steps: int
    """Requests that were sent; a higher ``step`` is the next one."""
    seq: int
    at: str | None = None
    model: str | None = None
    total: int
    tokens: dict[str, int]
    cached: int
    compaction: str | None = None
    """The compaction whose pivot the request contains."""
    rows: tuple[MessageRow, ...]
    """Messages of the request, in order; at most 2,000 of the newest."""
    left_out: int = 0
    """Earlier messages of the request that ``rows`` does not contain."""
    answer: tuple[MessageRow, ...] = ()
    body: str
    """The start of the request as JSON."""
    body_chars: int
    """Characters of the whole request."""


class ContextNode(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the next request in the treemap."""

    name: str
    kind: ContentKind
    tokens: int
    seq: int | None = None
    ref: str | None = None
    count: int = 1
    """How many messages it replaces."""
    children: tuple[ContextNode, ...] = ()


class RepeatedContent(msgspec.Struct, frozen=True, kw_only=True):
    """The same text several times in the next request."""

    title: str
    count: int
    tokens: int
    """Tokens of all repetitions after the first."""
    seqs: tuple[int, ...]


class ContextView(msgspec.Struct, frozen=True, kw_only=True):
    """What the next request consists of."""

    total: int
    window: int | None = None
    reserve: int = 0
    free: int | None = None
    tokens: dict[str, int]
    """Tokens by kind."""
    tree: ContextNode
    largest: tuple[MessageRow, ...] = ()
    repeated: tuple[RepeatedContent, ...] = ()


class PivotLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the text that replaces hidden messages."""

    line: int
    """From 1."""
    text: str
    refs: tuple[str, ...] = ()
    """References of the messages that the line is about."""
    seqs: tuple[int, ...] = ()
    """The messages of these references."""


class RemovedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a compaction hid or shortened."""

    seq: int
    ref: str
    title: str
    kind: ContentKind
    tool: str | None = None
    tokens: int
    """Tokens before the compaction."""
    tokens_after: int = 0
    """Tokens of what is left of it."""
    why: str
    strategy: str
    pivot_lines: tuple[int, ...] = ()
    """The lines of the pivot that have its reference."""
    recallable: bool
    """Whether recall returned it when this view was made."""


class CompactionView(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction: what was there before, what is there now, and where the rest is."""

    id: str
    at: str | None = None
    reason: str = ""
    policy: str = ""
    auto: bool = True
    undone: bool = False
    budget: int | None = None
    tokens_before: int
    tokens_after: int
    by_kind_before: dict[str, int]
    by_kind_after: dict[str, int]
    strategies: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    pivot: tuple[PivotLine, ...] = ()
    pivot_tokens: int = 0
    removed: tuple[RemovedItem, ...] = ()
    removed_count: int = 0
    """All removed items; ``removed`` can be a page of them."""
    removed_tokens: int = 0
    kept: int = 0
    """Messages that stayed as they were."""
    named_count: int = 0
    """Removed items that a line of the pivot refers to."""
    unrecoverable: tuple[str, ...] = ()
    """References that recall did not return. Must be empty."""


class CompactionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction would do. Nothing is written."""

    budget: int
    policy: str
    due: bool
    """Whether the next request exceeds the budget; otherwise nothing changes."""
    tokens_before: int
    tokens_after: int
    fits: bool
    seconds: float
    note: str = ""
    """What the compaction starts from, if that is not the next request."""
    pivot: str = ""
    """The text that the model would read in place of what is removed."""
    removed: tuple[RemovedItem, ...] = ()
    """The first 200 removed items."""
    removed_count: int = 0
    removed_tokens: int = 0
    strategies: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class RecallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the recall tool, as the model gets it."""

    query: str
    found: bool
    text: str
    references: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    """The messages of the references, where they are in this session."""
    tokens: int = 0


ActionName: TypeAlias = Literal["pin", "unpin", "undo", "redo", "compact", "edit", "delete"]

ACTIONS: tuple[ActionName, ...] = ("pin", "unpin", "undo", "redo", "compact", "edit", "delete")


class InspectorAction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that a person asks for."""

    action: ActionName
    confirm: bool = False
    """Whether the person confirmed it."""
    text: str | None = None
    """The text to pin or unpin, the new text of a pivot, or instructions for a compaction."""
    seq: int | None = None
    """The message to pin or unpin, instead of a text."""
    compaction: str | None = None
    """The compaction to undo or edit; by default the newest."""
    budget: int | None = None
    policy: str | None = None


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did."""

    action: ActionName
    changed: bool
    message: str
    """One sentence for the person who asked."""
    compaction: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None

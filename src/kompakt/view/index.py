"""An index over all messages of a session: one small value for each, and sums by kind.

It is built once, in the background and in batches, and extended when the session grows. A page of messages waits only
until the index covers it.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from kompakt.engine.context.archive import speaks
from kompakt.engine.ledger.extract.user_words import is_injected
from kompakt.engine.recall.answer import described
from kompakt.engine.recall.passages import exact, subject_of
from kompakt.model.groups import RunWatch
from kompakt.model.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.references import digest
from kompakt.model.tokens import Counter
from kompakt.session.compaction import RESUME_SOURCE
from kompakt.session.timeline import Span
from kompakt.view.sources import Moment, Source, SourceRow
from kompakt.view.values import KINDS, ContentKind

MAX_TITLE = 120
"""Characters of a title."""

_READ = 2_000
"""Characters of a text that are read for its title."""

_FOLDERS = 3
"""Names of a path that are shown of it."""

_LOOK = 0.02
"""Seconds between two looks at how far the index is."""

_ADDED = re.compile(r"\s*<([\w-]{1,60})[^<>]{0,200}>")
"""The start of context that an agent adds before the words of its user, such as a reminder."""


class IndexedMessage(msgspec.Struct, frozen=True, gc=False):
    """What a list shows of a message."""

    seq: int
    stored: str
    role: str
    kind: ContentKind
    tool: str | None
    title: str
    subject: str
    """The file, command or URL that a tool result is about."""
    tokens: int
    at: float | None
    ref: str
    step: int
    content: bytes
    """Hash of the content, to find repetitions."""


class SessionIndex:
    """The index of one session."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: list[IndexedMessage] = []
        self.seqs: list[int] = []
        self.places: dict[ContentKind, list[int]] = {kind: [] for kind in KINDS}
        """Positions of the messages of each kind."""
        self.sums: dict[ContentKind, list[int]] = {kind: [0] for kind in KINDS}
        """Tokens of each kind before each position."""
        self.starts: list[int] = []
        """The first row of each answer."""
        self.title = ""
        self.notes = 0
        """Rows that kompakt added."""
        self._calls: dict[str, tuple[str, str]] = {}
        """Tool and subject of each call, by id."""
        self._watch = RunWatch()
        self._read_to = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def is_complete(self, moment: Moment) -> bool:
        """Return whether the index covers a session as it was."""
        return self._read_to >= moment.rows

    async def until(self, moment: Moment, enough: Callable[[], bool] | None = None) -> None:
        """Wait until the index has enough messages, or all; starts or continues to read the session."""
        while not self.is_complete(moment) and (enough is None or not enough()):
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._fill(moment))
            await asyncio.wait({self._task}, timeout=_LOOK)
            if self._task.done():
                self._task.result()  # raises what stopped it

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _fill(self, moment: Moment) -> None:
        async for batch in self.source.batches(moment, after=self._read_to):
            await asyncio.to_thread(self._extend, batch, moment.counter)
            if batch:
                self._read_to = batch[-1].seq
        self._read_to = max(self._read_to, moment.rows)

    def _extend(self, batch: Sequence[SourceRow], counter: Counter) -> None:
        for row in batch:
            message = row.message
            for call in message.calls:
                self._calls[call.id] = (call.name, subject_of(call))
            if row.stored == "message" and self._watch.begins(message):
                self.starts.append(row.seq)
            called = [self._calls.get(part.call_id, ("", "")) for part in message.results]
            tool = _tool_of(message, [name for name, _ in called])
            subjects = [clean(subject) for _, subject in called]
            one = IndexedMessage(
                seq=row.seq,
                stored=row.stored,
                role=message.role,
                kind=kind_of(message, row.stored),
                tool=tool,
                title=title_of(message, subjects),
                subject=next(filter(None, subjects), ""),
                tokens=counter.message(message) if row.tokens is None else row.tokens,
                at=row.at,
                ref=row.name,
                step=len(self.starts),
                content=digest_of_content(message),
            )
            if not self.title and row.stored == "message" and speaks(message):
                self.title = request_title(message)
            self.notes += one.stored != "message" and not one.ref.startswith("m")
            self.places[one.kind].append(len(self.rows))
            for kind, sums in self.sums.items():
                sums.append(sums[-1] + (one.tokens if kind == one.kind and is_conversation(one) else 0))
            self.rows.append(one)
            self.seqs.append(one.seq)

    # --- ask ------------------------------------------------------------------------------------------------------

    def position(self, seq: int) -> int:
        """Return the position of the first message with this number or a later one."""
        return bisect_left(self.seqs, seq)

    def find(self, seq: int) -> IndexedMessage | None:
        """Return a message by its number."""
        place = self.position(seq)
        return self.rows[place] if place < len(self.rows) and self.rows[place].seq == seq else None

    def tokens(self, kind: ContentKind, after: int, upto: int) -> int:
        """Return the tokens of one kind in the rows after a row, up to another one."""
        sums = self.sums[kind]
        return sums[self.position(upto + 1)] - sums[self.position(after + 1)]

    def live_tokens(self, kind: ContentKind, after: int, upto: int, dead: Sequence[Span]) -> int:
        """Return the tokens of one kind without rows that were taken back."""
        total = self.tokens(kind, after, upto)
        for first, last in dead:
            start, end = max(first - 1, after), min(last, upto)
            if start < end:
                total -= self.tokens(kind, start, end)
        return total


def is_conversation(one: IndexedMessage) -> bool:
    """Return whether requests contain a row by itself. The summary of a stored compaction is part of its pivot."""
    return one.stored in ("message", "resume") or (one.stored == "summary" and one.ref.startswith("m"))


def kind_of(message: Message, stored: str = "message") -> ContentKind:
    """Return the kind of a message."""
    if message.is_summary or stored in ("summary", "resume") or message.source_id == RESUME_SOURCE:
        return "ledger"
    if message.role == "system":
        return "system"
    if message.role == "assistant":
        return "assistant"
    return "tool_results" if message.results else "user"


def _tool_of(message: Message, called: Sequence[str]) -> str | None:
    """Return the tool of a message: of its results, else of its calls; several are joined."""
    names = [part.name or name for part, name in zip(message.results, called, strict=True)]
    names = names or [one.name for one in message.calls]
    found = list(dict.fromkeys(clean(name) for name in names if name))
    return ", ".join(found[:3]) + (" …" if len(found) > 3 else "") if found else None


def title_of(message: Message, subjects: Sequence[str] = ()) -> str:
    """Return one line that describes a message; ``subjects`` are those of its tool results."""
    texts: list[str] = []
    about = iter(subjects)
    for part in message.parts:
        if type(part) is Text and part.text.strip():
            texts.append(clean(part.text))
        elif type(part) is ToolCall:
            subject = subject_of(part)
            texts.append(clean(f"{part.name} {short_path(subject)}" if subject else part.name))
        elif type(part) is ToolResult:
            output = clean(part.output) or "(no output)"
            subject = next(about, "")
            texts.append(f"{short_path(subject)} → {output}" if subject else output)
        elif type(part) is Media:
            texts.append(part.media)
    if not texts:
        texts = ["(reasoning)" if any(type(part) is Reasoning for part in message.parts) else "(empty)"]
    return _short(" · ".join(texts[:4]))


def is_path(subject: str) -> bool:
    """Return whether a call is about one file or folder."""
    return "/" in subject and "://" not in subject and not any(map(str.isspace, subject))


def short_path(subject: str) -> str:
    """Shorten a path to its end: the beginning is the same for most files of a session."""
    parts = subject.rstrip("/").split("/")
    return f"…/{'/'.join(parts[-_FOLDERS:])}" if is_path(subject) and len(parts) > _FOLDERS + 1 else subject


def request_title(message: Message) -> str:
    """Return the first words of a request, without context that an agent added; empty if there are no others."""
    for part in message.parts:
        if type(part) is Text and not is_injected(part.text[: 10 * _READ]):
            words = clean(_own_words(part.text))
            if words:
                return _short(words)
    return ""


def _own_words(text: str) -> str:
    """Return a text without the elements at its start."""
    start = 0
    while (found := _ADDED.match(text, start)) is not None:
        closing = f"</{found[1]}>"
        end = text.find(closing, found.end())
        if end < 0:
            break
        start = end + len(closing)
    return text[start : start + _READ]


def clean(text: str) -> str:
    """Return the start of a text in one line, without control characters and marks that change its direction."""
    line = " ".join(text[:_READ].split())
    return line if line.isprintable() else "".join(each for each in line if each.isprintable())


def _short(text: str) -> str:
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip()}…"


def digest_of_content(message: Message) -> bytes:
    """Hash what a message says, without the ids of its calls."""
    parts = [
        msgspec.structs.replace(part, call_id="") if type(part) is ToolResult else part
        for part in message.parts
        if type(part) is not ToolCall
    ]
    return digest(Message("user", tuple(parts)))[:8] if parts else b""


def text_of_message(message: Message) -> str:
    """Return the text of a message: of all its parts, as recall restores them."""
    return "\n\n".join(filter(None, map(_text_of_part, message.parts)))


def _text_of_part(part: Part) -> str:
    if type(part) is ToolCall:
        return f"{part.name}({exact(part)})"
    if type(part) is Media:
        return described(part, "This part")
    if type(part) is ToolResult and part.media:
        return "\n".join([part.output, *(described(one, "A part of this output") for one in part.media)])
    return exact(part)

"""The record that a summarizer reads: messages as plain text, in portions that fit its window.

Each message is shown once, after its reference and speaker. Reasoning is not shown. Tool outputs are between marks that
contain an unpredictable word, so no output can end its own quotation or begin a message. Linear in the text shown.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence

import msgspec

from kompakt.engine.compaction.fit import largest_cap
from kompakt.engine.context.archive import speaks
from kompakt.engine.ledger.excerpts import harmless, one_line
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies.shortened_results import shortened
from kompakt.model.groups import groups
from kompakt.model.json import json_text
from kompakt.model.messages import Marker, Media, Message, Opaque, Part, Text, ToolCall, ToolResult
from kompakt.model.phrases import MARKER_QUESTION, NO_OUTPUT, cut_note
from kompakt.model.tokens import Counter

MAX_OUTPUT = 2_000
"""Most tokens of one output: its beginning and its end."""

MAX_INPUT = 600
"""Most tokens of the input of a call."""

LIMITS = (1.0, 0.5, 0.25, 0.1, 0.04)
"""Shares of these two limits that are tried until everything fits into one request."""

NEWEST_SHARE = 0.3
"""Share of a request for the newest messages, which are not cut, because they show the state of the work."""

MAX_KEPT_MESSAGE = 800
"""Most tokens of a message that stays in the context."""

MAX_NAME = 80
"""Most characters of a name."""

FRAME = 24
"""Tokens reserved for the header and marks of a text."""

_PACKED = 0.7
"""Least share of a portion that is filled if no message is larger than a quarter of it."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A text of a message, with the words before it."""

    lead: str
    body: str
    is_data: bool = False
    most: int = 0
    """Most tokens of it that are shown; 0 for all."""


class Script:
    """The messages of a material as text."""

    def __init__(self, material: Material, counter: Counter) -> None:
        self.references = material.references
        self._counter = counter
        self._messages = material.messages
        names = {call.id: call.name for message in (*material.messages, *material.kept) for call in message.calls}
        self._pieces = [[*_pieces(message, names)] for message in material.messages]
        self._kept = [
            (reference, message, [*_pieces(message, names)])
            for reference, message in zip(material.kept_references, material.kept, strict=True)
        ]
        self.mark = self._mark(material.earlier or "", material.facts)

    def _mark(self, *others: str) -> str:
        """Return a word that occurs in no text; the same for the same material."""
        kept = [piece.body for _, _, pieces in self._kept for piece in pieces]
        bodies = [*others, *(piece.body for pieces in self._pieces for piece in pieces), *kept]
        word = hashlib.blake2b("\0".join([*self.references, *bodies]).encode("utf-8", "replace"), digest_size=4)
        while any(word.hexdigest() in body for body in bodies):
            word.update(b"again")
        return word.hexdigest()

    def fenced(self, text: str) -> str:
        """Mark a text as data."""
        return f"<data {self.mark}>\n{text}\n</data {self.mark}>"

    def portions(self, room: int, most: int) -> list[str]:
        """Write everything in portions of at most ``room`` tokens, with whole groups in each if possible.

        One portion is preferred: inputs and outputs of older calls are cut for it, the newest messages are not. If it
        takes more than ``most`` portions, the largest messages are cut. The result is longer than ``most`` only if even
        that is not enough.
        """
        if (whole := self._in_one(room)) is not None:
            return [whole] if whole else []
        texts = [self.shown(index, room) for index in range(len(self._messages))]
        sizes = [self._counter.tokens(text) for text in texts]
        packed = list(_packed(_runs(self._messages, sizes, room), room))
        if len(packed) > most:
            cap = min(largest_cap(sizes, int(room * _PACKED) * most), room // 4)
            texts = [
                text if size <= cap else self.shown(i, cap)
                for i, (text, size) in enumerate(zip(texts, sizes, strict=True))
            ]
            packed = list(_packed([([i], self._counter.tokens(text)) for i, text in enumerate(texts)], room))
        return ["\n".join(texts[index] for index in portion) for portion in packed]

    def _in_one(self, room: int) -> str | None:
        """Write everything in one portion, with older calls and results cut; ``None`` if even that is too long."""
        newest: list[str] = []
        left = int(room * NEWEST_SHARE)
        for index in range(len(self._messages) - 1, -1, -1):
            text = self.shown(index, sys.maxsize, share=None)
            left -= self._counter.tokens(text) + 1
            if left < 0:
                break
            newest.append(text)
        older = len(self._messages) - len(newest)
        for share in LIMITS:
            texts = [self.shown(index, sys.maxsize, share=share) for index in range(older)] + newest[::-1]
            if sum(map(self._counter.tokens, texts)) + len(texts) <= room:
                return "\n".join(texts)
        return None

    def kept(self, room: int) -> str:
        """Write the messages that stay in the context: the first request, then the newest that fit, cut."""
        wanted = [self._written(*one, MAX_KEPT_MESSAGE) for one in self._kept]
        asked = next((at for at, (_, message, _) in enumerate(self._kept) if speaks(message)), None)
        chosen = set[int]()
        for at in ([] if asked is None else [asked]) + list(range(len(wanted) - 1, -1, -1)):
            if at not in chosen:
                room -= self._counter.tokens(wanted[at]) + 1
                if room < 0:
                    break
                chosen.add(at)
        return "\n".join(wanted[at] for at in sorted(chosen))

    def shown(self, index: int, room: int, *, share: float | None = 1.0) -> str:
        """Write one message within a number of tokens; only its reference if nothing fits.

        ``share`` scales the limits of inputs and outputs; ``None`` shows them whole.
        """
        return self._written(self.references[index], self._messages[index], self._pieces[index], room, share=share)

    def _written(
        self, reference: str, message: Message, pieces: Sequence[Piece], room: int, *, share: float | None = 1.0
    ) -> str:
        header = f"=== {self.mark} {reference} {voice(message)}"
        bodies = [
            self._cut(piece.body, int(piece.most * share), reference)
            if piece.most and share is not None
            else piece.body
            for piece in pieces
        ]
        whole = "\n".join([header, *map(self._framed, pieces, bodies)])
        if self._counter.tokens(whole) <= room:
            return whole
        sizes = [self._counter.tokens(body) for body in bodies]
        cap = largest_cap(sizes, room - FRAME * (len(pieces) + 1))
        bodies = [self._cut(body, cap, reference) for body in bodies]
        cut = "\n".join([header, *map(self._framed, pieces, bodies)])
        return cut if self._counter.tokens(cut) <= room else f"{header}{cut_note(reference, sum(sizes))}".rstrip()

    def listed(self) -> str:
        """List the messages, one line each, with the beginning of their text."""
        return "\n".join(
            f"{reference} {voice(message)}: {harmless(one_line(' '.join(_beginnings(pieces)), MAX_NAME))}".rstrip(": ")
            for reference, message, pieces in zip(self.references, self._messages, self._pieces, strict=True)
        )

    def _framed(self, piece: Piece, body: str) -> str:
        text = self.fenced(body) if piece.is_data else body
        return f"{piece.lead}\n{text}" if piece.lead and piece.is_data else f"{piece.lead}{text}"

    def _cut(self, text: str, limit: int, reference: str) -> str:
        return cut(text, limit, self._counter, reference)


def cut(text: str, limit: int, counter: Counter, reference: str) -> str:
    """Keep head and tail of a text that is too long."""
    if counter.tokens(text) <= limit:
        return text
    return shortened(text, limit, counter, reference=reference)


def voice(message: Message) -> str:
    """Return the speaker of a message; ``user`` only for the user's own words."""
    if message.source_id is not None:
        return "context"
    if message.is_summary:
        return "summary"
    if message.role != "user":
        return message.role
    if speaks(message) and not any(type(part) is Marker for part in message.parts):
        return "user"
    return "tool" if message.results else "runtime"


def _pieces(message: Message, names: dict[str, str]) -> Iterator[Piece]:
    """Yield the texts of a message, without reasoning."""
    mixed = bool(message.results) and speaks(message)
    for part in message.parts:
        if type(part) is ToolResult:
            name = _named(part.name or names.get(part.call_id) or "a tool")
            how = " (failed)" if part.is_error else ""
            yield Piece(f"result of {name}{how}:", clean(part.output) or NO_OUTPUT, is_data=True, most=MAX_OUTPUT)
            yield from (_medium(medium) for medium in part.media)
        elif type(part) is ToolCall:
            given = clean(part.input if isinstance(part.input, str) else json_text(part.input))
            yield Piece(f"calls {_named(part.name)} ", given, is_data="\n" in given, most=MAX_INPUT)
        elif type(part) is Text and part.text.strip():
            yield Piece("the user says:\n" if mixed else "", clean(spoken(message, part)))
        elif (other := _other(part)) is not None:
            yield other


def _other(part: Part) -> Piece | None:
    if type(part) is Media:
        return _medium(part)
    if type(part) is Marker:
        return Piece("", MARKER_QUESTION)
    return Piece("", f"[{_named(part.type)}]") if type(part) is Opaque else None


def _medium(medium: Media) -> Piece:
    return Piece("", f"[{medium.media}{f' {_named(medium.name)}' if medium.name else ''}]")


def _named(name: str) -> str:
    return harmless(one_line(clean(name), MAX_NAME))


def _beginnings(pieces: Sequence[Piece]) -> Iterator[str]:
    return (f"{piece.lead}{piece.body[: MAX_NAME * 4]}" for piece in pieces)


_THOUGHT = re.compile(r"\s*<(think|thinking)>.*?(?:</\1>\s*|\Z)", re.DOTALL)
"""Reasoning that a server leaves at the start of an answer; without an end it is the whole answer."""

_THOUGHT_END = re.compile(r"^[ \t]*</think(?:ing)?>[ \t]*$\s*", re.MULTILINE)
"""The end of such reasoning, if its beginning was part of the prompt."""


def spoken(message: Message, part: Text) -> str:
    """Return a text without the reasoning that a server left in front of an answer."""
    return part.text if message.role != "assistant" else without_reasoning(part.text)


def without_reasoning(text: str) -> str:
    """Remove reasoning from the start of a text."""
    if "<think" not in text and "</think" not in text:
        return text
    begun = _THOUGHT.match(text) or _THOUGHT_END.search(text)
    return text if begun is None else text[begun.end() :]


def clean(text: str) -> str:
    """Replace lone surrogates, which cannot be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# --- portions ----------------------------------------------------------------------------------------------------


def _runs(messages: Sequence[Message], sizes: Sequence[int], room: int) -> Iterator[tuple[list[int], int]]:
    """Yield runs of messages that contain whole groups; a run that is too large is divided into its messages."""
    ends = list(range(len(messages)))
    for group in groups(messages):
        for index in group.indices:
            ends[index] = group.indices[-1]
    run: list[int] = []
    reach = 0
    for index, end in enumerate(ends):
        run.append(index)
        reach = max(reach, end)
        if reach <= index:
            whole = sum(sizes[i] for i in run)
            yield from [(run, whole)] if whole <= room else [([i], sizes[i]) for i in run]
            run = []


def _packed(runs: Iterator[tuple[list[int], int]] | Sequence[tuple[list[int], int]], room: int) -> Iterator[list[int]]:
    """Fill portions one after another."""
    portion: list[int] = []
    filled = 0
    for run, size in runs:
        if portion and filled + size + len(run) > room:
            yield portion
            portion, filled = [], 0
        portion += run
        filled += size + len(run)
    if portion:
        yield portion

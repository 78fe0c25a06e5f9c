"""Restore by reference: a message, a part or some of its lines, byte for byte.

``m7f3a`` is a message, ``m7f3a.1`` its part 1 (from 0), ``m7f3a.1:12-30`` lines of that part, ``m7f3a.1:31-`` all from
line 31. A text that is larger than the token limit is cut at a line, and the answer has the reference that continues
there, so all of it can be restored in pieces. Without a limit it is restored at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kompakt.engine.recall.answer import Recalled, described, name_of
from kompakt.engine.recall.passages import exact, line_ends
from kompakt.model.messages import Media, Message, Part, ToolCall, ToolResult
from kompakt.model.tokens import Counter

_REFERENCE = re.compile(
    r"(?:recall\s+)?[\[(`'\"]*(?P<message>m[0-9a-f]{4,40})(?:\.(?P<part>\d{1,6}))?(?:\.(?P<media>\d{1,6}))?"
    r"(?::(?P<first>\d{1,9})(?P<to>-)?(?P<last>\d{1,9})?)?[\])`'\".,;]*"
)

_MIN_RESULT = 30
"""Least tokens for the beginning of a result. With less room, only its reference is given."""

_JOINT = 12
"""Tokens reserved for the difference when the joined text is counted, and for references of further results."""

_NUMBERS = ("part", "media", "first", "last")


class Reference(NamedTuple):
    """A parsed reference."""

    message: str
    part: int | None = None
    media: int | None = None
    first: int | None = None
    last: int | None = None
    """The requested lines, from 1; ``last`` is ``None`` if they reach the end."""

    @property
    def name(self) -> str:
        """Return the reference without its lines."""
        name = self.message if self.part is None else f"{self.message}.{self.part}"
        return name if self.media is None else f"{name}.{self.media}"


def read_reference(text: str) -> Reference | None:
    """Parse a reference, also with the brackets, quotes or words it is often copied with; ``None`` for other texts."""
    found = _REFERENCE.fullmatch(text.strip())
    if found is None:
        return None
    part, media, first, last = (None if found[key] is None else int(found[key]) for key in _NUMBERS)
    if first is not None and not found["to"]:
        last = first
    return Reference(found["message"], part, media, first, last)


_INSIDE = re.compile(r"(?P<reference>\S+)\s+(?:grep\s+(?P<bare>[^\"'“”].*)|(?:grep\s+)?[\"'“](?P<quoted>.+)[\"'”])\s*")
"""A reference and words to search inside it: ``m7f3a "words"`` or ``m7f3a grep words``."""


def read_query(text: str) -> tuple[Reference | None, str | None]:
    """Parse a reference and the words to search inside it, if any."""
    inside = _INSIDE.fullmatch(text.strip())
    read = read_reference(inside["reference"]) if inside is not None else None
    if inside is not None and read is not None:
        return read, inside["quoted"] or inside["bare"]
    return read_reference(text), None


def fetch(message: Message, asked: Reference, *, tokens: int | None, counter: Counter) -> Recalled:
    """Return what a reference names in its message."""
    if asked.part is None and len(message.parts) == 1:
        asked = asked._replace(part=0) if asked.media is not None else asked
        return _fetch_part(message.parts[0], asked, tokens, counter)
    if asked.part is None:
        return _fetch_message(message, asked, tokens, counter)
    if asked.part >= len(message.parts):
        names = ", ".join(f"{asked.message}.{number}" for number in range(len(message.parts)))
        return Recalled(text=_within(f"{asked.name} is no part of {asked.message}; there is {names}", tokens, counter))
    return _fetch_part(message.parts[asked.part], asked, tokens, counter)


def text_lines(message: Message, asked: Reference) -> list[int]:
    """Return the end positions of the lines of the part that a reference names."""
    part = message.parts[asked.part or 0] if (asked.part or 0) < len(message.parts) else None
    return line_ends(exact(part)) if part is not None else []


def fetch_with_results(
    message: Message,
    asked: Reference,
    results: Sequence[tuple[Message, Reference]],
    *,
    tokens: int,
    counter: Counter,
) -> Recalled:
    """Return what a reference names and the results of its calls, as far as they fit.

    A result that does not fit whole is cut at a line; ``rest`` then names the lines that follow.
    """
    found = fetch(message, asked, tokens=tokens, counter=counter)
    if found.rest is not None:
        return found
    part = message.parts[asked.part or 0] if asked.part is not None or len(message.parts) == 1 else None
    text = f"{asked.name} call {part.name}:\n{found.text}" if type(part) is ToolCall else found.text
    references, parts, rest = [*found.references], [*found.parts], None
    for number, (other, own) in enumerate(results):
        head = f"{text}\n{own.name} result:\n"
        room = tokens - counter.tokens(head) - _JOINT
        if room < _MIN_RESULT:
            text += f"\n[kompakt] Results: recall {', '.join(one.name for _, one in results[number:])}."
            break
        piece = fetch(other, own, tokens=room, counter=counter)
        text, rest = head + piece.text, piece.rest
        references += piece.references
        parts += piece.parts
        if rest is not None and number + 1 < len(results):
            text += f"\n[kompakt] Results: recall {', '.join(one.name for _, one in results[number + 1 :])}."
            break
    size = counter.tokens(text)
    if size > tokens:
        return found
    return Recalled(text=text, references=tuple(references), tokens=size, rest=rest, parts=tuple(parts))


def _fetch_part(part: Part, asked: Reference, tokens: int | None, counter: Counter) -> Recalled:
    if asked.media is not None:
        media = part.media if type(part) is ToolResult else ()
        if asked.media >= len(media):
            return Recalled(
                text=_within(f"{asked.name} names nothing: the part has {len(media)} media", tokens, counter)
            )
        part = media[asked.media]
    if type(part) is Media and tokens is not None:
        text = _within(described(part, asked.name), tokens, counter)
        return Recalled(text=text, references=(asked.name,), tokens=counter.tokens(text), parts=(part,))
    text, first, last, total = _lines(exact(part), asked)
    if tokens is not None and type(part) is ToolResult:
        shown = [described(item, f"{_numbered(asked)}.{n}") for n, item in enumerate(part.media)]
        text = "\n".join([text, *shown])
    size = counter.tokens(text)
    if tokens is None or size <= tokens:
        name = asked.name if asked.first is None else f"{asked.name}:{first}-{last}"
        return Recalled(text=text, references=(name,), tokens=size, parts=(part,))
    return _beginning(text, part, asked, (first, last, total), tokens, counter)


def _numbered(asked: Reference) -> str:
    return asked.name if asked.part is not None else f"{asked.name}.0"


def _lines(text: str, asked: Reference) -> tuple[str, int, int, int]:
    """Return the requested lines of a text, the numbers of the first and last one, and the number of all lines."""
    ends = line_ends(text)
    total = len(ends)
    first = max(1, asked.first or 1)
    last = total if asked.last is None else min(asked.last, total)
    if asked.first is None or not total:
        return text, 1, total, total
    if first > last:
        return "", first, last, total
    return text[ends[first - 2] if first > 1 else 0 : ends[last - 1]], first, last, total


def _beginning(
    text: str, part: Part, asked: Reference, lines: tuple[int, int, int], tokens: int, counter: Counter
) -> Recalled:
    """Return as many lines as fit, and the reference of the next line."""
    first, last, total = lines
    ends = line_ends(text)
    tail = f"{last}" if asked.last is not None else ""
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if counter.tokens(text[: ends[middle - 1]] + _note(asked, first, middle, total, tail)) <= tokens:
            low = middle
        else:
            high = middle - 1
    if not low:
        cut = _within(text, tokens, counter)
        return Recalled(
            text=cut, references=(asked.name,), tokens=counter.tokens(cut), rest=f"{asked.name}:{first}-{tail}"
        )
    shown = text[: ends[low - 1]] + _note(asked, first, low, total, tail)
    return Recalled(
        text=shown,
        references=(f"{asked.name}:{first}-{first + low - 1}",),
        tokens=counter.tokens(shown),
        rest=f"{asked.name}:{first + low}-{tail}",
        parts=(part,),
    )


def _note(asked: Reference, first: int, shown: int, total: int, tail: str) -> str:
    return (
        f"[kompakt] Lines {first}-{first + shown - 1} of {total}; recall {asked.name}:{first + shown}-{tail} continues."
    )


def _fetch_message(message: Message, asked: Reference, tokens: int | None, counter: Counter) -> Recalled:
    """Return the parts of a message that fit, each after its reference, and the references of the others."""
    texts: list[str] = []
    names = [f"{asked.message}.{number}" for number in range(len(message.parts))]
    for number, part in enumerate(message.parts):
        whole = _fetch_part(part, asked._replace(part=number, first=None, last=None), tokens, counter)
        text = "\n".join([*texts, f"{names[number]} {name_of(part)}:\n{whole.text}"])
        note = _others(names[number + 1 :])
        if tokens is not None and (whole.rest or counter.tokens(text + note) > tokens):
            text = _within("\n".join(texts) + _others(names[number:]), tokens, counter)
            return Recalled(
                text=text, references=tuple(names[:number]) or (asked.message,), tokens=counter.tokens(text)
            )
        texts.append(f"{names[number]} {name_of(part)}:\n{whole.text}")
    text = "\n".join(texts)
    return Recalled(text=text, references=(asked.message,), tokens=counter.tokens(text), parts=message.parts)


def _others(names: list[str]) -> str:
    return f"\n[kompakt] Further parts: recall {', '.join(names)}." if names else ""


def _within(text: str, tokens: int | None, counter: Counter) -> str:
    """Cut a text to a number of tokens."""
    if tokens is None or counter.tokens(text) <= tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if counter.tokens(text[:middle]) <= tokens else (low, middle - 1)
    return text[:low]

"""What a ledger consists of: items in sections, how they are written, and how a later pass reads them back.

An item is one statement or passage. It has a section, a position in the session, and a value: how much a reader who has
to continue the work would miss it. A ledger is a heading line, then the sections in a fixed order, one bullet per
item::

    ## Commands, tests and failures, oldest first (4 of 9 shown)
    - Failed: `make test`: "assert 4617 == 582" [m3f21]

A reference in brackets names the original message. It follows items that say less than the original does. Where a
section lacks some of its entries, its heading says so: a reader takes what is missing for what did not happen.

In a chain of stateless calls the originals are gone, and only the text of the previous ledger is left. ``parse``
therefore turns a ledger back into items. Only lines in the shape that ``write`` produces become items of their section;
everything else is a narrative.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

import msgspec

from kompakt.engine.ledger.excerpts import quoted
from kompakt.model.phrases import OPEN_ROUND_NOTE

HEADING = (
    "Notes on the earlier part of this session, quoted from it where possible. A later line may correct an earlier "
    "one. [m…] names the original, […] marks an omission."
)
"""First line of a ledger. Text before it in a pivot is the narrative of a summarizer."""

_EARLIER_HEADINGS = (
    "Notes on the earlier part of this session, quoted from it where possible. [m…] names the original, […] marks an "
    "omission.",
    "Notes by code on the earlier part of this session, in its own words. [m…] is a reference to the original, […] an "
    "omission.",
)
"""The same in stored sessions."""

USER = "user"
STATE = "state"
TALK = "talk"
FINDINGS = "findings"
CHANGES = "changes"
RUNS = "runs"
CALLS = "calls"
LOOKED = "looked"

SECTIONS = {
    USER: "## What the user asked for and decided, in order",
    STATE: "## Tasks and external state",
    TALK: "## What was said, by date",
    FINDINGS: "## What the assistant found, decided and reported, oldest first",
    CHANGES: "## Changes made",
    RUNS: "## Commands, tests and failures, oldest first",
    CALLS: "## Other tool calls and what they answered",
    LOOKED: "## What was looked at",
}
"""Sections in the order in which a ledger has them."""

TABULAR = (CALLS, LOOKED)
"""Sections that may contain tables."""

BULLET = "- "
OUTLINE = -1
"""Number of the passage that lists the headings of a message. It is written only if most of the others are missing."""

GAP = " […] "
"""Separates passages of one message between which something was left out."""

SPEAKER_GAP = ": "
"""Separates a speaker from what was said."""

SAID_GAP = " / "
"""Separates what one speaker said at different times of a day."""

CELL_GAP, ROW_GAP = " | ", "; "
"""Separate the cells of a row of a table, and short rows that share a line."""

SHORT_ROW = 40
"""Characters of a row that shares a line with others."""

MAX_TRANSCRIPT_LINE = 200
"""Characters kept of each line of an open round's transcript."""

RESTATED = (STATE, CHANGES)
"""Sections in which a later pass may state again what an earlier one left out, so that only a limit is known."""

_SHOWN = re.compile(r" \((\d{1,9}) of (?:up to )?(\d{1,9}) shown\)\Z")

_SECTION_OF = {heading: section for section, heading in SECTIONS.items()} | {"## What was only looked at": LOOKED}
"""Sections by their headings, with one that stored sessions may contain."""
_REFERENCE = re.compile(r" \[(m[0-9a-f]{4,40}(?:\.\d+)?)\]\Z")


class Item(msgspec.Struct, gc=False):
    """One statement of a ledger, or one passage of a longer text."""

    section: str
    at: float
    """Position in the session: the message's index. Items of earlier passes come before 0."""
    text: str
    value: float
    reference: str = ""
    """Name of the original, where the original says more."""
    passage: int = 0
    """Number of the passage in its message, or ``OUTLINE``. Passages of one message share a bullet."""
    passages: int = 1
    """How many passages that message has."""
    extends: str = ""
    """Text of a shorter item that this one replaces where there is room for both."""
    origin: str = ""
    """Who reported this, such as "Task reported"; the text is then quoted."""
    is_note: bool = False
    """Whether this only adds to other entries, and is none that a heading counts."""
    label: str = ""
    """Group within the section, written on a line of its own: the date of a conversation, the heading of a table."""


class ItemList:
    """The items of one ledger, to which several collectors add."""

    def __init__(self, reference: Callable[[int], str], upto: int) -> None:
        self.all: list[Item] = []
        self.reference = reference
        """Names the original at a position."""
        self.upto = max(1, upto)
        """Number of messages that the ledger is about."""

    def recency(self, at: float) -> float:
        """Return how new a position is: 0 for the start of the session, 1 for its end."""
        return at / self.upto

    def item(self, section: str, at: int, text: str, value: float, *, partial: bool = False) -> Item:
        """Return an item; ``partial`` if its original says more."""
        return Item(section, at, text, value, self.reference(at) if partial else "")

    def add(
        self,
        section: str,
        at: int,
        text: str,
        value: float,
        *,
        partial: bool = False,
        passage: int = 0,
        passages: int = 1,
        origin: str = "",
    ) -> None:
        """Add an item, or one of several passages of a message."""
        reference = self.reference(at) if partial or passages > 1 else ""
        self.all.append(Item(section, at, text, value, reference, passage, passages, origin=origin))


def section_of(line: str) -> str | None:
    """Return the section that a heading starts; ``None`` for any other line."""
    return _SECTION_OF.get(_SHOWN.sub("", line))


def entries(items: Iterable[Item]) -> Counter[str]:
    """Count the entries of each section: passages of one message, and a line and its longer form, are one entry."""
    counted = {
        (item.section, item.at, item.extends or item.text if item.passages == 1 else "")
        for item in items
        if not item.is_note
    }
    return Counter(section for section, _, _ in counted)


_NONE: Counter[str] = Counter()


def write(items: Sequence[Item], totals: Counter[str] = _NONE, left_out: Counter[str] = _NONE) -> str:
    """Write items as a ledger; nothing when there are none.

    ``totals`` has the entries that each section could have, and ``left_out`` those of them that an earlier pass did not
    write.
    """
    if not items:
        return ""
    lines = [HEADING]
    shown = entries(items)
    for section, heading in SECTIONS.items():
        chosen = [item for item in items if item.section == section]
        if chosen:
            if shown[section] < totals[section]:
                limit = "up to " if section in RESTATED and left_out[section] else ""
                heading = f"{heading} ({shown[section]} of {limit}{totals[section]} shown)"
            starts: dict[str, float] = {}
            for item in chosen:
                starts[item.label] = min(item.at, starts.get(item.label, item.at))
            chosen.sort(key=lambda item: (item.label != "", starts[item.label], item.label, item.at, item.passage))
            lines.append(heading)
            lines += _talk(chosen) if section == TALK else _bullets(chosen)
    return "\n".join(lines)


def _bullets(items: list[Item]) -> Iterator[str]:
    label = ""
    start = 0
    for end in range(1, len(items) + 1):
        if end < len(items) and items[end].at == items[start].at and items[start].passages > 1:
            continue
        if end < len(items) and _share_a_line(items[end - 1], items[end]):
            continue
        if items[start].label != label:
            label = items[start].label
            yield f"{label}:"
        if end - start > 1 and _share_a_line(items[start], items[start + 1]):
            yield BULLET + ROW_GAP.join(item.text for item in items[start:end])
        else:
            yield BULLET + _joined(items[start:end])
        start = end


def _talk(items: list[Item]) -> Iterator[str]:
    """Write what was said under each date, with one bullet for each speaker."""
    for label, said in groupby(items, key=lambda item: item.label):
        if label:
            yield f"{label}:"
        by_speaker: dict[str, list[Item]] = {}
        for item in said:
            by_speaker.setdefault(item.text.partition(SPEAKER_GAP)[0], []).append(item)
        for speaker, items_of_one in by_speaker.items():
            if all(_is_sentence(item) for item in items_of_one):
                words = SAID_GAP.join(item.text.partition(SPEAKER_GAP)[2] for item in items_of_one)
                yield f"{BULLET}{speaker}{SPEAKER_GAP}{words}"
            else:
                yield from (BULLET + _joined([item]) for item in items_of_one)


def _is_sentence(item: Item) -> bool:
    """Return whether an item is a sentence of a speaker that can share a line with others."""
    _, gap, words = item.text.partition(SPEAKER_GAP)
    return bool(gap) and bool(words) and not item.reference and SAID_GAP not in words


def _share_a_line(item: Item, other: Item) -> bool:
    """Return whether two rows of a table are short enough for one line."""
    return (
        item.label == other.label
        and not item.reference
        and CELL_GAP in item.text
        and CELL_GAP in other.text
        and max(len(item.text), len(other.text)) <= SHORT_ROW
    )


def _joined(passages: list[Item]) -> str:
    """Join passages of one message; where some are missing, say so and name the original."""
    first, last = passages[0], passages[-1]
    if first.passages == 1:
        text = f"{first.origin}: {quoted(first.text, len(first.text))}" if first.origin else first.text
        return f"{text} [{first.reference}]" if first.reference else text
    if first.passage == OUTLINE:
        if len(passages) > first.passages / 2:
            return _joined(passages[1:])
        text = first.text
    else:
        text = first.text if first.passage == 0 else GAP.lstrip() + first.text
    for before, item in pairwise(passages):
        is_next = item.passage == before.passage + 1 and before.passage != OUTLINE
        text += (" " if is_next else GAP) + item.text
    if last.passage < last.passages - 1:
        text += GAP.rstrip()
    if first.origin:
        text = f"{first.origin}: {quoted(text, len(text))}"
    is_whole = len(passages) == first.passages
    return text if is_whole or not first.reference else f"{text} [{first.reference}]"


class Earlier(msgspec.Struct):
    """What an earlier pass wrote, read back."""

    narrative: list[str] = []
    """Lines that are no items: a summarizer's words, or the transcript of an open round."""
    items: list[tuple[str, str, str, str]] = []
    """Section, text, reference and label of each bullet, in order."""
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    """Entries of each section that had no room."""


def parse(text: str) -> Earlier:
    """Read what earlier passes wrote: any number of narratives and ledgers, one after the other."""
    earlier = Earlier()
    summary, _, transcript = text.partition(f"\n{OPEN_ROUND_NOTE}")
    if text.startswith(OPEN_ROUND_NOTE):
        summary, transcript = "", text
    section, label, in_ledger = "", "", False
    for line in _converted(summary):
        if line == HEADING:
            section, label, in_ledger = "", "", True
        elif in_ledger and (started := section_of(line)):
            section, label = started, ""
            if counts := _SHOWN.search(line):
                earlier.left_out[section] += int(counts[2]) - int(counts[1])
        elif in_ledger and section and line.startswith(BULLET):
            body = line[len(BULLET) :]
            reference = _REFERENCE.search(body)
            body = body[: reference.start()] if reference else body
            named = reference[1] if reference else ""
            earlier.items += [(section, part, named, label) for part in _parts(section, body, label)]
        elif in_ledger and section in (TALK, *TABULAR) and line.endswith(":"):
            label = line[:-1]
        elif line.strip():
            in_ledger = False
            earlier.narrative.append(line)
    lines = (line for line in transcript.split("\n") if line.strip() and line != OPEN_ROUND_NOTE)
    earlier.narrative += [quoted(line, MAX_TRANSCRIPT_LINE) for line in lines]
    return earlier


def _parts(section: str, body: str, label: str) -> list[str]:
    """Split a bullet into the items that ``write`` put into one line."""
    if section in TABULAR and label:
        rows = body.split(ROW_GAP)
        if all(CELL_GAP in row and len(row) <= SHORT_ROW for row in rows):
            return rows
    if section == TALK:
        speaker, gap, words = body.partition(SPEAKER_GAP)
        if gap:
            return [f"{speaker}{gap}{sentence}" for sentence in words.split(SAID_GAP)]
    return [body]


HEADING_0_1 = "Facts by code, oldest first; each begins with a reference that recall takes, + is the one before:"
"""First line of a ledger of version 0.1, which stores and chains may still hold.

A line began with a reference, or with ``+`` for the reference of the line before. The sections that quoted the user,
listed tasks, files, commands, failures and remarks are converted. Lists of names, values, ids and tests are dropped.
"""

_LINE_0_1 = re.compile(r"(?:(?P<reference>m[0-9a-f]{4,40}(?:\.\d+)?)|\+|-) (?P<body>.*)")
_SECTIONS_0_1 = {
    "The user's own words:": USER,
    "Tasks:": STATE,
    "Waiting for the user:": FINDINGS,
    "Files:": CHANGES,
    "Commands:": RUNS,
    "Calls that failed:": RUNS,
    "Other calls:": LOOKED,
    "What the assistant told:": FINDINGS,
    **dict.fromkeys(("Tests:", "Values:", "Ids:", "Names:"), ""),
}
_ROOT_0_1 = re.compile(r"Files, below (.*):")
_TASK_0_1 = re.compile(r"task (?:#(\S+) )?(open|in progress|done|dropped): (.*)")
_FILE_0_1 = re.compile(r"(read|created and modified|created|modified|deleted) (.+)")
_BOXES_0_1 = {"open": "[ ]", "in progress": "[>]", "done": "[x]", "dropped": "[-]"}
_SPEAKERS_0_1 = ("user: ", "asked the user: ", "told: ")


def _converted(text: str) -> Iterator[str]:
    """Yield the lines of a text, with ledgers of version 0.1 in the present format."""
    section, root, reference, in_ledger = "", "", "", False
    for line in _updated(text).split("\n"):
        if line == HEADING_0_1:
            in_ledger = True
            yield HEADING
        elif in_ledger and (line in _SECTIONS_0_1 or _ROOT_0_1.fullmatch(line)):
            rooted = _ROOT_0_1.fullmatch(line)
            root = rooted[1] if rooted else ""
            section = CHANGES if rooted else _SECTIONS_0_1[line]
            if section:
                yield SECTIONS[section]
        elif in_ledger and (found := _LINE_0_1.fullmatch(line)):
            reference = found["reference"] or ("" if line.startswith("- ") else reference)
            body = _body(section, found["body"].partition("; there: ")[0], root)
            if section and body:
                yield f"- {body} [{reference}]" if reference and section not in (USER, STATE) else f"- {body}"
        else:
            in_ledger = False
            yield line


def _body(section: str, body: str, root: str) -> str:
    for speaker in _SPEAKERS_0_1:
        body = body.removeprefix(speaker)
    if section == STATE and (task := _TASK_0_1.fullmatch(body)):
        return f"{_BOXES_0_1[task[2]]} {f'#{task[1]} ' if task[1] else ''}{task[3]}"
    if section == CHANGES and (file := _FILE_0_1.fullmatch(body)):
        path = file[2] if not root or file[2].startswith("/") else f"{root.rstrip('/')}/{file[2]}"
        words = {"modified": "edited", "created and modified": "created and edited"}.get(file[1], file[1])
        return "" if file[1] == "read" else f"{path}: {words}"
    return body


def narrative_of(text: str) -> str:
    """Return the words before the first ledger."""
    return f"\n{_updated(text)}".partition(f"\n{HEADING}")[0].strip()


def ledgers_of(text: str) -> str | None:
    """Return the ledgers in a text without the narrative before them; ``None`` when there are none."""
    text = _updated(text)
    start = f"\n{text}".find(f"\n{HEADING}")
    return text[start:] if start >= 0 else None


def _updated(text: str) -> str:
    """Write the first line of ledgers as this version does."""
    for heading in _EARLIER_HEADINGS:
        text = text.replace(heading, HEADING)
    return text


def without_false_quotes(text: str, is_said: Callable[[str, str], bool]) -> str:
    """Drop bullets that quote the user in words which the message they refer to does not contain.

    ``is_said`` takes a reference and words and tells whether the words are in the message of that name.
    """
    section = ""
    kept: list[str] = []
    for line in _updated(text).split("\n"):
        section = section_of(line) or ("" if line == HEADING else section)
        reference = _REFERENCE.search(line) if section == USER and line.startswith(BULLET) else None
        if reference is not None:
            passages = [part.strip() for part in line[len(BULLET) : reference.start()].split(GAP.strip())]
            if not all(is_said(reference[1], words) for words in passages if words):
                continue
        kept.append(line)
    return "\n".join(kept)


def quoted_sentences(words: str) -> list[str]:
    """Return the sentences of a quote. The original may have line breaks or a tag between them."""
    own = words.partition(" (pasted: ")[0]
    return [sentence for sentence in re.split(r"(?<=[.!?]) ", " ".join(own.split())) if sentence]


def narrated(text: str) -> str:
    """Quote the lines of a narrative that look like the start of a ledger or like one of kompakt's markers."""
    marked = (HEADING, *_EARLIER_HEADINGS, "[kompakt")
    return "\n".join(f"> {line}" if line.startswith(marked) else line for line in text.split("\n"))

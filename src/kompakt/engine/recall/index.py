"""The index of a history: which passages hold which words, who speaks and when.

Grows message by message; adding one costs what is new. Pure Python: a list of postings a term.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kompakt.engine.recall.answer import names
from kompakt.engine.recall.embeddings import Meaning, available
from kompakt.engine.recall.passages import Passage, passages_of, spoken
from kompakt.engine.recall.terms import TIME_TERMS, stamp, tally, terms
from kompakt.model.messages import Message, Text, ToolCall

_SPEAKER = re.compile(r"(?:\[[^\]\n]{1,80}\]\s*)?([A-Z][\w.'’-]*(?: [A-Z][\w.'’-]*){0,2}):\s")
"""A name before the words it says, as recorded conversations have it."""

_MIN_TURNS = 3
"""Messages that begin with a name before it is taken for a speaker's."""

_KEY = re.compile(r"^[\w.-]+: ", re.MULTILINE)
"""The name of an argument, which is the tool's and not the call's."""

_QUESTION = re.compile(r"\?[^\w\n]*(?:\n\[[^\n]*\]\s*)?\Z")
"""A question at the end of a text, also before a note in brackets."""

_QUESTION_END = 300

SHORT = 45
"""Terms of the longest passage that counts as short."""

MAX_COUNT = 255
"""Most occurrences of a term in a passage that are told apart; a posting is one number, place and count together."""


class Index:
    """The passages of a history and the words in them."""

    __slots__ = (
        "_calls",
        "_dates",
        "_messages",
        "_names",
        "_roles",
        "dates",
        "lengths",
        "meaning",
        "passages",
        "postings",
        "questions",
        "short",
        "speakers",
        "timed",
        "used",
    )

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.passages: list[Passage] = []
        self.lengths: list[int] = []
        self.postings: dict[str, list[int]] = {}
        self.speakers: list[str] = []
        """Who speaks in each passage, where a name says so; else empty."""
        self.dates: list[frozenset[str]] = []
        """The stamp that holds for each passage."""
        self.timed: list[bool] = []
        """Whether a passage says when something was."""
        self.short: list[bool] = []
        """Whether a passage is as short as a turn of a conversation, and so leans on its neighbours."""
        self.used: dict[str, None] = {}
        """Names that calls used, the newest last."""
        self.questions: list[bool] = []
        """Whether a passage ends in a question: it asks, and another answers."""
        self.meaning = Meaning() if available() else None
        """The vectors of turns, where the extra is installed."""
        self._calls: dict[tuple[int, int], str] = {}
        self._messages: list[Message] = []
        self._names: dict[str, int] = {}
        self._roles: dict[str, set[str]] = {}
        self._dates: frozenset[str] = frozenset()
        for message in messages:
            self.add(message)

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def messages(self) -> int:
        """How many messages are indexed."""
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Index the next message."""
        for passage, text in passages_of(message, len(self._messages)):
            speaker = self._note_start(message, passage, text)
            if type(message.parts[passage.part]) is ToolCall:
                self._note_call(passage, text)
            self._add(passage, tally(text), speaker)
            self.questions.append(_QUESTION.search(text, max(0, len(text) - _QUESTION_END)) is not None)
            if self.meaning is not None and type(message.parts[passage.part]) is Text:
                self.meaning.add(len(self.passages) - 1, text)
        self._messages.append(message)

    def _note_start(self, message: Message, passage: Passage, text: str) -> str:
        """Read date and speaker where a text begins."""
        if passage.start or type(message.parts[passage.part]) is not Text:
            return ""
        self._dates = stamp(text) or self._dates
        found = _SPEAKER.match(text)
        if found is None:
            return ""
        self._names[found[1]] = self._names.get(found[1], 0) + 1
        self._roles.setdefault(found[1], set()).add(message.role)
        return found[1]

    def _note_call(self, passage: Passage, text: str) -> None:
        """Remember what a call says, which takes decoding, and the names it uses."""
        self._calls[passage.message, passage.part] = self._calls.get((passage.message, passage.part), "") + text
        for name in names(_KEY.sub("", text)):
            self.used.pop(name, None)
            self.used[name] = None

    def _add(self, passage: Passage, counts: dict[str, int], speaker: str) -> None:
        place = len(self.passages) << 8
        postings = self.postings
        for term, count in counts.items():
            posting = place | (count if count < MAX_COUNT else MAX_COUNT)
            found = postings.get(term)
            if found is None:
                postings[term] = [posting]
            else:
                found.append(posting)
        self.passages.append(passage)
        length = sum(counts.values())
        self.lengths.append(length)
        self.short.append(length <= SHORT)
        self.speakers.append(speaker)
        self.dates.append(self._dates)
        self.timed.append(not TIME_TERMS.isdisjoint(counts))

    def text(self, place: int) -> str:
        """Return the text of a passage."""
        passage = self.passages[place]
        said = self._calls.get((passage.message, passage.part))
        if said is None:
            said = spoken(self._messages[passage.message].parts[passage.part])
        return said[passage.start : passage.end]

    @property
    def names(self) -> frozenset[str]:
        """The names of speakers as words."""
        return frozenset(word for name in self._names for word in name.lower().split())

    def is_named(self, place: int) -> bool:
        """Tell whether a passage begins with the name of a speaker, who then never speaks in another role."""
        name = self.speakers[place]
        return self._names.get(name, 0) >= _MIN_TURNS and len(self._roles[name]) == 1

    def speakers_in(self, query: Iterable[str]) -> set[str]:
        """List the speakers that a query names."""
        asked = set(query)
        return {
            name for name, turns in self._names.items() if turns >= _MIN_TURNS and not asked.isdisjoint(terms(name))
        }

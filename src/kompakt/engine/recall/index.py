"""The index of a history: the terms of each passage, its speaker and date, and the call that an output belongs to.

The index grows message by message; adding one costs its own text. Pure Python: one list of postings per term.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from kompakt.engine.ledger.extract.user_words import binding
from kompakt.engine.recall.embeddings import Meaning, available
from kompakt.engine.recall.passages import Passage, exact, is_by_user, is_recall, passages_of, spoken, subject_of
from kompakt.engine.recall.terms import TIME_TERMS, stamp, tally, terms
from kompakt.model.messages import Message, Part, Text, ToolCall, ToolResult

_SPEAKER = re.compile(r"(?:\[[^\]\n]{1,80}\]\s*)?([A-Z][\w.'’-]*(?: [A-Z][\w.'’-]*){0,2}):\s")
"""A speaker's name at the start of a text, as in transcripts of conversations."""

_MIN_TURNS = 3
"""Messages that must begin with a name before it counts as a speaker."""

_QUESTION = re.compile(r"\?[^\w\n]*\Z")
"""A question at the end of a text."""

_QUESTION_END = 300

SHORT = 45
"""Terms of the longest passage that counts as short."""

MAX_COUNT = 255
"""Highest count of a term in a passage: a posting is one integer that holds place and count."""


class Index:
    """The passages of a history and the terms in them."""

    __slots__ = (
        "_dates",
        "_latest",
        "_made_by",
        "_messages",
        "_names",
        "_roles",
        "calls",
        "dates",
        "demands",
        "lengths",
        "meaning",
        "passages",
        "postings",
        "questions",
        "short",
        "speakers",
        "timed",
    )

    def __init__(self, messages: Iterable[Message] = (), *, calls: Mapping[str, ToolCall] | None = None) -> None:
        self.calls = dict(calls or {})
        """Tool calls by id: a result is indexed and labelled with what its call is about."""
        self.passages: list[Passage] = []
        self.lengths: list[int] = []
        self.postings: dict[str, list[int]] = {}
        self.speakers: list[str] = []
        """The named speaker of each passage; empty if there is none."""
        self.dates: list[frozenset[str]] = []
        """The date that applies to each passage."""
        self.timed: list[bool] = []
        """Whether a passage contains a time or date."""
        self.short: list[bool] = []
        """Whether a passage is as short as a turn of a conversation. Matches in its neighbours then count for it."""
        self.questions: list[bool] = []
        """Whether a passage ends with a question."""
        self.demands: list[bool] = []
        """Whether the user demands or forbids something in a passage."""
        self._made_by: list[int] = []
        """The call that a passage is the result of, by the hash of its name and arguments; 0 for others."""
        self.meaning = Meaning() if available() else None
        """The vectors of turns, where the extra is installed."""
        self._latest: dict[int, int] = {}
        """The message of the latest result of each call."""
        self._messages: dict[int, Message] = {}
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

    def add(
        self, message: Message, number: int | None = None, *, within: Callable[[Passage], bool] | None = None
    ) -> None:
        """Index a message, the next one or the one at ``number``.

        ``within`` limits it to the passages for which it is true.
        """
        number = len(self._messages) if number is None else number
        self._messages[number] = message
        self.calls.update((part.id, part) for part in message.parts if type(part) is ToolCall)
        for place, divided in groupby(passages_of(message, number), key=lambda one: one[0].part):
            part = message.parts[place]
            passages = [one for one in divided if within is None or within(one[0])]
            if not passages or is_recall(part, self.calls):
                continue
            call = part if type(part) is ToolCall else self.calls.get(getattr(part, "call_id", ""))
            subject = f"{call.name} {subject_of(call)}" if call is not None else ""
            made_by, by_user = self._note_result(part, call, number), is_by_user(message, part)
            for passage, text in passages:
                self._add(passage, tally(text), self._note_start(message, passage, text), subject)
                self._made_by.append(made_by)
                self.questions.append(_QUESTION.search(text, max(0, len(text) - _QUESTION_END)) is not None)
                self.demands.append(by_user and bool(binding(text)))
                if self.meaning is not None and type(part) is Text:
                    self.meaning.add(len(self.passages) - 1, text)

    def _note_result(self, part: Part, call: ToolCall | None, number: int) -> int:
        """Record the latest result of a call. A call with other arguments does not make a result out of date."""
        if call is None or type(part) is not ToolResult:
            return 0
        made_by = hash((call.name, exact(call)))
        self._latest[made_by] = max(number, self._latest.get(made_by, -1))
        return made_by

    def is_superseded(self, place: int) -> bool:
        """Return whether a passage is the result of a call that was made again later."""
        return self.passages[place].message < self._latest.get(self._made_by[place], -1)

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

    def _add(self, passage: Passage, counts: dict[str, int], speaker: str, subject: str) -> None:
        place = len(self.passages) << 8
        postings = self.postings
        length = sum(counts.values())
        for term in terms(subject) if subject else ():
            counts.setdefault(term, 1)  # each part of a file or an output is found by the name of the whole
        for term, count in counts.items():
            posting = place | (count if count < MAX_COUNT else MAX_COUNT)
            found = postings.get(term)
            if found is None:
                postings[term] = [posting]
            else:
                found.append(posting)
        self.passages.append(passage)
        self.lengths.append(length)
        self.short.append(length <= SHORT)
        self.speakers.append(speaker)
        self.dates.append(self._dates)
        self.timed.append(not TIME_TERMS.isdisjoint(counts))

    def text(self, place: int) -> str:
        """Return the text of a passage."""
        passage = self.passages[place]
        part = self._messages[passage.message].parts[passage.part]
        return spoken(part)[passage.start : passage.end]

    def places_with_all(self, query: str) -> frozenset[int]:
        """Return the passages that contain every term of a query; none if a term is nowhere."""
        found = sorted((self.postings.get(term, []) for term in tally(query)), key=len)
        places = frozenset(posting >> 8 for posting in found[0]) if found else frozenset[int]()
        for postings in found[1:]:
            if not places:
                break
            places &= {posting >> 8 for posting in postings}
        return places

    @property
    def names(self) -> frozenset[str]:
        """The words of all speakers' names, in lower case."""
        return frozenset(word for name in self._names for word in name.lower().split())

    def is_named(self, place: int) -> bool:
        """Return whether a passage begins with the name of a speaker who has the same role in all messages."""
        name = self.speakers[place]
        return self._names.get(name, 0) >= _MIN_TURNS and len(self._roles[name]) == 1

    def speakers_in(self, query: Iterable[str]) -> set[str]:
        """Return the speakers that a query names."""
        asked = set(query)
        return {
            name for name, turns in self._names.items() if turns >= _MIN_TURNS and not asked.isdisjoint(terms(name))
        }

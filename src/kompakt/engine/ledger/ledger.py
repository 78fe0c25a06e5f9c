"""The ledger of one history: what is no longer shown, said by code within a number of tokens.

Messages are read once, in order; facts and names are taken once from each event, when it leaves the view. Writing costs
time in what is new and in the room there is, not in the history. The same history, with the same things hidden, gives
the same text.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence

from kompakt.engine.ledger import format as lines
from kompakt.engine.ledger import parse as parsing
from kompakt.engine.ledger.book import Book
from kompakt.engine.ledger.events import THOUGHT, Called, Event, Order, Spoken
from kompakt.engine.ledger.extract.tasks import Tasks
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.mentions import named
from kompakt.engine.ledger.size_estimate import weight
from kompakt.model.messages import Message, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_own, unseal

NAMES_SHARE = 0.15
"""Share of the room that is kept for names when there are more facts than fit."""

_FRAME = 34
"""Tokens of the heading, of that of the names, and of what joins the lines."""

_SLACK = 0.05
"""Share of the room that may stay empty while there are facts to tell."""

_ATTEMPTS = 4


class Ledger:
    """Reads a history as it grows and writes down what left the view."""

    __slots__ = ("_book", "_open", "_pivot_at", "_spoken_at", "_tasks", "_weights", "events", "read_to")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.read_to = 0
        self._open: dict[str, Called] = {}
        self._pivot_at = -1
        self._spoken_at: list[int] = []
        self._tasks = Tasks()
        self._book: Book | None = None
        self._weights: dict[int, int] = {}

    def weight(self, index: int, message: Message) -> int:
        """Estimate what there is to say about a message; worked out once."""
        found = self._weights.get(index)
        if found is None:
            found = self._weights[index] = weight(message)
        return found

    def read(self, messages: Sequence[Message], upto: int, is_user: Callable[[Message], bool]) -> None:
        """Read the messages that are new, up to a number of them."""
        for index in range(self.read_to, upto):
            self._read_one(index, messages[index], is_user)
        self.read_to = max(self.read_to, upto)

    def _read_one(self, at: int, message: Message, is_user: Callable[[Message], bool]) -> None:
        speaks = message.role == "assistant" or (message.role == "user" and is_user(message))
        for part in message.parts:
            if type(part) is Text and _is_kompakts(message, part.text):
                self._pivot_at = at if message.role == "assistant" else self._pivot_at
            elif type(part) is Text and speaks and part.text.strip():
                self.events.append(Spoken(at, message.role, part.text))
                if message.role == "user":
                    self._spoken_at.append(at)
            elif type(part) is Reasoning and part.text.strip():
                self.events.append(Spoken(at, THOUGHT, part.text))
            elif type(part) is ToolCall:
                called = Called(at, part)
                self._open[part.id] = called
                self.events.append(called)
            elif type(part) is ToolResult:
                called = self._open.pop(part.call_id, None)
                if called is not None:
                    called.answered_at, called.result = at, part

    def write(self, order: Order) -> str:
        """Write down what is hidden; empty when nothing is, or when there is no room."""
        book = self._up_to_date(order)
        if book.is_empty:
            return ""
        room, share, spare, fitting = order.room, 1 - NAMES_SHARE, 0, ""
        attempts = 0
        while attempts < _ATTEMPTS or (not fitting and room > _FRAME):
            attempts += 1
            text, all_facts, all_names = self._written(book, room, int(room * share), spare, order)
            left = order.room - order.count(text)
            if left < 0:
                room += left - 5 * max(1, attempts - _ATTEMPTS) ** 2  # prices are estimates: in the end larger steps
                continue
            fitting = text
            if all_facts or left <= order.room * _SLACK or (not text and share >= 1):
                break
            share = min(1, share + left / order.room)  # names do not use their room: facts take it
            spare += left if all_names else 0
        return fitting

    def _written(self, book: Book, room: int, for_facts: int, spare: int, order: Order) -> tuple[str, bool, bool]:
        """Write facts and names; tell also whether there was room for all facts, and for all names."""
        root = book.facts.roots.best
        is_told = self._still_so(order)
        chosen, spent = book.facts.chosen(
            for_facts - _FRAME, order.room, root, order.count, is_told, fits=order.fits, spare=spare
        )
        told, loose, all_names = named(chosen, book.names, room - spent - _FRAME, order)
        return lines.write(chosen, told, loose, root), len(chosen) == len(book.facts), all_names

    def _up_to_date(self, order: Order) -> Book:
        """Bring what was taken from hidden events up to date; start over when one of them is shown again."""
        book = self._book
        if book is None or not book.holds(order) or not book.take(self.events, order):
            book = self._book = Book(parsing.read(order.earlier or ""), order.earlier, self._tasks)
            book.take(self.events, order)
        return book

    def _still_so(self, order: Order) -> Callable[[Fact], bool]:
        """Tell apart what is still so: a question that the user has followed is not open."""
        before = bisect(self._spoken_at, order.upto - 1)
        spoken = self._spoken_at[before - 1] if before else -1

        def is_told(fact: Fact) -> bool:
            if fact.kind != "question":
                return True
            return fact.at >= spoken if fact.at >= 0 else spoken <= self._pivot_at

        return is_told


def _is_kompakts(message: Message, text: str) -> bool:
    """Tell whether kompakt itself wrote a text: one of its lines, or the answer of a pivot."""
    return is_own(text) or (message.role != "user" and unseal(text) is not None)

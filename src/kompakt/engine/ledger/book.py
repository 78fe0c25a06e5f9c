"""What was taken from the events that left the view: facts joined, names noted, each event once.

A book is only ever added to, in the order of what happened. When something that left is shown again, or something
leaves that happened before what was taken, the book no longer holds and another is begun.
"""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.engine.ledger.events import THOUGHT, Called, Event, Order, Spoken
from kompakt.engine.ledger.extract.numbers import IDS, id_words
from kompakt.engine.ledger.extract.tasks import Tasks
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.identifiers import Names, Place
from kompakt.engine.ledger.mentions import places_of
from kompakt.engine.ledger.parse import Known
from kompakt.engine.ledger.quotes import quoted
from kompakt.engine.ledger.selection import Facts

MAX_IDS = 60
"""Ids, newest first, that are told with their words."""

MAX_WORDS = 60
"""Characters kept of what an output says of an id."""

_LOOK_BACK = 400
"""Events among which the words of an id are looked for."""

TOKENS_PER_EVENT = 8
"""Tokens of room for each event from which everything is drawn: about half of what the ledger says of one, so what is
drawn fills the room twice."""


class Book:
    """Facts and names of hidden events."""

    __slots__ = ("_earlier", "_hidden", "_last", "_pending", "_seen_to", "_taken", "_tasks", "facts", "names")

    def __init__(self, known: Known, earlier: str | None, tasks: Tasks) -> None:
        self.facts = Facts()
        self.names = Names()
        self._earlier = earlier
        self._tasks = tasks
        self._pending: list[tuple[int, Event]] = []
        self._last = -1
        self._seen_to = 0
        self._hidden: set[int] = set()
        self._taken: list[Event] = []
        self._remember(known)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to say."""
        return not self.facts and not self.names.sightings

    def _remember(self, known: Known) -> None:
        for fact in known.facts:
            if fact.kind == "task" and fact.notes:
                self._tasks.learn(fact.notes[-1], fact.key)
        self.facts.add(Fact("remark", line, "", "") for line in known.narrative)
        self.facts.add(known.facts)
        for told in known.names:
            self.names.remember(told.words, Place(-1, "output", told.words, told.kind, told.key, told.reference))

    def holds(self, order: Order) -> bool:
        """Tell whether everything taken is still hidden."""
        if order.earlier != self._earlier:
            return False
        if order.shown_at is None:
            return all(map(order.is_hidden, self._hidden))
        return self._hidden.isdisjoint(order.shown_at)

    def take(self, events: Sequence[Event], order: Order) -> bool:
        """Take what has left the view since the last time; refuse when it happened before what was taken."""
        self._pending += enumerate(events[self._seen_to :], self._seen_to)
        self._seen_to = len(events)
        left: list[Event] = []
        stay: list[tuple[int, Event]] = []
        upto, is_hidden, shown = order.upto, order.is_hidden, order.shown_at or frozenset[int]()
        for number, event in self._pending:
            places = event.hidden_at()
            hidden = [] if shown.issuperset(places) else [at for at in places if at < upto and is_hidden(at)]
            if hidden and event.at < upto and not _is_open(event, order):
                if number < self._last:
                    return False
                self._last = number
                self._hidden.update(hidden)
                left.append(event)
            elif order.strips and event.at < upto and type(event) is Spoken and event.role == THOUGHT:
                left.append(event)  # gone though its message is shown; its order among the others does not matter
            else:
                stay.append((number, event))
        self._pending = stay
        self._draw(left, order)
        return True

    def _draw(self, left: Sequence[Event], order: Order) -> None:
        """Draw facts and names from what left the view, from the older of very many only what has priority."""
        recent = max(0, len(left) - max(order.room // TOKENS_PER_EVENT, _LOOK_BACK))
        reference, tasks = order.reference, self._tasks
        older, left = left[:recent], left[recent:]
        self.facts.add(fact for event in older for fact in event.lasting_facts(reference(event.at), tasks))
        self.facts.add(fact for event in left for fact in event.facts(reference(event.at), tasks))
        self._taken += left
        self._name_ids(left, order)
        self.names.gather(places_of(left), order.room)

    def _name_ids(self, left: Sequence[Event], order: Order) -> None:
        """Say what the ids name that the agent or the user used, in words of a line where each stands."""
        used: dict[str, int] = {}
        for event in left:
            text = event.text if type(event) is Spoken else event.words if type(event) is Called else ""
            for id in IDS.findall(text):
                used.pop(id, None)
                used[id] = event.at
        recent = self._taken[-_LOOK_BACK:]
        for id, at in list(used.items())[-MAX_IDS:]:
            found = next((event for event in recent if id in (text := _shown_by(event)) and id_words(id, text)), None)
            if found is not None:
                words = id_words(id, _shown_by(found))
                words = quoted(words, MAX_WORDS) if type(found) is Called else words
                self.facts.add([Fact("id", id, words, order.reference(found.at), at=at)])


def _is_open(event: Event, order: Order) -> bool:
    """Tell whether a call may still be answered."""
    return type(event) is Called and event.result is None and order.upto - event.at < _PATIENCE


_PATIENCE = 50
"""Messages after which a call that nothing has answered is told as it is."""


def _shown_by(event: Event) -> str:
    """Return what an event showed: words, or what a tool answered."""
    if type(event) is Spoken:
        return event.text
    return event.result.output if type(event) is Called and event.result is not None else ""

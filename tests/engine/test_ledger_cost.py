"""The ledger's work grows with the text, not with its square: a long text made to be slow is read in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time

import pytest
from tests.engine.ledgers import did, ran, tell
from tests.histories.messages import assistant, user

from kompakt.engine.ledger.book import TOKENS_PER_EVENT
from kompakt.engine.ledger.events import Called, Event, Spoken
from kompakt.engine.ledger.extract.numbers import IDS
from kompakt.engine.ledger.extract.shell import file_operations, quotes
from kompakt.engine.ledger.extract.tasks import Tasks
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.quotes import one_line, quoted
from kompakt.engine.ledger.size_estimate import weight
from kompakt.model.messages import Message

SIZE = 300_000
SECONDS = 8.0
"""Far more than any of these takes; what grows with the square takes hours."""

UNITS = [
    "x", " ", "\n", "\t", "\\", "<", "<a>", "<a ", "</a>", "<a>\n", "`", "```\n", "``` ", "\"", "'", "'a",
    "~~~", ":", "::", "a::", "1", "1 ", "1 passed ", "error: ", "error: x\n", "FAILED ", "--- FAIL: ",
    "--- FAIL: a\n", "ok\t", "ok\n", "\u2713 ", "\u2713 abcdefg\n", ";", "; ", "{", "(", "must ", "never. ",
    "must;\n", "=> ", "git ", "<<E ", "<<E\n", ">", "> a ", "&", "&&", "||", "#", " #", "a=1", "a: 1\n",
    "abcd = 11 ", "key: `", "*** Update File: a\n", "+++ b/a ", "abc1234 ", "/", "a/", "./", "m1234 ",
    "; there: ", "exit code 1 ", "Exit code 1\n", "[kompakt] ", "foo_bar.baz ", "a_b/c_d/e.f\n", "?", "? ",
    "\u2028", "\u202e", "\ud800",
]  # fmt: skip


def text_of(unit: str) -> str:
    """Repeat a unit up to the size."""
    return (unit * (SIZE // len(unit) + 1))[:SIZE]


def events(messages: list[Message]) -> list[Event]:
    """Read messages as a ledger does."""
    ledger = Ledger()
    ledger.read(messages, len(messages), lambda _: True)
    return ledger.events


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_facts_are_drawn_in_linear_time(unit: str) -> None:
    """As the user's words, as the assistant's, as an output and as a command."""
    text = text_of(unit)
    began = process_time()
    for messages in ([user(text)], [assistant(text)], ran("make", text), ran(text), did(text), did({"patch": text})):
        for event in events(messages):
            assert isinstance(event, Spoken | Called)
            list(event.facts("m1234", Tasks()))
        list(map(weight, messages))
    list(file_operations(text))
    quotes(text)
    IDS.findall(text)
    assert len(quoted(text, 80)) <= 100 and len(one_line(text, 80)) <= 80
    assert process_time() - began < SECONDS


WRITTEN: dict[str, Callable[[int], str]] = {
    "names": lambda n: f"name_{n} ",
    "paths": lambda n: f"src/dir_{n}/file_{n}.py\n",
    "errors": lambda n: f"error: case_{n}\n",
    "tests": lambda n: f"t.py::case_{n} PASSED\n",
    "ids": lambda n: f"{n:07d}a\n",
    "demands": lambda n: f"never do {n}\n",
}


@pytest.mark.parametrize("unit", WRITTEN.values(), ids=WRITTEN)
def test_a_ledger_is_written_in_linear_time(unit: Callable[[int], str]) -> None:
    """A long text of names, errors, tests or demands, in one message."""
    text = "".join(unit(n) for n in range(SIZE // 12))
    began = process_time()
    for messages in ([user(text)], [assistant(text)], ran("make", text)):
        assert len(tell(messages, 2000)) < 20_000
    assert process_time() - began < 4 * SECONDS


class TestManyEventsAtOnce:
    """A one-shot call hides thousands of calls at once; the ledger has room for a few hundred lines."""

    @staticmethod
    def history(looks: int) -> list[Message]:
        """Make a demand, a change and then many calls that only look."""
        first = [user("Never touch the schema."), *did({"path": "a/billing.py", "old": "1", "new": "2"}, id="edit")]
        seen = [did({"path": f"src/part_{n}.py"}, f"value_{n} = {n}", name="read", id=f"c{n}") for n in range(looks)]
        return [*first, *(message for pair in seen for message in pair)]

    def test_an_old_demand_and_an_old_change_are_told(self) -> None:
        """However much came later, what the user forbade and which files were changed has priority."""
        told = tell(self.history(3_000), 2_000)
        assert "user: Never touch the schema." in told and "modified a/billing.py" in told
        assert "part_2999" in told

    def test_everything_is_drawn_only_from_what_can_fill_the_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number of calls whose answers are searched follows the room, not the history."""
        searched: list[int] = []

        def facts(called: Called, reference: str, tasks: Tasks) -> Iterator[Fact]:
            searched.append(called.at)
            return drawn(called, reference, tasks)

        drawn = Called.facts
        monkeypatch.setattr(Called, "facts", facts)
        for looks in (3_000, 6_000):
            searched.clear()
            tell(self.history(looks), 4_000)
            assert len(searched) == 4_000 // TOKENS_PER_EVENT

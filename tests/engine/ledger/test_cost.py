"""The ledger's work grows with the text, not with its square, also for texts that are made to be slow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import pytest
from tests.engine.ledger.sample_ledgers import did, ran, write
from tests.histories.messages import assistant, user

from kompakt.engine.admission.kinds.log import IDS
from kompakt.engine.ledger import statements
from kompakt.engine.ledger.events import RECENT_EVENTS, Event, Spoken, ToolUse
from kompakt.engine.ledger.excerpts import one_line, quoted
from kompakt.engine.ledger.extract.shell import file_operations, quotes
from kompakt.engine.ledger.items import ItemList
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.speech import Speech
from kompakt.model.messages import Message, ToolCall, ToolResult

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


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_hostile_texts_are_read_in_linear_time(unit: str) -> None:
    """As the user's words, as the assistant's, as an output and as a command."""
    text = text_of(unit)
    start = process_time()
    for messages in (
        [user(text)],
        [assistant(text)],
        ran("make", text),
        ran(text),
        did(text),
        did({"patch": text}),
        did({"path": "a", "old": text, "new": f"{text}x"}),
    ):
        assert len(write(messages, 2_000)) < 20_000
        ledger = Ledger()
        assert all(ledger.weight(index, message) >= 0 for index, message in enumerate(messages))
    list(file_operations(text))
    quotes(text)
    IDS.findall(text)
    assert len(quoted(text, 80)) <= 100 and len(one_line(text, 80)) <= 80
    assert process_time() - start < SECONDS


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
    start = process_time()
    for messages in ([user(text)], [assistant(text)], ran("make", text)):
        assert len(write(messages, 2000)) < 20_000
    assert process_time() - start < 4 * SECONDS


class TestManyEventsAtOnce:
    """A one-shot call hides thousands of calls at once; the ledger has room for a few hundred lines."""

    @staticmethod
    def history(looks: int) -> list[Message]:
        """Make a demand, a change and then many calls that only look."""
        first = [user("Never touch the schema."), *did({"path": "a/billing.py", "old": "1", "new": "2"}, id="edit")]
        seen = [did({"path": f"src/part_{n}.py"}, f"value_{n} = {n}", name="read", id=f"c{n}") for n in range(looks)]
        return [*first, *(message for pair in seen for message in pair)]

    def test_an_old_demand_and_an_old_change_are_there(self) -> None:
        """The user's prohibitions and the changed files have priority over any number of later lookups."""
        text = write(self.history(3_000), 2_000)
        assert "Never touch the schema." in text and "a/billing.py: edited" in text
        assert "part_2999" in text

    def test_the_work_on_old_calls_that_only_look_is_constant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number of calls whose effect is worked out follows a fixed number of recent ones, not the history."""
        seen: list[int] = []
        monkeypatch.setattr(statements, "refusal", lambda result: seen.append(1))
        for looks in (3_000, 6_000):
            seen.clear()
            write(self.history(looks), 4_000)
            assert len(seen) <= RECENT_EVENTS + 2


def test_long_arguments_are_compared_with_a_long_answer_in_linear_time() -> None:
    """Each argument is looked up among the values of the answer, and not compared with all of them."""
    answer = {"order_id": "A1", **{f"k{number}": number for number in range(3_000)}}
    start = process_time()
    messages = did({"order_id": "A1", "items": [2_999] * 100_000}, json.dumps(answer), name="update_order")
    assert "update_order" in write(messages, 2_000)
    assert process_time() - start < SECONDS


class CountedEvents(list[Event]):
    """Events of which each look at one is counted."""

    looks = 0

    def __iter__(self) -> Iterator[Event]:
        for event in super().__iter__():
            self.looks += 1
            yield event

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.looks += len(found) if isinstance(place, slice) else 1
        return found


CALL = ToolCall("c", "bash", {"command": "make"})
SUMMARY = f"This session is being continued from a previous conversation.\n{'It is 40. ' * 120}\nNext Steps: none"
SPEECHES: dict[str, Callable[[int], list[Event]]] = {
    "corrections": lambda at: [
        Spoken(at, "assistant", f"The cache of part {at} is never filled by the reader."),
        Spoken(at, "user", f"You said:\nThe cache of part {at} is never filled by the reader.\nIt is filled."),
        Spoken(at, "assistant", "I was wrong."),
    ],
    "summaries": lambda at: [Spoken(at, "user", SUMMARY), ToolUse(at, CALL)],
    "failures": lambda at: [Spoken(at, "assistant", f"Run {at} failed because the key is wrong.")],
}


@pytest.mark.parametrize("make", SPEECHES.values(), ids=SPEECHES)
def test_a_text_is_compared_with_few_others_however_many_there_are(make: Callable[[int], list[Event]]) -> None:
    looks: list[int] = []
    for size in (500, 4_000):
        failed = ToolUse(0, CALL, 0, ToolResult("c", "boom", is_error=True))
        passed = ToolUse(size, CALL, size, ToolResult("c", "ok"))
        events = CountedEvents([failed, *(event for at in range(size) for event in make(at)), passed])
        speech = Speech(ItemList(str, size), events, lambda event: True, lambda event: False)
        for number, event in enumerate(list(events)):
            if type(event) is Spoken:
                speech.read(number, event)
        looks.append(events.looks)
    assert looks[1] < 16 * looks[0]

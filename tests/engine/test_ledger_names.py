"""Names are found where a plain reading finds them, and each text is read once in its life."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.ledgers import did
from tests.histories.messages import user

from kompakt.engine.ledger import names
from kompakt.engine.ledger.events import Order
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.names import MAX_NAME, Found, definition, ending, found_in
from kompakt.engine.ledger.roots import Roots
from kompakt.engine.state import speaks
from kompakt.model.messages import Message, ToolResult

PIECES = st.sampled_from([
    "parse_row", "parseRow", "ParseRow", "HTTPServer", "import", "Import", "src/", "/", "//", ".", "./", "-", "~", "@",
    "_", "a", "7", "123456", "2026-11-15", "v1.2.3", " ", "\n", "=", "(", "\u00e9", "\u0661" * 6, "\u5148\u751f",
    "x" * 150, "9" * 170, "/123456", "..foo_bar.", "a1b2c3d",
])  # fmt: skip
texts = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60))


def plainly(text: str) -> tuple[list[str], list[str]]:
    """Read names and numbers token by token, as the rules say."""
    found: list[str] = []
    numbers: list[str] = []
    for token in dict.fromkeys(re.findall(r"[\w.~@/-]{6,}", text)):
        name = token.rstrip("./-~@") if "/" in token else token.strip("./-~@")
        if not 6 <= len(name) <= MAX_NAME:
            continue
        if "/" in name:
            if name.count("/") < len(name) // 3 and not name.startswith("//"):
                found.append(ending(name))
        elif name[0].isdigit():
            numbers += [name] if name.isdigit() else []
        elif re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|\d|_|\w\.\w", name) and not (name.isalpha() and name[1:].islower()):
            found.append(name)
    return found, numbers


class TestReading:
    @given(texts)
    @settings(max_examples=400)
    def test_names_are_found_as_a_plain_reading_finds_them(self, text: str) -> None:
        """In ASCII and in anything else, for tokens seen before and for new ones."""
        found, numbers = plainly(text)
        for _ in range(2):
            assert found_in(text) == Found(found, found + numbers)

    def test_numbers_are_apart(self) -> None:
        """A number that merely stood in an output is no name; a path is one."""
        found = found_in("tenant 861168, port_8080, /123456")
        assert found.names == ["port_8080", "123456"] and found.all == ["port_8080", "123456", "861168"]

    @pytest.mark.parametrize("lead", ["", "    ", "\t", "  12\t    ", "3: ", "7\u2192", " 12 |", " " * 90])
    def test_a_name_at_the_beginning_of_its_line_is_defined_as_nothing(self, lead: str) -> None:
        """Whatever its indentation and its number, and whatever the line before ends with."""
        text = f"the next line is a class\n{lead}parse_row = 1"
        assert definition(text, text.index("parse_row")) == ""


def test_a_text_that_was_shown_is_not_read_again_when_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a run in which the older half leaves again and again each output is read once."""
    messages = [user("Go."), *(m for n in range(40) for m in did({"path": f"a/f{n}.py"}, f"uses name_{n} here"))]
    outputs = [part.output for message in messages for part in message.parts if type(part) is ToolResult]
    read: list[str] = []

    def reading(text: str) -> Found:
        read.append(text)
        return found_in(text)

    monkeypatch.setattr(names, "found_in", reading)
    ledger = Ledger()
    for upto in range(21, len(messages) + 1, 10):
        ledger.read(messages, upto, speaks)
        assert "name_1" in ledger.write(order(messages, upto))
    assert [read.count(text) for text in outputs] == [1] * len(outputs)


def order(messages: list[Message], upto: int) -> Order:
    """Ask for a ledger of the first messages, of which the last ten are shown."""
    shown = [
        part.output for message in messages[upto - 10 : upto] for part in message.parts if type(part) is ToolResult
    ]
    return Order(4_000, len, lambda index: index < upto - 10, lambda index: f"m{index:04x}", upto, shown.copy)


@given(st.lists(st.lists(st.sampled_from(["a", "bb", "src", ""]), max_size=6).map("/".join), max_size=12, unique=True))
def test_a_root_is_the_same_however_it_was_counted(paths: list[str]) -> None:
    """Asked for after each file, or once at the end."""
    counted = Roots()
    for number, path in enumerate(paths, 1):
        counted.add(path)
        assert counted.best == Roots(paths[:number]).best

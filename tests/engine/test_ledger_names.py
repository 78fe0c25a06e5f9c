"""Names are found where a plain reading finds them, and each text is read once in its life."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.ledgers import did, facts, keys, ran, tell
from tests.histories.messages import assistant, user

from kompakt.engine.context.values import speaks
from kompakt.engine.ledger import identifiers as names
from kompakt.engine.ledger.events import Order
from kompakt.engine.ledger.identifiers import MAX_NAME, Found, definition, ending, ends_of, found_in
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.path_roots import Roots
from kompakt.model.messages import Message, Reasoning, ToolResult

PIECES = st.sampled_from([
    "parse_row", "parseRow", "ParseRow", "HTTPServer", "import", "Import", "src/", "/", "//", ".", "./", "-", "~", "@",
    "_", "a", "7", "123456", "2026-11-15", "v1.2.3", " ", "\n", "=", "(", "\u00e9", "\u0661" * 6, "\u5148\u751f",
    "x" * 150, ".py-12", "rows.go-7-", "9" * 170, "/123456", "..foo_bar.", "a1b2c3d",
])  # fmt: skip
texts = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60))


def plainly(text: str) -> tuple[list[str], list[str]]:
    """Read names and numbers token by token, as the rules say."""
    found: list[str] = []
    numbers: list[str] = []
    for token in dict.fromkeys(re.findall(r"[\w.~@/-]{6,}", text)):
        name = token.rstrip("./-~@") if "/" in token else token.strip("./-~@")
        name = re.sub(r"(\w\.[A-Za-z]\w{0,4})-[0-9]+(?:-.*)?\Z", r"\1", name)
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

    def test_a_line_number_is_no_part_of_a_name(self) -> None:
        """A search puts one behind the name of a file for each line that it shows beside those it found."""
        found = found_in("src/rows.py-156-  x\nsrc/rows.py-157-def\nsrc/rows.py:158: z, v1.2.3-4 and a_b-2")
        assert found.names == ["src/rows.py", "src/rows.py", "src/rows.py", "v1.2.3-4"]

    def test_numbers_are_apart(self) -> None:
        """A number that merely stood in an output is no name; a path is one."""
        found = found_in("tenant 861168, port_8080, /123456")
        assert found.names == ["port_8080", "123456"] and found.all == ["port_8080", "123456", "861168"]

    @pytest.mark.parametrize("lead", ["", "    ", "\t", "  12\t    ", "3: ", "7\u2192", " 12 |", " " * 90])
    def test_a_name_at_the_beginning_of_its_line_is_defined_as_nothing(self, lead: str) -> None:
        """Whatever its indentation and its number, and whatever the line before ends with."""
        text = f"the next line is a class\n{lead}parse_row = 1"
        assert definition(text, text.index("parse_row")) == ""


class TestTelling:
    """What is told of names, and where."""

    @pytest.mark.parametrize("is_text", [False, True])
    def test_inner_keys_of_a_call_are_names_and_outer_ones_are_not(self, is_text: bool) -> None:
        """The definition of a tool says its own keys; nobody else says those of the data."""
        given = {"path": "a.py", "due_date_of_all": "soon", "stops": [{"shipToOffice": "harbour"}]}
        text = tell(did(json.dumps(given) if is_text else given, "noted"))
        assert "shipToOffice" in text and "due_date_of_all" not in text

    def test_words_are_quoted_and_code_is_listed(self) -> None:
        """A line of code costs more than its names and says little more."""
        output = "# parse_all_table_rows gives up early\nvalue = self.table[parse_cell(row, -1)] or (None, None, 0)"
        text = tell(did({"path": "src/a.py"}, output))
        assert '"# parse_all_table_rows gives up early"' in text
        assert "parse_cell" in text and "None, None" not in text

    def test_a_name_that_a_told_one_ends_in_is_not_told_again(self) -> None:
        """Who reads the longer one has read it."""
        messages = [*did({"path": "src/parsing/rows.py"}), *did({"id": 1}, "see rows.py, table.load_rows or load_rows")]
        told = tell(messages).replace("src/parsing/rows.py", "").replace("table.load_rows", "")
        assert "rows.py" not in told.partition("\nNames:")[2] and "load_rows" not in told.partition("\nNames:")[2]
        assert ends_of("src/parsing/rows.py") == ("parsing/rows.py", "rows.py", "py")

    def test_two_words_with_a_stroke_between_are_no_path(self) -> None:
        """They are where somebody could not choose; a file is one."""
        long = "Nothing of this is new. " * 20
        text = tell([user("Go."), assistant(f"{long}We may merge/rebase, see tests/rows.py.")])
        assert "tests/rows.py" in text and "merge/rebase" not in text

    def test_a_search_is_named_by_what_it_sought(self) -> None:
        """And not by its flags."""
        output = f"{'-' * 100}\nsrc/rows.py"
        text = tell(did({"pattern": "load_rows", "mode": "content", "n": True}, output, name="Grep"))
        assert "seen in Grep load_rows: uses src/rows.py" in text

    def test_a_place_is_said_in_few_words(self) -> None:
        """The reference says the rest."""
        text = tell(did({"path": "/srv/work/a/long/way/down/src/notes.md"}, "see docs/other_notes.md"))
        assert "seen in src/notes.md: uses docs/other_notes.md" in text

    def test_a_path_may_stand_at_a_command(self) -> None:
        """A command says of no file what became of it."""
        text = tell(ran("make report", "written for the first time: build/report_1.html"))
        assert "success: `make report`; there: " in text and "\nNames:" not in text

    def test_long_numbers_are_known_to_the_next_pass(self) -> None:
        """They stand among the names of a call."""
        earlier = tell(ran("sleep 1 && wait_for 300000"))
        assert "300000" in tell(did({"limit": 300_000}), earlier=tell(did({"limit": 300_000}))) and "300000" in earlier

    def test_names_are_listed_in_the_order_in_which_they_stand(self) -> None:
        text = tell(did({"path": "a.py"}, "".join(f"x = [row_{n}, -1, 0, 0, None, {{}}]\n" for n in range(11, 16))))
        assert "uses row_11 and row_12 and row_13 and row_14 and row_15" in text

    def test_what_is_done_with_a_name_is_said(self) -> None:
        """Also of a numbered line, and never of a word in the middle of a sentence."""
        pad = f"{' ' * 120}# {'-' * 120}"
        code = ["from rows import load_rows", "max_rows = 5", "send_all(x, 1)", "[old_rows]"]
        output = "\n".join(f"{number:3}\t{line}{pad}" for number, line in enumerate(code, 1))
        text = tell(did({"path": "src/a.py"}, output))
        assert "calls send_all, imports load_rows, sets max_rows, uses old_rows" in text
        assert "uses keep_rows" in tell(did({"path": "src/b.md"}, f"we import from keep_rows{pad}"))

    def test_what_an_earlier_pass_said_is_said_again(self) -> None:
        """Words that stand in its lines are not taken for code."""
        earlier = tell(did({"path": "src/a.py"}, f"max_rows = 5{' ' * 120}\nsend_all(x, 1){' ' * 120}"))
        assert "calls send_all, sets max_rows" in earlier
        assert "calls send_all, sets max_rows" in tell(ran("ls", "nothing"), earlier=earlier)


class TestThoughts:
    """What the assistant only thought."""

    def test_names_and_values_are_taken(self) -> None:
        """They are as good as any."""
        messages = [user("Go."), assistant(Reasoning("The retry_limit is 45 since load_rows is slow.")), *ran("ls")]
        found = facts(messages, "value")
        assert [(fact.key, fact.relation) for fact in found] == [("retry_limit", "45")]
        assert "seen in thoughts: uses load_rows" in tell(messages)

    @pytest.mark.parametrize("strips", [False, True])
    def test_those_of_shown_messages_are_told_where_they_are_taken_out(self, strips: bool) -> None:
        """A message may be shown and what the assistant thought be gone."""
        thought = "The retry_limit is 45, not what retry_limit: 30 says."
        messages = [user("Go."), *ran("cat x", "retry_limit: 20"), assistant(Reasoning(thought), "Well."), *ran("ls")]
        ledger = Ledger()
        ledger.read(messages, len(messages), speaks)
        for hidden in (2, 3, len(messages)):
            wanted = Order(
                4_000, len, lambda i, n=hidden: i < n, lambda i: f"m{i:04x}", len(messages), list, strips=strips
            )
            text = ledger.write(wanted)
            assert ("retry_limit: 30, before that 45" in text) is (strips or hidden == len(messages))
        assert "retry_limit: 30, before that 45, before that 20" in text

    def test_nothing_else_is(self) -> None:
        """Nobody was asked and nobody was told."""
        messages = [user("Go."), assistant(Reasoning("Shall I go on?")), *ran("ls")]
        assert keys(messages, "question") == keys(messages, "remark") == []


def test_a_ledger_that_is_a_little_too_long_is_written_again_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are estimates; a ledger that is a token over must not be given up."""

    def written(self: Ledger, book: object, room: int, for_facts: int, spare: int, order: Order) -> tuple[object, ...]:
        del self, book, for_facts, spare, order
        return ("x" * (201 if room > 120 else 100), False, True)

    monkeypatch.setattr(Ledger, "_written", written)
    messages = [user("Go."), *did({"path": "a.py"})]
    ledger = Ledger()
    ledger.read(messages, len(messages), speaks)
    wanted = Order(200, len, lambda index: True, lambda index: f"m{index:04x}", len(messages), list)
    assert ledger.write(wanted) == "x" * 100


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

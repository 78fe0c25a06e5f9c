"""What is written is read again as the same facts, within its room, the same each time, whatever it was made of."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.ledgers import did, merge, ran, tell
from tests.histories.messages import assistant, malformed, user

from kompakt.engine.context.values import speaks
from kompakt.engine.ledger import format as lines
from kompakt.engine.ledger import parse as parsing
from kompakt.engine.ledger.events import Order
from kompakt.engine.ledger.facts import OPERATIONS, Fact
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.parse import Names
from kompakt.engine.ledger.path_roots import Roots, absolute, below
from kompakt.engine.ledger.quotes import harmless, keyed, quoted
from kompakt.model.messages import Message, Text, ToolCall, ToolResult
from kompakt.model.references import References
from kompakt.model.tokens import counter_for

PIECES = st.sampled_from([
    "a", "`", '"', "\u201c", "\u201d", "; there: ", " said ", '` said "', ", ", ": ", "\n", "\r", "\u2028",
    "+ ", "- ", "#1 ", " ", "m1234 ", "user: ", "seen in ", "tests passed: x", "more from `", lines.HEADING,
    "[kompakt] ", "/", "./", "~", ", before that ", "Files, below /x:", "\ud800", "\x00", "12", "\u202e",
    "exit code 1", "failed: `",
])  # fmt: skip
nasty = st.one_of(st.lists(PIECES, min_size=1, max_size=8).map("".join), st.text(min_size=1, max_size=30))
references = st.sampled_from(["m1234", "mabcd", "m00ff1", "m1234.2"])
said = st.lists(nasty.map(lambda text: quoted(text, 80)), max_size=4).map(tuple)
solid = nasty.map(keyed).filter(bool)
user_lines = nasty.map(lambda text: text.replace("\n", " ")).filter(bool)
origins = st.sampled_from(["Edit src/a.py", "fetch https://x/y", "a call", "x: y"])
numbers = st.lists(st.sampled_from(["12", "3.5", "90%", "1,024"]), min_size=1, max_size=3).map(", before that ".join)
outcomes = st.sampled_from(
    [
        "success",
        "failed",
        "failed, exit code 2",
        "success, before that failed",
        "failed, exit code 1, before that success",
    ]
)
ids = st.sampled_from(["abc1234", "PROJ-12", "0f8e7d6c-1111-2222-3333-444455556666"])


def of(kind: str, key: Any, relation: Any, notes: Any = None) -> st.SearchStrategy[Fact]:
    """Make facts of one kind."""
    return st.builds(Fact, st.just(kind), key, relation, references, st.just(()) if notes is None else notes)


any_fact = st.one_of(
    of("word", user_lines, st.just("")),
    of("question", nasty.map(harmless), st.just("")),
    of("remark", nasty.map(harmless), st.just("")),
    of(
        "task",
        nasty.map(harmless),
        st.sampled_from(["open", "in progress", "done", "dropped"]),
        st.sampled_from([(), ("7",)]),
    ),
    of("file", solid, st.sampled_from(OPERATIONS)),
    of(
        "file",
        st.sampled_from(["/w/p/a/b.py", "/w/p/a/c.py", "/w/p/a/d.py", "a/b.py", "./x/y", "/w/p//z/q"]),
        st.just("read"),
    ),
    of("command", solid, outcomes, said),
    of("failure", origins, st.just("failed"), said.filter(bool)),
    of("call", origins, st.just("called"), said.filter(bool)),
    of("test", nasty.map(harmless), st.sampled_from(["passed", "failed"])),
    of("value", nasty.map(harmless), numbers),
    of("id", ids, st.sampled_from(["the ticket", ""])),
    st.builds(Fact, st.just("remark"), nasty.map(harmless), st.just(""), st.just("")),
)


def bare(facts: list[Fact]) -> list[Fact]:
    """Leave out where facts come from, which is not written, and their order."""
    order = {kind: number for number, (kind, _) in enumerate(lines.SECTIONS)}
    found = [msgspec.structs.replace(fact, at=-1) for fact in facts]
    return sorted(found, key=lambda fact: (order[fact.kind], *map(str, msgspec.structs.astuple(fact)[1:5])))


class TestReadingAgain:
    @given(st.lists(any_fact, max_size=12), st.booleans())
    @settings(max_examples=600)
    @example([Fact("command", 'x` y "z', "success", "m1234", ('"a"', '\u201cb "c" d\u201d', '"` said e"'))], False)
    @example([Fact("test", "a, b", "passed", "m1234"), Fact("test", "c", "passed", "m1234")], False)
    def test_the_same_facts(self, found: list[Fact], is_rooted: bool) -> None:
        """Whatever a key, a quotation or a sentence holds, nothing is lost, added or mistaken for something else."""
        facts = merge(found)
        root = Roots(fact.key for fact in facts if fact.kind == "file").best if is_rooted else ""
        known = parsing.read(lines.write(facts, {}, (), root))
        assert bare(known.facts) == bare(facts)
        assert known.narrative == [] and known.names == []

    @given(st.lists(any_fact, max_size=8), st.data())
    def test_names_stay_with_their_facts(self, found: list[Fact], data: st.DataObject) -> None:
        """Names behind a file or a command, and on lines of their own, come back with their place."""
        facts = merge(found)
        bearers = [fact for fact in facts if fact.kind in ("file", "command")]
        chosen = data.draw(st.lists(st.sampled_from(bearers), unique=True)) if bearers else []
        words = 'uses fooBar and "x; there: y" bar_baz'
        told = {(fact.kind, fact.key): f"{lines.THERE}{words}" for fact in chosen}
        loose = ['m77aa seen in fetch x: "a: b" uses bar_baz', "m77aa seen in the answer: foo_bar"]
        known = parsing.read(lines.write(facts, told, loose))
        expected = [Names(fact.kind, fact.key, words, fact.reference) for fact in chosen]
        expected.append(Names("", "seen in fetch x", '"a: b" uses bar_baz', "m77aa"))
        expected.append(Names("", "seen in the answer", "foo_bar", "m77aa"))
        assert sorted(known.names, key=repr) == sorted(expected, key=repr)
        assert bare(known.facts) == bare(facts)

    @given(st.lists(any_fact, max_size=6), st.lists(any_fact, max_size=6))
    def test_two_ledgers_one_after_the_other(self, first: list[Fact], second: list[Fact]) -> None:
        """Pivots of several passes are read as if one had written them."""
        ledgers = [lines.write(merge(facts), {}, ()) for facts in (first, second)]
        known = parsing.read("\n".join(["It went well.", ledgers[0], "Then more.", ledgers[1]]))
        assert bare(known.facts) == bare([*merge(first), *merge(second)])
        assert known.narrative == ["It went well.", "Then more."]

    @given(nasty, st.sampled_from(["/w/p", "/w", ""]))
    def test_paths_below_a_root(self, path: str, root: str) -> None:
        """Every path is the same again."""
        for one in (path, f"{root}/{path}"):
            assert absolute(below(one, root), root) == one


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.booleans(), nasty), lambda v: st.lists(v, max_size=3), max_leaves=5
)
fields = st.dictionaries(
    st.sampled_from(
        ["path", "file_path", "paths", "command", "cmd", "commands", "old", "new", "content", "todos", "status",
         "subject", "question", "questions", "taskId", "id", "patch", "input", "url", "pattern", "", "\ud800"]
    ),
    st.one_of(values, st.lists(st.dictionaries(st.sampled_from(["content", "status", "question"]), nasty), max_size=3)),
    max_size=5,
)  # fmt: skip
inputs = st.one_of(fields, values, fields.map(str), nasty.map(lambda text: '{"command": "' + text))
parts = st.one_of(
    st.builds(Text, nasty),
    st.builds(ToolCall, st.sampled_from("abc"), nasty, inputs),
    st.builds(ToolResult, st.sampled_from("abc"), nasty, is_error=st.booleans()),
)
odd = st.lists(
    st.builds(
        Message, st.sampled_from(["user", "assistant", "tool", "system"]), st.lists(parts, max_size=4).map(tuple)
    ),
    max_size=12,
)


class TestAnyHistory:
    @given(st.one_of(odd, malformed), st.integers(0, 600), st.one_of(st.none(), nasty))
    @settings(max_examples=400)
    def test_never_raises_and_never_exceeds_its_room(
        self, messages: list[Message], room: int, earlier: str | None
    ) -> None:
        """Whatever was sent: a ledger that fits, the same twice, whose own lines are facts again."""
        text = tell(messages, room, earlier=earlier)
        assert counter_for(None).text(text) <= room or text == ""
        assert text == tell(messages, room, earlier=earlier)
        if text:
            assert text.startswith(lines.HEADING)
            assert parsing.read(text).narrative == []

    @given(odd)
    def test_reading_and_writing_again_adds_nothing(self, messages: list[Message]) -> None:
        """A pass that has nothing new keeps every fact as it is."""
        text = tell(messages)
        again = tell([], earlier=text)
        assert bare(parsing.read(again).facts) == bare(parsing.read(text).facts)

    def test_the_same_in_another_process(self) -> None:
        """Nothing depends on how strings are hashed."""
        script = (
            "from tests.engine.ledgers import tell, ran\nfrom tests.engine.sessions import session\n"
            "from kompakt.engine.ledger.size_estimate import weight\n"
            "output = ' '.join(f'name_{i}.py src/dir_{i}/file_{i}' for i in range(300))\n"
            "m = [*session(3, 4), *ran('make x_1', output)]\n"
            "print(tell(m, 900), [weight(one) for one in m])"
        )
        told = {
            subprocess.run(
                [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True, check=True, text=True, timeout=60,
            ).stdout
            for seed in ("1", "2", "3")
        }  # fmt: skip
        assert len(told) == 1 and len(told.pop()) > 1000

    def test_what_is_open_is_told_when_it_is_answered(self) -> None:
        """A call that was hidden before its answer came is not forgotten."""
        messages = [user(), *ran("make all", "Exit code 1")]
        ledger = Ledger()
        for upto, expected in ((2, False), (3, True)):
            ledger.read(messages, upto, lambda _: True)
            order = Order(10_000, len, lambda _: True, lambda index: f"m000{index}", upto, lambda: "")
            assert ("failed, exit code 1: `make all`" in ledger.write(order)) is expected

    def test_an_earlier_narrative_is_kept_over_passes(self) -> None:
        """What a summariser told stays, as lines that assert nothing, however often it is folded in."""
        text = "We fixed the parser.\nm1234 user: always push to main\nFiles:\n+ deleted src/a.py"
        for number in range(4):
            text = tell([*did({"path": f"src/f{number}.py"}), assistant("Next.")], earlier=text)
        known = parsing.read(text)
        told = [fact.key for fact in known.facts if fact.kind == "remark" and not fact.reference]
        assert told == ["We fixed the parser.", "m1234 user: always push to main", "Files:", "+ deleted src/a.py"]
        assert not [fact for fact in known.facts if fact.kind == "word" or fact.key == "src/a.py"]


class TestStages:
    @given(odd, st.data())
    @settings(max_examples=200)
    def test_what_left_first_does_not_matter(self, messages: list[Message], data: st.DataObject) -> None:
        """A ledger that was written again and again as messages left the view says what one written at the end says."""
        self.check(messages, data.draw(st.permutations(range(len(messages)))))

    def test_a_file_deleted_before_its_making_left(self) -> None:
        """The last thing that happened is told, not the last that left."""
        made = [*did({"path": "a/b.py", "content": "x"}), *ran("rm a/b.py"), *ran("make", "Exit code 1"), *ran("make")]
        text = self.check(made, [2, 3, 6, 7, 4, 5, 0, 1])
        assert "deleted a/b.py" in text and "success, before that failed: `make`" in text

    @staticmethod
    def check(messages: list[Message], leaving: list[int]) -> str:
        """Let messages leave in some order, writing each time; the last text is that of a new ledger."""
        names = References(messages).names
        written = [Ledger(), Ledger()]
        text = ""
        for ledger, counts in zip(written, (range(len(leaving) + 1), [len(leaving)]), strict=True):
            ledger.read(messages, len(messages), speaks)
            before = text
            for count in counts:
                gone = frozenset(leaving[:count])
                shown = [message.text for index, message in enumerate(messages) if index not in gone]
                order = Order(800, len, gone.__contains__, names.__getitem__, len(messages), shown.copy)
                text = ledger.write(order)
        assert text == before
        return text

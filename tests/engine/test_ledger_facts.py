"""Later facts take the place of earlier ones, weigh what they would be missed for, and name where they were seen."""

from __future__ import annotations

import pytest
from tests.engine.ledgers import did, facts, files, keys, merge, ran, tell
from tests.engine.sessions import REFERENCE
from tests.histories.messages import assistant, user

from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.format import HEADING
from kompakt.model.messages import Message
from kompakt.model.references import References
from kompakt.model.tokens import counter_for

READ = {"path": "src/a.py"}
EDIT = {"path": "src/a.py", "old": "x", "new": "y"}
WRITE = {"path": "src/a.py", "content": "x"}


def file(*relations: str) -> str:
    """Say what became of a file after so many operations."""
    [fact] = merge(Fact("file", "a.py", relation, f"m000{n}") for n, relation in enumerate(relations))
    return fact.relation


def many(count: int, start: int = 0) -> list[Message]:
    """Make commands that nobody would miss."""
    return [m for n in range(start, start + count) for m in ran(f"make target_{n}", f"built target_{n} in dir_{n}/out")]


class TestSupersession:
    @pytest.mark.parametrize(
        ("operations", "told"),
        [
            (["modified", "modified"], "modified"),
            (["read", "modified", "read"], "modified"),
            (["created", "modified"], "created and modified"),
            (["created", "created"], "created and modified"),
            (["created and modified", "modified", "read"], "created and modified"),
            (["read", "created"], "modified"),
            (["modified", "deleted"], "deleted"),
            (["deleted", "created"], "created"),
            (["deleted", "read"], "read"),
        ],
    )
    def test_of_files(self, operations: list[str], told: str) -> None:
        """A file has one line, which says what is so now."""
        assert file(*operations) == told

    def test_a_file_modified_twice_is_one_line(self) -> None:
        """However often a file is touched, it is told once."""
        messages = [*did(READ), *did(EDIT), *did(EDIT), *did(READ)]
        assert files(messages) == {"src/a.py": "modified"} and tell(messages).count("src/a.py") == 1

    def test_a_file_that_was_there_is_changed_by_writing_it(self) -> None:
        """Writing the whole of a file that was read before does not create it."""
        assert files([*did(READ), *did(WRITE)]) == {"src/a.py": "modified"}

    def test_a_command_that_failed_and_then_worked(self) -> None:
        """The last outcome leads, the one before stays, and so does what was said then."""
        messages = [*ran("make", "Error: x\nExit code 1"), *ran("make"), *ran("make")]
        [fact] = facts(messages, "command")
        assert fact.relation == "success, before that failed" and '"Error: x"' in fact.notes

    def test_a_command_that_only_failed(self) -> None:
        """The same outcome twice is not told twice."""
        [fact] = facts([*ran("make", "Exit code 1"), *ran("make", "Exit code 2")], "command")
        assert fact.relation == "failed, exit code 2"

    def test_runs_of_one_command_do_not_pile_up(self) -> None:
        """What a command said is bounded, the newest is kept."""
        messages = [m for n in range(200) for m in ran("make", f"error: case {n}")]
        [fact] = facts(messages, "command")
        assert len(fact.notes) <= 24 and fact.notes[-1] == '"error: case 199"'

    def test_values_with_what_they_were(self) -> None:
        """The newest value leads; the same value again is no news."""
        texts = ("batch_size is 32", "batch_size is 64", "batch_size is 64")
        [fact] = facts([assistant(text) for text in texts], "value")
        assert (fact.key, fact.relation) == ("batch_size", "64, before that 32")


class TestIds:
    def test_an_id_with_its_words(self) -> None:
        """An id that the agent used is told with words of the line where it stood, quoted when a tool said them."""
        messages = [*ran("git log", "commit abc1234 repairs nightly import\n"), *ran("git show abc1234", "x")]
        assert [(fact.key, fact.relation) for fact in facts(messages, "id")] == [("abc1234", '"commit"')]
        said = [user("Look at ticket PROJ-17 first."), assistant("PROJ-17 it is.")]
        assert [(fact.key, fact.relation) for fact in facts(said, "id")] == [("PROJ-17", "Look ticket")]

    def test_an_id_keeps_the_words_that_it_first_came_with(self) -> None:
        """Later ones may say less of it."""
        [fact] = merge([Fact("id", "a1b2c3d", "agent of tests", "m0001"), Fact("id", "a1b2c3d", "task", "m0002")])
        assert fact.relation == "agent of tests" and fact.reference == "m0002"

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("It has agent_lines: 4617 now.", ["agent_lines"]),
            ("The error is at line: 4617.", []),
            ("We now see 38 instead of 50 rows.", []),
        ],
    )
    def test_what_is_a_value(self, text: str, told: list[str]) -> None:
        """A count of lines is one; a place and a comparison are none."""
        assert keys([assistant(text)], "value") == told

    def test_an_id_that_nobody_used(self) -> None:
        """Those that only stand in an output are not worth a line."""
        assert facts(ran("git log", "commit abc1234 repairs the import"), "id") == []


class TestTasks:
    def test_a_list_restated(self) -> None:
        """Each item with its newest state, whatever the tool calls its keys."""
        first = {
            "todos": [{"content": "Write it", "status": "in_progress"}, {"content": "Test it", "status": "pending"}]
        }
        second = {"plan": [{"step": "Write it", "status": "completed"}, {"step": "Test it", "status": "in_progress"}]}
        told = {fact.key: fact.relation for fact in facts([*did(first), *did(second)], "task")}
        assert told == {"Write it": "done", "Test it": "in progress"}

    def test_single_tasks_by_their_number(self) -> None:
        """The answer to a creation gives the number that later calls use."""
        messages = [
            *did({"subject": "Fix the parser", "description": "It breaks"}, "Task #3 created", name="TaskCreate"),
            *did({"taskId": "3", "status": "completed"}, "Updated", name="TaskUpdate"),
        ]
        assert [(fact.key, fact.relation) for fact in facts(messages, "task")] == [("Fix the parser", "done")]

    def test_a_number_is_known_to_the_next_pass(self) -> None:
        """The creation is long gone when the task is done."""
        created = tell(did({"subject": "Fix the parser"}, "Task #3 created", name="TaskCreate"))
        messages = did({"taskId": 3, "status": "completed"}, "Updated", name="TaskUpdate")
        [fact] = facts(messages, "task", earlier=created)
        assert (fact.key, fact.relation, fact.notes) == ("Fix the parser", "done", ("3",))

    def test_a_failed_call_changes_no_task(self) -> None:
        """What was refused did not happen."""
        assert facts(did({"todos": [{"content": "Write it", "status": "done"}]}, failed=True), "task") == []


class TestQuestions:
    def test_one_that_waits(self) -> None:
        """A question that ends an answer and that the user has not followed is open."""
        assert keys([user(), assistant("I see two ways. Which one?")], "question") == ["Which one?"]

    def test_one_that_was_followed(self) -> None:
        """When the user spoke, nothing waits any more; neither for a later pass."""
        asked = [user(), assistant("Which one?")]
        assert keys([*asked, user("The first.")], "question") == []
        assert keys([user("The first.")], "question", earlier=tell(asked)) == []

    def test_a_question_to_somebody_else(self) -> None:
        """A tool that is asked something is not the user."""
        for messages in (did({"question": "Where is x?"}, name="search"), did({"question": "Where is x?"})[:1]):
            assert keys(messages, "question") == []


class TestWeights:
    RULE = "Never touch the migration files, they are applied already."

    def history(self, noise: int) -> list[Message]:
        """Put a rule and a change before much that is less worth."""
        return [user(self.RULE), *did(EDIT, name="edit"), *many(noise)]

    @pytest.mark.parametrize("room", [90, 120, 200, 1000])
    def test_rules_and_changes_survive_the_smallest_rooms(self, room: int) -> None:
        """They are there as soon as there is room for a line or two."""
        text = tell(self.history(300), room)
        assert self.RULE in text and "modified src/a.py" in text
        assert counter_for(None).text(text) <= room

    @pytest.mark.parametrize("room", [0, 1, 10, 20])
    def test_no_room_no_ledger(self, room: int) -> None:
        """What does not fit is not written, not even its heading."""
        assert tell(self.history(3), room) == ""

    def test_what_was_read_is_told_before_commands(self) -> None:
        """A command costs as much as three files."""
        text = tell([user("Go."), *did(READ), *many(100)], 400)
        assert "read src/a.py" in text and 0 < text.count("success: ") < 100

    def test_more_room_tells_more(self) -> None:
        """Room is used, and facts never go when it grows."""
        sizes = [
            len(facts_in) for room in (200, 400, 800, 1600) if (facts_in := tell(self.history(300), room).split("\n"))
        ]
        assert sizes == sorted(sizes) and len(set(sizes)) == 4


class TestReferences:
    def test_every_line_names_a_message(self) -> None:
        """Each fact begins with a reference, or with the sign for the one before, and each names its message."""
        messages = [user("Use port 8080 only."), *did(EDIT), *many(40), assistant("The limit is 250. Shall I go on?")]
        names = References(messages)
        lines = tell(messages).split("\n")
        assert lines[0] == HEADING
        for line in lines[1:]:
            assert line.endswith(":") or line.startswith("+ ") or REFERENCE.match(line), line
        found = {reference for line in lines if (match := REFERENCE.match(line)) and (reference := match[0])}
        assert found and all(names.find(reference) is not None for reference in found)

    def test_a_fact_names_its_own_message(self) -> None:
        """The reference of a file leads to the call that changed it, the one of a rule to the user's message."""
        messages = [user("go"), *did(READ), user("Never push."), *did(EDIT)]
        names = References(messages)
        told = {fact.key: names.find(fact.reference) for fact in facts(messages)}
        assert told["Never push."] == 3 and told["src/a.py"] == 4

"""Facts: what the definitions say yes and no to, and when a fact counts as told."""

from __future__ import annotations

import pytest
from tests.evals.sample_sessions import Script, busy

from kompakt.evals.facts import KINDS, OperationalFact
from kompakt.evals.facts.constraints import constraints
from kompakt.evals.facts.fact import surroundings
from kompakt.evals.facts.shell import operations


def found(script: Script, kind: str) -> dict[str, str]:
    return {fact.key: fact.relation for fact in script.case().facts if fact.kind == kind}


class TestPaths:
    def test_an_edit_modifies(self) -> None:
        """The last two components name the file."""
        script = (
            Script().user("go").call("Edit", {"file_path": "/x/a/b.go", "old_string": "1", "new_string": "2"}, "ok")
        )
        assert found(script, "modified") == {"a/b.go": "modified"}

    def test_a_path_that_a_search_printed_is_no_fact(self) -> None:
        """Neither the directory that was searched nor what came out of it."""
        script = Script().user("go").call("Grep", {"pattern": "x", "path": "/x/a"}, "/x/a/b.go\n/x/a/c.go")
        assert [fact for fact in script.case().facts if fact.kind in ("read", "modified", "created")] == []

    def test_a_failed_edit_changed_nothing(self) -> None:
        """Only calls that worked did something."""
        given = {"file_path": "/x/a/b.go", "old_string": "1", "new_string": "2"}
        assert found(Script().user("go").call("Edit", given, "no match", error=True), "modified") == {}

    def test_a_whole_content_creates_and_later_modifies(self) -> None:
        """A file that is known is not new."""
        script = Script().user("go")
        script.call("Write", {"file_path": "a/n.md", "content": "1"}, "ok")
        script.call("Write", {"file_path": "a/n.md", "content": "2"}, "ok")
        assert found(script, "created") == {"a/n.md": "created"}
        assert found(script, "modified") == {"a/n.md": "modified"}

    @pytest.mark.parametrize(
        ("order", "kind"),
        [("view", "read"), ("create", "created"), ("str_replace", "modified"), ("insert", "modified")],
    )
    def test_editors_that_take_orders(self, order: str, kind: str) -> None:
        """One tool with a command in its input is told by the command."""
        script = Script().user("go").call("editor", {"command": order, "path": "/x/a/b.c"}, "1 int main;")
        assert found(script, kind) == {"a/b.c": kind}

    def test_patches(self) -> None:
        """An envelope says per file what is done."""
        patch = "*** Begin Patch\n*** Add File: a/new.py\n+x\n*** Update File: a/old.py\n*** Delete File: a/gone.py\n"
        script = Script().user("go").call("apply_patch", {"input": f"{patch}*** End Patch"}, "Done")
        assert found(script, "created") == {"a/new.py": "created"}
        assert found(script, "modified") == {"a/old.py": "modified"}
        assert found(script, "deleted") == {"a/gone.py": "deleted"}

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("rm a/b.txt", [("deleted", "a/b.txt")]),
            ("rm -rf build/out && ls", [("deleted", "build/out")]),
            ("git mv x.py y.py", []),
            ("mv a/x.py a/y.py", [("deleted", "a/x.py"), ("created", "a/y.py")]),
            ("echo hi > a/out.txt", [("created", "a/out.txt")]),
            ("echo hi >> a/out.txt", [("modified", "a/out.txt")]),
            ("make 2>&1 | tee log/all.txt", [("created", "log/all.txt")]),
            ("make > /dev/null 2>&1", []),
            ("make 2> err.txt", []),
            ("sed -i 's/a/b/' src/x.py", [("modified", "src/x.py")]),
            ("sed -n '1,4p' src/x.py", [("read", "src/x.py")]),
            ("cat <<'EOF' > a/n.py\nrm other.py\nEOF", [("created", "a/n.py")]),
            ("grep -r 'rm a/b.txt' .", []),
            ("echo 'open quote", []),
        ],
    )
    def test_shell_commands(self, command: str, expected: list[tuple[str, str]]) -> None:
        """What a command plainly does to files."""
        assert list(operations(command)) == expected


class TestCommands:
    def test_outcomes(self) -> None:
        """The error flag and exit codes say how a command ended."""
        script = Script().user("go")
        script.call("Bash", {"command": "make all\nmake more"}, "built")
        script.call("Bash", {"command": "make test"}, "boom", error=True)
        script.call("sh", {"command": "make lint"}, "oops\n[The command completed with exit code 2.]")
        script.call("shell", {"command": ["bash", "-lc", "make doc"]}, '{"output": "x", "metadata": {"exit_code": 0}}')
        script.call("Bash", {"command": "sleep 100"}, "Command running in background with ID: 7")
        assert found(script, "command") == {
            "make all": "success",
            "make test": "failure",
            "make lint": "failure",
            "make doc": "success",
        }

    def test_sixty_characters_of_the_first_line(self) -> None:
        """A long command is known by its beginning."""
        script = Script().user("go").call("Bash", {"command": "x" * 100 + "\nsecond"}, "")
        assert list(found(script, "command")) == ["x" * 60]


class TestErrors:
    @pytest.mark.parametrize(
        "line",
        ["error: no such file", "FAIL\texample.com/x", "--- FAIL: TestA (0.0s)", "panic: nil map", "fatal: bad object",
         "ValueError: too small", "Exit code 1", "src/a.c:3:1: error: expected ;"],
    )  # fmt: skip
    def test_lines_that_report_a_failure(self, line: str) -> None:
        """Each is kept verbatim."""
        script = Script().user("go").call("Bash", {"command": "make test"}, f"start\n{line}\nend")
        assert line in found(script, "error")

    def test_what_was_read_reports_nothing(self) -> None:
        """The words of a file are not a failure."""
        script = Script().user("go").call("Read", {"file_path": "a/log.txt"}, "error: old news")
        script.call("Bash", {"command": "cat a/log.txt"}, "error: old news")
        script.call("Bash", {"command": "git diff"}, "error: old news")
        assert found(script, "error") == {}

    def test_it_must_stand_near_its_source(self) -> None:
        """A line alone is not told."""
        (fact,) = [one for one in busy().case().facts if one.key == "error: header missing"]
        assert fact.stated_in("pytest -q tests/test_parser.py gave error: header missing")
        assert not fact.stated_in("error: header missing")

    def test_eighty_characters(self) -> None:
        """A long line is cut."""
        script = Script().user("go").call("Bash", {"command": "make"}, "error: " + "y" * 200)
        assert [len(key) for key in found(script, "error")] == [80]


class TestConstraints:
    @pytest.mark.parametrize(
        "text",
        ["don't touch the migration files", "Please never push.", "Use tabs instead of spaces here",
         "You must keep the old name", "make sure the tests pass"],
    )  # fmt: skip
    def test_yes(self, text: str) -> None:
        """Sentences that forbid, demand or restrict."""
        assert list(constraints(f"Hello there. {text}\nThanks")) == [text]

    @pytest.mark.parametrize(
        "text",
        ["<system-reminder>\nYou must never say this.\n</system-reminder>", "```\nyou must not\n```", "must not!",
         "2024-01-01 12:00:00 must never happen again", "x " * 200 + "must", "Mend the parser, please."],
    )  # fmt: skip
    def test_no(self, text: str) -> None:
        """Reminders, code, logs, and what is too short or too long."""
        assert list(constraints(text)) == []

    def test_the_same_words_of_a_tool_are_none(self) -> None:
        """Only users constrain."""
        script = Script().user("go").call("Read", {"file_path": "a/b.md"}, "You must never change this file.")
        script.says("I must never do that again.")
        assert found(script, "constraint") == {}

    def test_an_agents_summary_is_not_the_user(self) -> None:
        """It stands in the user's place and says other people's words."""
        script = Script().user("Summary: the user said never to push to main.")
        session = script.session(summaries=frozenset([0]))
        from tests.evals.sample_sessions import whole

        from kompakt.evals.case import record

        assert [fact for fact in whole(record(session)).facts if fact.kind == "constraint"] == []


class TestTasksAndNames:
    def test_the_newest_state_counts(self) -> None:
        """A task that was open and is done is done."""
        script = Script().user("go")
        script.call("todo", {"items": [{"content": "write tests", "status": "pending"}]}, "ok")
        script.call("todo", {"items": [{"content": "write tests", "status": "completed"}]}, "ok")
        assert found(script, "task") == {"write tests": "done"}

    def test_tasks_by_number(self) -> None:
        """One call makes a task, another closes it."""
        script = Script().user("go")
        script.call("TaskCreate", {"subject": "Add the index", "description": "…"}, "Task #4 created successfully")
        script.call("TaskUpdate", {"taskId": "4", "status": "in_progress"}, "ok")
        assert found(script, "task") == {"Add the index": "open"}
        script.call("TaskUpdate", {"taskId": "4", "status": "completed"}, "ok")
        assert found(script, "task") == {"Add the index": "done"}

    def test_numbers_and_ids(self) -> None:
        """A number has its key, an id what it names, once it is used."""
        assert found(busy(), "number") == {"4821": "total size", "250": "retry_limit"}
        (named,) = found(busy(), "id").items()
        assert named[0] == "4fa81c2"
        assert "header" in named[1]

    def test_an_id_that_nobody_uses_is_none(self) -> None:
        """What a log merely lists is not operational."""
        script = Script().user("go").call("Bash", {"command": "git log"}, "4fa81c2 Mend header\n9bc0d11 Begin")
        assert found(script, "id") == {}


class TestTold:
    def test_the_relation_must_be_near(self) -> None:
        """200 characters either side, no further."""
        fact = OperationalFact("modified", "a/b.go", "modified", "modif|edit")
        assert fact.stated_in("modified a/b.go")
        assert fact.stated_in("a/b.go" + " " * 150 + "was edited")
        assert not fact.stated_in("modified" + " " * 250 + "a/b.go")
        assert not fact.stated_in("a/b.go")

    def test_a_piece_of_a_name_is_no_relation(self) -> None:
        """A list of identifiers says nothing about the files in it."""
        (fact,) = [one for one in busy().case().facts if one.kind == "modified"]
        assert fact.stated_in("src/parser.py was edited")
        assert not fact.stated_in("edit_mode\nsrc/parser.py\nis_modified\nlib/edit.go\nwrite()")

    def test_a_key_is_found_as_a_whole(self) -> None:
        """Not inside a longer name."""
        assert list(surroundings("xa/b.gox a/b.gone", "a/b.go", 3)) == []
        assert len(list(surroundings("/x/a/b.go:3 (a/b.go)", "a/b.go", 3))) == 2

    def test_a_call_with_its_result_tells(self) -> None:
        """What stands unchanged needs no words."""
        fact = OperationalFact("command", "make", "success", "ok", ("toolu_1",))
        assert fact.stated_in("", frozenset(["toolu_1"]))
        assert not fact.stated_in("make", frozenset(["toolu_2"]))

    def test_every_kind_is_found(self) -> None:
        """The invented session has one of each."""
        assert {fact.kind for fact in busy().case().facts} == set(KINDS)

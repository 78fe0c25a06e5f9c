"""Facts: what counts as one, and when a text states it."""

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
    def test_an_edit_modifies_a_file(self) -> None:
        """The key has the last two components of the path."""
        script = (
            Script().user("go").call("Edit", {"file_path": "/x/a/b.go", "old_string": "1", "new_string": "2"}, "ok")
        )
        assert found(script, "modified") == {"a/b.go": "modified"}

    def test_paths_in_search_output_are_not_facts(self) -> None:
        script = Script().user("go").call("Grep", {"pattern": "x", "path": "/x/a"}, "/x/a/b.go\n/x/a/c.go")
        assert [fact for fact in script.case().facts if fact.kind in ("read", "modified", "created")] == []

    def test_a_failed_edit_is_not_a_fact(self) -> None:
        given = {"file_path": "/x/a/b.go", "old_string": "1", "new_string": "2"}
        assert found(Script().user("go").call("Edit", given, "no match", error=True), "modified") == {}

    def test_writing_creates_a_file_and_later_modifies_it(self) -> None:
        script = Script().user("go")
        script.call("Write", {"file_path": "a/n.md", "content": "1"}, "ok")
        script.call("Write", {"file_path": "a/n.md", "content": "2"}, "ok")
        assert found(script, "created") == {"a/n.md": "created"}
        assert found(script, "modified") == {"a/n.md": "modified"}

    @pytest.mark.parametrize(
        ("order", "kind"),
        [("view", "read"), ("create", "created"), ("str_replace", "modified"), ("insert", "modified")],
    )
    def test_editor_tools_with_subcommands(self, order: str, kind: str) -> None:
        script = Script().user("go").call("editor", {"command": order, "path": "/x/a/b.c"}, "1 int main;")
        assert found(script, kind) == {"a/b.c": kind}

    def test_patches_state_the_operation_per_file(self) -> None:
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
    def test_file_operations_of_shell_commands(self, command: str, expected: list[tuple[str, str]]) -> None:
        assert list(operations(command)) == expected


class TestCommands:
    def test_outcomes_come_from_error_flags_and_exit_codes(self) -> None:
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

    def test_a_command_is_cut_to_sixty_characters_of_its_first_line(self) -> None:
        """It is cut after a word, because a partial word is never found as a whole one."""
        script = Script().user("go").call("Bash", {"command": "x" * 100 + "\nsecond"}, "")
        script.call("Bash", {"command": "run " + "word-" * 20}, "")
        keys = list(found(script, "command"))
        assert keys == ["x" * 60, "run " + "word-" * 11]
        assert [one.stated_in("Ran `run " + "word-" * 20 + "` → done") for one in script.case().facts] == [False, True]

    @pytest.mark.parametrize(
        "command",
        ["ls -la src", "git diff --stat", "cd /x && git log --oneline | head -5", "grep -rn main src | wc -l"],
    )
    def test_a_command_that_only_prints_is_not_a_fact(self, command: str) -> None:
        script = Script().user("go").call("Bash", {"command": command}, "x")
        script.call("Bash", {"command": command}, "no such file", error=True)
        assert found(script, "command") == {}

    def test_a_filter_of_the_output_is_not_part_of_a_command(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make test 2>&1 | tail -20"}, "x")
        script.call("Bash", {"command": "make test 2>&1 | grep -v skip | head -5"}, "x")
        assert found(script, "command") == {"make test": "success"}

    @pytest.mark.parametrize(
        "command", ["git commit -m x", "go build ./...", "cat a.txt > b.txt", "git branch && make"]
    )
    def test_a_command_that_does_something_is_a_fact(self, command: str) -> None:
        assert found(Script().user("go").call("Bash", {"command": command}, ""), "command") == {command: "success"}

    def test_an_arrow_to_the_output_states_success(self) -> None:
        (fact,) = Script().user("go").call("Bash", {"command": 'make "all"'}, "").case().facts
        assert fact.stated_in("- Ran `make 'all'` → no output")
        assert not fact.stated_in("- Failed: `make 'all'`: no rule")


class TestRefusals:
    ANSWER = "The user doesn't want to proceed with this tool use. The tool use was rejected."

    def test_the_reason_must_be_stated_word_for_word(self) -> None:
        answer = f"{self.ANSWER} To tell you how to proceed, the user said:\nno, I did not say commit"
        script = Script().user("go").call("Bash", {"command": "git commit"}, answer, error=True)
        (fact,) = script.case().facts
        assert (fact.kind, fact.key) == ("refusal", "no, I did not say commit")
        assert fact.stated_in("The user said: no, I did not say commit")
        assert not fact.stated_in("The user refused git commit")

    def test_a_refusal_without_a_reason_is_stated_with_its_call(self) -> None:
        script = (
            Script().user("go").call("Edit", {"file_path": "/x/a/b.go", "old_string": "1"}, self.ANSWER, error=True)
        )
        (fact,) = script.case().facts
        assert fact.stated_in("The user refused Edit `/x/a/b.go`")
        assert not fact.stated_in("edited /x/a/b.go")

    def test_a_refused_command_has_no_outcome(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make"}, self.ANSWER, error=True)
        assert found(script, "command") == {}
        assert found(script, "error") == {}


class TestErrors:
    @pytest.mark.parametrize(
        "line",
        ["error: no such file", "panic: nil map", "fatal: bad object",
         "ValueError: too small", "src/a.c:3:1: error: expected ;"],
    )  # fmt: skip
    def test_error_lines_are_kept_verbatim(self, line: str) -> None:
        script = Script().user("go").call("Bash", {"command": "make test"}, f"start\n{line}\nend")
        assert line in found(script, "error")

    def test_a_failed_test_is_not_an_error_line_as_well(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make test"}, "--- FAIL: TestA (0.0s)\nFAIL\nFAIL\tx/y")
        assert found(script, "error") == {}
        assert found(script, "test") == {"TestA": "failed", "x/y": "failed"}

    def test_a_bare_exit_code_is_an_outcome_and_not_an_error_line(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make test"}, "Exit code 1", error=True)
        assert found(script, "error") == {}
        assert found(script, "command") == {"make test": "failure"}

    def test_errors_in_read_files_are_not_facts(self) -> None:
        script = Script().user("go").call("Read", {"file_path": "a/log.txt"}, "error: old news")
        script.call("Bash", {"command": "cat a/log.txt"}, "error: old news")
        script.call("Bash", {"command": "git diff"}, "error: old news")
        assert found(script, "error") == {}

    def test_an_error_line_needs_its_source(self) -> None:
        (fact,) = [one for one in busy().case().facts if one.key == "error: header missing"]
        assert fact.stated_in("pytest -q tests/test_parser.py gave error: header missing")
        assert not fact.stated_in("error: header missing")

    def test_an_error_line_is_cut_to_eighty_characters(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make"}, "error: " + "y" * 200)
        assert [len(key) for key in found(script, "error")] == [80]


class TestConstraints:
    @pytest.mark.parametrize(
        "text",
        ["don't touch the migration files", "Please never push.", "Use tabs instead of spaces here",
         "You must keep the old name", "make sure the tests pass"],
    )  # fmt: skip
    def test_sentences_that_forbid_or_require_are_constraints(self, text: str) -> None:
        assert list(constraints(f"Hello there. {text}\nThanks")) == [text]

    @pytest.mark.parametrize(
        "text",
        ["<system-reminder>\nYou must never say this.\n</system-reminder>", "```\nyou must not\n```", "must not!",
         "2024-01-01 12:00:00 must never happen again", "x " * 200 + "must", "Fix the parser, please."],
    )  # fmt: skip
    def test_reminders_code_logs_and_other_lengths_are_not_constraints(self, text: str) -> None:
        assert list(constraints(text)) == []

    def test_only_users_state_constraints(self) -> None:
        script = Script().user("go").call("Read", {"file_path": "a/b.md"}, "You must never change this file.")
        script.reply("I must never do that again.")
        assert found(script, "constraint") == {}

    def test_summaries_of_an_agent_are_not_constraints(self) -> None:
        script = Script().user("Summary: the user said never to push to main.")
        session = script.session(summaries=frozenset([0]))
        from tests.evals.sample_sessions import whole

        from kompakt.evals.case import record

        assert [fact for fact in whole(record(session)).facts if fact.kind == "constraint"] == []


class TestTasksAndNames:
    def test_a_task_has_its_latest_state(self) -> None:
        script = Script().user("go")
        script.call("todo", {"items": [{"content": "write tests", "status": "pending"}]}, "ok")
        script.call("todo", {"items": [{"content": "write tests", "status": "completed"}]}, "ok")
        assert found(script, "task") == {"write tests": "done"}

    def test_a_new_list_of_tasks_replaces_the_previous_one(self) -> None:
        script = Script().user("go")
        for title in ("Plan the work", "Write the parser"):
            script.call("TodoWrite", {"todos": [{"content": title, "status": "pending"}]}, "ok")
        assert found(script, "task") == {"Write the parser": "open"}

    def test_tasks_with_numbers(self) -> None:
        """One call creates a task, another changes its status."""
        script = Script().user("go")
        script.call("TaskCreate", {"subject": "Add the index", "description": "…"}, "Task #4 created successfully")
        script.call("TaskUpdate", {"taskId": "4", "status": "in_progress"}, "ok")
        assert found(script, "task") == {"Add the index": "open"}
        script.call("TaskUpdate", {"taskId": "4", "status": "completed"}, "ok")
        assert found(script, "task") == {"Add the index": "done"}

    def test_numbers_have_keys_and_used_ids_have_names(self) -> None:
        assert found(busy(), "number") == {"4821": "total size", "250": "retry_limit"}
        (named,) = found(busy(), "id").items()
        assert named[0] == "4fa81c2"
        assert "header" in named[1]

    def test_an_unused_id_is_not_a_fact(self) -> None:
        script = Script().user("go").call("Bash", {"command": "git log"}, "4fa81c2 Fix header\n9bc0d11 Begin")
        assert found(script, "id") == {}


class TestStatedIn:
    def test_a_passed_run_states_its_tests(self) -> None:
        script = Script().user("go").call("Bash", {"command": "go test ./..."}, "--- PASS: TestA (0.0s)\nok")
        (fact,) = [one for one in script.case().facts if one.kind == "test"]
        assert fact.stated_in('Passed: `go test ./...` → "ok"')
        assert not fact.stated_in("Failed: `go test ./...`")

    def test_a_failed_test_must_be_named(self) -> None:
        script = Script().user("go").call("Bash", {"command": "go test ./..."}, "--- FAIL: TestA (0.0s)", error=True)
        (fact,) = [one for one in script.case().facts if one.kind == "test"]
        assert not fact.stated_in("Failed: `go test ./...`")
        assert fact.stated_in("Failed: `go test ./...`: TestA")

    def test_the_relation_must_be_within_200_characters(self) -> None:
        fact = OperationalFact("modified", "a/b.go", "modified", "modif|edit")
        assert fact.stated_in("modified a/b.go")
        assert fact.stated_in("a/b.go" + " x" * 75 + " was edited")
        assert not fact.stated_in("modified" + " x" * 125 + " a/b.go")
        assert not fact.stated_in("a/b.go")

    def test_a_part_of_a_name_is_not_a_relation(self) -> None:
        (fact,) = [one for one in busy().case().facts if one.kind == "modified"]
        assert fact.stated_in("src/parser.py was edited")
        assert not fact.stated_in("edit_mode\nsrc/parser.py\nis_modified\nlib/edit.go\nwrite()")

    def test_a_key_is_not_found_inside_a_longer_name(self) -> None:
        assert list(surroundings("xa/b.gox a/b.gone", "a/b.go", 3)) == []
        assert len(list(surroundings("/x/a/b.go:3 (a/b.go)", "a/b.go", 3))) == 2

    def test_an_unchanged_call_states_its_facts(self) -> None:
        fact = OperationalFact("command", "make", "success", "ok", ("toolu_1",))
        assert fact.stated_in("", frozenset(["toolu_1"]))
        assert not fact.stated_in("make", frozenset(["toolu_2"]))

    def test_the_sample_session_has_every_kind(self) -> None:
        assert {fact.kind for fact in busy().case().facts} == set(KINDS)

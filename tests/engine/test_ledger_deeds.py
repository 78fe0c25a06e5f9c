"""What a call did is told by its shape, and only what plainly happened is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.ledgers import did, facts, files, ran, tell

from kompakt.engine.ledger.extract.outcomes import exit_code, failure_lines, speaks_of_tests
from kompakt.engine.ledger.extract.shell import file_operations
from kompakt.model.messages import ToolCall

PATCH = """*** Begin Patch
*** Update File: src/a.py
@@
-x
+y
*** Add File: src/b.py
+z
*** Delete File: src/c.py
*** End Patch"""
PATCHED = {"src/a.py": "modified", "src/b.py": "created", "src/c.py": "deleted"}

SHAPES: list[tuple[str, Any, dict[str, str]]] = [
    ("Read", {"file_path": "/w/a.py"}, {"/w/a.py": "read"}),
    ("Read", {"file_path": "/w/a.py", "offset": 3, "limit": 9}, {"/w/a.py": "read"}),
    ("Edit", {"file_path": "/w/a.py", "old_string": "x", "new_string": "y"}, {"/w/a.py": "modified"}),
    ("MultiEdit", {"file_path": "/w/a.py", "edits": [{"old": "x", "new": "y"}]}, {"/w/a.py": "modified"}),
    ("Write", {"file_path": "/w/a.py", "content": "x"}, {"/w/a.py": "created"}),
    ("NotebookEdit", {"notebook_path": "/w/a.ipynb", "new_source": "x"}, {"/w/a.ipynb": "modified"}),
    ("str_replace_editor", {"command": "view", "path": "/w/a.py"}, {"/w/a.py": "read"}),
    ("str_replace_editor", {"command": "create", "path": "/w/a.py", "file_text": "x"}, {"/w/a.py": "created"}),
    ("str_replace_editor", {"command": "str_replace", "path": "/w/a.py", "old_str": "x"}, {"/w/a.py": "modified"}),
    ("str_replace_editor", {"command": "insert", "path": "/w/a.py", "insert_line": 3}, {"/w/a.py": "modified"}),
    ("replace_in_file", {"path": "a/b.ts", "diff": "<<<"}, {"a/b.ts": "modified"}),
    ("edit_file", {"targetFile": "a/b.ts", "codeEdit": "x"}, {"a/b.ts": "modified"}),
    ("delete_file", {"filePath": "a/b.ts"}, {"a/b.ts": "deleted"}),
    ("rename_file", {"old_path": "a/b.ts", "new_path": "a/c.ts"}, {"a/b.ts": "deleted", "a/c.ts": "created"}),
    ("copy_file", {"source_path": "a/b.ts", "destination_path": "a/c.ts"}, {"a/c.ts": "created"}),
    ("read_many_files", {"paths": ["a/b.ts", "a/c.ts"]}, {"a/b.ts": "read", "a/c.ts": "read"}),
    ("apply_patch", PATCH, PATCHED),
    ("apply_patch", {"input": PATCH}, PATCHED),
    ("apply_patch", {"patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b"}, {"x.py": "modified"}),
    ("shell", {"command": ["apply_patch", PATCH]}, PATCHED),
    ("shell", {"command": ["bash", "-lc", "rm old/a.txt"]}, {"old/a.txt": "deleted"}),
    ("grep", {"pattern": "x", "path": "/w/a.py"}, {}),
    ("search_in_file", {"file": "/w/a.py", "text": "x"}, {}),
    ("list_directory", {"path": "/w/src"}, {}),
    ("create_directory", {"path": "/w/src"}, {}),
    ("run_tests", {"path": "tests/test_a.py"}, {}),
    ("runTests", {"path": "tests/test_a.py"}, {}),
]


@pytest.mark.parametrize(
    ("name", "given", "expected"), SHAPES, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(SHAPES)]
)
class TestShapes:
    def test_a_call_is_known_by_its_input(self, name: str, given: Any, expected: dict[str, str]) -> None:
        """Whatever a tool is called, what it did to which file follows from what it was given."""
        assert files(did(given, name=name)) == expected

    def test_arguments_as_text_say_the_same(self, name: str, given: Any, expected: dict[str, str]) -> None:
        """OpenAI's calls carry JSON text."""
        text = given if isinstance(given, str) else json.dumps(given)
        assert files(did(text, name=name)) == expected

    def test_what_failed_was_not_done(self, name: str, given: Any, expected: dict[str, str]) -> None:
        """A failed call changed nothing, and the failure is told."""
        messages = did(given, "Error: no such thing", name=name, failed=True)
        assert files(messages) == {}
        assert [fact.relation for fact in facts(messages) if fact.kind in ("command", "failure")] == ["failed"]

    def test_what_was_not_answered_was_not_done(self, name: str, given: Any, expected: dict[str, str]) -> None:
        """A call without an answer asserts nothing."""
        assert files(did(given, name=name)[:1]) == {}


SHELL: list[tuple[str, list[tuple[str, str]]]] = [
    ("rm -rf build/x.o lib/y.o", [("deleted", "build/x.o"), ("deleted", "lib/y.o")]),
    ("mv a.py b.py && cp c.py d/e.py", [("deleted", "a.py"), ("created", "b.py"), ("created", "d/e.py")]),
    ("echo hi > out.txt", [("created", "out.txt")]),
    ("echo hi >> out.txt 2>&1", [("modified", "out.txt")]),
    ("make 2> err.txt", []),
    ("sed -i 's/a/b/' src/x.py", [("modified", "src/x.py")]),
    ("sed -n '1,20p' src/x.py", [("read", "src/x.py")]),
    ("cat a.py | grep def > found.txt", [("read", "a.py"), ("created", "found.txt")]),
    ("cat <<'EOF' > x/y.py\nrm a.py > b.c\nEOF", [("created", "x/y.py")]),
    ("cat > x/y.py <<EOF\ncat z.py\nEOF\nrm w.py", [("created", "x/y.py"), ("deleted", "w.py")]),
    ("echo 'do; rm src/a.py'", []),
    ('git commit -m "drop it\nrm old.py\n; cat b.py > c.py"', []),
    ("cat a.py # then rm b.py; don't\nrm c.py", [("read", "a.py"), ("deleted", "c.py")]),
    ("true || rm src/a.py", []),
    ("false || rm a.py && rm b.py; rm c.py", [("deleted", "c.py")]),
    ("cat a.py 2>/dev/null; ls", []),
    ("for f in *.py; do rm $f; done", []),
    ("rm *.py out_$i.txt", []),
    ("echo x > out_$i.txt", []),
    ("python -c 'print(1 > 0)' > r.json", [("created", "r.json")]),
    ("awk '$1 > 5' a.txt", []),
    ("[[ a > b.txt ]] && ls", []),
    ("grep -rn 'x' src/a.py", []),
    ("ls > /dev/null", []),
    ('echo "never closed; rm a.py', []),
]


class TestShell:
    @pytest.mark.parametrize(("command", "expected"), SHELL, ids=[command[:30] for command, _ in SHELL])
    def test_only_what_is_plain(self, command: str, expected: list[tuple[str, str]]) -> None:
        """Words in quotes, documents and comments are no commands; a pattern names no file."""
        assert list(file_operations(command)) == expected

    def test_a_file_that_could_not_be_read_was_not(self) -> None:
        """The last command's success says nothing about the first."""
        output = "cat: gone/a.txt: No such file or directory\nok"
        assert files(ran("cat gone/a.txt; cat here/b.txt", output)) == {"here/b.txt": "read"}

    def test_a_relative_path_is_not_put_below_the_root(self) -> None:
        """The root is said once for absolute paths; where a relative one lies is not known."""
        messages = [m for n in range(4) for m in did({"file_path": f"/w/proj/src/deep/a{n}.py"}, id=f"c{n}")]
        messages += ran("cd other && rm lib/x.py")
        found = files(messages)
        assert found["lib/x.py"] == "deleted" and found["/w/proj/src/deep/a0.py"] == "read"
        assert "./lib/x.py" in tell(messages) and tell(messages).count("/w/proj/src") == 1


EXITS: list[tuple[str, int | None]] = [
    ("Exit code 1\nwhy", 1),
    ("Exit code: 0\nWall time: 0.4 seconds\nOutput:\nreturned with code 3", 0),
    ("Chunk: 1\nWall time: 1 s\nProcess exited with code 2\nOutput:\nx", 2),
    ("x\n[The command completed with exit code 0.]", 0),
    ("x\n[exit 3]", 3),
    ('{"output":"x","metadata":{"exit_code":1,"duration_seconds":0.1}}', 1),
    ("<returncode>1</returncode>\n<output>x</output>", 1),
    ("Error: Process completed with exit code 1.", 1),
    ("Command failed with exit code 127: foo", 127),
    ("It returns exit code 2 when the file is missing.", None),
    ("the function returned 12 rows", None),
    ("return 42", None),
    ("line\n" * 200 + "Exit code 1\n" + "line\n" * 200, None),
]


class TestOutcomes:
    @pytest.mark.parametrize(("output", "code"), EXITS, ids=[output[:24] for output, _ in EXITS])
    def test_exit_codes(self, output: str, code: int | None) -> None:
        """A line of its own at either end says how a command went; prose about exit codes does not."""
        assert exit_code(output) == code

    def test_the_text_of_a_file_says_nothing_about_its_reading(self) -> None:
        """A document that mentions an exit code was read all the same."""
        messages = did({"path": "docs/exits.md"}, "Exit code 1\nmeans that it failed", name="read_file")
        assert files(messages) == {"docs/exits.md": "read"} and facts(messages, "failure") == []

    def test_commands_tell_outcome_and_error_lines(self) -> None:
        """The first line of the command, how it went, and the lines that say why, quoted."""
        [fact] = facts(ran("make all\nmake install", "cc a.c\na.c:3: error: no 'x'\nExit code 2"), "command")
        assert (fact.key, fact.relation) == ("make all", "failed, exit code 2")
        assert fact.notes == ("\"a.c:3: error: no 'x'\"", '"Exit code 2"')

    def test_words_in_capitals_report(self) -> None:
        """Whole words only, wherever in a line they stand."""
        lines = [
            "12:01 ERROR disk",
            "FAILED",
            "x.py FAIL (1)",
            "[FATAL]",
            "TERROR",
            "ERRORS",
            "a FAILURE",
            "FRROR",
            "_FATAL",
        ]
        assert failure_lines("\n".join(lines)) == lines[:4]

    def test_what_a_file_says_of_errors_is_no_failure(self) -> None:
        """Reading a log does not fail because the log tells of failures."""
        output = "ERROR: disk full\n--- FAIL: TestX"
        for messages in (did({"path": "a.log"}, output), ran("cat a.log", output), ran("grep -n FAIL a.log", output)):
            found = facts(messages)
            assert not [fact for fact in found if fact.notes or fact.kind in ("failure", "test")]

    @pytest.mark.parametrize(
        "line", ["3 passed", "2 failing, 1 passing", "--- FAIL: TestA", "ok  \tpkg/a", "\u2713 adds up", "Ran 3 tests"]
    )
    def test_what_names_tests_is_known_by_a_word(self, line: str) -> None:
        """And nothing else is searched for tests."""
        assert speaks_of_tests(f"building\n{line}\n") and not speaks_of_tests("building\nall done\n")

    def test_tests_with_their_last_result(self) -> None:
        """The frameworks' own lines name tests and results; a later run has the last word."""
        first = "tests/a.py::test_one PASSED\ntests/a.py::test_two FAILED\n1 failed, 1 passed"
        second = "--- PASS: TestGo (0.1s)\ntest parse::works ... ok\ntests/a.py::test_two PASSED"
        third = "  \u2713 adds, then removes 3 ms"
        messages = [*ran("pytest", first), *ran("make", second), *ran("npx vitest", third)]
        assert {fact.key: fact.relation for fact in facts(messages, "test")} == {
            "tests/a.py::test_one": "passed",
            "tests/a.py::test_two": "passed",
            "TestGo": "passed",
            "parse::works": "passed",
            '"adds, then removes"': "passed",
        }

    @pytest.mark.parametrize("given", ['{"path": "x', "[1, 2", "", None, 7, ["ls"], {"command": 7}, {"path": None}])
    def test_odd_inputs_are_no_commands(self, given: Any) -> None:
        """What cannot be understood asserts nothing."""
        assert [fact for fact in facts(did(given)) if fact.kind != "call"] == []

    def test_free_text_is_a_command(self) -> None:
        """A custom tool may take its command as bare text."""
        assert isinstance(did("ls -l")[0].parts[0], ToolCall)
        assert [fact.key for fact in facts(did("ls -l"), "command")] == ["ls -l"]

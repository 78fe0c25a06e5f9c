"""The effect of a call follows from the shape of its input; only certain effects count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.ledger.sample_ledgers import did, ran, written

from kompakt.engine.ledger.extract.outcomes import exit_code, failure_lines, has_failed, speaks_of_tests
from kompakt.engine.ledger.extract.shell import file_operations
from kompakt.engine.ledger.extract.tool_calls import effect_of
from kompakt.engine.ledger.items import CHANGES, RUNS
from kompakt.model.messages import ToolCall, ToolResult

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
        """The arguments of a call show what it does to which file, for any name of the tool."""
        assert {path: how for how, path in effect_of(ToolCall("c", name, given)).files} == expected

    def test_arguments_as_text_are_equivalent(self, name: str, given: Any, expected: dict[str, str]) -> None:
        """OpenAI's calls carry JSON text."""
        text = given if isinstance(given, str) else json.dumps(given)
        assert {path: how for how, path in effect_of(ToolCall("c", name, text)).files} == expected

    def test_a_failed_call_changed_nothing(self, name: str, given: Any, expected: dict[str, str]) -> None:
        messages = did(given, "Error: no such thing", name=name, failed=True)
        assert written(messages, CHANGES) == []
        [failure] = written(messages, RUNS)
        assert failure.startswith("Failed: ") and '"Error: no such thing"' in failure

    def test_a_call_without_an_answer_changed_nothing(self, name: str, given: Any, expected: dict[str, str]) -> None:
        assert written(did(given, name=name)[:1], CHANGES) == []


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
    def test_file_operations_of_shell_commands(self, command: str, expected: list[tuple[str, str]]) -> None:
        """Words in quotes, documents and comments are no commands; a pattern names no file."""
        assert list(file_operations(command)) == expected


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

    def test_the_text_of_a_file_does_not_decide_whether_reading_failed(self) -> None:
        """Reading a document that mentions an exit code succeeded."""
        messages = did({"path": "docs/exits.md"}, "Exit code 1\nmeans that it failed", name="read_file")
        assert written(messages, RUNS) == []

    @pytest.mark.parametrize(
        ("command", "output", "failed"),
        [
            ("go test ./... 2>&1 | tail -5", "--- FAIL: TestX (0.00s)\nFAIL\tpkg/a\t0.1s", True),
            ("pytest -q | tail -3", "FAILED tests/a.py::test_x\n===== 1 failed, 2 passed in 0.1s =====", True),
            ("pytest -q | tail -3", "===== 3 passed in 0.1s =====", False),
            ("make", "make: *** [all] Error 2", True),
            ("grep -rn FAIL logs/", "--- FAIL: TestX", False),
            ("cat build.log", "error: no such crate", False),
            ("go build ./...", "", False),
        ],
    )
    def test_a_failure_before_a_pipe_is_a_failure(self, command: str, output: str, failed: bool) -> None:
        effect = effect_of(ToolCall("c", "bash", {"command": command}))
        assert has_failed(ToolResult("c", output), effect) is failed

    def test_words_in_capitals_report(self) -> None:
        """Whole words only, anywhere in a line."""
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

    @pytest.mark.parametrize(
        "line", ["3 passed", "2 failing, 1 passing", "--- FAIL: TestA", "ok  \tpkg/a", "\u2713 adds up", "Ran 3 tests"]
    )
    def test_what_names_tests_is_known_by_a_word(self, line: str) -> None:
        """No other output is searched for tests."""
        assert speaks_of_tests(f"building\n{line}\n") and not speaks_of_tests("building\nall done\n")

    @pytest.mark.parametrize("given", ['{"path": "x', "[1, 2", "", None, 7, ["ls"], {"command": 7}, {"path": None}])
    def test_odd_inputs_are_no_commands(self, given: Any) -> None:
        effect = effect_of(ToolCall("c", "do", given))
        assert effect.command is None and effect.files == ()

    def test_free_text_is_a_command(self) -> None:
        """A custom tool may take its command as bare text."""
        assert effect_of(ToolCall("c", "do", "ls -l")).command == "ls -l"
        assert written([*did("make all", "built"), *ran("true")], RUNS)[0] == 'Ran `make all` → "built"'

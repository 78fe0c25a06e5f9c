"""The contract of the command line: data on stdout, the rest on stderr, exit 0, 1 or 2, never a traceback."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Outcome, run
from tests.histories import FORMATS, plain
from tests.judges import judge

import kompakt

USER = {"role": "user", "content": "go"}
CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
OPEN = {"model": "gpt-5.4", "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
HOPELESS = {"model": "gpt-5.4", "messages": [USER, {"role": "narrator", "content": "hi"}], "n": 1}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Write a valid session."""
    return put(tmp_path / "good.json", plain.build("openai-chat", messages=12))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Write a session with an open call."""
    return put(tmp_path / "broken.json", OPEN)


def put(path: Path, value: Any) -> Path:
    """Write a value as JSON."""
    path.write_text(json.dumps(value))
    return path


def refused(outcome: Outcome, *said: str) -> None:
    """Assert exit 2, nothing on stdout and exactly one error line."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert "Traceback" not in outcome.err
    for words in said:
        assert words in outcome.err


class TestBudget:
    @pytest.mark.parametrize("command", [("compact",), ("session", "compact")], ids=" ".join)
    def test_the_help_explains_how_much_of_the_budget_is_used(self, command: tuple[str, ...]) -> None:
        assert "About two thirds of it are used" in " ".join(run(*command, "--help").out.replace("│", " ").split())

    def test_a_file_and_its_session_are_compacted_to_the_same_size(self, tmp_path: Path) -> None:
        body = plain.build("openai-chat", messages=120, seed=7, mean_chars=700)
        file, store = put(tmp_path / "long.json", body), f"sqlite:///{tmp_path}/kept.db"
        budget = str(kompakt.count(body).total // 3)
        once = kompakt.count(json.loads(run("compact", file, "--budget", budget).out)).total
        run("session", "import", file, "--id", "long", "--store", store)
        stored = json.loads(run("session", "compact", "long", "--budget", budget, "--store", store, "--json").out)
        assert stored["tokens_after"] == once


class TestHelp:
    def test_version(self) -> None:
        """One line with the version."""
        assert run("--version") == (0, f"kompakt {kompakt.__version__}\n", "")

    @pytest.mark.parametrize("command", ["check", "repair", "count", "doctor", "demo"])
    def test_every_command_is_listed_and_explained(self, command: str) -> None:
        """Help goes to stdout and exits with 0."""
        listed, own = run("--help"), run(command, "--help")
        assert (listed.code, own.code) == (0, 0)
        assert command in listed.out
        assert own.out.startswith("Usage: ")

    @pytest.mark.parametrize("arguments", [["chek"], ["check"], ["check", "--jsn", "x"], ["count", "x", "y"]])
    def test_wrong_usage_is_exit_2(self, arguments: list[str]) -> None:
        """The error is on stderr."""
        outcome = run(*arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert "Error" in outcome.err


class TestCheck:
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_valid_file_is_exit_0(self, format: str, tmp_path: Path) -> None:
        """Nothing on stdout; the verdict is on stderr."""
        path = put(tmp_path / "body.json", plain.build(format, messages=12))
        outcome = run("check", path)
        assert (outcome.code, outcome.out) == (0, "")
        assert format in outcome.err
        assert "no problems" in outcome.err

    def test_problems_are_exit_1_one_per_line(self, broken: Path) -> None:
        """The lines on stdout are the problems and nothing else."""
        outcome = run("check", broken)
        assert outcome.code == 1
        assert outcome.out.splitlines() == [str(problem) for problem in kompakt.check(OPEN)]

    def test_json(self, broken: Path) -> None:
        """The report is one JSON value with every field of a problem."""
        outcome = run("check", "--json", broken)
        report = json.loads(outcome.out)
        assert outcome.code == 1
        assert report["format"] == "openai-chat"
        assert [problem["code"] for problem in report["problems"]] == ["OC-1"]
        assert report["problems"][0].keys() == {"code", "path", "message", "repairable"}

    def test_json_of_a_valid_file(self, good: Path) -> None:
        outcome = run("check", "--json", good)
        assert (outcome.code, json.loads(outcome.out)["problems"]) == (0, [])

    def test_standard_input(self) -> None:
        """``-`` reads standard input."""
        outcome = run("check", "-", input=json.dumps(OPEN).encode())
        assert outcome.code == 1
        assert "OC-1" in outcome.out
        assert "standard input" in outcome.err

    def test_one_problem_is_not_called_problems(self, tmp_path: Path) -> None:
        body = put(tmp_path / "a.json", {"model": "gpt-5", "messages": []})
        assert run("check", body).err.endswith("0 messages, 1 problem\n")
        assert run("repair", body).err.endswith("0 changes, 1 problem left\n")

    def test_a_window_that_is_not_a_number_is_quoted(self) -> None:
        refused(run("serve", "--window", "gpt=abc"), "--window gpt=abc: 'abc' is not a number of tokens")

    def test_a_truncated_file_is_named_as_such(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.json"
        path.write_text('{"messages": [{"role": "user", "content": "rename the ha')
        refused(run("check", path), "column 43: the file ends inside a string (truncated?)")

    def test_a_format_can_be_given(self, tmp_path: Path) -> None:
        """An ambiguous file is read in the given format."""
        path = put(tmp_path / "talk.json", [{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        assert run("check", path).code == 2
        assert run("check", path, "--format", "anthropic").code == 0
        refused(run("check", path, "--format", "openai"), "'openai'")

    def test_strict_adds_rules(self, tmp_path: Path) -> None:
        """--strict finds what only compatible servers reject."""
        body = {"model": "gpt-5.4", "messages": [USER, {"role": "assistant", "content": "a"}]}
        path = put(tmp_path / "chat.json", body)
        assert run("check", path).code == 0
        assert "MI-3" in run("check", "--strict", path).out

    def test_one_message_per_line(self, tmp_path: Path) -> None:
        path = tmp_path / "chat.jsonl"
        path.write_text("\n".join(json.dumps(message) for message in OPEN["messages"]))
        assert "OC-1" in run("check", path).out


class TestRepair:
    def test_the_repaired_payload_is_on_stdout(self, broken: Path) -> None:
        """The payload can be sent; the changes are on stderr."""
        outcome = run("repair", broken)
        assert outcome.code == 0
        assert judge("openai-chat", json.loads(outcome.out)) == []
        assert "OC-1 added" in outcome.err

    def test_remaining_problems_are_exit_1(self, tmp_path: Path) -> None:
        """A problem that needs a decision is named."""
        outcome = run("repair", put(tmp_path / "odd.json", HOPELESS))
        assert outcome.code == 1
        assert json.loads(outcome.out) == HOPELESS
        assert "left: OC-7" in outcome.err

    def test_output_goes_to_a_file(self, broken: Path, tmp_path: Path) -> None:
        """With -o the file has the payload, stdout nothing, and the input is unchanged."""
        before = broken.read_bytes()
        target = tmp_path / "out.json"
        outcome = run("repair", broken, "-o", target)
        assert (outcome.code, outcome.out) == (0, "")
        assert json.loads(target.read_text()) == kompakt.repair(OPEN).payload
        assert broken.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.json", "out.json"]

    def test_a_file_can_be_repaired_in_place(self, broken: Path) -> None:
        """Input and output may be the same file."""
        assert run("repair", broken, "-o", broken).code == 0
        assert run("check", broken).code == 0

    def test_a_failed_write_leaves_the_old_file(self, broken: Path, tmp_path: Path) -> None:
        """There is never half a file and never a leftover temporary file."""
        target = tmp_path / "there"
        target.mkdir()
        refused(run("repair", broken, "-o", target), str(target))
        refused(run("repair", broken, "-o", tmp_path / "no" / "such" / "out.json"), "out.json")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.json", "there"]

    def test_a_written_file_has_the_usual_permissions(self, broken: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.json"
        run("repair", broken, "-o", target)
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask

    def test_json(self, broken: Path, tmp_path: Path) -> None:
        """The report is JSON, with the payload unless that went to a file."""
        whole = json.loads(run("repair", "--json", broken).out)
        apart = json.loads(run("repair", "--json", broken, "-o", tmp_path / "o.json").out)
        assert whole.keys() == {"changes", "remaining", "payload"}
        assert apart.keys() == {"changes", "remaining"}
        assert [change["action"] for change in whole["changes"]] == ["added"]


class TestCount:
    def test_a_table_by_default(self, good: Path) -> None:
        """The total, the parts, and how full the model's window is."""
        outcome = run("count", good)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"{kompakt.count(json.loads(good.read_text())).total:,} tokens" in outcome.out
        assert "gpt-5.4: window" in outcome.out

    def test_json(self, good: Path) -> None:
        """The same numbers as the library's."""
        outcome = run("count", "--json", good, "--model", "claude-opus-5-5")
        expected = kompakt.count(json.loads(good.read_text()), model="claude-opus-5-5")
        found = json.loads(outcome.out)
        assert found["total"] == expected.total == sum(found["by_kind"].values())

    def test_an_unknown_model_is_a_warning_not_a_failure(self, good: Path) -> None:
        """A conservative window is assumed and reported on stderr."""
        outcome = run("count", good, "--model", "unknown-model-x")
        assert outcome.code == 0
        assert "unknown-model-x" in outcome.out
        assert "unknown" in outcome.err
        assert "Traceback" not in outcome.err


class TestDoctor:
    def test_doctor(self) -> None:
        """Prints the installed packages and that the tokenizer works offline."""
        outcome = run("doctor", "--offline")
        assert (outcome.code, outcome.err) == (0, "")
        assert "tokenizer" in outcome.out

    def test_doctor_json(self) -> None:
        report = json.loads(run("doctor", "--offline", "--json").out)
        assert report["kompakt"] == kompakt.__version__
        assert report["missing"] == []


DEEP = b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"

BAD: dict[str, tuple[bytes, str]] = {
    "truncated": (b'{"messages": [{"role": "us', "line 1 column"),
    "truncated on line 3": (b'{\n"messages": [\n{"role": "user", "content"', "line 3 column"),
    "trailing comma": (b'{"messages": [],}', "line 1 column 17"),
    "a number": (b"42", "expected a request body or a list of messages"),
    "a string": (b'"hello"', "expected a request body or a list of messages"),
    "null": (b"null", "expected a request body or a list of messages"),
    "messages is a number": (b'{"messages": 7, "n": 1}', "messages"),
    "a message is a number": (b'{"n": 1, "messages": [{"role": "user", "content": "a"}, 7]}', "messages[1]"),
    "a role is a number": (b'{"n": 1, "messages": [{"role": 7, "content": "a"}]}', "messages[0].role"),
    "content is a number": (b'{"n": 1, "messages": [{"role": "user", "content": 7}]}', "messages[0].content"),
    "calls are a string": (
        b'{"n": 1, "messages": [{"role": "assistant", "content": "a", "tool_calls": "x"}]}',
        "messages[0].tool_calls",
    ),
    "a call id is a number": (
        b'{"n": 1, "messages": [{"role": "assistant", "tool_calls": [{"id": 1, "function": {}}]}]}',
        "messages[0].tool_calls[0].id",
    ),
    "raw NUL bytes": (b'{"messages": [{"role": "user", "content": "a\x00b"}]}', "byte 44"),
    "NUL bytes far down": (b'{"messages": [{"role": "user", "content": "' + b"x" * 9000 + b'\x00"}]}', "line 1 column"),
    "not UTF-8": (b'{"messages": [\n{"role": "user", "content": "\xff\xfe"}]}', "line 2 column"),
    "UTF-16": ('{"messages": []}'.encode("utf-16"), "byte"),
    "10,000 levels deep": (DEEP, "nested too deeply"),
    "10,000 levels of objects": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested too deeply"),
    "empty": (b"", "empty"),
    "blank": (b" \n\t\n", "empty"),
    "a document": (
        b"# Title\n\nSome [text](url).",
        "not JSON; expected a request body, a list of messages or a transcript",
    ),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20, "binary"),
    "mixed formats": (
        b'[{"role": "user", "parts": [{"text": "a"}]}, {"role": "tool", "tool_call_id": "a", "content": "b"}]',
        "mixes formats",
    ),
    "ambiguous": (b'[{"role": "user", "content": [{"type": "text", "text": "a"}]}]', "--format"),
    "no history": (b'{"foo": "bar"}', "format"),
    "a bad line": (
        b'{"role": "user", "content": "a"}\n{"role": "assistant", "content": "b"}\n{"role": "us\n',
        "line 3",
    ),
}


class TestBadInput:
    """Exit 2 and one line that names the file and, if there is one, the position."""

    @pytest.mark.parametrize(
        ("command", "name"),
        [("check", name) for name in BAD]
        + [(command, name) for command in ("repair", "count") for name in ("truncated", "a role is a number", "empty")],
    )
    def test_bad_files_are_rejected_in_one_line(self, name: str, command: str, tmp_path: Path) -> None:
        data, position = BAD[name]
        path = tmp_path / "session.json"
        path.write_bytes(data)
        refused(run(command, path), "session.json", position)

    @pytest.mark.parametrize("name", ["truncated", "not UTF-8", "empty", "ambiguous", "10,000 levels deep"])
    def test_bad_standard_input_is_rejected_in_one_line(self, name: str) -> None:
        """Errors name it "standard input"."""
        data, position = BAD[name]
        refused(run("check", "-", input=data), "standard input", position)

    @pytest.mark.parametrize("kind", ["missing", "directory", "binary", "empty"])
    @pytest.mark.parametrize(
        "command",
        [
            ("check",),
            ("repair",),
            ("count",),
            ("compact", "--budget", "1000"),
            ("recall", "words"),
            ("session", "import", "--store", "memory:"),
            ("inspect", "--json"),
        ],
        ids=lambda command: command[0],
    )
    def test_every_command_rejects_what_is_no_history(
        self, command: tuple[str, ...], kind: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "given"
        if kind == "directory":
            path.mkdir()
        elif kind != "missing":
            path.write_bytes(b"" if kind == "empty" else b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
        words = 2 if command[0] == "session" else 1
        refused(run(*command[:words], path, *command[words:]), "given")

    def test_a_directory(self, tmp_path: Path) -> None:
        refused(run("check", tmp_path), str(tmp_path), "directory")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        refused(run("check", tmp_path / "nowhere.json"), "nowhere.json", "No such file")

    def test_a_path_through_a_file(self, tmp_path: Path) -> None:
        file = put(tmp_path / "file.json", OPEN)
        refused(run("check", file / "inner.json"), "inner.json")

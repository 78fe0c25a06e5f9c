"""Tables, colours and interruptions: what a person sees in a terminal of 80 columns."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import ENVIRONMENT, run
from tests.cli.store_helpers import Run, put, refused
from tests.histories import plain

from kompakt import api
from kompakt.cli.output import print_line, wrapped

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")
ESCAPE = "\x1b"
BODY = plain.build("openai-chat", messages=60, mean_chars=400)
LONG = "0123456789ab-0123456789abcdef-with-a-name-that-is-longer-than-the-widest-column-of-any-table"


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


class TestWidth:
    """Without a terminal tables have 80 columns; longer texts continue in the next line."""

    @pytest.fixture(autouse=True)
    def _narrow(self, kom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COLUMNS")

    def test_session_tables(self, kom: Run, file: Path) -> None:
        budget = str(api.count(json.loads(file.read_bytes())).total // 2)
        assert kom("session", "import", file, "--id", LONG).code == 0
        assert kom("session", "pin", LONG, "Never " + "ever " * 40).code == 0
        done = kom("session", "compact", LONG, "--budget", budget)
        assert done.code == 0 and too_wide(done.err) == []
        listed, shown = kom("session", "list"), kom("session", "show", LONG)
        assert too_wide(listed.out) == [] == too_wide(shown.out)
        assert "compactions" in shown.out

    def test_an_id_of_the_gateway_is_on_one_line(self, kom: Run, file: Path) -> None:
        id = "d1e7ebf5d194-889c1fe72e48a80e"
        assert kom("session", "import", file, "--id", id).code == 0
        assert f"  {id}\n" in kom("session", "list").out

    def test_a_long_title_is_cut(self, kom: Run, tmp_path: Path) -> None:
        """The id below it stays whole."""
        body = {"model": "m", "messages": [{"role": "user", "content": "rename the port " * 8}]}
        assert kom("session", "import", put(tmp_path / "t.json", body), "--id", "a").code == 0
        first = kom("session", "list").out.splitlines()[2:4]
        assert len(first[0]) == 80 and first[0].endswith("…") and first[1] == "  a"

    def test_a_title_wider_than_its_table_stays_on_one_line(self, kom: Run, tmp_path: Path) -> None:
        file = put(tmp_path / "long.json", BODY)
        done = kom("compact", file, "--budget", "3000", "-o", tmp_path / "out.json").err
        assert done.splitlines()[0].rstrip() == "policy default: over 3000 tokens, budget 3,000"
        assert "exact size of notes and pins" in done

    def test_a_path_stays_in_one_piece(self, kom: Run) -> None:
        """People copy it: it moves to a line of its own before it is broken."""
        for length in (40, 60, 90):
            path = f"no/{'f' * length}/agent.db"
            done = kom("doctor", "--offline", "--store", f"sqlite:///{path}")
            assert path in done.out
            assert [line for line in too_wide(done.out) if line.strip() != path] == []

    def test_counts_reports_and_checks(self, kom: Run, tmp_path: Path) -> None:
        file = put(tmp_path / "long.json", {**BODY, "model": "gpt-5"})
        budget = str(api.count(BODY).total // 2)
        assert too_wide(kom("count", file).out) == []
        assert too_wide(kom("compact", file, "--budget", budget, "-o", tmp_path / "out.json").err) == []
        assert too_wide(kom("doctor", "--offline", "--store", "sqlite:///no/such/folder/agent.db").out) == []


class TestTerminal:
    @pytest.mark.parametrize(
        ("environment", "absent"),
        [({"NO_COLOR": "1"}, COLOUR), ({"TERM": "dumb"}, re.compile(ESCAPE))],
        ids=["NO_COLOR", "dumb"],
    )
    @pytest.mark.parametrize("command", [("demo", "--fast"), ("count", "body.json")], ids=" ".join)
    def test_colours_can_be_turned_off(
        self, command: tuple[str, ...], environment: dict[str, str], absent: re.Pattern[str], tmp_path: Path
    ) -> None:
        put(tmp_path / "body.json", BODY)
        shown = _in_terminal(command, tmp_path, {"TERM": "xterm-256color", **environment})
        assert "tokens" in shown
        assert not absent.search(shown)


class TestInterruption:
    @pytest.mark.parametrize(
        ("target", "command"),
        [
            ("kompakt.api.compact", ("compact", "body.json", "--budget", "1000", "-o", "out.json")),
            ("kompakt.api.count", ("count", "body.json")),
            ("kompakt.api.repair", ("repair", "body.json", "-o", "out.json")),
            ("kompakt.cli.check.problems_of", ("check", "body.json")),
            ("kompakt.api.recall", ("recall", "body.json", "words")),
            ("kompakt.cli.demo.provider.send_by_library", ("demo", "--fast")),
        ],
        ids=lambda value: value if isinstance(value, str) else value[0],
    )
    def test_ctrl_c_ends_with_130_and_writes_nothing(
        self, target: str, command: tuple[str, ...], kom: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        put(tmp_path / "body.json", BODY)
        monkeypatch.setattr(target, interrupted)
        done = kom(*command)
        assert (done.code, done.out) == (130, "")
        assert done.err == "kompakt: interrupted; nothing was written\n"
        assert not (tmp_path / "out.json").exists()

    def test_an_interrupted_import_says_how_to_continue(
        self, kom: Run, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kompakt.session.session import Session

        async def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Session, "save", interrupted)
        done = kom("session", "import", file)
        assert done.code == 130 and "run the command again" in done.err


class TestWarnings:
    def test_a_warning_is_one_line_without_source_code(self, tmp_path: Path) -> None:
        done = run("count", put(tmp_path / "body.json", {**BODY, "model": "no-such-model"}))
        assert done.code == 0
        assert len(done.err.splitlines()) == 1 and done.err.startswith("kompakt: warning: ")


class TestErrors:
    def test_a_terminal_shows_whole_words(self, tmp_path: Path) -> None:
        put(tmp_path / "body.json", BODY)
        shown = _in_terminal(("compact", "body.json", "--budget", "2"), tmp_path, {}, code=3).replace("\r", "")
        assert len(shown.splitlines()) > 1 and too_wide(shown) == []

    def test_a_command_at_the_end_has_its_own_line(self) -> None:
        """It can be copied, however long it is."""
        command = f"pip install '/a/{'long/' * 20}path[fleet]'"
        lines = wrapped(f"kompakt: fleet jobs need pyarrow; install it and Ray with: {command}").splitlines()
        assert lines[-1] == f"  {command}" and lines[-2].endswith("with:")

    def test_a_command_with_a_path_has_its_own_line_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        """As the program is named where it is not on the path."""
        for program in ("/srv/a/kompakt", "'/srv/a b/kompakt'", "/srv/a/python3.12 -m kompakt"):
            command = f"{program} doctor --client claude-code"
            assert wrapped(f"next: run: {command}").splitlines() == ["next: run:", f"  {command}"]
            print_line("  note     ", f"to test it: {command}")
            assert capsys.readouterr().out.splitlines()[-1].strip() == command


class TestPaths:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("/home/me/a.db: deleted", "~/a.db: deleted"),
            ("sessions are in /home/me", "sessions are in ~"),
            ("(see /home/me/log)", "(see ~/log)"),
            ("pip install -e /home/me/clone", "pip install -e ~/clone"),
            ("pip install '/home/me/clone[mcp]'", "pip install '/home/me/clone[mcp]'"),
            ("store=/home/me/a.db", "store=/home/me/a.db"),
            ("/home/me-2/a.db and /srv/home/me/b.db", "/home/me-2/a.db and /srv/home/me/b.db"),
        ],
    )
    def test_the_home_folder_is_a_tilde_where_a_shell_reads_one(
        self, text: str, shown: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/me")
        assert wrapped(text) == shown


def _in_terminal(command: tuple[str, ...], folder: Path, environment: dict[str, str], *, code: int = 0) -> str:
    """Run a command with a terminal of 80 columns as standard output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kompakt", *command],
        cwd=folder,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **ENVIRONMENT, "COLUMNS": "80", **environment},
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux reports the closed terminal as an input error
            break
        if not part:
            break
        found += part
    os.close(ours)
    assert process.wait() == code
    return found.decode()


class TestWorkingDirectory:
    @pytest.mark.parametrize(
        "command", [("doctor", "--offline"), ("install", "codex", "--yes"), ("install", "codex", "--undo")]
    )
    def test_a_working_directory_that_was_deleted_is_named_before_anything_is_written(
        self, kom: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        refused(kom(*command), "the working directory does not exist any more")
        assert list(tmp_path.iterdir()) == []

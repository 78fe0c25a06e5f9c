"""How the command line starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import ENVIRONMENT, run

from kompakt import cli
from kompakt.cli.commands import COMMANDS, SHELLS
from kompakt.version import __version__


def test_an_interrupt_during_the_imports_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "notes/a.json"), "kompakt: notes/a.json: Permission denied\n"),
        (OSError(28, "No space left on device"), "kompakt: cannot write the output: No space left on device\n"),
    ],
)
def test_an_error_of_the_system_names_its_file(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "import_module", failed)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


class TestCommandList:
    def test_the_help_imports_no_command(self) -> None:
        """So it is printed at once, and completion in a shell is fast."""
        code = (
            "import sys; sys.argv = ['kompakt', '--help']\n"
            "from kompakt import cli\n"
            "try: cli.main()\n"
            "except SystemExit: print(*sys.modules, file=sys.stderr)\n"
        )
        done = _python("-c", code)
        loaded = set(done.stderr.split())
        assert "compact " in done.stdout
        assert "kompakt.cli.commands" in loaded
        assert not {"kompakt.api", "kompakt.cli.compact", "rich.console"} & loaded

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_listed_summary_is_that_of_the_command(self, name: str) -> None:
        command = COMMANDS[name].load(name)
        text = " ".join((command.help or "").split())
        assert text.startswith(COMMANDS[name].summary.removesuffix("."))

    def test_no_summary_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.cli.commands.ENVIRONMENT", {"COLUMNS": "80"})
        assert "..." not in run("--help").out.partition("Commands:")[2]

    def test_unknown_commands_get_a_suggestion(self) -> None:
        done = run("cmpact")
        assert done.code == 2 and "Did you mean 'compact'?" in done.err

    def test_python_dash_m_is_the_same_program(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "kompakt", "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"kompakt {__version__}\n"


class TestCompletion:
    @pytest.mark.parametrize("shell", SHELLS)
    def test_the_script_of_each_shell_calls_kompakt(self, shell: str) -> None:
        done = run("completion", shell)
        assert done.code == 0 and "_KOMPAKT_COMPLETE" in done.out

    def test_an_unknown_shell_is_refused(self) -> None:
        done = run("completion", "elvish")
        assert (done.code, done.out) == (2, "") and "unknown shell 'elvish'" in done.err

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("kompakt che", ["check"]),
            ("kompakt check --str", ["--strict"]),
            ("kompakt session ver", ["verify"]),
        ],
    )
    def test_commands_and_options_are_completed(
        self, words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("_KOMPAKT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert run().out.split() == expected


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environment)


class TestMissingPackages:
    @pytest.mark.parametrize(
        ("arguments", "blocked", "extra"),
        [
            (("serve", "--port", "0"), "uvicorn", "gateway"),
            (("serve", "--make-key", "acme"), "starlette", "gateway"),
            (("mcp",), "mcp", "mcp"),
            (("session", "import", "-", "--store", "redis://127.0.0.1"), "redis", "redis"),
            (("session", "import", "-", "--store", "postgresql://127.0.0.1/x"), "asyncpg", "postgres"),
        ],
        ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
    )
    def test_a_missing_package_is_one_line_with_the_extra(
        self, arguments: tuple[str, ...], blocked: str, extra: str, tmp_path: Path
    ) -> None:
        code = (
            f"import sys; sys.modules[{blocked!r}] = None; sys.argv = ['kompakt', *{arguments!r}]\n"
            "from kompakt import cli; cli.main()"
        )
        environment = {**os.environ, **ENVIRONMENT}
        body = '{"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}'
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, input=body, cwd=tmp_path, env=environment
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search(rf" install -e '\S+\[{extra}\]'", done.stderr)
        assert len(done.stderr.splitlines()) == 1

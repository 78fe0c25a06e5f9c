"""``kompakt demo``: one story on one page, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run

import kompakt
from kompakt.cli import demo

PARTS = (
    "outgrown",
    "HTTP 400",
    "maximum context length",
    "HTTP 200",
    "not a model",
    "What the user asked for",
    "recall",
    "smaller",
    "Later requests",
    "input price without cache",
    "kompakt.compact(request, budget=32_000).payload",
)


class TestStory:
    @pytest.mark.parametrize("options", [(), ("--fast",)], ids=["gateway", "library"])
    def test_the_story_fits_on_a_page_of_80_columns(self, options: tuple[str, ...]) -> None:
        """Also in a wider terminal, so that the lines stay readable."""
        done = run("demo", *options)
        lines = done.out.splitlines()
        assert (done.code, done.err) == (0, "")
        assert len(lines) < 60 and max(map(len, lines)) <= 80
        places = [done.out.find(part) for part in PARTS]
        assert -1 not in places and places == sorted(places)
        assert demo.ANSWER in done.out

    def test_the_summary_is_shown_as_the_model_receives_it(self) -> None:
        story = json.loads(run("demo", "--json").out)
        assert story["gateway"] and story["status"] == 200 and story["problems"] == 0
        assert story["sent_tokens"] < story["window"] < story["tokens"]
        shown = [line[4:].strip() for line in run("demo").out.splitlines() if line.startswith("  │ ")]
        assert all(line.startswith("…") or line in _flat(story) for line in shown)

    def test_only_the_removed_messages_have_the_answer(self) -> None:
        story = json.loads(run("demo", "--json", "--fast").out)
        assert story["answer_removed"]
        assert story["answer"] in story["recalled"] and story["answer"] not in story["summary"]

    def test_without_the_gateway_packages_the_library_is_used(self, tmp_path: Path) -> None:
        blocked = (
            "import sys; sys.modules['httpx'] = None; sys.argv = ['kompakt', 'demo']; import kompakt.cli as c; c.main()"
        )
        done = subprocess.run([sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0
        assert "[gateway]'" in done.stderr and "kompakt.compact" in done.stdout

    def test_the_python_line_does_what_the_demo_shows(self) -> None:
        request = demo.session()
        line = next(line for line in run("demo", "--fast").out.splitlines() if "kompakt.compact(request" in line)
        names = {"kompakt": kompakt, "request": request}
        exec(line.strip(), names)
        story = json.loads(run("demo", "--fast", "--json").out)
        assert kompakt.count(names["small"]).total == story["sent_tokens"]


class TestNextSteps:
    """The commands at the end work as they are printed."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Make a clone with an environment in it, as after `make demo`."""
        clone = tmp_path / "clone"
        program = clone / ".venv" / "bin" / "kompakt"
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o755)
        (clone / "pyproject.toml").touch()
        monkeypatch.setattr(demo, "__file__", str(clone / "src" / "kompakt" / "cli" / "demo" / "__init__.py"))
        monkeypatch.setattr(sys, "argv", [str(program)])
        monkeypatch.setenv("PATH", "")
        monkeypatch.chdir(clone)
        return program

    def test_the_program_of_a_clone_is_not_offered_for_settings(self, program: Path) -> None:
        """An agent's settings that name it would break with the clone. The others may run from there."""
        lines = demo._next_steps()
        assert "  ~/.kompakt/bin/pip install -q '.[mcp,gateway]'" in lines
        assert [line for line in lines if "claude-code" in line] == ["  ~/.kompakt/bin/kompakt install claude-code"]
        assert any(line.startswith("  .venv/bin/kompakt serve ") for line in lines)
        assert max(map(len, lines)) <= 80

    def test_in_another_folder_the_paths_are_absolute(
        self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path / "clone" / ".venv")
        lines = demo._next_steps()
        assert f"  ~/.kompakt/bin/pip install -q '{tmp_path}/clone[mcp,gateway]'" in lines

    def test_the_name_alone_is_enough_if_the_shell_finds_it(
        self, program: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And its full path if it does not."""
        monkeypatch.setattr(demo, "__file__", str(program.parent / "kompakt" / "cli" / "demo" / "__init__.py"))
        assert f"  {program} serve" in demo._next_steps()
        monkeypatch.setenv("PATH", str(program.parent))
        assert any(line.startswith("  kompakt install claude-code  # ") for line in demo._next_steps())


class TestTraces:
    def test_no_file_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cwd, temporary, home = (tmp_path / name for name in ("cwd", "temporary", "home"))
        for folder in (cwd, temporary, home):
            folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setenv("HOME", str(home))
        assert run("demo", cwd=cwd).code == 0
        assert [path for folder in (cwd, temporary, home) for path in folder.rglob("*")] == []


def _flat(story: dict[str, Any]) -> str:
    """Return the quoted texts with each run of white space as one space, as wrapped lines show them."""
    texts = (story["error"]["error"]["message"], story["summary"], story["recalled"])
    return " ".join(" ".join(map(str, texts)).split())

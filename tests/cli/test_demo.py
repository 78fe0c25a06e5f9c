"""``kompakt demo``: one story on one page, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import run

from kompakt.cli import demo

PARTS = ("outgrown", "HTTP 400", "context_length_exceeded", "HTTP 200", "What the user asked for", "recall", "smaller")


class TestStory:
    @pytest.mark.parametrize("options", [(), ("--fast",)], ids=["gateway", "library"])
    def test_the_story_fits_on_a_page_of_80_columns(self, options: tuple[str, ...]) -> None:
        """Also in a wider terminal, so that the lines stay readable."""
        told = run("demo", *options)
        lines = told.out.splitlines()
        assert (told.code, told.err) == (0, "")
        assert len(lines) < 60 and max(map(len, lines)) <= 80
        places = [told.out.find(part) for part in PARTS]
        assert -1 not in places and places == sorted(places)
        assert demo.ANSWER in told.out

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
        told = subprocess.run([sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True)
        assert told.returncode == 0
        assert "[gateway]" in told.stderr and "kompakt.compact" in told.stdout

    def test_the_program_of_a_clone_is_not_offered_for_settings(self, tmp_path: Path) -> None:
        """An agent's settings that name it would break with the clone."""
        program = tmp_path / ".venv" / "bin" / "kompakt"
        code = f"import sys; sys.argv = [{str(program)!r}, 'demo', '--fast']; import kompakt.cli as c; c.main()"
        told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "Install it first, as README.md shows." in told.stdout and ".venv" not in told.stdout


class TestTraces:
    def test_no_file_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cwd, temporary, home = (tmp_path / name for name in ("cwd", "temporary", "home"))
        for folder in (cwd, temporary, home):
            folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setenv("HOME", str(home))
        assert run("demo", cwd=cwd).code == 0
        assert [path for folder in (cwd, temporary, home) for path in folder.rglob("*")] == []


def _flat(story: dict[str, object]) -> str:
    """Return the quoted texts with each run of white space as one space, as wrapped lines show them."""
    texts = (json.dumps(story["error"]), story["summary"], story["recalled"])
    return " ".join(" ".join(map(str, texts)).split())

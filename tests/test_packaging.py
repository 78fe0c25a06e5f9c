"""The installed package: extras exist, and the import is lazy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from scripts import install_packages

from kompakt import version
from kompakt.cli import doctor as doctoring

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class TestExtras:
    def test_every_suggested_extra_exists(self) -> None:
        """Errors and texts that suggest an extra name one of the package."""
        advised = {
            (extra, path.name)
            for folder in ("src", "docs", "examples", "README.md")
            for path in ([ROOT / folder] if folder.endswith(".md") else (ROOT / folder).rglob("*"))
            if path.suffix in (".py", ".md")
            for names in re.findall(
                r"(?:kompakt|\.)\\?\[([a-z_, -]+)\]'|install_command\([\"']([a-z_]+)", path.read_text()
            )
            for extra in re.split(r"[, ]+", "".join(names))
        }
        assert {(extra, name) for extra, name in advised if extra not in PROJECT["optional-dependencies"]} == set()
        assert {("gateway", "serve.py"), ("gateway", "README.md")} <= advised

    def test_extras_are_spelled_as_in_the_metadata(self) -> None:
        """With pip before 23.3, which Python 3.11 brings, an extra with ``_`` is not found and silently left out."""
        assert [name for name in PROJECT["optional-dependencies"] if "_" in name] == []
        assert version.install_command("pydantic_ai").endswith("[pydantic-ai]'")

    def test_no_error_names_a_command_for_another_installation(self) -> None:
        """``install_command`` knows how this copy was installed; a fixed text does not."""
        fixed = re.compile(r"pip install [^-{]*kompakt")
        assert [path for path in (ROOT / "src").rglob("*.py") if fixed.search(path.read_text())] == []

    def test_the_demo_installs_what_the_readme_installs(self) -> None:
        """After `make demo`, the next steps of the README need no second installation."""
        (readme,) = re.findall(r"^pip install (?:-q )?'\.\[(.*)\]'$", (ROOT / "README.md").read_text(), re.MULTILINE)
        (makefile,) = re.findall(r"install_packages\.py kompakt .*'\.\[(.*)\]'", (ROOT / "Makefile").read_text())
        assert set(makefile.split(",")) == set(readme.split(",")) >= {"mcp", "gateway"}

    def test_doctor_names_the_extra_that_installs_a_package(self) -> None:
        """Each optional package is in the extra that doctor suggests; the others are always installed."""
        for package, extra in doctoring.EXTRAS.items():
            assert any(re.match(rf"{package}\b", needed) for needed in PROJECT["optional-dependencies"][extra])
        for package in doctoring.CORE:
            assert any(re.match(rf"{package}\b", needed) for needed in PROJECT["dependencies"])


class TestInstallCommand:
    """The command in hints: it works for this installation, whatever it was made from."""

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return an empty folder in which the code is said to be, with the pip of this environment on the path."""
        monkeypatch.setattr(version, "__file__", str(tmp_path / "clone" / "src" / "kompakt" / "version.py"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "bin").mkdir()
        for name in ("pip", "python"):
            (tmp_path / "bin" / name).write_text("")
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return tmp_path

    def made_from(self, origin: object, monkeypatch: pytest.MonkeyPatch) -> None:
        class Found:
            def read_text(self, name: str) -> str | None:
                return json.dumps(origin) if name == "direct_url.json" and origin is not None else None

        monkeypatch.setattr("importlib.metadata.distribution", lambda name: Found())

    def make_clone(self, place: Path) -> Path:
        clone = place / "clone"
        (clone / "src" / "kompakt").mkdir(parents=True)
        (clone / "pyproject.toml").write_text("")
        return clone

    def test_a_clone_that_runs_in_place(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clone = self.make_clone(place)
        for folder in (place, clone, place / "bin"):
            monkeypatch.chdir(folder)
            assert version.install_command("fleet") == f"pip install -e '{clone}[fleet]'"
            assert version.install_command() == f"pip install -e {clone}"

    def test_a_copy_of_a_clone(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in the README: `pip install '.[mcp,gateway]'`."""
        source = place / "a clone"
        source.mkdir()
        self.made_from({"url": source.as_uri(), "dir_info": {}}, monkeypatch)
        assert version.install_command("fleet") == f"pip install '{source}[fleet]'"
        source.rmdir()
        assert version.install_command("fleet") == "pip install 'kompakt[fleet]'"

    @pytest.mark.parametrize(
        ("origin", "wanted"),
        [
            (None, "'kompakt[fleet]'"),
            (
                {"url": "https://host/kompakt", "vcs_info": {"vcs": "git"}},
                "'kompakt[fleet] @ git+https://host/kompakt'",
            ),
        ],
        ids=["index", "repository"],
    )
    def test_an_index_or_a_repository(
        self, origin: object, wanted: str, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.made_from(origin, monkeypatch)
        assert version.install_command("fleet") == f"pip install {wanted}"

    def test_another_pip_on_the_path_is_not_used(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`.venv/bin/kompakt` without an activated environment, as after `make demo`."""
        clone, python = self.make_clone(place), place / "bin" / "python"
        monkeypatch.setenv("PATH", "")
        assert version.install_command("mcp") == f"{python} -m pip install -e '{clone}[mcp]'"
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert version.install_command("mcp") == f"uv pip install --python {python} -e '{clone}[mcp]'"


class TestOwnProgram:
    """How hints name kompakt: as the shell finds it, else with its full path."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Make an environment with the program, which is not on the path."""
        program = tmp_path / "an environment" / "bin" / "kompakt"
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
        monkeypatch.setattr(sys, "argv", ["/somewhere/src/kompakt/__main__.py"])
        monkeypatch.setenv("PATH", str(tmp_path))
        return program

    def test_the_full_path_if_it_is_not_on_the_path(self, program: Path) -> None:
        assert version.own_program() == f"'{program}'"

    def test_the_name_if_the_shell_finds_this_installation(
        self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also through a link, as pipx and uv make it; another installation is not this one."""
        other = tmp_path / "kompakt"
        other.write_text("")
        other.chmod(0o755)
        assert version.own_program() == f"'{program}'"
        other.unlink()
        other.symlink_to(program)
        assert version.own_program() == "kompakt"
        monkeypatch.setenv("PATH", str(program.parent))
        assert version.own_program() == "kompakt"

    def test_the_module_if_there_is_no_program(self, program: Path) -> None:
        program.unlink()
        assert version.own_program() == f"'{sys.executable}' -m kompakt"


class TestPrograms:
    def test_every_program_of_the_package_can_be_imported(self) -> None:
        """`kompakt`, and `kompakt-hook`, which coding agents run."""
        assert set(PROJECT["scripts"]) == {"kompakt", "kompakt-hook"}
        for target in PROJECT["scripts"].values():
            module, _, name = target.partition(":")
            assert callable(getattr(import_module(module), name))


class TestImport:
    def test_importing_the_package_loads_none_of_its_parts(self) -> None:
        """A hook that runs on every tool call pays only for the names that it uses."""
        code = "import kompakt, sys; print(*(name for name in sys.modules if name.startswith(('kompakt.', 'msgspec'))))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == {"kompakt.errors", "kompakt.version"}

    def test_every_public_name_is_found_and_listed(self) -> None:
        """Names that are imported on first use look like any other."""
        code = "import kompakt; assert all(getattr(kompakt, n) is not None for n in kompakt.__all__); " + (
            "assert set(kompakt.__all__) <= set(dir(kompakt)); from kompakt import strategies; strategies.Truncation"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestProgress:
    """What `make demo` prints while pip works."""

    PIP = (
        "Collecting a",
        "  Using cached a-1-py3-none-any.whl.metadata (1 kB)",
        "  Downloading a-1-py3-none-any.whl (1 kB)",
        "  Using cached b-1.tar.gz (1 kB)",
        "Installing collected packages: b, a",
        "Successfully installed a-1 b-1",
    )

    @pytest.fixture
    def pip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
        """Run the script with a Python that only prints what pip prints, and ends with the given code."""

        def run_with(code: int = 0) -> int:
            python = tmp_path / "python"
            python.write_text("#!/bin/sh\ncat <<'END'\n{}\nEND\nexit {}\n".format("\n".join(self.PIP), code))
            python.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(python))
            return install_packages.install("kompakt and its test dependencies", ["x"])

        return run_with

    def test_each_stage_is_one_line(self, pip: Callable[[int], int], capsys: pytest.CaptureFixture[str]) -> None:
        """Of at most 80 columns, without control characters where there is no terminal."""
        assert pip(0) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("Installing kompakt and its test dependencies")
        assert lines[1:3] == ["  1. fetching packages", "  2. installing 2 packages"]
        assert len(lines) == 4 and max(map(len, lines)) <= 80

    def test_a_terminal_counts_in_place(
        self, pip: Callable[[int], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert pip(0) == 0
        shown = capsys.readouterr().out
        assert "\r  1. fetching packages: 2\n  2. installing 2 packages\n" in shown and shown.count("\n") == 4

    def test_a_failure_shows_the_output_of_pip(
        self, pip: Callable[[int], int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert pip(3) == 3
        shown = capsys.readouterr()
        assert "Collecting a" in shown.err and "pip could not install" in shown.out


class TestMakeHelp:
    def test_it_fits_a_terminal_and_names_every_target(self) -> None:
        """In groups, and all targets that a person calls are in it."""
        done = subprocess.run(["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if line and not line.startswith(" ")] == ["Use:", "Develop:", "Measure:"]
        makefile = (ROOT / "Makefile").read_text()
        targets = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split()) - {"help"}
        assert targets == set(re.findall(r"^  make ([\w-]+)", done.stdout, re.MULTILINE))

"""The installed package: extras exist, and the import is lazy."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from kompakt.cli import doctor as doctoring

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class TestExtras:
    def test_every_suggested_extra_exists(self) -> None:
        """Errors that suggest ``pip install 'kompakt[x]'`` name an extra of the package."""
        advised = {
            (extra, path.name)
            for folder in ("src", "docs", "examples", "README.md")
            for path in ([ROOT / folder] if folder.endswith(".md") else (ROOT / folder).rglob("*"))
            if path.suffix in (".py", ".md")
            for names in re.findall(r"kompakt\\?\[([a-z, ]+)\]", path.read_text())
            for extra in re.split(r"[, ]+", names)
        }
        assert {(extra, name) for extra, name in advised if extra not in PROJECT["optional-dependencies"]} == set()
        assert "gateway" in {extra for extra, _ in advised}

    def test_doctor_names_the_extra_that_installs_a_package(self) -> None:
        """Each optional package is in the extra that doctor suggests; the others are always installed."""
        for package, extra in doctoring.EXTRAS.items():
            assert any(re.match(rf"{package}\b", needed) for needed in PROJECT["optional-dependencies"][extra])
        for package in doctoring.CORE:
            assert any(re.match(rf"{package}\b", needed) for needed in PROJECT["dependencies"])


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

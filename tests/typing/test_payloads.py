"""The public types, as a type checker sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
ENVIRONMENT = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}

WRONG = """\
from typing import Any, assert_type
import kompakt

def wrong(messages: list[dict[str, Any]]) -> None:
    assert_type(kompakt.compact(messages).payload, dict[str, Any])
"""


def pyright(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pyright with the settings of the project."""
    command = [sys.executable, "-m", "pyright", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


def errors(*paths: Path) -> Iterator[tuple[str, str]]:
    """List the files and messages of what pyright finds in some files."""
    done = pyright("--outputjson", "--pythonpath", sys.executable, *map(str, paths))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield Path(found["file"]).name, f"line {line}: {found['message']}"


class TestPayloads:
    def test_results_have_the_type_of_the_input(self, tmp_path: Path) -> None:
        """Each ``assert_type`` in payloads.py is correct; a wrong one is reported."""
        if find_spec("pyright") is None or pyright("--version").returncode:
            pytest.skip("pyright is not installed")
        (tmp_path / "wrong.py").write_text(WRONG)
        found = list(errors(FOLDER / "payloads.py", tmp_path / "wrong.py"))
        assert [message for name, message in found if name == "payloads.py"] == []
        assert ["assert_type" in message for name, message in found if name == "wrong.py"] == [True]

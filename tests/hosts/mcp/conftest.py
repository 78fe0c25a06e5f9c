"""A folder in which agents worked, without the user's own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hosts.mcp.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = Workspace(tmp_path)
    for name in [name for name in os.environ if name.startswith(("KOMPAKT_", "CLAUDE", "CODEX"))]:
        monkeypatch.delenv(name)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made

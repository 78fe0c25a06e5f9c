"""A session in a store, for the commands on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.store_helpers import BODY, Run, put, runner


@pytest.fixture
def kom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run commands in this process, in an empty folder, without user configuration."""
    return runner(tmp_path, monkeypatch, capsysbinary)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a session."""
    return put(tmp_path / "talk.json", BODY)


@pytest.fixture
def id(kom: Run, file: Path) -> str:
    """Import a session and return its id."""
    done = kom("session", "import", file)
    assert done.code == 0, done.err
    return done.out.strip()

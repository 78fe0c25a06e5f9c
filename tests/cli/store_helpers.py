"""Run ``kompakt session`` commands inside this process, on a SQLite file in an empty folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Outcome
from tests.histories import plain

from kompakt import cli

BODY = plain.build("openai-chat", messages=60)

Run = Callable[..., Outcome]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> Run:
    """Return a function that runs commands in a folder, without user configuration."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name in os.environ if name.startswith("KOMPAKT_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["kompakt", *map(str, arguments)])
        capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capture.readouterr()
        return Outcome(int(ended.value.code or 0), shown.out.decode(), shown.err.decode())

    return call


def put(path: Path, value: Any) -> Path:
    """Write a value as JSON."""
    path.write_text(json.dumps(value))
    return path


def refused(outcome: Outcome, *said: str) -> None:
    """Assert exit 2, nothing on stdout and exactly one error line."""
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert outcome.err.startswith("kompakt: ")
    for words in said:
        assert words in outcome.err


def account(kom: Run, id: str, *more: str) -> dict[str, Any]:
    """Return the output of ``show --json``."""
    return json.loads(kom("session", "show", id, "--json", *more).out)

"""A broken plugin in Claude Code as shipped: whatever happens to hooks and store, the agent does its work."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.agents import CLAUDE_CODE, run
from tests.hosts.binaries import claude_binary
from tests.provider.answer import Answer, Seen
from tests.provider.script import Script
from tests.provider.server import Provider

from kompakt.hosts import claude_code_settings, install

SOURCE = str(Path(__file__).parent.parent.parent / "src")
STEPS = 3
LINE = "2026-01-01 INFO worker {} handled a request of tenant 7"
LINES = 400


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the plugin installed."""
    claude_binary()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = claude_code_settings.plan("user")
    install.install(plan, install.plan_install(plan))
    return tmp_path


def replace_commands(home: Path, command: str, seconds: int = 5) -> None:
    """Let every hook run another command."""
    path = home / "claude" / "settings.json"
    settings = json.loads(path.read_text())
    for groups in settings["hooks"].values():
        for group in groups:
            group["hooks"] = [{"type": "command", "command": command, "timeout": seconds}]
    path.write_text(json.dumps(settings))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a SQLite file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE IF NOT EXISTS held (x)")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.close()


def work(home: Path, steps: int = STEPS, **environment: str) -> str:
    """Run Claude Code with huge outputs and a compaction; return what the model was sent."""
    agent = dataclasses.replace(
        CLAUDE_CODE,
        environment=lambda url, home: {
            **CLAUDE_CODE.environment(url, home),
            "PYTHONPATH": SOURCE,
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            **environment,
        },
    )
    script = Script(steps, make=lambda *_: [agent.call(f"seq -f '{LINE.format('%g')}' {LINES}")])

    def answer(seen: Seen) -> Answer:
        asked = "Your task is to create a detailed summary" in seen.closing
        return Answer(text="<summary>Some work was done.</summary>") if asked else script.answer(seen)

    with Provider(answer, window=200_000, models=agent.models) as provider:
        finished = run(agent, script.task("Write the logs."), url=provider.url, home=home)
        assert finished.code == 0, finished.output[-2000:]
        assert f"All {steps} steps are done." in finished.output
        name = next(event["session_id"] for event in finished.events if "session_id" in event)
        compacted = run(agent, "/compact", url=provider.url, home=home, more=["--resume", name])
        assert compacted.code == 0, compacted.output[-2000:]
        assert "compact_boundary" in compacted.output
    assert provider.refusals == []
    return json.dumps([record.body for record in provider.requests])


class TestTheAgentContinues:
    def test_without_the_hook_program(self, home: Path) -> None:
        """kompakt was uninstalled, and its entries are still there."""
        replace_commands(home, "/nowhere/kompakt-hook claude-code Stop")
        assert LINE.format(LINES // 2) in work(home)

    def test_with_hooks_that_are_killed(self, home: Path) -> None:
        replace_commands(home, "kill -9 $$")
        assert LINE.format(LINES // 2) in work(home)

    def test_with_hooks_that_hang(self, home: Path) -> None:
        """After their time the agent goes on."""
        replace_commands(home, "sleep 30", seconds=1)
        assert LINE.format(LINES // 2) in work(home, steps=1)

    def test_with_a_locked_store(self, home: Path) -> None:
        """Nothing is shortened, because the original could not be stored."""
        with locked(home / "data" / "kompakt" / "sessions.db"):
            assert LINE.format(LINES // 2) in work(home, steps=1)

    def test_with_folders_that_cannot_be_written(self, home: Path) -> None:
        """Neither store nor log nor notes: rules are still given to the summarizer."""
        sent = work(home, XDG_DATA_HOME="/dev/full", XDG_STATE_HOME="/dev/full")
        assert LINE.format(LINES // 2) in sent
        assert "Rules for this summary" in sent

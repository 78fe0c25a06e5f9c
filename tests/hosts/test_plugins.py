"""Plugins in the agents as shipped: install, work, compaction by the agent itself, recall, undo.

The scripted model writes a summary that keeps nothing. What the next request has from before the compaction comes from
kompakt alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.agents import CLAUDE_CODE, CODEX, OPENCODE, PI, Agent, Finished, line_of, run, shell_step
from tests.hosts.binaries import codex_binary
from tests.provider.answer import Answer, Seen
from tests.provider.script import Script
from tests.provider.server import Provider

import kompakt
from kompakt.hosts import places

STEPS = 40
HUGE_STEP, RECALL_STEP = 8, 38
HUGE_LINES = 400
RULE = "Never delete a file in data/."
REFUSAL = "No, do not push to the remote. Continue with the reports."
SUMMARY = "<analysis>none</analysis><summary>Some work was done. Continue.</summary>"
ASKED = "step-003 wrote line 57"
SOURCE = str(Path(__file__).parent.parent.parent / "src")


@dataclasses.dataclass(frozen=True)
class Plugged:
    """How one agent with the plugin is run, and what its requests look like."""

    agent: Agent
    compacts: dict[str, str]
    """Environment that makes the agent compact after some 30 steps."""
    command: Callable[[str, Path, str | None], list[str]]
    """The command for a prompt, in a new session or in one that is continued."""
    session_key: str
    """Field of the agent's events with the id of the session."""
    asks: str
    """Text in the agent's own request for a summary."""
    instructs: bool
    """Whether the agent lets hooks add to the instructions for its summary."""
    shortens: bool
    """Whether the agent lets hooks replace a tool output."""
    recall: str
    """Name of the recall tool in requests."""
    turn: int = 5
    """The step after which the user speaks again; pi compacts only then."""


def _claude(prompt: str, home: Path, session: str | None) -> list[str]:
    return [*CLAUDE_CODE.command(prompt, home), *(["--resume", session] if session else [])]


def _codex(prompt: str, home: Path, session: str | None) -> list[str]:
    del home
    options = ["-c", "model_auto_compact_token_limit=45000", "--dangerously-bypass-hook-trust", "--skip-git-repo-check"]
    return [str(codex_binary()), "exec", *options, "--json", *(["resume", session] if session else []), prompt]


def _opencode(prompt: str, home: Path, session: str | None) -> list[str]:
    return [*OPENCODE.command(prompt, home), *(["--session", session] if session else [])]


def _opencode_environment(url: str, home: Path) -> dict[str, str]:
    """Give the model a window that 40 steps do not fit into."""
    environment = OPENCODE.environment(url, home)
    path = home / "config" / "opencode" / "opencode.json"
    settings = json.loads(path.read_text())
    settings["provider"]["local"]["models"]["test-model"]["limit"] = {"context": 60_000, "output": 8_000}
    path.write_text(json.dumps(settings))
    return environment


CLAUDE_PLUGIN = Plugged(
    agent=CLAUDE_CODE,
    compacts={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50"},
    command=_claude,
    session_key="session_id",
    asks="Your task is to create a detailed summary",
    instructs=True,
    shortens=True,
    recall="mcp__kompakt__recall",
)

CODEX_PLUGIN = Plugged(
    agent=CODEX,
    compacts={},
    command=_codex,
    session_key="thread_id",
    asks="CONTEXT CHECKPOINT COMPACTION",
    instructs=False,
    shortens=False,
    recall="mcp__kompakt::recall",
)


OPENCODE_PLUGIN = Plugged(
    agent=dataclasses.replace(OPENCODE, environment=_opencode_environment),
    compacts={},
    command=_opencode,
    session_key="sessionID",
    asks="anchored summary from the conversation history",
    instructs=True,
    shortens=True,
    recall="kompakt_recall",
)


def _pi(prompt: str, home: Path, session: str | None) -> list[str]:
    return [*PI.command(prompt, home), *(["--session", session] if session else [])]


def _pi_environment(url: str, home: Path) -> dict[str, str]:
    """Give the model a window that 40 steps do not fit into."""
    environment = PI.environment(url, home)
    path = home / "pi" / "models.json"
    path.write_text(path.read_text().replace("400000", "50000"))
    return environment


PI_PLUGIN = Plugged(
    agent=dataclasses.replace(PI, environment=_pi_environment),
    compacts={},
    command=_pi,
    session_key="id",
    asks="context summarization assistant",
    instructs=False,
    shortens=True,
    recall="recall",
    turn=36,
)


class PluginRun:
    """A session of an agent with the plugin, from installation to undo."""

    def __init__(self, plugged: Plugged, home: Path) -> None:
        self.plugged, self.home, self.agent = plugged, home, plugged.agent
        home.mkdir(parents=True)
        self.script = Script(STEPS, make=self._calls, turn=plugged.turn, recalls=True)
        self.task = self.script.task(f"Write the report of each shard, one after the other. {RULE}")
        written = Answer(text=SUMMARY)
        with Provider(self._answer, window=200_000, models=self.agent.models, summary=lambda _: written) as provider:
            self.environment = {
                **self.agent.environment(provider.url, home),
                "PYTHONPATH": SOURCE,
                "XDG_DATA_HOME": str(home / "data"),
                "XDG_STATE_HOME": str(home / "state"),
                **plugged.compacts,
            }
            self.files_before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
            self.kompakt("install", self.agent.name, "--yes")
            self.first = self._run(self.task, None, provider.url)
            self.script.turn = 0
            self._start_another_session()
            self.second = self._run(REFUSAL, self.session, provider.url)
        self.bodies = [record.body for record in provider.requests]
        self.refusals = provider.refusals
        self._wait_for_recording()
        self.kompakt("install", self.agent.name, "--undo", "--yes")

    def _run(self, prompt: str, session: str | None, url: str) -> Finished:
        agent = dataclasses.replace(
            self.agent,
            environment=lambda url, home: self.environment,
            command=lambda prompt, home: self.plugged.command(prompt, home, session),
        )
        return run(agent, prompt, url=url, home=self.home)

    @property
    def session(self) -> str:
        """Return the agent's id of the session."""
        return next(event[key] for event in self.first.events if (key := self.plugged.session_key) in event)

    def _calls(self, step: int, dice: random.Random, tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        names = {tool["name"] for tool in tools}
        if step == RECALL_STEP and self.plugged.recall in names:
            return [(self.plugged.recall, {"query": ASKED})]
        if step == HUGE_STEP:
            return [self.agent.call(f"seq -f '2026-01-01 INFO worker %g handled a request of tenant 7' {HUGE_LINES}")]
        return shell_step(self.agent)(step, dice, tools)

    def _answer(self, seen: Seen) -> Answer:
        texts = (seen.closing, str(seen.items[-1]), str(seen.system))
        is_asked = any(self.plugged.asks in text for text in texts)
        return Answer(text=SUMMARY) if is_asked else self.script.answer(seen)

    def kompakt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run kompakt in the home of the agent."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **self.environment}
        command = [sys.executable, "-m", "kompakt", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=self.home)
        assert done.returncode == 0, done.stderr
        return done

    def _start_another_session(self) -> None:
        """Note a session of the same agent in the same folder with a newer transcript, which must not be searched."""
        other = self.home / "other.jsonl"
        said = {"type": "user", "uuid": "u1", "cwd": str(self.home / "work")}
        other.write_text(json.dumps({**said, "message": {"role": "user", "content": "Something else."}}) + "\n")
        os.utime(other, (2**32, 2**32))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", self.environment["XDG_STATE_HOME"])
            places.note_session(self.agent.name, "other", folder=str(self.home / "work"), transcript=str(other))

    def _wait_for_recording(self) -> None:
        """Wait for the process that records the end of the session."""
        deadline = time.monotonic() + 60
        while f"All {STEPS} steps are done." not in self.recorded:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    @property
    def recorded(self) -> str:
        """Return the texts of all stored sessions."""

        async def read() -> str:
            url = f"sqlite:///{self.home / 'data' / 'kompakt' / 'sessions.db'}"
            async with await kompakt.open_store(url) as store:
                texts = [
                    str(part)
                    async for session in store.sessions()
                    async for page in session.pages()
                    for message in page
                    for part in message.parts
                ]
            return "\n".join(texts)

        return asyncio.run(read())

    @property
    def log(self) -> str:
        path = self.home / "state" / "kompakt" / "hooks.log"
        return path.read_text() if path.exists() else ""

    @property
    def compacted_at(self) -> int:
        """Return the index of the first request for a summary."""
        return next(at for at, body in enumerate(self.bodies) if self.is_summary_request(body))

    @property
    def continued_at(self) -> int:
        """Return the index of the first request after a compaction."""
        rest = range(self.compacted_at, len(self.bodies))
        return next(at for at in rest if not self.is_summary_request(self.bodies[at]))

    @property
    def last_body(self) -> str:
        """Return the last request of the conversation itself."""
        return json.dumps([body for body in self.bodies if not self.is_summary_request(body)][-1])

    def is_summary_request(self, body: dict[str, Any]) -> bool:
        """Return whether a request asks for a summary."""
        return self.plugged.asks in json.dumps(body)


EACH = [
    pytest.param(plugged, marks=pytest.mark.xdist_group(plugged.agent.name), id=plugged.agent.name)
    for plugged in (CLAUDE_PLUGIN, CODEX_PLUGIN, OPENCODE_PLUGIN, PI_PLUGIN)
]


@pytest.fixture(scope="module", params=EACH)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PluginRun:
    """Run an agent with the plugin once."""
    return PluginRun(request.param, tmp_path_factory.mktemp(request.param.agent.name) / "home")


class TestPlugins:
    def test_the_agent_works_as_before(self, session: PluginRun) -> None:
        """Both runs end well, all steps are done, and no hook failed."""
        assert session.first.code == 0, session.first.output[-2000:]
        assert session.second.code == 0, session.second.output[-2000:]
        assert f"All {STEPS} steps are done." in session.second.output
        assert [record.refusal for record in session.refusals] == []
        assert session.log == ""

    def test_the_agent_compacted_by_itself(self, session: PluginRun) -> None:
        """And rules and refusals were given to its summarizer."""
        assert session.agent.compacted_itself(session.second.output, session.home)
        asked = json.dumps(session.bodies[session.compacted_at])
        assert ("Rules for this summary" in asked) == session.plugged.instructs

    def test_rule_and_refusal_are_in_the_next_request(self, session: PluginRun) -> None:
        """Verbatim, though the summary has neither; so the conversation is still known by its task."""
        after = json.dumps(session.bodies[session.continued_at])
        assert "Some work was done" in after and "Notes on the earlier part" in after
        assert RULE in after and "No, do not push to the remote." in after
        # Codex summarizes the open round too, so the script sees no results of its last calls.
        assert [fault for fault in session.script.violations if "never answered" not in fault] == []

    def test_recall_finds_a_dropped_output(self, session: PluginRun) -> None:
        """The model calls the tool and gets a line that is in no message any more."""
        assert f'"name": "{session.plugged.recall.rpartition("::")[2]}"' in session.last_body
        assert line_of(3, 57) in session.last_body

    def test_a_huge_output_is_shortened_and_its_original_kept(self, session: PluginRun) -> None:
        """The model sees the short form; the store has every line."""
        if not session.plugged.shortens:
            pytest.skip("the agent gives hooks no way to replace an output")
        sent = json.dumps(session.bodies)
        assert "INFO worker 200 handled" not in sent
        assert "INFO worker 400 handled" in sent
        assert f"INFO worker {HUGE_LINES // 2} handled" in session.recorded

    def test_everything_is_recorded(self, session: PluginRun) -> None:
        """Also what the agent dropped."""
        steps = [step for step in range(1, STEPS + 1) if step not in (session.plugged.turn, HUGE_STEP, RECALL_STEP)]
        recorded = session.recorded
        assert [step for step in steps if line_of(step, 90) not in recorded] == []
        assert f"All {STEPS} steps are done." in recorded

    def test_undo_leaves_no_trace(self, session: PluginRun) -> None:
        """No file of the agent's settings mentions kompakt, and those of the user are as they were."""
        for path, data in session.files_before.items():
            assert path.read_bytes() == data
        folders = [session.home / name for name in ("claude", "codex", "config", "pi")]
        names = (
            "settings.json",
            ".claude.json",
            "hooks.json",
            "config.toml",
            "opencode.json",
            "kompakt.js",
            "kompakt.ts",
        )
        left = [path for folder in folders for name in names for path in folder.rglob(name)]
        assert [path for path in left if "kompakt" in path.read_text()] == []

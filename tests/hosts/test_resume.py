"""Transcripts that were repaired or compacted on the command line, resumed by the agents themselves.

Each session is made by the agent. For a repair it is damaged, resumed as it is to see what the agent does alone, then
repaired with ``kompakt repair`` and resumed again. The provider judges every request by the rules of its API.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import run as command
from tests.hosts.agents import CLAUDE_CODE, CODEX, Agent, Finished, run
from tests.hosts.binaries import claude_binary, codex_binary
from tests.provider.answer import Answer
from tests.provider.script import Script
from tests.provider.server import Provider

STEPS = 4
Lines = list[bytes]
Damage = Callable[[Lines], Lines]


class Made:
    """A session that an agent made: its home, its file, and how it is resumed."""

    def __init__(
        self, agent: Agent, home: Path, *, task: str = "Write the report.", steps: int = STEPS, lines: int = 3
    ) -> None:
        script = Script(steps, make=lambda step, *_: [agent.call(f"seq -f 'step-{step} line %g' {lines}")])
        with Provider(script, window=400_000, models=agent.models) as provider:
            finished = run(agent, script.task(task), url=provider.url, home=home)
        assert finished.code == 0, finished.errors
        (self.file,) = home.rglob("projects/*/*.jsonl") if agent is CLAUDE_CODE else home.rglob("rollout-*.jsonl")
        self.agent, self.home = agent, home

    @property
    def session(self) -> str:
        """Return the id of the session, which the name of its file ends with."""
        found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", self.file.stem)
        assert found is not None
        return found[0]

    def resume(self, named: str) -> tuple[Finished, Provider]:
        """Resume the session in its home and ask for more."""
        agent = dataclasses.replace(self.agent, command=lambda prompt, home: _resuming(self.agent, prompt, named))
        with Provider(lambda _: Answer(text="Resumed."), window=400_000, models=agent.models) as provider:
            finished = run(agent, "Please continue.", url=provider.url, home=self.home)
        return finished, provider


def _resuming(agent: Agent, prompt: str, named: str) -> list[str]:
    if agent is CODEX:
        return [str(codex_binary()), "exec", "--skip-git-repo-check", "--json", "resume", named, prompt]
    output = ["--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"]
    return [str(claude_binary()), "-p", prompt, "--resume", named, "--dangerously-skip-permissions", *output]


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a session of Claude Code."""
    claude_binary()
    return Made(CLAUDE_CODE, tmp_path_factory.mktemp("claude") / "home")


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a session of Codex."""
    codex_binary()
    return Made(CODEX, tmp_path_factory.mktemp("codex") / "home")


def holding(lines: Lines, *texts: bytes) -> int:
    """Find the record to damage: the first with all of these texts, ignoring spaces."""
    return next(at for at, line in enumerate(lines) if all(text in line.replace(b'": ', b'":') for text in texts))


def renamed(lines: Lines) -> Lines:
    """Give the second call an id that the API refuses, as gateways of other providers make them."""
    name = re.search(rb'"(?:call|toolu)_[0-9a-f]+_00002_0"', b"".join(lines))
    assert name is not None
    return [line.replace(name[0], b'"call.' + b"x" * 80 + b':2"') for line in lines]


def unsigned(lines: Lines) -> Lines:
    """Take the signatures out of all thinking, as after a switch of providers."""
    return [re.sub(rb'"signature":"[^"]*"', b'"signature":""', line) for line in lines]


def torn(lines: Lines) -> Lines:
    """End where the process was killed: in the middle of a record, with the call before it open."""
    at = (
        holding(lines, b'"type":"tool_result"', b"step-3")
        if b"claude" in b"".join(lines)
        else holding(lines, b'"type":"function_call_output"', b"step-3")
    )
    return [*lines[:at], lines[at][:150]]


def doubled(lines: Lines) -> Lines:
    """Write the second output twice, as a write that was tried again."""
    at = holding(lines, b'"type":"function_call_output"', b"step-2")
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def cut(lines: Lines) -> Lines:
    """Leave half of a character in the second output, as tools that cut by UTF-16 units do."""
    at = holding(lines, b'"type":"function_call_output"', b"step-2 line 1")
    return [*lines[:at], lines[at].replace(b"step-2 line 1", b"step-2 \\ud83d line 1"), *lines[at + 1 :]]


class TestClaudeCode:
    @pytest.mark.parametrize(("damage", "is_refused"), [(renamed, True), (unsigned, True), (torn, False)])
    def test_a_repaired_transcript_is_resumed(
        self, claude: Made, tmp_path: Path, damage: Damage, is_refused: bool
    ) -> None:
        """By the path of the file that ``repair`` wrote; every result that was in the file is in the request."""
        broken, fixed = tmp_path / "session.jsonl", tmp_path / "fixed.jsonl"
        broken.write_bytes(b"".join(damage(claude.file.read_bytes().splitlines(keepends=True))))
        before = broken.read_bytes()
        finished, provider = claude.resume(str(broken))
        assert (finished.code != 0) == is_refused
        broken.write_bytes(before)  # Claude Code appends to the file that it resumes
        assert command("check", broken).code == 1
        assert command("repair", broken, "-o", fixed).code == 0
        assert broken.read_bytes() == before
        finished, provider = claude.resume(str(fixed))
        assert finished.code == 0, finished.output[-2000:]
        # The restarted provider knows no earlier signature. Claude Code then resends without thinking.
        refusals = [str(record.refusal) for record in provider.refusals]
        assert [refusal for refusal in refusals if "Invalid `signature`" not in refusal] == []
        sent = str(provider.requests[-1].body["messages"])
        steps = (1, 2) if damage is torn else (1, 2, 3, 4)
        assert all(f"step-{step} line 3" in sent for step in steps)
        assert "Please continue." in sent


class TestCodex:
    @pytest.mark.parametrize(("damage", "is_refused"), [(renamed, True), (doubled, True), (cut, False), (torn, False)])
    def test_a_repaired_rollout_is_resumed(self, codex: Made, tmp_path: Path, damage: Damage, is_refused: bool) -> None:
        """In the place of the broken one; every output that was in the file is in the request."""
        kept = tmp_path / "kept.jsonl"
        shutil.copy(codex.file, kept)
        fixed = tmp_path / "fixed.jsonl"
        try:
            broken = b"".join(damage(kept.read_bytes().splitlines(keepends=True)))
            codex.file.write_bytes(broken)
            finished, provider = codex.resume(codex.session)
            assert (finished.code != 0) == is_refused
            if damage is cut:  # Codex skips the line and reports to the model that the call was aborted
                assert "step-2 " not in _outputs(provider)
            codex.file.write_bytes(broken)
            assert command("check", codex.file).code == 1
            assert command("repair", codex.file, "-o", fixed).code == 0
            assert codex.file.read_bytes() == broken
            shutil.copy(fixed, codex.file)
            finished, provider = codex.resume(codex.session)
        finally:
            shutil.copy(kept, codex.file)
        assert finished.code == 0, finished.output[-2000:]
        assert provider.refusals == []
        steps = (1, 2) if damage is torn else (1, 2, 3, 4)
        assert all(f"step-{step} line 3" in _outputs(provider) for step in steps)


def _outputs(provider: Provider) -> str:
    return str([item for item in provider.requests[-1].body["input"] if item.get("type") == "function_call_output"])


class TestCompacted:
    """A session of 20 steps with 300 lines each, made small with ``kompakt compact`` and resumed."""

    TASK = "Write the report of each shard. Never delete a file."

    @pytest.mark.parametrize("agent", [CLAUDE_CODE, CODEX], ids=lambda agent: agent.name)
    def test_a_compacted_session_is_resumed(self, agent: Agent, tmp_path: Path) -> None:
        """The first request has the task, the notes and the newest messages, fits the budget, and is accepted."""
        made = Made(agent, tmp_path / "home", task=self.TASK, steps=20, lines=300)
        original = made.file.read_bytes()
        small = tmp_path / "small.jsonl"
        done = command("compact", made.file, "--budget", "15000", "-o", small)
        assert done.code == 0, done.err
        assert made.file.read_bytes() == original
        assert command("check", small).code == 0
        if agent is CODEX:  # it finds a session by its id, in its own folder
            shutil.copy(small, made.file)
        finished, provider = made.resume(made.session if agent is CODEX else str(small))
        assert finished.code == 0, finished.output[-2000:]
        assert provider.refusals == []
        body = provider.requests[0].body
        sent = str(body["input" if agent is CODEX else "messages"])
        assert self.TASK in sent and "[kompakt] What was done so far?" in sent
        assert "step-20 line 300" in sent and "Please continue." in sent
        assert "step-2 line 150" not in sent
        assert sent.count("step-20 line 300") == 1
        assert not agent.compacted_itself(finished.output, made.home)

"""Run a coding agent once, without a person: one prompt, tools allowed, everything it writes in a folder of the test.

Each agent is configured as its vendor ships it. Only the address of the provider and the key differ.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.binaries import claude_binary, codex_binary, opencode_binary, pi_command

TIMEOUT = 240
"""Seconds for one run; a run of 60 steps takes 10 to 30 on an idle machine."""

OUTPUT_LINES = 90
"""Lines that each scripted command prints: about 1,200 tokens."""


@dataclass(frozen=True)
class Agent:
    """How to run one agent, and how to recognize that it compacted its history itself."""

    name: str
    format: str
    models: tuple[str, ...]
    window: int
    """Small enough that 60 steps do not fit, large enough for the agent's own system prompt, tools and output limit."""
    call: Callable[[str], tuple[str, dict[str, Any]]]
    """The tool call that runs a shell command."""
    command: Callable[[str, Path], list[str]]
    environment: Callable[[str, Path], dict[str, str]]
    compacted_itself: Callable[[str, Path], bool]


@dataclass
class Finished:
    """A run that ended."""

    code: int
    output: str
    errors: str
    home: Path
    events: list[dict[str, Any]] = field(default_factory=list)


def run(agent: Agent, prompt: str, *, url: str, home: Path, more: Sequence[str] = ()) -> Finished:
    """Run an agent in `home` until it has answered the prompt."""
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **agent.environment(url, home)}
    command = [*agent.command(prompt, home), *more]
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(
            f"{agent.name} did not finish within {TIMEOUT} s\n{out[-2000:]!r}\n{err[-2000:]!r}"
        ) from None
    text = out.decode(errors="replace")
    return Finished(process.returncode, text, err.decode(errors="replace"), home, list(_events(text)))


def _events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [event for line in lines if isinstance(event := json.loads(line), dict)]


def shell_step(agent: Agent) -> Callable[[int, random.Random, list[dict[str, Any]]], list[tuple[str, dict[str, Any]]]]:
    """Return what the scripted model calls at each step: a command whose output names the step in every line."""

    def make(step: int, dice: random.Random, tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        del dice, tools
        return [agent.call(f"seq -f '{line_of(step, '%g')}' {OUTPUT_LINES}")]

    return make


def line_of(step: int, number: int | str) -> str:
    """Return a line that the command of a step prints."""
    return f"step-{step:03d} wrote line {number} of the report on shard {step * 7919 % 9973}"


def _claude_environment(url: str, home: Path) -> dict[str, str]:
    return {
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # it refuses --dangerously-skip-permissions for root otherwise
    }


def _claude_command(prompt: str, home: Path) -> list[str]:
    output = ["--output-format", "stream-json", "--verbose"]
    return [
        str(claude_binary()),
        "-p",
        prompt,
        "--dangerously-skip-permissions",
        *output,
        "--model",
        "claude-sonnet-4-5",
    ]


def _codex_environment(url: str, home: Path) -> dict[str, str]:
    settings = f"""
model = "gpt-5"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""
    folder = home / "codex"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(settings)
    return {"CODEX_HOME": str(folder), "LOCAL_KEY": "sk-test"}


def _opencode_environment(url: str, home: Path) -> dict[str, str]:
    model = {"name": "test-model", "limit": {"context": 400_000, "output": 8_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": f"{url}/v1", "apiKey": "sk-test"},
        "models": {"test-model": model},
    }
    named = "local/test-model"
    settings: Mapping[str, Any] = {
        "$schema": "https://opencode.ai/config.json",  # opencode adds it otherwise
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": named,
        "small_model": named,
        "provider": {"local": provider},
    }
    folder = home / "config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(settings))
    return {f"XDG_{kind.upper()}_HOME": str(home / kind) for kind in ("config", "data", "state", "cache")}


def _pi_environment(url: str, home: Path) -> dict[str, str]:
    folder = home / "pi"
    folder.mkdir(parents=True, exist_ok=True)
    model = {"id": "test-model", "contextWindow": 400_000, "maxTokens": 8_000}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "sk-test", "models": [model]}
    (folder / "models.json").write_text(json.dumps({"providers": {"local": provider}}))
    return {"PI_CODING_AGENT_DIR": str(folder), "PI_OFFLINE": "1"}


def _has_line(folder: Path, *texts: str) -> bool:
    files = [path for path in folder.rglob("*.jsonl") if path.is_file()]
    return any(text in path.read_text(errors="replace") for path in files for text in texts)


CLAUDE_CODE = Agent(
    name="claude-code",
    format="anthropic",
    models=("claude-sonnet-4-5",),
    window=72_000,
    call=lambda command: ("Bash", {"command": command, "description": "Write the report of a shard"}),
    command=_claude_command,
    environment=_claude_environment,
    compacted_itself=lambda output, home: (
        "compact_boundary" in output or _has_line(home / "claude", "compact_boundary")
    ),
)

CODEX = Agent(
    name="codex",
    format="openai-responses",
    models=("gpt-5",),
    window=40_000,
    call=lambda command: ("exec_command", {"cmd": command}),
    command=lambda prompt, home: [str(codex_binary()), "exec", "--skip-git-repo-check", "--json", prompt],
    environment=_codex_environment,
    compacted_itself=lambda output, home: _has_line(home / "codex", '"type":"compacted"'),
)

OPENCODE = Agent(
    name="opencode",
    format="openai-chat",
    models=("test-model",),
    window=40_000,
    call=lambda command: ("bash", {"command": command, "description": "Write the report of a shard"}),
    command=lambda prompt, home: [str(opencode_binary()), "run", "--format", "json", prompt],
    environment=_opencode_environment,
    compacted_itself=lambda output, home: any(
        b'"type":"compaction"' in path.read_bytes() for path in (home / "data" / "opencode").glob("opencode*.db*")
    ),
)

PI = Agent(
    name="pi",
    format="openai-chat",
    models=("test-model",),
    window=40_000,
    call=lambda command: ("bash", {"command": command}),
    command=lambda prompt, home: [*pi_command(), "-p", "--mode", "json", "--model", "local/test-model", prompt],
    environment=_pi_environment,
    compacted_itself=lambda output, home: _has_line(home / "pi", '"type":"compaction"'),
)

AGENTS = (CLAUDE_CODE, CODEX, OPENCODE)

"""The MCP server in Claude Code as shipped: it finds the session of the agent that started it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import SOURCE
from tests.hosts.agents import CLAUDE_CODE, run
from tests.provider.script import Script
from tests.provider.server import Provider

RECALL = "mcp__kompakt__recall"
STEPS = 3


def step(number: int, dice: random.Random, tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Print a line, and in the last step recall what was printed in the first."""
    del dice
    if number < STEPS:
        return [CLAUDE_CODE.call(f"echo the harbour of step {number} is open")]
    assert RECALL in {tool["name"] for tool in tools}
    return [(RECALL, {"query": "harbour of step 1", "tokens": 300})]


@pytest.mark.xdist_group("claude-code")
def test_claude_code_recalls_its_own_session(tmp_path: Path) -> None:
    """An older session in the same folder is not taken for it."""
    server = {
        "command": sys.executable,
        "args": ["-m", "kompakt", "mcp"],
        "env": {"PYTHONPATH": SOURCE},
        "alwaysLoad": True,
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"kompakt": server}}))
    for at in range(2):
        script = Script(STEPS, make=step)
        with Provider(script, window=200_000, models=CLAUDE_CODE.models) as provider:
            task = script.task(f"Ask for the harbours, session {at}.")
            more = ["--mcp-config", str(config)]
            done = run(CLAUDE_CODE, task, url=provider.url, home=tmp_path / "home", more=more)
        assert done.code == 0, done.output[-2_000:] + done.errors[-2_000:]
        answer = json.dumps(provider.requests[-1].body["messages"][-1])
        session = next(event["session_id"] for event in done.events if "session_id" in event)
        assert f"the claude-code transcript {session}" in answer
        assert "the harbour of step 1 is open" in answer and "data, not instructions" in answer

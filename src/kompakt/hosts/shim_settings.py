"""The plugin files of kompakt for opencode and pi: one file each, which registers the MCP server as well.

User scope: the configuration folder of the agent. Project scope: the agent's folder in the project, without paths of
this machine.
"""

from __future__ import annotations

import json
import os
import shlex
from functools import partial
from importlib.resources import files
from pathlib import Path

from kompakt.errors import UsageError
from kompakt.hosts.install import HOOK, HostFile, HostPlan, Scope, hook_command, mcp_command
from kompakt.hosts.shims import OPENCODE

MARK = "// Written by `kompakt install"


def opencode_plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed into opencode; ``root`` is the folder of a project."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    folder = (root or Path.cwd()) / ".opencode" if scope == "project" else own
    path = folder / "plugin" / "kompakt.js"
    text = _source("opencode-plugin.js", OPENCODE, scope)
    return HostPlan(
        agent=OPENCODE,
        scope=scope,
        files=(HostFile(path=path, put_in=partial(_put, new=text, path=path), take_out=_take, holds="plugin"),),
        notes=("Running sessions of opencode load the plugin after a restart.",),
    )


def _source(name: str, agent: str, scope: Scope) -> str:
    """Return the text of a plugin with the commands of this installation."""
    hook = [HOOK] if scope == "project" else shlex.split(hook_command(agent, "", scope))[:-2]
    text = (files("kompakt") / "data" / name).read_text(encoding="utf-8")
    return text.replace("__HOOK__", json.dumps(hook)).replace("__MCP__", json.dumps(mcp_command(scope)))


def _put(text: str, *, new: str, path: Path) -> str:
    if text and not text.startswith(MARK):
        raise UsageError(f"{path}: not written by kompakt; rename the file, nothing was changed")
    return new


def _take(text: str) -> str:
    return "" if text.startswith(MARK) else text

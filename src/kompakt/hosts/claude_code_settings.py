"""The entries of kompakt in the settings of Claude Code: hooks, MCP server and status line.

User scope: ``settings.json`` and ``.claude.json`` in the configuration of Claude Code. Project scope:
``.claude/settings.json`` and ``.mcp.json`` in the project, without paths of this machine. Other hooks and servers stay.
A status line of the user is never replaced, nor a server of the user with the name kompakt.
"""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any, cast

from kompakt.hosts import jsonc
from kompakt.hosts.claude_code import AGENT, MATCHER, PROGRAM, TESTED
from kompakt.hosts.hook import KEEP_OUTPUTS
from kompakt.hosts.install import (
    HostEntry,
    HostFile,
    HostPlan,
    Scope,
    has_recall,
    hook_command,
    is_own_hook,
    mcp_command,
    no_recall,
    own_hooks,
    put_hooks,
    read_text,
    shared_notes,
    take_hooks,
)

EVENTS = {
    "SessionStart": 30,
    "PreCompact": 30,
    "PostCompact": 30,
    "PostToolUse": 30,
    "Stop": 10,
    "SubagentStop": 10,
    "SessionEnd": 10,
}
"""Events that are hooked, and the seconds after which Claude Code continues without an answer."""

SERVER = ("mcpServers", "kompakt")


def plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed; ``root`` is the folder of a project."""
    settings, servers = _paths(scope, root or Path.cwd())
    return HostPlan(
        agent=AGENT,
        program=PROGRAM,
        tested=TESTED,
        scope=scope,
        files=(
            HostFile(
                path=settings,
                put_in=partial(_put_settings, scope=scope, name=str(settings)),
                take_out=partial(_take_settings, name=str(settings)),
                entries=partial(_settings_entries, name=str(settings)),
                holds="hooks and status line",
            ),
            HostFile(
                path=servers,
                put_in=partial(_put_server, scope=scope, name=str(servers)),
                take_out=partial(_take_server, name=str(servers)),
                entries=partial(_server_entries, name=str(servers)),
                holds="MCP server for recall",
            ),
        ),
        notes=_notes(settings, servers, scope),
    )


def _paths(scope: Scope, root: Path) -> tuple[Path, Path]:
    if scope == "project":
        return root / ".claude" / "settings.json", root / ".mcp.json"
    folder = os.environ.get("CLAUDE_CONFIG_DIR")
    if folder:
        return Path(folder) / "settings.json", Path(folder) / ".claude.json"
    return Path.home() / ".claude" / "settings.json", Path.home() / ".claude.json"


def _notes(settings: Path, servers: Path, scope: Scope) -> tuple[str, ...]:
    notes = [
        "Very large outputs of Bash, Grep and MCP tools reach the model in a short form; the originals are kept. "
        f"{KEEP_OUTPUTS}=1 in the environment of Claude Code turns this off.",
        "Running sessions of Claude Code use the new settings after a restart.",
    ]
    if not has_recall(scope):
        notes.append(no_recall(AGENT))
    if scope == "project":
        notes += ["Claude Code asks once before it starts the MCP server of a project.", *shared_notes(scope)]
    text = read_text(settings)
    found = jsonc.read(text, str(settings)).value
    if found.get("disableAllHooks"):
        notes.append(f"{settings} has disableAllHooks: the hooks will not run until you remove it.")
    if "statusLine" in found and not is_own_hook(found["statusLine"]):
        notes.append("Your own status line stays.")
    server = jsonc.read(read_text(servers), str(servers)).find(SERVER)
    if server is not None and not _is_own_server(server.value):
        notes.append(f"Your own MCP server kompakt in {servers} stays.")
    return tuple(notes)


def _put_settings(text: str, *, scope: Scope, name: str) -> str:
    text = put_hooks(text, agent=AGENT, events=EVENTS, matchers={"PostToolUse": MATCHER}, scope=scope, name=name)
    status = jsonc.read(text, name).find(("statusLine",))
    if status is None or is_own_hook(status.value):
        line = {"type": "command", "command": hook_command(AGENT, "statusline", scope)}
        text = jsonc.put(text, ("statusLine",), line, name)
    return text


def _take_settings(text: str, *, name: str) -> str:
    text = take_hooks(text, name=name)
    status = jsonc.read(text, name).find(("statusLine",))
    if status is not None and is_own_hook(status.value):
        text = jsonc.drop(text, ("statusLine",), name)
    return text


def _settings_entries(text: str, *, name: str) -> list[HostEntry]:
    status = jsonc.read(text, name).find(("statusLine",))
    line = [HostEntry("status line", status.value["command"])] if status and is_own_hook(status.value) else []
    return [*own_hooks(text, name=name), *line]


def _put_server(text: str, *, scope: Scope, name: str) -> str:
    if not has_recall(scope):
        return text
    found = jsonc.read(text, name).find(SERVER)
    if found is not None and not _is_own_server(found.value):
        return text
    command, *arguments = mcp_command(scope)
    # Without alwaysLoad the tools of a server are hidden behind a search, and the model does not know of them.
    entry = {"type": "stdio", "command": command, "args": arguments, "alwaysLoad": True}
    others: dict[str, Any] = {} if found is None else found.value  # such as env, which the user may have added
    return jsonc.put(text or "{}\n", SERVER, {**others, **entry}, name)


def _take_server(text: str, *, name: str) -> str:
    found = jsonc.read(text, name).find(SERVER)
    return jsonc.drop(text, SERVER, name) if found is not None and _is_own_server(found.value) else text


def _server_entries(text: str, *, name: str) -> list[HostEntry]:
    found = jsonc.read(text, name).find(SERVER)
    if found is None or not _is_own_server(found.value):
        return []
    return [HostEntry("MCP server", shlex.join([found.value["command"], *found.value["args"]]))]


def _is_own_server(value: Any) -> bool:
    """Return whether an entry starts the MCP server with a command that kompakt writes, of any scope or environment."""
    if not isinstance(value, dict):
        return False
    entry = cast("dict[str, Any]", value)
    command, arguments = entry.get("command"), entry.get("args")
    if not isinstance(command, str):
        return False
    return arguments == ["-m", "kompakt", "mcp"] or (arguments == ["mcp"] and Path(command).stem == "kompakt")

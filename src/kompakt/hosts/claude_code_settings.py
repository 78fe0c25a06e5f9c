"""The entries of kompakt in the settings of Claude Code: hooks, MCP server and status line.

User scope: ``settings.json`` and ``.claude.json`` in the configuration of Claude Code. Project scope:
``.claude/settings.json`` and ``.mcp.json`` in the project, without paths of this machine. Other hooks and servers stay,
and a status line of the user is never replaced.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, cast

from kompakt.hosts import jsonc
from kompakt.hosts.claude_code import AGENT, TEXT_FIELDS
from kompakt.hosts.install import HostFile, HostPlan, Scope, hook_command, is_own_command, mcp_command

EVENTS = {
    "SessionStart": 30,
    "PreCompact": 30,
    "PostCompact": 30,
    "PostToolUse": 30,
    "Stop": 10,
    "SubagentStop": 10,
    "SessionEnd": 10,
}
"""Events that are hooked, and the seconds after which Claude Code goes on without an answer."""

SERVER = ("mcpServers", "kompakt")


def plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed; ``root`` is the folder of a project."""
    settings, servers = _paths(scope, root or Path.cwd())
    return HostPlan(
        agent=AGENT,
        scope=scope,
        files=(
            HostFile(
                path=settings,
                put_in=partial(_put_hooks, scope=scope, name=str(settings)),
                take_out=partial(_take_hooks, name=str(settings)),
                holds="hooks and status line",
            ),
            HostFile(
                path=servers,
                put_in=partial(_put_server, scope=scope, name=str(servers)),
                take_out=partial(_take_server, name=str(servers)),
                holds="MCP server for recall",
            ),
        ),
        notes=_notes(settings, scope),
    )


def _paths(scope: Scope, root: Path) -> tuple[Path, Path]:
    if scope == "project":
        return root / ".claude" / "settings.json", root / ".mcp.json"
    folder = os.environ.get("CLAUDE_CONFIG_DIR")
    if folder:
        return Path(folder) / "settings.json", Path(folder) / ".claude.json"
    return Path.home() / ".claude" / "settings.json", Path.home() / ".claude.json"


def _notes(settings: Path, scope: Scope) -> tuple[str, ...]:
    notes = ["Running sessions of Claude Code use the new settings after a restart."]
    if scope == "project":
        notes.append("Claude Code asks once before it starts the MCP server of a project.")
    text = settings.read_text(encoding="utf-8") if settings.exists() else ""
    found = jsonc.read(text, str(settings)).value
    if found.get("disableAllHooks"):
        notes.append(f"{settings} has disableAllHooks: the hooks will not run until you remove it.")
    if "statusLine" in found and not _is_own_status(found["statusLine"]):
        notes.append("Your own status line stays.")
    return tuple(notes)


def _group(event: str, scope: Scope) -> dict[str, Any]:
    hook = {"type": "command", "command": hook_command(AGENT, event, scope), "timeout": EVENTS[event]}
    matcher = {"matcher": "|".join(TEXT_FIELDS)} if event == "PostToolUse" else {}
    return {**matcher, "hooks": [hook]}


def _put_hooks(text: str, *, scope: Scope, name: str) -> str:
    if not text:
        text = "{}\n"
    for event in EVENTS:
        group = _group(event, scope)
        found = jsonc.read(text, name).find(("hooks", event))
        if found is not None and isinstance(found.value, list):
            if [item for item in found.value if _is_own_group(item)] == [group]:
                continue
            text = jsonc.drop_items(text, ("hooks", event), _is_own_group, name)
        text = jsonc.append(text, ("hooks", event), group, name)
    status = jsonc.read(text, name).find(("statusLine",))
    if status is None or _is_own_status(status.value):
        line = {"type": "command", "command": hook_command(AGENT, "statusline", scope)}
        text = jsonc.put(text, ("statusLine",), line, name)
    return text


def _take_hooks(text: str, *, name: str) -> str:
    hooks = jsonc.read(text, name).find(("hooks",))
    for event in hooks.keys if hooks is not None else ():
        text = jsonc.drop_items(text, ("hooks", event), _is_own_group, name)
    status = jsonc.read(text, name).find(("statusLine",))
    if status is not None and _is_own_status(status.value):
        text = jsonc.drop(text, ("statusLine",), name)
    return text


def _is_own_group(group: Any) -> bool:
    hooks: Any = cast("dict[str, Any]", group).get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and bool(hooks) and all(map(_is_own_status, cast("list[Any]", hooks)))


def _is_own_status(entry: Any) -> bool:
    return isinstance(entry, dict) and is_own_command(cast("dict[str, Any]", entry).get("command"))


def _put_server(text: str, *, scope: Scope, name: str) -> str:
    command, *arguments = mcp_command(scope)
    # Without alwaysLoad the tools of a server are hidden behind a search, and the model does not know of them.
    entry = {"type": "stdio", "command": command, "args": arguments, "alwaysLoad": True}
    return jsonc.put(text or "{}\n", SERVER, entry, name)


def _take_server(text: str, *, name: str) -> str:
    return jsonc.drop(text, SERVER, name)

"""The entries of kompakt in the settings of Codex: ``hooks.json``, and a marked block in ``config.toml``.

User scope: the folder of Codex. Project scope: ``.codex`` in the project, without paths of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kompakt.errors import UsageError
from kompakt.hosts.codex import AGENT, TESTED
from kompakt.hosts.install import (
    HostEntry,
    HostFile,
    HostPlan,
    Scope,
    has_recall,
    mcp_command,
    no_recall,
    own_hooks,
    put_hooks,
    shared_notes,
    take_hooks,
)

EVENTS = {"SessionStart": 30, "PreCompact": 10, "PostCompact": 30, "Stop": 10}
"""Events that are hooked, and the seconds after which Codex continues without an answer."""

ENVIRONMENT = ("CODEX_HOME", "KOMPAKT_STORE", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables that the server needs to find the session. Codex starts servers without them unless they are listed."""

BEGIN, END = "# >>> kompakt >>>", "# <<< kompakt <<<"

# Codex may write tables of the user before END, which is a comment for it: only lines of our own table are matched.
_EOL = r"[ \t]*(?:\r?\n|\Z)"
_KEYS = r"(?:[^\s#\[][^\r\n]*(?:\r?\n|\Z))*"
_BLOCK = re.compile(
    rf"^(?P<gap>\r?\n)?{re.escape(BEGIN)}{_EOL}"
    rf"(?P<table>\[mcp_servers\.kompakt\]{_EOL}(?P<keys>{_KEYS}))?(?:{re.escape(END)}{_EOL})?",
    re.MULTILINE,
)
_SUBTABLE = re.compile(rf"^(?:\r?\n)?\[mcp_servers\.kompakt\.[^\r\n]*(?:\r?\n|\Z){_KEYS}", re.MULTILINE)
_STRAY_END = re.compile(rf"^{re.escape(END)}{_EOL}", re.MULTILINE)
_OWN_KEY = re.compile(r"(?:command|args|env_vars)[ \t]*=")


def plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed; ``root`` is the folder of a project."""
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    folder = (root or Path.cwd()) / ".codex" if scope == "project" else own
    hooks, config = folder / "hooks.json", folder / "config.toml"
    return HostPlan(
        agent=AGENT,
        program=AGENT,
        tested=TESTED,
        scope=scope,
        files=(
            HostFile(
                path=hooks,
                put_in=partial(put_hooks, agent=AGENT, events=EVENTS, matchers={}, scope=scope, name=str(hooks)),
                take_out=partial(take_hooks, name=str(hooks)),
                entries=partial(own_hooks, name=str(hooks)),
                holds="hooks",
            ),
            HostFile(
                path=config,
                put_in=partial(_put_server, scope=scope, name=str(config)),
                take_out=partial(_take_server, name=str(config)),
                entries=partial(_entries, name=str(config)),
                holds="MCP server for recall",
            ),
        ),
        notes=(
            "Codex runs new hooks only after you have trusted them: start codex, it asks, or use /hooks.",
            "Codex gives hooks no way to shorten tool outputs; they stay as they are.",
            *(() if has_recall(scope) else (no_recall(AGENT),)),
            *shared_notes(scope),
        ),
    )


def _put_server(text: str, *, scope: Scope, name: str) -> str:
    if not has_recall(scope):
        return text
    tables = _decoded(text, name).get("mcp_servers", {})
    found = _BLOCK.search(text)
    if "kompakt" in tables and (found is None or found["table"] is None):  # the user's own entry
        return text
    if found is not None:
        others = [line for line in (found["keys"] or "").splitlines() if not _OWN_KEY.match(line)]
        block = _block(scope, others, tables.get("kompakt", {}).get("env_vars", []))
        changed = text[: found.start()] + (found["gap"] or "") + block + _STRAY_END.sub("", text[found.end() :])
    else:
        gap = "" if not text or text.endswith("\n") else "\n"
        changed = f"{text}{gap}{chr(10) if text else ''}{_block(scope)}"
    _decoded(changed, name)
    return changed


def _block(scope: Scope, others: Sequence[str] = (), passed: Sequence[object] = ()) -> str:
    """Return the lines of the server; ``others`` and ``passed`` are lines and variables that the user added to it."""
    command, *arguments = mcp_command(scope)
    variables = [*ENVIRONMENT, *(one for one in passed if one not in ENVIRONMENT)]
    lines = [
        "[mcp_servers.kompakt]",
        f"command = {json.dumps(command)}",
        f"args = {json.dumps(arguments)}",
        f"env_vars = {json.dumps(variables)}",
    ]
    return "\n".join([BEGIN, *lines, *others, END, ""])


def _entries(text: str, *, name: str) -> list[HostEntry]:
    found = _BLOCK.search(text)
    if found is None or found["table"] is None:
        return []
    server = _decoded(text, name)["mcp_servers"]["kompakt"]
    return [HostEntry("MCP server", shlex.join([server["command"], *server["args"]]))]


def _decoded(text: str, name: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: {error}; correct the file and run the command again") from None
    if not isinstance(found.get("mcp_servers", {}), dict):
        raise UsageError(f"{name}: mcp_servers is not a table; correct the file and run the command again")
    return found


def _take_server(text: str, *, name: str) -> str:
    found = _BLOCK.search(text)
    left = _STRAY_END.sub("", _BLOCK.sub("", text, count=1))
    if left == text:
        return text
    expected = _decoded(text, name)
    if found is not None and found["table"] is not None:
        left = _SUBTABLE.sub("", left)
        expected["mcp_servers"].pop("kompakt", None)
    none: dict[str, Any] = {"mcp_servers": {}}
    if none | _decoded(left, name) != none | expected:
        raise UsageError(f"{name}: remove the table mcp_servers.kompakt yourself and run the command again")
    return left

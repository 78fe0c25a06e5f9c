"""The entries of kompakt in the settings of Codex: ``hooks.json``, and a marked block in ``config.toml``.

User scope: the folder of Codex. Project scope: ``.codex`` in the project, without paths of this machine.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from kompakt.errors import UsageError
from kompakt.hosts.codex import AGENT
from kompakt.hosts.install import (
    NO_SERVER,
    HostFile,
    HostPlan,
    Scope,
    has_recall,
    mcp_command,
    put_hooks,
    take_hooks,
)

EVENTS = {"SessionStart": 30, "PreCompact": 10, "PostCompact": 30, "Stop": 10}
"""Events that are hooked, and the seconds after which Codex goes on without an answer."""

BEGIN, END = "# >>> kompakt >>>", "# <<< kompakt <<<"
_BLOCK = re.compile(rf"(?:\r?\n)?{re.escape(BEGIN)}.*?{re.escape(END)}(?:\r?\n)?", re.DOTALL)


def plan(scope: Scope = "user", root: Path | None = None) -> HostPlan:
    """Return what is installed; ``root`` is the folder of a project."""
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    folder = (root or Path.cwd()) / ".codex" if scope == "project" else own
    hooks, config = folder / "hooks.json", folder / "config.toml"
    return HostPlan(
        agent=AGENT,
        scope=scope,
        files=(
            HostFile(
                path=hooks,
                put_in=partial(put_hooks, agent=AGENT, events=EVENTS, matchers={}, scope=scope, name=str(hooks)),
                take_out=partial(take_hooks, name=str(hooks)),
                holds="hooks",
            ),
            HostFile(
                path=config,
                put_in=partial(_put_server, scope=scope, name=str(config)),
                take_out=_take_server,
                holds="MCP server for recall",
            ),
        ),
        notes=(
            "Codex runs new hooks only after you have trusted them: start codex, it asks, or use /hooks.",
            "Codex gives hooks no way to shorten tool outputs; they stay as they are.",
            *(() if has_recall(scope) else (NO_SERVER,)),
        ),
    )


def _put_server(text: str, *, scope: Scope, name: str) -> str:
    if not has_recall(scope):
        return text
    tables = _decoded(text, name).get("mcp_servers", {})
    block = _block(scope)
    if _BLOCK.search(text):
        return _BLOCK.sub(lambda found: found[0][: found[0].index(BEGIN)] + block, text)
    if "kompakt" in tables:  # the user's own entry
        return text
    gap = "" if not text or text.endswith("\n") else "\n"
    changed = f"{text}{gap}{chr(10) if text else ''}{block}"
    _decoded(changed, name)
    return changed


def _block(scope: Scope) -> str:
    command, *arguments = mcp_command(scope)
    lines = ["[mcp_servers.kompakt]", f"command = {json.dumps(command)}", f"args = {json.dumps(arguments)}"]
    return "\n".join([BEGIN, *lines, END, ""])


def _decoded(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: {error}; correct the file first, nothing was changed") from None


def _take_server(text: str) -> str:
    return _BLOCK.sub("", text)

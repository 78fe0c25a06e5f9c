"""A folder in which coding agents worked: transcripts in the agents' own places, and a server for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client
from mcp_types import CallToolResult, TextContent
from tests.wire.transcripts.transcript_files import CALL, OUTPUT, TURN, Writer, item, result, said, text

from kompakt.hosts.mcp.server import create_server
from kompakt.hosts.mcp.sessions import LocalSessions

T = TypeVar("T")

SECRET = "The staging key is zebra-4711."
RULE = "Never delete the table invoices."


class Workspace:
    """A project folder, and the folders in which agents keep their files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.environ = {
            "HOME": str(root / "home"),
            "CLAUDE_CONFIG_DIR": str(root / "claude"),
            "CODEX_HOME": str(root / "codex"),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
        }
        self.project.mkdir()

    def claude_code(self, session: str, records: list[Any], *, folder: Path | None = None, at: float = 1_000) -> Path:
        """Write a transcript of Claude Code, last changed ``at`` a time."""
        slug = re.sub(r"[^A-Za-z0-9]", "-", str(folder or self.project))
        return write(Path(self.environ["CLAUDE_CONFIG_DIR"], "projects", slug, f"{session}.jsonl"), records, at)

    def codex(self, session: str, records: list[Any], *, at: float = 1_000) -> Path:
        """Write a rollout of Codex."""
        name = f"rollout-2026-01-02T03-04-05-{session}.jsonl"
        return write(Path(self.environ["CODEX_HOME"], "sessions", "2026", "01", "02", name), records, at)

    def sessions(self, **options: Any) -> LocalSessions:
        """Return the directory of sessions that a server in the project folder has."""
        return LocalSessions(folder=self.project, environ=self.environ, **options)

    def use(self, work: Callable[[Client], Awaitable[T]], *, write: bool = False, **options: Any) -> T:
        """Run ``work`` with a client that is connected to a server in this process."""

        async def connected() -> T:
            async with Client(create_server(self.sessions(**options), write=write)) as client:
                return await work(client)

        return asyncio.run(connected())

    def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> tuple[str, bool]:
        """Call one tool; return its text and whether it is an error."""
        return self.use(lambda client: said_by(client.call_tool(name, arguments or {})), **options)


async def said_by(call: Awaitable[CallToolResult]) -> tuple[str, bool]:
    """Return the text of a tool result and whether it is an error."""
    done = await call
    assert all(isinstance(part, TextContent) for part in done.content)
    return "\n".join(part.text for part in done.content if isinstance(part, TextContent)), bool(done.is_error)


def write(path: Path, records: list[Any], at: float) -> Path:
    """Write records as lines, with a time of the last change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(path, (at, at))
    return path


def talk(folder: Path, secret: str = SECRET, **fields: Any) -> Writer:
    """Return a short session of Claude Code with a rule, a call and a secret in its result."""
    call = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "cat keys.txt"}}
    written = Writer(cwd=str(folder), **fields).user(f"Look at the keys. {RULE}")
    return written.assistant("m1", text("Reading."), call).user([result("c1", secret)]).assistant("m2", text("Done."))


def rollout(folder: Path, session: str = "s", **meta: Any) -> list[Any]:
    """Return a short session of Codex."""
    header = {"type": "session_meta", "payload": {"id": session, "cwd": str(folder), "source": "cli", **meta}}
    return [header, TURN, item(**said("user", "list the files")), item(**CALL), item(**OUTPUT)]

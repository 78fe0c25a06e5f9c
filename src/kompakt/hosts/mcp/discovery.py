"""Find the transcripts that coding agents wrote for one folder: Claude Code, Codex, pi and Gemini CLI.

MCP clients do not say which conversation they are in, but each agent writes a transcript that belongs to a working
folder. Names of folders are ambiguous in Claude Code (``a-b`` and ``a/b`` have the same name), so the folder inside the
transcript decides. Transcripts of sub-agents are skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from kompakt.hosts import places

MAX_HEAD = 256 * 1024
"""Bytes at the start of a transcript that are searched for its folder."""

MAX_TAIL = 256 * 1024
"""Bytes at the end of a transcript that are searched for a call without an answer."""

MAX_CALLERS = 8
"""Newest transcripts that are searched for a call."""

MAX_SLUG = 200
"""Characters after which Claude Code cuts the name of a project's folder and appends a hash."""

AGENTS = ("claude-code", "codex", "gemini-cli", "opencode", "pi")
"""Agents with transcripts; their MCP clients have names that contain the first word."""


class FoundTranscript(NamedTuple):
    """A transcript of an agent."""

    path: Path
    agent: str
    session: str
    """The agent's own id of the session."""
    modified: float
    store: str | None = None
    """The store in which hooks recorded the session, where they noted it."""


def transcripts_of(folder: Path, environ: Mapping[str, str], *, client: str = "") -> list[FoundTranscript]:
    """List the transcripts of a folder, newest first; if ``client`` names an agent, only those of this agent."""
    folders = _spellings(folder, environ)
    readers = (_claude_code, _codex, _pi, _gemini_cli)
    found = {one.path: one for read in readers for one in read(folders, environ)}
    for one in _noted(folder, folders):
        found[one.path] = one
    agent = next((agent for agent in AGENTS if re.search(rf"\b{agent.partition('-')[0]}\b", client.lower())), None)
    chosen = [one for one in found.values() if agent in (None, one.agent)]
    return sorted(chosen, key=lambda one: (-one.modified, str(one.path)))


def caller_of(
    found: Sequence[FoundTranscript], tool: str, arguments: Mapping[str, Any] | None = None
) -> FoundTranscript | None:
    """Return the transcript from which a tool was called: it ends with a call of the tool that has no answer yet.

    Agents write a call to the transcript before they make it. Several sessions may run in one folder, and of several
    with an open call, the one with the same arguments is the caller.
    """
    waiting = [(one, calls) for one in found[:MAX_CALLERS] if (calls := _open_calls(one.path, tool))]
    same = [one for one, calls in waiting if dict(arguments or {}) in calls]
    return next(iter([*same, *(one for one, _ in waiting)]), None)


def _open_calls(path: Path, tool: str) -> list[object]:
    """Return the arguments of the calls of a tool that have no answer yet."""
    waiting: dict[str, object] = {}
    for record in _last_records(path):
        payload, message = record.get("payload"), record.get("message")
        content = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else [payload]
        for part in cast("list[Any]", content) if isinstance(content, list) else []:
            if not isinstance(part, dict):
                continue
            item = cast("dict[str, Any]", part)
            match item.get("type"):
                case "tool_use" if _is_call_of(item, tool):
                    waiting[str(item.get("id"))] = item.get("input")
                case "function_call" if _is_call_of(item, tool):
                    waiting[str(item.get("call_id"))] = _decoded_arguments(item.get("arguments"))
                case "tool_result" | "function_call_output":
                    waiting.pop(str(item.get("tool_use_id") or item.get("call_id")), None)
                case _:
                    pass
    return list(waiting.values())


def _is_call_of(item: Mapping[str, Any], tool: str) -> bool:
    return str(item.get("name")).rpartition("__")[2] == tool


def _decoded_arguments(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _last_records(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_TAIL))
            data = file.read()
    except OSError:
        return []
    return list(_decoded(data))


def _spellings(folder: Path, environ: Mapping[str, str]) -> set[str]:
    given = [str(folder), os.path.realpath(folder), environ.get("CLAUDE_PROJECT_DIR", "")]
    return {os.path.normpath(one) for one in given if one}


def _noted(folder: Path, folders: set[str]) -> Iterator[FoundTranscript]:
    """Yield the transcripts that hooks of an agent noted for this folder."""
    for note in places.noted_sessions(str(folder)):
        path, agent, session = (note.get(key) for key in ("transcript", "agent", "session"))
        if not (isinstance(path, str) and isinstance(agent, str) and isinstance(session, str)):
            continue
        if os.path.normpath(str(note.get("folder"))) not in folders:
            continue
        store = note.get("store")
        state = _state(Path(path))
        if state is not None:
            own = session.removeprefix(places.session_name(agent, ""))
            yield FoundTranscript(Path(path), agent, own, state.modified, store if isinstance(store, str) else None)


# --- Claude Code -------------------------------------------------------------------------------------------------


def claude_code_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of the projects of Claude Code."""
    return Path(environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "projects"


def _claude_code(folders: set[str], environ: Mapping[str, str]) -> Iterator[FoundTranscript]:
    root = claude_code_root(environ)
    projects: set[Path] = set()
    for folder in folders:
        slug = re.sub(r"[^A-Za-z0-9]", "-", folder)
        if len(slug) <= MAX_SLUG:
            projects.add(root / slug)
        else:
            projects |= {path for path in _children(root) if path.name.startswith(slug[:MAX_SLUG])}
    for path in (path for project in projects for path in _children(project)):
        if path.suffix != ".jsonl" or path.name.startswith("agent-"):
            continue
        state = _state(path)
        if state is not None and _claude_code_folder(path, state.head) in (None, *folders):
            yield FoundTranscript(path, "claude-code", path.stem, state.modified)


@lru_cache(maxsize=1_000)
def _claude_code_folder(path: Path, head: int) -> str | None:
    """Return the folder in which a session started."""
    for record in _records(path, head):
        folder = record.get("cwd")
        if isinstance(folder, str):
            return os.path.normpath(folder)
    return None


# --- Codex -------------------------------------------------------------------------------------------------------


def codex_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of the rollouts of Codex."""
    return Path(environ.get("CODEX_HOME") or Path.home() / ".codex") / "sessions"


def _codex(folders: set[str], environ: Mapping[str, str]) -> Iterator[FoundTranscript]:
    return _by_header(codex_root(environ).rglob("rollout-*.jsonl"), "codex", folders)


# --- pi ----------------------------------------------------------------------------------------------------------


def _pi(folders: set[str], environ: Mapping[str, str]) -> Iterator[FoundTranscript]:
    root = Path(environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent")
    return _by_header((root / "sessions").rglob("*.jsonl"), "pi", folders)


# --- Gemini CLI --------------------------------------------------------------------------------------------------

_PROJECT = re.compile(rb'"projectHash"\s*:\s*"([0-9a-f]{16,64})"')
_SESSION = re.compile(rb'"sessionId"\s*:\s*"([^"\\]{1,100})"')


def _gemini_cli(folders: set[str], environ: Mapping[str, str]) -> Iterator[FoundTranscript]:
    """Yield sessions whose project is the hash of a folder; some versions write only the start of the hash."""
    root = Path(environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini" / "tmp"
    hashes = [hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest() for folder in folders]
    for path in root.glob("*/chats/session-*.json*"):
        state = _state(path)
        if state is None:
            continue
        project, session = _gemini_cli_header(path, state.head)
        if project and any(one.startswith(project) for one in hashes):
            yield FoundTranscript(path, "gemini-cli", session, state.modified)


@lru_cache(maxsize=10_000)
def _gemini_cli_header(path: Path, head: int) -> tuple[str, str]:
    data = _head(path, head)
    project, session = _PROJECT.search(data), _SESSION.search(data)
    return project[1].decode() if project else "", session[1].decode("utf-8", "replace") if session else path.stem


# --- headers -----------------------------------------------------------------------------------------------------


def _by_header(paths: Iterable[Path], agent: str, folders: set[str]) -> Iterator[FoundTranscript]:
    """Yield the transcripts whose first record names one of the folders."""
    for path in paths:
        state = _state(path)
        if state is None:
            continue
        folder, session = _header(path, state.head)
        if folder in folders:
            yield FoundTranscript(path, agent, session, state.modified)


@lru_cache(maxsize=10_000)
def _header(path: Path, head: int) -> tuple[str | None, str]:
    """Return the folder and the id in the first record of a transcript; no folder for one of a sub-agent."""
    record = next(_records(path, head), {})
    meta = record.get("payload", record)
    if not isinstance(meta, dict):
        return None, path.stem
    fields = cast("dict[str, Any]", meta)
    folder, source, session = fields.get("cwd"), fields.get("source"), fields.get("id")
    name = session if isinstance(session, str) else path.stem
    if not isinstance(folder, str) or (isinstance(source, dict) and "subagent" in source):
        return None, name
    return os.path.normpath(folder), name


# --- files -------------------------------------------------------------------------------------------------------


class _FileState(NamedTuple):
    modified: float
    head: int
    """Bytes of the head. What was read from the head is read again only while it grows."""


def _state(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return _FileState(found.st_mtime, min(found.st_size, MAX_HEAD)) if stat.S_ISREG(found.st_mode) else None


def _records(path: Path, head: int) -> Iterator[dict[str, Any]]:
    """Yield the records in the first bytes of a file; lines that are not JSON objects are skipped."""
    return _decoded(_head(path, head))


def _head(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _decoded(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield cast("dict[str, Any]", record)


def _children(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []

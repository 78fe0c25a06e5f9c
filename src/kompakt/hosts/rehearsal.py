"""A scripted session with a compaction, run through the installed hook program in a temporary store.

`kompakt doctor` uses it to show that the user's rules come back. Events, transcripts and answers have the shape
that each agent uses. The user's own store, log and notes are not touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from kompakt.hosts import claude_code, codex, places, shims
from kompakt.session.store import open_store

RULE = "Never delete a file in data/."
REFUSAL = "No, do not push to the remote."
SUMMARY = "Two reports were cleaned up."
"""What the scripted summary says. It has neither the rule nor the refusal."""

DROPPED = "shard 7919 was indexed twice"
"""What a command prints, the summary drops, and recall has to find."""

COMMAND, OUTPUT = "cat reports/2.txt", f"report 2: {DROPPED}"

SECONDS = 30.0
"""Time for a hook to answer, and for a session to be recorded."""

SESSION = "kompakt-doctor"

CALL = "call"
"""In place of a role: the agent runs ``COMMAND``."""

STEPS = (
    ("user", f"Clean up the reports. {RULE}"),
    ("assistant", "Report 1 is clean. I could push it now."),
    ("user", REFUSAL),
    (CALL, "Report 2 comes next."),
    ("assistant", "Report 2 is clean as well."),
    ("user", "Continue with the next report."),
)
"""What is said in the session, by role."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What came back after the scripted compaction."""

    returned: tuple[tuple[str, str, bool], ...]
    """Each rule of the user: its kind, its words, and whether the model has them again, word for word."""
    is_recorded: bool
    """Whether recall finds, in the store, what the summary dropped."""
    error: str = ""
    """What the hook program reported."""

    @property
    def works(self) -> bool:
        """Return whether everything came back."""
        return all(is_back for _, _, is_back in self.returned)


def rehearse(agent: str, command: Callable[[str], str]) -> Rehearsal:
    """Run a scripted session; ``command`` returns the installed shell command for an event."""
    with tempfile.TemporaryDirectory(prefix="kompakt-doctor-", ignore_cleanup_errors=True) as name:
        stage = _Stage(agent, command, Path(name))
        text = _HOSTS[agent](stage)
        is_recorded = stage.is_recorded()
        returned = tuple((kind, words, words in text) for kind, words in (("rule", RULE), ("refusal", REFUSAL)))
        return Rehearsal(returned=returned, is_recorded=is_recorded, error=stage.error)


class _Stage:
    """The folder of a rehearsal, and calls of the hook program in it."""

    def __init__(self, agent: str, command: Callable[[str], str], folder: Path) -> None:
        self.agent = agent
        self.folder = folder
        self._command = command
        self._error = ""
        self._store = f"sqlite:///{folder / 'sessions.db'}"
        self._environment = {
            **os.environ,
            "KOMPAKT_STORE": self._store,
            "XDG_STATE_HOME": str(folder / "state"),
            "OPENCODE_DB": str(self.database),
        }

    @property
    def transcript(self) -> Path:
        return self.folder / "session.jsonl"

    @property
    def database(self) -> Path:
        return self.folder / "opencode.db"

    @property
    def _state(self) -> Path:
        return self.folder / "state" / "kompakt"

    @property
    def error(self) -> str:
        """Return the last failure in the log of hooks."""
        log = self._state / "hooks.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return lines[-1].partition(" ")[2].partition(" ")[2] if lines else self._error

    def call(self, event: str, **more: Any) -> str:
        """Run the hook program for an event and return its answer, when its recording has ended."""
        given = {
            "session_id": SESSION,
            "transcript_path": str(self.transcript),
            "cwd": str(self.folder),
            "hook_event_name": event,
            **more,
        }
        recorded = Path(self._state, "sessions", f"{self.agent}-{SESSION}.size")
        recorded.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                self._command(event),
                shell=True,
                input=json.dumps(given).encode(),
                capture_output=True,
                env=self._environment,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self._error = f"no answer after {SECONDS:.0f} s"
            return ""
        deadline = time.monotonic() + SECONDS
        while not recorded.exists() and not self.error and time.monotonic() < deadline:
            time.sleep(0.02)
        return done.stdout.decode(errors="replace")

    def is_recorded(self) -> bool:
        """Return whether recall finds what the summary dropped."""

        async def search() -> str:
            async with await open_store(self._store) as store:
                session = await store.session(places.session_name(self.agent, SESSION))
                return (await session.recall("shard 7919", 500)).text if await session.exists() else ""

        return DROPPED in asyncio.run(search())

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append records to the transcript."""
        with self.transcript.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


# --- agents ----------------------------------------------------------------------------------------------------------


def _claude_code(stage: _Stage) -> str:
    records: list[dict[str, Any]] = []

    def add(role: str, content: Any, **more: Any) -> None:
        number = len(records)
        message = {"role": role, "content": content}
        if role == "assistant":
            message |= {"id": f"msg_{number}", "type": "message", "model": "claude"}
        parent = f"u{number - 1}" if number else None
        made = {"type": role, "uuid": f"u{number}", "parentUuid": parent, "sessionId": SESSION, "message": message}
        records.append({**made, **more})

    for role, words in STEPS:
        if role == CALL:
            call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": COMMAND}}
            add("assistant", [_text(words), call])
            add("user", [{"type": "tool_result", "tool_use_id": "toolu_1", "content": OUTPUT}])
        else:
            add(role, words if role == "user" else [_text(words)])
    stage.write(records)
    stage.call("PreCompact", trigger="manual", custom_instructions=None)
    add("user", SUMMARY, isCompactSummary=True)
    stage.write(records[-1:])
    return _context(stage.call("SessionStart", source="compact"))


def _text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def _codex(stage: _Stage) -> str:
    def item(**payload: Any) -> dict[str, Any]:
        return {"timestamp": "t", "type": "response_item", "payload": payload}

    def said(role: str, words: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return item(type="message", role=role, content=[{"type": kind, "text": words}])

    records = [{"type": "session_meta", "payload": {"id": SESSION, "cwd": str(stage.folder)}}]
    for role, words in STEPS:
        records.append(said("assistant" if role == CALL else role, words))
        if role == CALL:
            given = json.dumps({"cmd": COMMAND})
            records.append(item(type="function_call", call_id="c1", name="exec_command", arguments=given))
            records.append(item(type="function_call_output", call_id="c1", output=OUTPUT))
    stage.write(records)
    stage.call("PreCompact", trigger="manual")
    stage.write([{"timestamp": "t", "type": "compacted", "payload": {"message": SUMMARY}}])
    return _context(stage.call("SessionStart", source="compact"))


def _context(answer: str) -> str:
    """Return what an answer to SessionStart gives the model."""
    try:
        return json.loads(answer)["hookSpecificOutput"]["additionalContext"]
    except (ValueError, KeyError, TypeError):
        return ""


def _pi(stage: _Stage) -> str:
    messages: list[dict[str, Any]] = []
    for role, words in STEPS:
        call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": COMMAND}}
        if role == CALL:
            result = {"role": "toolResult", "toolCallId": "c1", "toolName": "bash", "content": [_text(OUTPUT)]}
            messages += [{"role": "assistant", "content": [_text(words), call]}, result]
        else:
            messages.append({"role": role, "content": [_text(words)]})
    head = {"type": "session", "version": 3, "id": SESSION, "cwd": str(stage.folder)}
    stage.write([head, *({"type": "message", "message": message} for message in messages)])
    return stage.call("Notes", summary="1")


def _opencode(stage: _Stage) -> str:
    state = {"status": "completed", "input": {"command": COMMAND}, "output": OUTPUT}
    call = {"type": "tool", "tool": "bash", "callID": "c1", "state": state}
    with closing(sqlite3.connect(stage.database)) as db:
        db.execute("CREATE TABLE session (id TEXT, parent_id TEXT, title TEXT, time_updated INTEGER)")
        db.execute("CREATE TABLE message (id TEXT, session_id TEXT, data TEXT)")
        db.execute("CREATE TABLE part (id TEXT, message_id TEXT, data TEXT)")
        db.execute("INSERT INTO session VALUES (?, NULL, 'kompakt doctor', 1)", [SESSION])
        for number, (role, words) in enumerate(STEPS):
            name, info = f"msg_{number}", {"role": "assistant" if role == CALL else role}
            db.execute("INSERT INTO message VALUES (?, ?, ?)", [name, SESSION, json.dumps(info)])
            for at, part in enumerate([_text(words), *([call] if role == CALL else [])]):
                db.execute("INSERT INTO part VALUES (?, ?, ?)", [f"prt_{number}_{at}", name, json.dumps(part)])
        db.commit()
    stage.call("PreCompact")
    return stage.call("Notes", summary="1")


_HOSTS: dict[str, Callable[[_Stage], str]] = {
    claude_code.AGENT: _claude_code,
    codex.AGENT: _codex,
    shims.OPENCODE: _opencode,
    shims.PI: _pi,
}

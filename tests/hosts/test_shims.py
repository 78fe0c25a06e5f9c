"""The hook program behind the plugins for opencode and pi, and the files of these plugins."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.wire.transcripts.transcript_files import text

import kompakt
from kompakt.errors import UnreadableFile, UsageError
from kompakt.hosts import places, recorder, shim_settings, shims
from kompakt.hosts.install import plan_install

SESSION = "ses_1"
RULE = "Never delete a file in data/."
LARGE = "\n".join(f"2026-01-01T00:00:{n % 60:02d} INFO worker {n} handled request {n * 37 % 1009}" for n in range(900))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep stores, notes and the database of opencode in a folder of the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("KOMPAKT_STORE", "OPENCODE_DB", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def database(home: Path) -> Path:
    """Write the database of opencode with a session."""
    path = home / "data" / "opencode" / "opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE session (id TEXT, parent_id TEXT, title TEXT, time_updated INTEGER)")
        db.execute("CREATE TABLE message (id TEXT, session_id TEXT, data TEXT)")
        db.execute("CREATE TABLE part (id TEXT, message_id TEXT, data TEXT)")
        for session, words in ((SESSION, f"Clean up the reports. {RULE}"), ("ses_2", "Another task.")):
            db.execute("INSERT INTO session VALUES (?, NULL, 't', 1)", [session])
            add(db, session, 1, {"role": "user"}, text(words))
            add(db, session, 2, {"role": "assistant"}, text("Report 3 fails because shard 31 lost its index."))
            add(db, session, 3, {"role": "user"}, text("No, do not push to the remote."))
            for step in range(4, 10):
                state = {"status": "completed", "input": {"command": f"cat report-{step}"}, "output": f"shard {step}"}
                tool = {"type": "tool", "tool": "bash", "callID": f"c{step}", "state": state}
                add(db, session, step, {"role": "assistant"}, text(f"Report {step} is complete."), tool)
        db.commit()
    return path


def add(db: sqlite3.Connection, session: str, number: int, info: dict[str, Any], *parts: dict[str, Any]) -> None:
    name = f"msg_{session}_{number:02d}"
    db.execute("INSERT INTO message VALUES (?, ?, ?)", [name, session, json.dumps(info)])
    for at, part in enumerate(parts):
        db.execute("INSERT INTO part VALUES (?, ?, ?)", [f"prt_{name}_{at}", name, json.dumps(part)])


def given(**more: Any) -> dict[str, Any]:
    return {"session_id": SESSION, "cwd": "/r", **more}


def stored(session: str) -> str:
    async def read() -> str:
        async with await kompakt.open_store(places.store_url()) as store:
            found = await store.session(session)
            return "\n".join([str(part) async for page in found.pages() for message in page for part in message.parts])

    return asyncio.run(read())


class TestOpencode:
    def test_a_session_is_noted_and_recorded(self, database: Path) -> None:
        """So that the MCP server finds it; other sessions of the database are left alone."""
        response = shims.answer("opencode", "SessionStart", given())
        assert response.text == "" and response.after is not None
        [note] = places.noted_sessions("/r")
        assert note["session"] == "opencode/ses_1"
        history = kompakt.load(str(note["transcript"])).payload
        assert len(history) == 15 and "Another task." not in str(history)
        shims.answer("opencode", "Stop", given()).after()  # type: ignore[misc]
        assert "shard 31 lost its index" in stored("opencode/ses_1")

    def test_the_summarizer_gets_rules(self, database: Path) -> None:
        """Verbatim, with how to treat them."""
        answer = shims.answer("opencode", "PreCompact", given()).text
        assert RULE in answer and "word for word" in answer

    def test_notes_after_a_summary_never_change(self, database: Path) -> None:
        """They are part of a prefix that the provider caches."""
        first = shims.answer("opencode", "Notes", given(summary="msg_9")).text
        assert RULE in first and "recall" in first
        with closing(sqlite3.connect(database)) as db:
            add(db, SESSION, 99, {"role": "user"}, text("Now write the summary. Always use tabs."))
            db.commit()
        assert shims.answer("opencode", "Notes", given(summary="msg_9")).text == first
        assert "Always use tabs." in shims.answer("opencode", "Notes", given(summary="msg_10")).text

    def test_without_recall_the_notes_do_not_mention_it(self, database: Path) -> None:
        assert "recall" not in shims.answer("opencode", "Notes", given(summary="m"), recall=False).text

    def test_a_huge_output_is_shortened_and_its_original_stored(self, database: Path) -> None:
        """With the call that it answers."""
        call = {"tool_name": "bash", "tool_use_id": "c1", "tool_input": {"command": "cat log"}, "output": LARGE}
        short = shims.answer("opencode", "PostToolUse", given(**call)).text
        assert 0 < len(short) < len(LARGE) / 2
        assert "worker 450 handled" in stored("opencode/ses_1/outputs")
        assert recorder.record("opencode", SESSION, shims.opencode_export(SESSION), is_over=True) == 15

    def test_a_database_of_another_name(self, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in versions that are not released, or by the variable of opencode."""
        other = database.rename(database.with_name("opencode-dev.db"))
        assert RULE in shims.answer("opencode", "PreCompact", given()).text
        moved = other.rename(other.parent.parent / "own.sqlite")
        monkeypatch.setenv("OPENCODE_DB", str(moved))
        assert RULE in shims.answer("opencode", "PreCompact", given()).text

    def test_a_session_that_is_in_no_database_is_an_error_for_the_log(self, database: Path) -> None:
        """Not at its start, when it is only noted: opencode writes it later."""
        assert shims.answer("opencode", "SessionStart", given(session_id="ses_9")).after is None
        with pytest.raises(UnreadableFile, match=r"session 'ses_9' is not in .*opencode\.db; set OPENCODE_DB"):
            shims.answer("opencode", "Stop", given(session_id="ses_9"))
        assert [note["session"] for note in places.noted_sessions("/r")] == ["opencode/ses_9"]
        database.unlink()
        with pytest.raises(UnreadableFile, match="opencode has no database"):
            shims.answer("opencode", "Stop", given())


class TestPi:
    @pytest.fixture
    def pi(self, tmp_path: Path) -> dict[str, Any]:
        """Write a session file of pi and return what its extension sends with every event."""
        entries: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s1", "cwd": "/r"}]
        words = f"Clean up the reports. {RULE}"
        entries.append({"type": "message", "message": {"role": "user", "content": words}})
        for step in range(6):
            call = {
                "type": "toolCall",
                "id": f"c{step}",
                "name": "bash",
                "arguments": {"command": f"cat report-{step}"},
            }
            said = [text(f"Report {step} is complete."), call]
            result = {"role": "toolResult", "toolCallId": f"c{step}", "content": [text(f"shard {step * 7919}")]}
            entries += [{"type": "message", "message": one} for one in ({"role": "assistant", "content": said}, result)]
        path = tmp_path / "s1.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        return {"session_id": "s1", "cwd": "/r", "transcript_path": str(path)}

    def test_recall_searches_the_whole_session(self, pi: dict[str, Any]) -> None:
        """It is recorded first, so that nothing is missing."""
        assert "shard 23757" in shims.answer("pi", "Recall", {**pi, "query": "shard 23757"}).text

    def test_notes_name_the_tool_as_pi_does(self, pi: dict[str, Any]) -> None:
        """There is no MCP server."""
        notes = shims.answer("pi", "Notes", {**pi, "summary": "1"}).text
        assert RULE in notes and "call the tool `recall`" in notes and "MCP" not in notes

    def test_a_session_is_noted_before_its_file_exists(self, pi: dict[str, Any], tmp_path: Path) -> None:
        """pi writes the file with the first answer."""
        response = shims.answer("pi", "SessionStart", {**pi, "transcript_path": str(tmp_path / "later.jsonl")})
        assert response.after is None and places.noted_sessions("/r")


class TestFiles:
    def test_a_project_has_no_path_of_this_machine(self, tmp_path: Path) -> None:
        """Others share it."""
        (change,) = plan_install(shim_settings.opencode_plan("project", tmp_path))
        assert change.path == tmp_path / ".opencode" / "plugin" / "kompakt.js"
        assert change.after is not None and b'const HOOK = ["kompakt-hook"]' in change.after
        assert str(tmp_path).encode() not in change.after

    def test_without_the_mcp_server_recall_is_not_mentioned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The plugin registers no server, and the hook program knows it; pi has its own tool."""
        monkeypatch.setattr("kompakt.hosts.shim_settings.has_recall", lambda scope: False)
        (change,) = plan_install(shim_settings.opencode_plan())
        assert change.after is not None and b"const MCP = null" in change.after
        assert any("[mcp]" in note for note in shim_settings.opencode_plan().notes)
        (change,) = plan_install(shim_settings.pi_plan())
        assert change.after is not None and b'const RECALL = {"name": "recall"' in change.after

    def test_no_placeholder_is_left(self) -> None:
        for plan in (shim_settings.opencode_plan(), shim_settings.pi_plan("project")):
            (change,) = plan_install(plan)
            assert change.after is not None and b"__" not in change.after

    def test_a_file_of_the_user_is_not_overwritten(self, tmp_path: Path) -> None:
        plan = shim_settings.opencode_plan("project", tmp_path)
        plan.files[0].path.parent.mkdir(parents=True)
        plan.files[0].path.write_text("export const Mine = async () => ({})")
        with pytest.raises(UsageError, match="not written by kompakt"):
            plan_install(plan)

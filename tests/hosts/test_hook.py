"""The hook program: what it answers to each event of Claude Code, and that no failure reaches the agent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kompakt
from kompakt.hosts import hook, notes, places, recorder
from kompakt.hosts.erasure import plan_erasure
from kompakt.session.store import Store
from kompakt.store.sql.sqlite import open_sqlite

SESSION = "0f3e1c9a-4b7d-4c2e-9a51-6f0d8e2b7c11"
RULE = "Never delete a file in data/."
REFUSAL = "No, do not push to the remote."
SOURCE = str(Path(__file__).parent.parent.parent / "src")

LARGE = "\n".join(f"2026-01-01T00:00:{n % 60:02d} INFO worker {n} handled request {n * 37 % 1009}" for n in range(900))


def record(number: int, role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a record of a Claude Code transcript."""
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": f"msg_{number:03d}", "type": "message", "model": "claude-sonnet-4-5"}
    parent = f"u{number - 1}" if number else None
    record = {"type": role, "uuid": f"u{number}", "parentUuid": parent, "sessionId": SESSION, "message": message}
    return {**record, **more}


def session_records(steps: int = 6) -> list[dict[str, Any]]:
    """Return a session: a request with a rule, a refusal, and commands with outputs."""
    records = [record(0, "user", f"Clean up the reports. {RULE}"), record(1, "assistant", [text("I could push now.")])]
    records.append(record(2, "user", REFUSAL))
    for step in range(steps):
        call = {"type": "tool_use", "id": f"toolu_{step}", "name": "Bash", "input": {"command": f"cat report-{step}"}}
        output = f"report {step}: shard {step * 7919} is complete"
        result = {"type": "tool_result", "tool_use_id": f"toolu_{step}", "content": output}
        records.append(
            record(
                3 + 2 * step,
                "assistant",
                [text(f"Report {step} fails because shard {step * 31} lost its index."), call],
            )
        )
        records.append(record(4 + 2 * step, "user", [result]))
    return records


def text(value: str) -> dict[str, str]:
    """Return a text block."""
    return {"type": "text", "text": value}


class Host:
    """A stand-in for the agent: a transcript, folders of its own, and calls of the hook program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.transcript = folder / "session.jsonl"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": SOURCE,
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.write(session_records())

    def write(self, records: list[dict[str, Any]]) -> None:
        self.transcript.write_text("".join(json.dumps(one) + "\n" for one in records))

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        common = {"session_id": SESSION, "transcript_path": str(self.transcript), "cwd": str(self.folder)}
        return {**common, "hook_event_name": name, **more}

    def call(self, name: str, *, raw: bytes | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """Run the hook program as an agent does."""
        data = json.dumps(self.event(name, **more)).encode() if raw is None else raw
        command = [sys.executable, "-m", "kompakt.hosts.hook", "claude-code", name]
        return subprocess.run(command, input=data, capture_output=True, env=self.environment, timeout=60, check=False)

    @property
    def log(self) -> str:
        path = self.folder / "state" / "kompakt" / "hooks.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host, whose folders are also those of this process."""
    made = Host(tmp_path)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, made.environment[name])
    monkeypatch.delenv("KOMPAKT_STORE", raising=False)
    monkeypatch.setattr(hook, "_limit_time", lambda event, agent: None)  # it would end the process of the tests
    return made


def stored(name: str) -> list[kompakt.Message]:
    """Return the messages of a stored session."""

    async def read() -> list[kompakt.Message]:
        async with await kompakt.open_store(places.store_url()) as store:
            session = await store.session(name)
            if not await session.exists():
                return []
            return [message async for page in session.pages() for message in page]

    return asyncio.run(read())


def outputs_of(name: str) -> list[str]:
    """Return the tool outputs of a stored session."""
    parts = [part for message in stored(name) for part in message.parts]
    return [part.output for part in parts if isinstance(part, kompakt.ToolResult)]


def recalled(query: str, tokens: int | None = 1000) -> str:
    """Recall from the whole store."""

    async def read() -> str:
        async with await kompakt.open_store(places.store_url()) as store:
            return (await store.recall(query, tokens)).text

    return asyncio.run(read())


MAIN = places.session_name("claude-code", SESSION)


class TestCompaction:
    def test_before_it_rules_and_refusals_go_to_the_summarizer_as_plain_text(self, host: Host) -> None:
        """Claude Code discards JSON with hookSpecificOutput here."""
        answer = host.call("PreCompact", trigger="auto", custom_instructions=None).stdout.decode()
        assert RULE in answer and REFUSAL in answer
        assert not answer.lstrip().startswith("{")
        assert len(answer) <= notes.MAX_INSTRUCTIONS

    def test_after_it_rules_and_refusals_return(self, host: Host) -> None:
        """As additional context, below the length that the host shows whole, with a line about recall."""
        output = json.loads(host.call("SessionStart", source="compact").stdout)["hookSpecificOutput"]
        context = output["additionalContext"]
        assert output["hookEventName"] == "SessionStart"
        assert RULE in context and REFUSAL in context
        assert "recall" in context
        assert len(context) <= 9_500

    def test_a_long_session_stays_below_the_limit(self, host: Host) -> None:
        """Rules come first, before all other notes."""
        records = session_records(400)
        for number, one in enumerate(records[3::2]):
            words = " ".join(hashlib.sha256(f"{number}/{at}".encode()).hexdigest()[:6] for at in range(12))
            one["message"]["content"][0]["text"] = f"I decided to use {words} because src/{number}.py needs it."
        host.write(records)
        context = json.loads(host.call("SessionStart", source="compact").stdout)["hookSpecificOutput"]
        assert 5_000 < len(context["additionalContext"]) <= 9_500
        assert RULE in context["additionalContext"]

    def test_a_summary_of_the_agent_is_not_the_word_of_the_user(self, host: Host) -> None:
        """A transcript contains it in the role of the user."""
        summary = record(99, "user", "The user wants everything deleted at once.", isCompactSummary=True)
        host.write([*session_records(), summary])
        context = json.loads(host.call("SessionStart", source="compact").stdout)["hookSpecificOutput"]
        assert "everything deleted" not in context["additionalContext"]

    def test_a_session_without_tool_calls_returns_every_request(self, host: Host) -> None:
        """It is short, but it is no chat of two people: what the user says is meant as a request or a rule."""
        said = ["Never use pandas, use polars.", "use tabs please", "Explain hooks.", "Reply in German from now on."]
        asked = [record(2 * at, "user", words) for at, words in enumerate(said)]
        answers = [record(2 * at + 1, "assistant", [text(f"Understood, {at}.")]) for at in range(4)]
        host.write([one for pair in zip(asked, answers, strict=True) for one in pair])
        context = json.loads(host.call("SessionStart", source="compact").stdout)["hookSpecificOutput"]
        assert all(words in context["additionalContext"] for words in said)
        answer = host.call("PostCompact", trigger="manual", compact_summary="Nothing of importance.")
        assert "kept 0 of the 4 requests and rules that kompakt notes" in json.loads(answer.stdout)["systemMessage"]

    def test_no_requests_are_counted_where_there_are_none(self, host: Host) -> None:
        host.write([record(0, "user", "hi"), record(1, "assistant", [text("Hello!")])])
        answer = host.call("PostCompact", trigger="manual", compact_summary="A greeting.")
        assert "you stated no requests or rules" in json.loads(answer.stdout)["systemMessage"]

    def test_recall_is_not_mentioned_where_it_is_not_installed(self, host: Host) -> None:
        given = json.dumps(host.event("SessionStart", source="compact")).encode()
        answer = hook._answer("claude-code", "SessionStart", given, recall=False)
        assert RULE in answer.text and "recall" not in answer.text

    @pytest.mark.parametrize("source", ["startup", "resume", "clear", "fork"])
    def test_other_starts_add_nothing(self, host: Host, source: str) -> None:
        assert host.call("SessionStart", source=source).stdout == b""

    def test_the_summary_is_compared_with_the_notes(self, host: Host) -> None:
        """The user reads a line, and a report has what the summary lacks."""
        answer = host.call("PostCompact", trigger="manual", compact_summary=f"Reports were read. {REFUSAL}")
        assert "kept 1 of the 2 requests and rules that kompakt notes" in json.loads(answer.stdout)["systemMessage"]
        report = Path(places.session_file("claude-code", SESSION, "compactions.jsonl")).read_text()
        assert any(RULE in lost for lost in json.loads(report)["lost"])


class TestLargeOutputs:
    def give(self, host: Host, **response: Any) -> dict[str, Any] | None:
        """Report a Bash output; return the replacement."""
        given = {"stderr": "", "interrupted": False, "isImage": False, **response}
        call = {"tool_name": "Bash", "tool_use_id": "toolu_0", "tool_input": {"command": "make logs"}}
        answer = host.call("PostToolUse", tool_response=given, **call)
        return json.loads(answer.stdout)["hookSpecificOutput"]["updatedToolOutput"] if answer.stdout else None

    def test_the_replacement_has_the_shape_of_the_tool(self, host: Host) -> None:
        """Only the text differs, and it names the original, which recall restores byte for byte."""
        changed = self.give(host, stdout=LARGE)
        assert changed is not None
        assert {**changed, "stdout": ""} == {"stdout": "", "stderr": "", "interrupted": False, "isImage": False}
        assert len(changed["stdout"]) < len(LARGE) / 2
        reference = changed["stdout"].rstrip("].").rpartition(" ")[2]
        assert recalled(reference, None) == LARGE

    @pytest.mark.parametrize("value, is_kept", [("1", True), ("0", False), ("", False)])
    def test_a_variable_keeps_outputs_whole(self, host: Host, value: str, is_kept: bool) -> None:
        host.environment[hook.KEEP_OUTPUTS] = value
        assert (self.give(host, stdout=LARGE) is None) == is_kept

    def test_a_clipped_output_is_read_from_its_file(self, host: Host) -> None:
        """The file has the original. Without the two keys about it, the host would show the file instead."""
        file = host.folder / "persisted.txt"
        file.write_text(LARGE)
        changed = self.give(host, stdout=LARGE[:30_000], persistedOutputPath=str(file), persistedOutputSize=len(LARGE))
        assert changed is not None
        assert not any(key.startswith("persisted") for key in changed)
        assert outputs_of(f"{MAIN}/outputs") == [LARGE]

    def test_the_recorded_session_has_the_original(self, host: Host) -> None:
        """The transcript has only the short form."""
        changed = self.give(host, stdout=LARGE)
        assert changed is not None
        records = session_records()
        records[4]["message"]["content"][0]["content"] = changed["stdout"]
        host.write(records)
        recorder.record("claude-code", SESSION, str(host.transcript))
        assert outputs_of(MAIN)[0] == LARGE

    def test_the_recorded_session_of_a_sub_agent_has_the_original(self, host: Host) -> None:
        """The event about the output names the main session."""
        changed = self.give(host, stdout=LARGE)
        assert changed is not None
        records = session_records()
        records[4]["message"]["content"][0]["content"] = changed["stdout"]
        host.write(records)
        recorder.record("claude-code", f"{SESSION}/agent-a1", str(host.transcript), is_over=True)
        assert outputs_of(f"{MAIN}/agent-a1")[0] == LARGE

    @pytest.mark.parametrize("wrap", [str, lambda text: [{"type": "text", "text": text, "annotations": {}}]])
    def test_an_output_of_an_mcp_tool_keeps_its_shape(self, host: Host, wrap: Any) -> None:
        """A string stays a string, and a text block a text block."""
        call = {"tool_name": "mcp__logs__fetch", "tool_use_id": "toolu_0", "tool_input": {}}
        answer = json.loads(host.call("PostToolUse", tool_response=wrap(LARGE), **call).stdout)
        changed = answer["hookSpecificOutput"]["updatedToolOutput"]
        text = changed if isinstance(changed, str) else changed[0]["text"]
        assert changed == wrap(text)
        assert len(text) < len(LARGE) / 2

    @pytest.mark.parametrize("tool", ["Read", "Edit", "mcp__kompakt__recall", "mcp__disk__read_text_file", "Unknown"])
    @pytest.mark.parametrize("response", [{"stdout": LARGE}, LARGE, [{"type": "image", "data": LARGE}], None])
    def test_other_tools_are_left_alone(self, host: Host, tool: str, response: Any) -> None:
        """An agent edits what it has read, and what it recalled it wants to see."""
        given = host.event("PostToolUse", tool_name=tool, tool_use_id="t", tool_response=response)
        assert hook._answer("claude-code", "PostToolUse", json.dumps(given).encode(), recall=True).text == ""

    def test_small_outputs_are_not_even_parsed(self, host: Host) -> None:
        """Nothing is imported, written or logged."""
        answer = host.call("PostToolUse", raw=b"{not json")
        assert (answer.returncode, answer.stdout, host.log) == (0, b"", "")
        assert not (host.folder / "state").exists() and not (host.folder / "data").exists()

    def test_little_is_imported_for_a_small_output(self, host: Host) -> None:
        """The program runs at every tool call."""
        code = (
            "import sys; sys.argv[1:] = ['claude-code', 'PostToolUse']\n"
            "from kompakt.hosts.hook import main; main()\n"
            "print(*sorted(name for name in sys.modules if name.split('.')[0] in\n"
            "  ('kompakt', 'json', 'asyncio', 'pathlib', 'subprocess', 'msgspec', 'sqlalchemy', 'rs_bpe', 'typer')))"
        )
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(command, input=b"{}", capture_output=True, env=host.environment, check=True)
        loaded = done.stdout.decode().split()
        own = ["kompakt", "kompakt.errors", "kompakt.hosts", "kompakt.hosts.hook", "kompakt.hosts.places"]
        assert loaded == [*own, "kompakt.hosts.response", "kompakt.version"]


class TestRecord:
    def test_the_session_is_recorded_as_it_goes(self, host: Host) -> None:
        """Each time only what is new, in the order of the transcript, and nothing twice."""
        records = session_records()
        for end in (3, 7, 7, len(records)):
            host.write(records[:end])
            recorder.record("claude-code", SESSION, str(host.transcript))
        found = stored(MAIN)
        assert len(found) == len(records)
        assert found[0].text == f"Clean up the reports. {RULE}"
        assert "shard 7919 is complete" in recalled("report shard 7919")

    def test_an_answer_that_is_still_being_written_waits(self, host: Host) -> None:
        """Half an answer would differ from the whole one, which is recorded with the next message or at the end."""
        host.write(session_records()[:2])
        assert recorder.record("claude-code", SESSION, str(host.transcript)) == 1
        assert recorder.record("claude-code", SESSION, str(host.transcript), is_over=True) == 2

    def test_a_transcript_that_changed_keeps_what_was_recorded(self, host: Host) -> None:
        """What is new is appended; recall finds both."""
        recorder.record("claude-code", SESSION, str(host.transcript))
        records = session_records(8)
        records[4]["message"]["content"][0]["content"] = "report 0: rewritten"
        host.write(records)
        for _ in range(2):
            recorder.record("claude-code", SESSION, str(host.transcript))
        outputs = outputs_of(MAIN)
        assert len(outputs) == 9
        assert {"report 0: shard 0 is complete", "report 0: rewritten"} <= set(outputs)

    def test_events_at_the_same_time_record_once(self, host: Host) -> None:
        """Claude Code reports one compaction up to four times."""
        host.write(session_records(200))
        call = f"recorder.record('claude-code', {SESSION!r}, {str(host.transcript)!r})"
        command = [sys.executable, "-c", f"from kompakt.hosts import recorder; {call}"]
        running = [subprocess.Popen(command, env=host.environment) for _ in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        assert len(stored(MAIN)) == len(session_records(200))

    def test_events_at_the_same_time_after_a_rewind_record_once(self, host: Host) -> None:
        """Then the new messages are appended by comparison with what is stored, which must not happen twice at once."""
        recorder.record("claude-code", SESSION, str(host.transcript))
        records = session_records(100)
        records[4]["message"]["content"][0]["content"] = "report 0: rewritten"
        host.write(records)
        call = f"recorder.record('claude-code', {SESSION!r}, {str(host.transcript)!r})"
        command = [sys.executable, "-c", f"from kompakt.hosts import recorder; {call}"]
        running = [subprocess.Popen(command, env=host.environment) for _ in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        assert len(outputs_of(MAIN)) == 101

    def test_an_event_records_in_the_background(self, host: Host) -> None:
        """The hook returns without waiting; the session is in the store soon after."""
        assert host.call("Stop").stdout == b""
        deadline = time.monotonic() + 60
        while not Path(places.session_file("claude-code", SESSION, "size")).exists():
            assert time.monotonic() < deadline, host.log
            time.sleep(0.05)
        assert len(stored(MAIN)) == len(session_records())

    def test_the_store_may_be_named_by_its_path(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in options of commands: its folder is created, and what it has of an agent can be erased."""
        path = host.folder / "own" / "agents.db"
        monkeypatch.setenv("KOMPAKT_STORE", str(path))
        recorder.record("claude-code", SESSION, str(host.transcript))
        assert path.exists() and len(stored(MAIN)) == len(session_records())
        assert asyncio.run(plan_erasure("claude-code")).sessions == 1
        path.unlink()
        assert asyncio.run(plan_erasure("claude-code")).sessions == 0 and not path.exists()

    def test_a_sub_agent_has_a_session_of_its_own(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hook, "_detach", lambda work, name: work())
        given = host.event("SubagentStop", agent_id="a1", agent_transcript_path=str(host.transcript))
        after = hook._answer("claude-code", "SubagentStop", json.dumps(given).encode(), recall=True).after
        assert after is not None
        after()
        assert stored(MAIN) == []
        assert len(stored(f"{MAIN}/agent-a1")) == len(session_records())

    @pytest.mark.parametrize("first", ["main", "sub-agent"])
    def test_recall_in_a_session_finds_what_its_sub_agent_did(self, host: Host, first: str) -> None:
        names = (SESSION, f"{SESSION}/agent-a1")
        for name in names if first == "main" else reversed(names):
            recorder.record("claude-code", name, str(host.transcript), is_over=True)

        async def children() -> tuple[str, ...]:
            async with await kompakt.open_store(places.store_url()) as store:
                return (await (await store.session(MAIN)).reader()).timeline.children

        assert asyncio.run(children()) == (f"{MAIN}/agent-a1",)

    def test_the_current_session_of_a_folder_is_noted(self, host: Host) -> None:
        host.call("SessionStart", source="startup")
        assert [note["session"] for note in places.noted_sessions(str(host.folder))] == [MAIN]
        assert places.noted_sessions("/") == []

    @pytest.mark.parametrize(
        "url", ["postgresql://me:hunter2@127.0.0.1:1/x", "postgresql://127.0.0.1:1/x?user=me&password=hunter2"]
    )
    def test_a_password_is_not_noted(self, host: Host, url: str) -> None:
        """The URL of a store may contain one."""
        host.environment["KOMPAKT_STORE"] = url
        host.call("SessionStart", source="startup")
        assert [note["store"] for note in places.noted_sessions(str(host.folder))] == [None]
        written = [path.read_text() for path in (host.folder / "state").rglob("*") if path.is_file()]
        assert not any("hunter2" in text for text in written)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql://me:hunter2@host:1/x", "postgresql://host:1/x"),
            ("postgresql://host/x?user=me&password=hunter2", "postgresql://host/x"),
            ("postgresql://host/x?password=some@hunter2", "postgresql://..."),
            ("postgresql://me:some?hunter2@host/x", "postgresql://..."),
            ("sqlite:////data/x.db", "sqlite:////data/x.db"),
        ],
    )
    def test_a_printed_url_has_no_credentials(self, url: str, shown: str) -> None:
        assert places.without_credentials(url) == shown

    def test_the_state_folder_and_the_log_are_for_their_owner_only(self, host: Host) -> None:
        """The log may contain parts of a session. A log that starts again stays private."""
        umask = os.umask(0o022)
        try:
            places.log("first")
            places.log("second")
        finally:
            os.umask(umask)
        log = Path(places.log_file())
        assert [line.split()[-1] for line in log.read_text().splitlines()] == ["first", "second"]
        log.write_text("x" * (places.MAX_LOG + 1))
        places.log("third")
        assert log.read_text().endswith("third\n") and log.stat().st_size < 100
        assert log.stat().st_mode & 0o777 == 0o600
        assert log.parent.stat().st_mode & 0o777 == 0o700


class TestCommand:
    def test_the_command_line_has_the_same_program(self, host: Host) -> None:
        """For agents that can only call ``kompakt``."""
        command = [sys.executable, "-m", "kompakt", "hook", "claude-code", "PreCompact"]
        given = json.dumps(host.event("PreCompact", trigger="auto")).encode()
        done = subprocess.run(command, input=given, capture_output=True, env=host.environment, check=True)
        assert RULE in done.stdout.decode()


class TestStatusLine:
    def test_it_shows_fullness_cache_and_what_can_be_recalled(self, host: Host) -> None:
        recorder.record("claude-code", SESSION, str(host.transcript))
        usage = {"input_tokens": 100, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800}
        window = {"used_percentage": 41.6, "current_usage": usage}
        shown = host.call("statusline", context_window=window).stdout.decode()
        assert shown == "context 42% · cached 80% · 15 messages recallable"

    def test_a_new_session_shows_what_there_is(self, host: Host) -> None:
        assert host.call("statusline", context_window={"used_percentage": None}).stdout == b""


EVENTS = ["SessionStart", "PreCompact", "PostCompact", "PostToolUse", "Stop", "SessionEnd", "statusline", "Unknown"]

FAULTY = [
    (event, data)
    for event in EVENTS
    for data in (b"", b"{", b"[]", b"{}", b'"x"' * 9000, b"\xff" * 20_000)
    if not (event in ("statusline", "Unknown") and data == b"{}")  # these two accept an empty object
]


def _made(url: str) -> str:
    places.make_store_folder(url)
    return url.removeprefix("sqlite:///")


class TestFaults:
    @pytest.mark.parametrize(("event", "data"), FAULTY)
    def test_any_input_ends_with_success_and_no_output(self, host: Host, event: str, data: bytes) -> None:
        """The agent never sees a failure; the log has a line about it."""
        answer = host.call(event, raw=data)
        assert (answer.returncode, answer.stdout) == (0, b"")

    def test_a_missing_transcript_is_logged(self, host: Host) -> None:
        host.transcript.unlink()
        answer = host.call("PreCompact", trigger="auto")
        assert (answer.returncode, answer.stdout) == (0, b"")
        assert "PreCompact" in host.log and host.log.count("\n") == 1

    def test_an_output_is_not_shortened_when_it_cannot_be_stored(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that another process has locked: the model gets the original."""

        async def open_impatiently(url: str) -> Store:
            return Store(await open_sqlite(url, patience=1))

        recorder.record("claude-code", SESSION, str(host.transcript))
        monkeypatch.setattr(recorder, "open_store", open_impatiently)  # closing a blocked store takes all its patience
        lock = sqlite3.connect(places.store_url().removeprefix("sqlite:///"))
        lock.execute("BEGIN EXCLUSIVE")
        try:
            call = {"call_id": "toolu_9", "tool": "Bash", "call_input": {"command": "x"}}
            with pytest.raises((TimeoutError, kompakt.StoreError)):
                recorder.shorten("claude-code", SESSION, output=LARGE, seconds=0.5, **call)
        finally:
            lock.close()

    def test_a_locked_store_ends_the_hook_in_time(self, host: Host) -> None:
        """Without an answer, long before the agent gives up on it."""
        lock = sqlite3.connect(_made(places.store_url()))
        lock.execute("CREATE TABLE held (x)")
        lock.execute("BEGIN EXCLUSIVE")
        try:
            call = {"tool_name": "Bash", "tool_use_id": "t", "tool_input": {"command": "x"}}
            answer = host.call("PostToolUse", tool_response={"stdout": LARGE}, **call)
        finally:
            lock.close()
        assert (answer.returncode, answer.stdout) == (0, b"")
        assert "PostToolUse: no answer in time" in host.log

    def test_notes_need_no_store(self, host: Host) -> None:
        """With a store that cannot be opened, rules still return after a compaction."""
        host.environment["KOMPAKT_STORE"] = "sqlite:////proc/nowhere/x.db"
        assert RULE in host.call("SessionStart", source="compact").stdout.decode()
        assert RULE in host.call("PreCompact", trigger="auto").stdout.decode()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_a_full_disk_does_not_reach_the_agent(self, host: Host) -> None:
        """Neither notes nor log can be written: the answer to the agent is the same."""
        state = host.folder / "state" / "kompakt"
        state.mkdir(parents=True)
        (state / "hooks.log").symlink_to("/dev/full")
        (state / "current").symlink_to("/dev/full")
        answer = host.call("SessionStart", source="compact")
        assert answer.returncode == 0 and RULE in answer.stdout.decode()
        failed = host.call("PreCompact", raw=b"{")
        assert (failed.returncode, failed.stdout, failed.stderr) == (0, b"", b"")

    def test_a_killed_hook_leaves_the_store_intact(self, host: Host) -> None:
        """Killed at any moment of a recording, the next one completes it."""
        host.write(session_records(300))
        code = (
            f"from kompakt.hosts import recorder; recorder.record('claude-code', {SESSION!r}, {str(host.transcript)!r})"
        )
        for pause in (0.1, 0.4, 0.7):
            process = subprocess.Popen([sys.executable, "-c", code], env=host.environment)
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            process.wait()
        recorder.record("claude-code", SESSION, str(host.transcript))
        assert len(stored(MAIN)) == len(session_records(300))

    def test_an_agent_that_closed_the_pipe_is_no_failure(self, host: Host) -> None:
        """The agent ended while the hook worked."""
        command = [sys.executable, "-m", "kompakt.hosts.hook", "claude-code", "PreCompact"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=host.environment
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.close()
            process.stdin.write(json.dumps(host.event("PreCompact", trigger="auto")).encode())
            process.stdin.close()
            process.wait(60)
        assert process.returncode == 0

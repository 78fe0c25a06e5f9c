"""Transcripts: every kind is read by every command, and a broken one is repaired as a transcript."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.store_helpers import Run, refused
from tests.wire.transcripts.transcript_files import (
    CALL,
    META,
    OUTPUT,
    SAMPLES,
    Writer,
    encode,
    item,
    lines,
    result,
    said,
    text,
    use,
)


@pytest.fixture(params=SAMPLES)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a transcript of each kind."""
    name, content = SAMPLES[request.param]
    path = tmp_path / name
    path.write_bytes(encode(name, content))
    return path


def broken_session(tmp_path: Path) -> Path:
    """Write a Claude Code session with an open call, a torn line and a duplicate record."""
    written = Writer().user("go").assistant("m1", text("a"), use("c1")).user("stop").records
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join([*lines(*written, written[2]), '{"type":"user","mess']) + "\n")
    return path


class TestEveryCommand:
    def test_check(self, kom: Run, recording: Path) -> None:
        """The kind is named, and a valid transcript has no problems."""
        done = kom("check", recording)
        assert done.code == 0, done.out + done.err
        assert "transcript" in done.err and "no problems" in done.err

    def test_a_wrong_format_is_refused(self, kom: Run, recording: Path) -> None:
        """The file decides which format its messages have."""
        for command in (
            ("check", recording),
            ("count", recording),
            ("repair", recording),
            ("compact", recording, "--budget", "50000"),
            ("session", "import", recording),
            ("recall", recording, "list the files"),
        ):
            done = kom(*command, "--format", "bedrock")
            assert (done.code, done.out) == (2, "") and done.err.endswith(", not 'bedrock'\n")

    def test_count(self, kom: Run, recording: Path) -> None:
        """Tokens of the request that would continue it."""
        assert json.loads(kom("count", recording, "--json").out)["total"] > 10

    def test_recall(self, kom: Run, recording: Path) -> None:
        done = kom("recall", recording, "list the files")
        assert done.code == 0 and "list the files" in done.out

    def test_compact(self, kom: Run, recording: Path) -> None:
        """The result is a request body."""
        done = kom("compact", recording, "--budget", "50000")
        assert done.code == 0, done.err
        assert "list the files" in json.dumps(json.loads(done.out))

    def test_repair(self, kom: Run, recording: Path, tmp_path: Path) -> None:
        """A valid transcript is unchanged; other kinds become a valid request body."""
        done = kom("repair", recording, "-o", tmp_path / "out")
        assert done.code == 0, done.err
        is_same = (tmp_path / "out").read_bytes() == recording.read_bytes()
        assert is_same == (recording.name in ("rollout.jsonl",) or "claude" in kom("check", recording).err)
        assert kom("check", tmp_path / "out").code == 0

    def test_import(self, kom: Run, recording: Path) -> None:
        done = kom("session", "import", recording)
        assert done.code == 0, done.err
        assert "There is a.py." in kom("session", "export", done.out.strip()).out


class TestSessions:
    def test_one_of_several_sessions_is_selected_with_a_hash(self, kom: Run, tmp_path: Path) -> None:
        """Without a name the first is read, and the others are mentioned."""
        name, content = SAMPLES["openhands"]
        (tmp_path / name).write_bytes(encode(name, content))
        assert "2 sessions; reading i1; select another with --session i2" in kom("check", name).err
        done = kom("count", f"{name}#i2")
        assert (done.code, done.err) == (0, "")
        refused(kom("check", f"{name}#i9"), "no session 'i9'; the file has 2: i1, i2")
        refused(kom("check", f"{name}#\u00b2"), "no session '\u00b2'; the file has 2: i1, i2")

    @pytest.mark.parametrize("session", ["task-1.trial-0", "2"])
    @pytest.mark.parametrize("command", ["check", "count", "compact", "repair", "recall", "import"])
    def test_one_of_several_sessions_is_selected_with_an_option(
        self, kom: Run, tmp_path: Path, command: str, session: str
    ) -> None:
        """By name or number, in every command; an unknown name lists those that exist."""
        name, content = SAMPLES["tau-bench"]
        content = [content[0], {**content[1], "traj": [{"role": "user", "content": "another task"}]}]
        (tmp_path / name).write_bytes(encode(name, content))
        start = ["session", "import", name] if command == "import" else [command, name]
        words = [*start, *{"recall": ["another"], "compact": ["--budget", "50000"]}.get(command, [])]
        done = kom(*words, "--session", session)
        assert done.code == 0 and "2 sessions" not in done.err
        if command in ("compact", "repair", "recall"):
            assert "another task" in done.out and "list the files" not in done.out
        refused(kom(*words, "--session", "task-9"), "the file has 2: task-0.trial-0, task-1.trial-0")

    def test_a_request_body_has_no_sessions(self, kom: Run, tmp_path: Path) -> None:
        (tmp_path / "body.json").write_text('{"model": "m", "messages": [{"role": "user", "content": "go"}]}')
        refused(kom("check", "body.json", "--session", "2"), "contains one history and no sessions")


class TestSkippedRecords:
    @pytest.fixture
    def session(self, tmp_path: Path) -> Path:
        """Write a Claude Code session with records that carry no message."""
        others = [{"type": "file-history-snapshot", "snapshot": {}}] * 7 + [{"type": "brand-new", "x": 1}] * 5
        path = tmp_path / "session.jsonl"
        path.write_text("\n".join(lines(*others[:6], *Writer().user("go").records, *others[6:])))
        return path

    @pytest.mark.parametrize("command", ["check", "count", "repair", "compact", "recall"])
    def test_they_are_counted_by_type(self, kom: Run, session: Path, command: str) -> None:
        """Skipped records are reported, also those of new versions."""
        done = kom(command, session, *{"recall": ["go"], "compact": ["--budget", "50000"]}.get(command, []))
        assert "session.jsonl: skipped 12 records without a message: 7 file-history-snapshot, 5 brand-new" in done.err

    @pytest.mark.parametrize("command", ["check", "count", "repair", "compact", "import"])
    def test_json_has_the_counts(self, kom: Run, session: Path, command: str) -> None:
        words = {"import": ["session", "import"], "compact": ["compact", "--budget", "50000"]}.get(command, [command])
        report = json.loads(kom(*words, session, "--json").out)
        assert report["skipped_records"] == {"file-history-snapshot": 7, "brand-new": 5}


class TestCheck:
    def test_what_the_reader_repairs_is_a_problem(self, kom: Run, tmp_path: Path) -> None:
        """Lines with their number, calls with their line."""
        done = kom("check", broken_session(tmp_path))
        assert done.code == 1
        found = [line.split(": ")[0] for line in done.out.splitlines()]
        assert found == ["TF-3 line 4", "TF-1 line 5", "AN-1 line 2"]
        report = json.loads(kom("check", broken_session(tmp_path), "--json").out)
        assert (report["transcript"], len(report["problems"])) == ("claude-code", 3)


class TestCompact:
    @pytest.fixture
    def session(self, tmp_path: Path) -> Path:
        """Write a Claude Code session that is too long for 3,000 tokens."""
        writer = Writer().user("Build the parser. Never delete a file.")
        for step in range(20):
            writer.assistant(f"m{step}", use(f"c{step}")).user([result(f"c{step}", f"{step} line of output " * 100)])
        path = tmp_path / "session.jsonl"
        path.write_text("\n".join(lines(*writer.assistant("end", text("It is built.")).records)))
        return path

    def test_a_transcript_is_written_as_a_transcript(self, kom: Run, session: Path, tmp_path: Path) -> None:
        """If the name of the result ends with .jsonl; the original is unchanged."""
        before = session.read_bytes()
        done = kom("compact", session, "--budget", "3000", "-o", tmp_path / "small.jsonl")
        assert (done.code, done.out) == (0, "")
        assert session.read_bytes() == before
        assert "claude-code transcript" in kom("check", tmp_path / "small.jsonl").err
        assert json.loads(kom("count", tmp_path / "small.jsonl", "--json").out)["total"] <= 3000

    @pytest.mark.parametrize("out", ["small.json", None])
    def test_other_results_are_request_bodies(self, kom: Run, session: Path, tmp_path: Path, out: str | None) -> None:
        done = kom("compact", session, "--budget", "3000", *(["-o", out] if out else []))
        data = (tmp_path / out).read_text() if out else done.out
        assert "Never delete a file." in str(json.loads(data)["messages"])

    def test_the_original_is_never_overwritten(self, kom: Run, session: Path) -> None:
        before = session.read_bytes()
        refused(kom("compact", session, "--budget", "3000", "-o", session), "is the transcript itself")
        assert session.read_bytes() == before


class TestRepair:
    def test_a_transcript_is_repaired_as_a_transcript(self, kom: Run, tmp_path: Path) -> None:
        """The original is unchanged; the result has no problems; the changes are reported."""
        path = broken_session(tmp_path)
        before = path.read_bytes()
        done = kom("repair", path, "-o", tmp_path / "fixed.jsonl")
        assert done.code == 0 and done.out == ""
        assert path.read_bytes() == before
        assert [line.partition(":")[0] for line in done.err.splitlines()[:3]] == [
            *("TF-3 dropped line 4", "TF-1 dropped line 5", "AN-1 added line 2"),
        ]
        assert kom("check", tmp_path / "fixed.jsonl").code == 0
        fixed = (tmp_path / "fixed.jsonl").read_bytes().splitlines()
        assert fixed[:2] == before.splitlines()[:2]
        assert json.loads(fixed[2])["message"]["content"][0]["tool_use_id"] == "c1"

    def test_body_writes_the_request_body_instead(self, kom: Run, tmp_path: Path) -> None:
        done = kom("repair", broken_session(tmp_path), "--body")
        body = json.loads(done.out)
        assert done.code == 0 and body["messages"][2]["content"][0]["type"] == "tool_result"
        assert body["messages"][0] == {"role": "user", "content": "go"}

    def test_the_original_is_never_overwritten(self, kom: Run, tmp_path: Path) -> None:
        path = broken_session(tmp_path)
        before = path.read_bytes()
        refused(kom("repair", path, "-o", path), "is the transcript itself")
        assert path.read_bytes() == before

    def test_a_rollout_of_codex(self, kom: Run, tmp_path: Path) -> None:
        """A duplicate output is removed; --json lists the changes and the records."""
        path = tmp_path / "rollout.jsonl"
        twice = [META, item(**said("user", "go")), item(**CALL), item(**OUTPUT), item(**OUTPUT)]
        path.write_text("\n".join(lines(*twice)))
        done = kom("repair", path, "--json")
        report = json.loads(done.out)
        assert done.code == 0
        assert [change["code"] for change in report["changes"]] == ["TF-3"]
        assert report["payload"] == twice[:4]

    def test_what_cannot_be_repaired_is_exit_1(self, kom: Run, tmp_path: Path) -> None:
        """A rollout without its header."""
        path = tmp_path / "rollout.jsonl"
        path.write_text("\n".join(lines(item(**said("user", "go")), item(**said("assistant", "yes")))))
        done = kom("repair", path)
        assert done.code == 1 and "left: TF-6" in done.err

    def test_results_before_their_call(self, kom: Run, tmp_path: Path) -> None:
        """An early record is moved to its place."""
        written = Writer().user("go").user([result("c1", "early")]).assistant("m1", use("c1")).user("more")
        path = tmp_path / "session.jsonl"
        path.write_text("\n".join(lines(*written.records)))
        assert kom("repair", path, "-o", tmp_path / "fixed.jsonl").code == 0
        assert kom("check", tmp_path / "fixed.jsonl").code == 0
        assert "early" in (tmp_path / "fixed.jsonl").read_text()

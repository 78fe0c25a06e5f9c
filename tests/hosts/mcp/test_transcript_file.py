"""Reading a transcript that an agent is writing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.hosts.mcp.workspace import talk
from tests.wire.transcripts.transcript_files import Writer, text

from kompakt import files
from kompakt.engine.recall import Memory
from kompakt.hosts.mcp import sessions
from kompakt.hosts.mcp.sessions import NONE, ReadTranscript, TranscriptFile


def content(read: ReadTranscript) -> ReadTranscript:
    return read


def long_session(folder: Path, steps: int) -> list[str]:
    written = talk(folder)
    for number in range(steps):
        written.user(f"step {number}").assistant(f"a{number}", text(f"answer {number}"))
    return [json.dumps(record) + "\n" for record in written.records]


class TestIncremental:
    def test_any_way_of_appending_gives_what_a_whole_reading_gives(self, tmp_path: Path) -> None:
        """Also when the file ends inside a line, or inside a character."""
        data = "".join(long_session(tmp_path, 30)).replace("answer", "änswer").encode()
        data = data.replace(b'{"type": "user", "uuid": "u4"', b'torn line\n{"type": "user", "uuid": "u4"')
        path, chance = tmp_path / "s.jsonl", random.Random(7)
        file, at = TranscriptFile(path), data.index(b"\n") + 1
        while at < len(data):
            at = min(len(data), at + chance.randint(1, 900))
            path.write_bytes(data[:at])
            read = file.use(content, NONE)
            whole = files.decode(data[:at], "s")
            ended = at == len(data) or data[at - 1 : at] == b"\n"
            assert read.history.messages == whole.payload.messages
            assert read.transcript is not None and whole.transcript is not None
            if ended:
                assert read.transcript.skipped == whole.transcript.skipped
        assert [one.line for one in read.transcript.skipped] == [5]

    def test_only_appended_lines_are_decoded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And an unchanged file is not read at all."""
        lines = long_session(tmp_path, 20)
        path, decoded = tmp_path / "s.jsonl", list[int]()
        decode = sessions.decode

        def counted(given: list[bytes]) -> object:
            decoded.append(sum(bool(line) for line in given))
            return decode(given)

        monkeypatch.setattr(sessions, "decode", counted)
        file = TranscriptFile(path)
        for end in (10, 10, 12, 13):
            path.write_text("".join(lines[:end]))
            file.use(content, NONE)
        assert [number for number in decoded if number] == [10, 2, 1]

    def test_a_rewritten_file_is_read_again(self, tmp_path: Path) -> None:
        """An agent may go back in its session."""
        path = tmp_path / "s.jsonl"
        file = TranscriptFile(path)
        sizes = []
        for records in (talk(tmp_path), Writer().user("other").assistant("m", text("new")), talk(tmp_path, "third")):
            path.write_text("".join(json.dumps(record) + "\n" for record in records.records))
            sizes.append([message.text for message in file.use(content, NONE).history])
        assert sizes[1] == ["other", "new"] and sizes[0][0] == sizes[2][0] and len(sizes[2]) == 4

    def test_the_index_is_extended_and_not_built_again(self, tmp_path: Path) -> None:
        path, lines = tmp_path / "s.jsonl", long_session(tmp_path, 20)
        file, memories = TranscriptFile(path), set[int]()
        for end in range(10, len(lines)):
            path.write_text("".join(lines[:end]))
            read = file.use(content, NONE)
            memories.add(id(read.memory))
            expected = Memory(read.history, counter=read.memory._counter).recall("answer", tokens=300)
            assert read.memory.recall("answer", tokens=300) == expected
        assert len(memories) == 1

    def test_new_originals_are_put_into_the_history(self, tmp_path: Path) -> None:
        path = tmp_path / "s.jsonl"
        path.write_text("".join(long_session(tmp_path, 1)))
        file = TranscriptFile(path)
        assert "zebra" in str(file.use(content, NONE).history.messages)
        read = file.use(content, {"c1": "the original"})
        assert "zebra" not in str(read.history.messages) and "the original" in str(read.history.messages)

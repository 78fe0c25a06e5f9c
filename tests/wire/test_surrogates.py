"""Lone surrogates: reported everywhere, replaced by a repair, and never a reason to reject a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.histories import FORMATS
from tests.histories.broken import HALF_CHARACTERS
from tests.judges import judge

import kompakt
from kompakt.model.json import indented_json

BODY: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "cut \ud83d off"}, {"role": "assistant", "content": "a\udc00"}],
}


class TestRule:
    @pytest.mark.parametrize("format", FORMATS)
    def test_check_reports_it_and_repair_replaces_it(self, format: str) -> None:
        """In any text of a request and in every format; the provider accepts the result."""
        for _, body in HALF_CHARACTERS[format]:
            assert "TX-1" in {problem.code for problem in kompakt.check(body, format)}
            repaired = kompakt.repair(body, format)
            assert "TX-1" in {change.code for change in repaired.changes}
            assert kompakt.check(repaired.payload, format) == []
            assert judge(format, repaired.payload) == []

    def test_the_path_names_the_text(self) -> None:
        """Each text has its own problem."""
        assert [problem.path for problem in kompakt.check(BODY) if problem.code == "TX-1"] == [
            "messages[0].content",
            "messages[1].content",
        ]

    def test_whole_characters_are_no_problem(self) -> None:
        """An emoji, or its two halves side by side, can be sent."""
        assert kompakt.check([{"role": "user", "content": "👩🏽\u200d💻 日本"}], "openai-chat") == []
        joined = kompakt.repair([{"role": "user", "content": "\ud83d\ude80!"}], "openai-chat")
        assert joined.payload == [{"role": "user", "content": "🚀!"}]

    @pytest.mark.parametrize(("text", "codes"), [("fine", []), ("cut \ud83d", ["TX-1"])])
    def test_it_is_found_beside_integers_of_any_size(self, text: str, codes: list[str]) -> None:
        """An integer of more than 64 bits is valid JSON and does not hide the text next to it."""
        body = {"messages": [{"role": "user", "content": text, "seed": 2**70}]}
        assert [problem.code for problem in kompakt.check(body, "openai-chat")] == codes

    def test_only_the_half_is_replaced(self) -> None:
        """The text before and after it stays."""
        for text, whole in {"a\ud83db": "a\ufffdb", "\udc00": "\ufffd", "x\ud83d": "x\ufffd"}.items():
            repaired = kompakt.repair([{"role": "user", "content": text}], "openai-chat")
            assert repaired.payload == [{"role": "user", "content": whole}]

    def test_untouched_messages_stay_the_same_objects(self) -> None:
        """A repair of one message leaves the others alone."""
        good: dict[str, Any] = {"role": "user", "content": "go"}
        repaired = kompakt.repair([good, {"role": "assistant", "content": "\ud83d"}], "openai-chat")
        assert repaired.payload[0] is good

    def test_signed_thinking_that_would_change_is_dropped(self) -> None:
        """Its signature would be invalid."""
        thinking = {"type": "thinking", "thinking": "hm \ud83d", "signature": "EqQB"}
        messages: list[Any] = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "ok"}]},
            {"role": "user", "content": "on"},
        ]
        repaired = kompakt.repair(messages, "anthropic")
        assert [block["type"] for block in repaired.payload[1]["content"]] == ["text"]

    def test_what_is_compacted_can_be_sent(self) -> None:
        """Also where nothing else is due."""
        done = kompakt.compact(BODY, 50_000)
        json.dumps(done.payload, ensure_ascii=False).encode()
        assert any(repair.startswith("TX-1") for repair in done.report.repairs)

    def test_recall_gives_back_the_original(self) -> None:
        """The repair is for the provider; the recalled text is the original."""
        assert "\ud83d" in kompakt.recall(BODY, "cut off").text


class TestFiles:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_json_file_is_read(self, tmp_path: Path, indent: int | None) -> None:
        """The payload is the content of the file."""
        path = tmp_path / "request.json"
        path.write_text(json.dumps(BODY, indent=indent))
        assert kompakt.load(path).payload == BODY

    def test_a_file_that_holds_the_half_unescaped_is_read(self, tmp_path: Path) -> None:
        """Some writers encode each half separately."""
        path = tmp_path / "request.json"
        path.write_bytes(json.dumps(BODY, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        assert kompakt.load(path).payload == BODY

    def test_lines_are_not_rewritten_on_reading(self, tmp_path: Path) -> None:
        """One message a line: a check still finds what is wrong."""
        path = tmp_path / "messages.jsonl"
        path.write_text("".join(json.dumps(message) + "\n" for message in BODY["messages"]))
        loaded = kompakt.load(path)
        assert loaded.payload == BODY["messages"]
        assert "TX-1" in {problem.code for problem in kompakt.check(loaded.payload, "anthropic")}

    def test_what_is_replaced_in_a_transcript_is_reported(self, tmp_path: Path) -> None:
        """A Claude Code session with a lone surrogate: the reader replaces and reports it."""
        record = {
            "type": "user",
            "uuid": "u0",
            "parentUuid": None,
            "sessionId": "s",
            "message": {"role": "user", "content": "cut \ud83d off"},
        }
        reply = {
            "type": "assistant",
            "uuid": "u1",
            "parentUuid": "u0",
            "sessionId": "s",
            "message": {"id": "m1", "role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        }
        path = tmp_path / "session.jsonl"
        path.write_text(json.dumps(record) + "\n" + json.dumps(reply) + "\n")
        transcript = kompakt.load(path).transcript
        assert transcript is not None
        assert [problem.path for problem in transcript.problems] == ["line 1"]

    def test_what_holds_one_can_be_written(self) -> None:
        """As an escape, which decodes to the same text."""
        assert json.loads(indented_json(BODY)) == BODY

    @pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1', "[1,]", '{"a": ' + "9" * 5_000 + "}"])
    def test_invalid_json_is_still_rejected(self, tmp_path: Path, text: str) -> None:
        """Lenient decoding accepts lone surrogates and nothing else."""
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(kompakt.UnreadableFile, match="bad"):
            kompakt.load(path)

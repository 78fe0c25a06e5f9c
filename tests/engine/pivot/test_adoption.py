"""A compacted history that is repeatedly sent back with new messages."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import kompakt
from kompakt import Context, Message, Text, files
from kompakt.engine.pivot import pivot
from kompakt.engine.pivot.pivot import adopt_pivots
from kompakt.engine.strategies.shortened_results import shortened
from kompakt.model.tokens import Counter


def tool_round(number: int, *, thinking: bool = False, words: int = 100) -> list[dict[str, Any]]:
    """Make one Anthropic tool round."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"number": number}}
    thought = [{"type": "thinking", "thinking": "So.", "signature": "c2ln"}] if thinking else []
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"out {number} " + "word " * words}
    return [{"role": "assistant", "content": [*thought, call]}, {"role": "user", "content": [result]}]


def summary_of(payload: dict[str, Any]) -> str:
    """Find the sealed summary of a payload."""
    spoken = [message.text for message in kompakt.parse(payload) if message.role == "assistant"]
    return next(text for text in spoken if "[kompakt summary" in text)


class TestSentBack:
    def test_an_open_round_under_manual_thinking_never_bricks_the_session(self) -> None:
        """The parts of a merged message are separated again, so the floor does not grow with every pass."""
        body: dict[str, Any] = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 9000,
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "messages": [{"role": "user", "content": "The task."}],
        }
        for number in range(60):
            body = {**body, "messages": [*body["messages"], *tool_round(number, thinking=True, words=200)]}
            body = kompakt.compact(body, 4000).payload
            assert kompakt.check(body) == []
        assert "The task." in str(body["messages"][0])

    def test_a_summary_is_about_the_work_and_not_about_kompakt(self) -> None:
        """After any number of passes, no line repeats a text of kompakt itself."""
        body: dict[str, Any] = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "The task."}]}
        for turn in range(30):
            rounds = [message for number in range(8) for message in tool_round(8 * turn + number)]
            body = kompakt.compact({**body, "messages": [*body["messages"], *rounds]}, 4000, pins=["stay"]).payload
        lines = summary_of(body).splitlines()
        assert len(lines) > 10
        assert [line for line in lines[:-1] if "[kompakt" in line] == []

    def test_a_summary_does_not_shrink_while_there_is_room(self) -> None:
        """Tokens that one kind of statement leaves unused are used for another, in every pass."""
        body: dict[str, Any] = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "The task."}]}
        counts: list[int] = []
        for turn in range(30):
            rounds = [message for number in range(8) for message in tool_round(8 * turn + number)]
            body = kompakt.compact({**body, "messages": [*body["messages"], *rounds]}, 4000).payload
            counts.append(len(summary_of(body)) if turn > 4 else 0)
        assert min(counts[15:]) > 0.7 * max(counts) > 700

    def test_two_pivots_are_both_adopted(self) -> None:
        """A history that was joined from two compacted ones keeps what both summaries say, oldest first."""
        pivots = [message for text in ("older facts", "newer facts") for message in pivot.render(text)]
        context = Context([Message("user", (Text("The task."),)), *pivots, Message("user", (Text("Go on."),))])
        assert adopt_pivots(context) == "older facts\nnewer facts"
        assert [message.text for message in context.project()] == ["The task.", "Go on."]


class TestPins:
    def test_a_pin_holds_its_message_also_when_a_repair_moved_it(self) -> None:
        """An index means the message of the payload that was given."""
        talk = [{"role": r, "content": f"{r} {n} " + "w " * 100} for n in range(30) for r in ("assistant", "user")]
        broken = [{"role": "user", "content": "first"}, {"role": "tool", "tool_call_id": "x", "content": "y"}, *talk]
        pinned = broken[17]
        assert pinned in kompakt.compact(broken, 1500, pins=[17], format="openai-chat").payload

    def test_a_pin_in_a_separate_message_stays_in_place(self) -> None:
        """Text that comes up again later does not move the note: the prefix stays the same until the next rewrite."""
        talk = [{"role": r, "content": f"{r} {n} " + "w " * 100} for n in range(30) for r in ("assistant", "user")]
        history = [{"role": "user", "content": "first"}, *talk]
        more = [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "remember: use tabs please"}]
        before = kompakt.compact(history, 3000, format="openai-chat", pins=["use tabs"]).payload
        after = kompakt.compact([*history, *more], 3000, format="openai-chat", pins=["use tabs"]).payload
        assert after[: len(before)] == before

    @pytest.mark.parametrize("pins", ["keep me", [1.5], [True], [""]])
    def test_what_cannot_be_meant_is_refused(self, pins: Any) -> None:
        """One text for a list, a fraction, a truth value, nothing."""
        with pytest.raises(kompakt.UsageError, match="pin"):
            kompakt.compact([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], 100, pins=pins)

    def test_the_error_names_pins_that_are_too_large(self) -> None:
        """A pin that alone exceeds the budget is among the largest."""
        with pytest.raises(kompakt.DoesNotFit, match="pinned texts"):
            kompakt.compact(
                [{"role": "user", "content": "go " * 50}] * 9, 60, format="openai-chat", pins=["z q " * 500]
            )


class TestShortened:
    def test_a_short_text_is_not_repeated(self) -> None:
        """A result that is large for its picture keeps its words once and says what is hidden."""
        text = shortened("screenshot taken", 1000, Counter(), reference="m1.0")
        assert text.count("screenshot taken") == 1
        assert "m1.0" in text

    def test_the_note_states_how_much_is_omitted(self) -> None:
        """About what was cut, not the size of the whole."""
        counter = Counter()
        text = "word " * 9000
        short = shortened(text, 1300, counter, reference="m1")
        stated = int(short.split("about ")[1].split(" ")[0])
        assert abs(stated - (counter.text(text) - counter.text(short))) < 200


class TestErrors:
    def test_survive_another_process(self) -> None:
        """Errors can be pickled and copied, fields and text."""
        errors = [
            kompakt.DoesNotFit(floor=3, budget=2, largest=[("m1", 3)]),
            kompakt.MalformedPayload("messages[1]", "an object", 5),
            kompakt.AmbiguousFormat("why", ["a", "b"]),
        ]
        for error in errors:
            for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                assert (type(twin), str(twin)) == (type(error), str(error))


class TestWrite:
    def test_follows_links_and_keeps_modes(self, tmp_path: Path) -> None:
        """A link stays a link, a private file stays private."""
        real, link = tmp_path / "real.json", tmp_path / "link.json"
        real.write_text("old")
        real.chmod(0o600)
        link.symlink_to(real)
        files.write(link, b"new")
        assert link.is_symlink()
        assert real.read_bytes() == b"new"
        assert real.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_the_temporary_copy_is_never_more_open_than_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
    ) -> None:
        """It is created for its owner only. A new file gets the mode of the umask."""
        created: list[int] = []
        fdopen = os.fdopen

        def observed(handle: int, *given: Any) -> Any:
            created.append(os.fstat(handle).st_mode & 0o777)
            return fdopen(handle, *given)

        private, new = tmp_path / "private.json", tmp_path / "new.json"
        private.write_text("old")
        private.chmod(mode)
        monkeypatch.setattr(os, "fdopen", observed)
        umask = os.umask(0o022)
        try:
            files.write(private, b"new")
            files.write(new, b"new")
        finally:
            os.umask(umask)
        assert created == [0o600, 0o644]
        assert private.stat().st_mode & 0o777 == mode
        assert new.stat().st_mode & 0o777 == 0o644

    def test_refuses_a_folder_in_one_line(self, tmp_path: Path) -> None:
        """Not with a traceback."""
        with pytest.raises(kompakt.UnreadableFile, match="directory"):
            files.write(tmp_path, b"x")

"""Results and errors can be pickled, for other processes and caches."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kompakt
from kompakt import errors
from kompakt.engine.recall import Memory
from kompakt.model.tokens import counter_for
from kompakt.session.compaction import SessionCompaction


def again(value: Any) -> Any:
    """Pickle a value and load it."""
    return pickle.loads(pickle.dumps(value))


def history() -> list[dict[str, Any]]:
    """Make a conversation with different words in each round."""
    messages: list[dict[str, Any]] = []
    for number in range(60):
        messages.append({"role": "user", "content": f"Where is lighthouse_{number}? " * 20})
        messages.append({"role": "assistant", "content": f"Lighthouse_{number} stands at pier {number * 7}. " * 20})
    return messages


def words(text: str) -> int:
    """Count words: a tokenizer that can be imported by name."""
    return len(text.split())


class TestCompactions:
    @pytest.mark.parametrize("body", [False, True], ids=["list", "body"])
    def test_a_compaction_keeps_payload_report_and_recall(self, body: bool) -> None:
        """All fields are equal, and hidden messages are still found."""
        messages = history()
        payload: Any = {"model": "gpt-4o", "messages": messages} if body else messages
        made = kompakt.compact(payload, 3_000, model="gpt-4o", format="openai-chat")
        assert made.changed
        loaded = again(made)
        assert isinstance(loaded, kompakt.Compaction)
        for field in ("payload", "tokens_before", "tokens_after", "changed", "report", "request_changes"):
            assert getattr(loaded, field) == getattr(made, field)
        found = made.recall("lighthouse_3")
        assert "pier 21" in found.text
        assert loaded.recall("lighthouse_3") == found
        assert loaded.recall(found.hits[0].reference) == made.recall(found.hits[0].reference)

    def test_a_compaction_that_was_searched_before_can_be_pickled(self) -> None:
        """The index is not part of the pickle and is rebuilt."""
        made = kompakt.compact(history(), 3_000, model="gpt-4o", format="openai-chat")
        unused = len(pickle.dumps(made))
        answer = made.recall("lighthouse_3")
        assert len(pickle.dumps(made)) == unused
        assert again(made).recall("lighthouse_3") == answer

    def test_recall_works_in_another_process(self, tmp_path: Path) -> None:
        """Nothing in a pickle depends on the hash seed of the process that wrote it."""
        made = kompakt.compact(history(), 3_000, model="gpt-4o", format="openai-chat")
        (tmp_path / "made.pickle").write_bytes(pickle.dumps(made))
        code = (
            "import pickle, pathlib, sys; made = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()); "
            "print(made.recall('lighthouse_3').text)"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "made.pickle")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == made.recall("lighthouse_3").text + "\n"

    def test_a_tokenizer_that_can_be_imported_is_kept(self) -> None:
        """The size of an answer is counted with the same function after loading."""
        made = kompakt.compact(history(), 3_000, format="openai-chat", tokenizer=words)
        assert again(made).recall("lighthouse_3").tokens == made.recall("lighthouse_3").tokens

    def test_a_counter_keeps_its_factor_and_counts_alike(self) -> None:
        """A learned factor is preserved."""
        counter = counter_for("claude-opus-4-5").own()
        counter.calibrate(kompakt.Usage(input=130), 100)
        counter.tokens("The tide turns at noon.")
        loaded = again(counter)
        assert (loaded.name, loaded.family) == (counter.name, counter.family)
        assert loaded.tokens("The tide turns at noon.") == counter.tokens("The tide turns at noon.")

    def test_a_memory_keeps_the_references_that_were_given(self) -> None:
        """A memory that starts in the middle of a history keeps its references."""
        messages = kompakt.parse(history()[:4], "openai-chat")
        memory = Memory(messages, counter=counter_for(None), references=("m00aa", "m00bb"))
        assert again(memory).recall("m00bb") == memory.recall("m00bb")
        assert again(memory).recall("m00bb").text == messages[1].text


BROKEN: list[dict[str, Any]] = [
    {"role": "user", "content": "Go."},
    {"role": "tool", "tool_call_id": "c1", "content": "Nobody asked."},
    {"role": "narrator", "content": "Meanwhile"},
]


class TestValues:
    def test_other_results_are_equal_after_loading(self) -> None:
        """Repairs, problems, counts, reports, answers and parsed histories are plain values."""
        made = kompakt.compact(history(), 3_000, model="gpt-4o", format="openai-chat")
        repaired = kompakt.repair(BROKEN, "openai-chat")
        assert repaired.changes and repaired.remaining
        session = SessionCompaction(id="c1", changed=True, tokens_before=9, tokens_after=4, report=made.report)
        values = (
            made.report,
            made.recall("lighthouse_3"),
            repaired,
            kompakt.check(BROKEN, "openai-chat"),
            kompakt.count(history(), format="openai-chat"),
            kompakt.parse(history(), "openai-chat"),
            session,
        )
        for value in values:
            assert again(value) == value
            assert type(again(value)) is type(value)


OVERFLOW = kompakt.overflow(
    {"error": {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."}},
)

ERRORS: list[kompakt.KompaktError] = [
    errors.MalformedPayload("messages[0]", "an object", 3),
    errors.AmbiguousFormat("the payload is empty", ["anthropic", "openai-chat"]),
    errors.DoesNotFit(floor=900, budget=500, largest=[("system", 800)]),
    errors.ProviderError("no answer", status=500),
    errors.ProviderRefused("no", status=400),
    errors.ProviderUnavailable("gone", status=503),
    errors.Overflowed("too long", status=400, overflow=OVERFLOW, round="m12ab"),
    kompakt.SummaryFault("empty", "the summary is empty"),
]


class TestErrors:
    def test_every_error_keeps_its_text_and_its_fields(self) -> None:
        """A handler in another process sees the same error."""
        special = {type(error) for error in ERRORS}
        kinds = [kind for name in kompakt.__all__ if _is_error(kind := getattr(kompakt, name))]
        plain = [kind("a message") for kind in kinds if kind not in special]
        for error in (*ERRORS, *plain):
            error.add_note("while compacting session s1")
            loaded = again(error)
            assert type(loaded) is type(error)
            assert (str(loaded), loaded.args, vars(loaded)) == (str(error), error.args, vars(error))


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, kompakt.KompaktError)

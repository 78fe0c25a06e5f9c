"""The status of stored sessions and of transcripts."""

from __future__ import annotations

import pytest
from tests.session.builders import fresh, run
from tests.wire.transcripts.transcript_files import META, OUTPUT, TURN, Writer, event, item, lines, said, text

from kompakt import files
from kompakt.view.status import SessionStatus, session_status, transcript_status
from kompakt.wire.transcripts import read_lines

HISTORY = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": f"message {number}: " + f"word{number} " * 200}
    for number in range(20)
]


def of_transcript(*records: object) -> SessionStatus:
    transcript = read_lines(lines(*records))
    return transcript_status(transcript, files.history(transcript), id="s")


class TestStoredSession:
    def test_before_a_compaction_nothing_has_to_be_recalled(self) -> None:
        async def work() -> SessionStatus:
            session = await fresh()
            await session.append({"model": "gpt-5.1", "messages": HISTORY})
            return await session_status(session)

        status = run(work())
        assert (status.messages, status.turns, status.recallable, status.compactions) == (20, 10, 0, ())
        assert status.window and status.fullness == pytest.approx(status.tokens / status.window)

    def test_the_numbers_after_a_compaction_and_its_undo(self) -> None:
        """The size is that of the projection; messages that are hidden or changed can be recalled."""

        async def work() -> tuple[SessionStatus, SessionStatus, int, int]:
            session = await fresh()
            await session.append(HISTORY, format="openai-chat")
            done = await session.compact(2_000, reason="test", resume=False)
            status = await session_status(session)
            shown = [message for message in (await session.project()).history if message.text.startswith("message ")]
            await session.undo()
            return status, await session_status(session), done.tokens_after, len(shown)

        status, undone, tokens, shown = run(work())
        assert status.tokens == tokens < undone.tokens
        assert status.recallable == 20 - shown > 0
        assert [one.tokens_after for one in status.live] == [tokens]
        assert (len(undone.compactions), undone.live, undone.recallable) == (1, (), 0)

    def test_an_unknown_model_has_no_fullness(self) -> None:
        async def work() -> SessionStatus:
            session = await fresh()
            await session.append({"model": "unknown-model-x", "messages": HISTORY[:2]}, format="openai-chat")
            return await session_status(session)

        status = run(work())
        assert status.window is None and status.fullness is None


class TestTranscript:
    def test_the_size_is_the_one_that_the_provider_reported(self) -> None:
        """Messages after the reported step are counted."""
        written = Writer().user("hello").assistant("m1", text("hi"))
        reported = of_transcript(*written.records).tokens
        assert reported == 1 + 1
        assert of_transcript(*written.user("a few more words").records).tokens > reported

    def test_the_agent_sees_what_follows_its_newest_summary(self) -> None:
        written = Writer().user("first " * 500).assistant("m1", text("done"))
        written.user("Summary of the session.", isCompactSummary=True).user("go on")
        status = of_transcript(*written.records)
        assert (status.messages, status.recallable, len(status.live)) == (4, 2, 1)
        assert status.tokens < 100

    def test_a_rollout_reports_its_size_in_events(self) -> None:
        usage = {"input_tokens": 900, "cached_input_tokens": 0, "output_tokens": 100, "total_tokens": 1_000}
        count = event(type="token_count", info={"last_token_usage": usage})
        call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
        records = (META, TURN, item(**said("user", "go")), item(**call), count)
        assert of_transcript(*records).tokens == 1_000
        assert of_transcript(*records, item(**OUTPUT)).tokens > 1_000

"""Transcript readers: what the records of an agent's file become, and that nothing gets lost on the way."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.judges import judge
from tests.wire.transcripts.transcript_files import (
    CALL,
    META,
    OUTPUT,
    TURN,
    Writer,
    event,
    item,
    lines,
    result,
    said,
    text,
    use,
)

from kompakt.errors import UnreadableFile
from kompakt.model.groups import rounds
from kompakt.model.messages import Message
from kompakt.wire.transcripts import Skipped, Transcript, decode, kind_of
from kompakt.wire.transcripts import read_lines as read


def read_written(writer: Writer) -> Transcript:
    return read(lines(*writer.records))


def messages(transcript: Transcript) -> list[Any]:
    found: list[Any] = transcript.body["messages"]
    return found


def count_rounds(transcript: Transcript) -> int:
    return len(rounds([Message(m["role"], (), id) for m, id in zip(messages(transcript), transcript.ids, strict=True)]))


class TestClaudeCode:
    def test_records_of_one_id_are_one_message(self) -> None:
        """Blocks of one assistant id come together in order."""
        written = Writer().user("go").assistant("m1", text("a")).assistant("m1", use("c1")).user([result("c1")])
        transcript = read_written(written)
        assert messages(transcript) == [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [text("a"), use("c1")]},
            {"role": "user", "content": [result("c1")]},
        ]
        assert transcript.ids == (None, "m1", None)
        assert transcript.body["model"] == "claude-opus-4-5"
        assert judge("anthropic", transcript.body) == []

    def test_results_between_the_blocks_of_one_message_follow_it(self) -> None:
        """A message whose calls were answered while it streamed is one message with one answer."""
        written = Writer().user("go").assistant("m1", use("c1")).user([result("c1")])
        written.assistant("m1", use("c2")).user([result("c2")]).assistant("m2", text("end"))
        transcript = read_written(written)
        assert [m["content"] for m in messages(transcript)[1:3]] == [
            [use("c1"), use("c2")],
            [result("c1"), result("c2")],
        ]
        assert transcript.ids == (None, "m1", None, "m2")
        assert count_rounds(transcript) == 3

    def test_text_among_results_follows_them(self) -> None:
        """Results come first, in any order of the records."""
        written = Writer().user("go").assistant("m1", use("c1"), use("c2"))
        written.user("early").user([result("c2")]).user([text("note"), result("c1")]).user("late")
        transcript = read_written(written)
        content = [result("c2"), result("c1"), text("early"), text("note"), text("late")]
        assert messages(transcript)[2:] == [{"role": "user", "content": content}]

    def test_plain_messages_stay_apart(self) -> None:
        """Adjacent user texts are separate messages unless results precede them."""
        transcript = read_written(Writer().user("one").user([text("two")]))
        assert messages(transcript) == [{"role": "user", "content": "one"}, {"role": "user", "content": [text("two")]}]

    def test_a_late_result_goes_to_its_call(self) -> None:
        """A result that was written after the next answer still follows its call."""
        written = Writer().user("go").assistant("m1", use("c1")).assistant("m2", text("next")).user([result("c1")])
        transcript = read_written(written)
        assert [m["role"] for m in messages(transcript)] == ["user", "assistant", "user", "assistant"]
        assert judge("anthropic", {**transcript.body, "messages": messages(transcript)[:3]}) == []

    def test_a_result_without_a_call_is_kept(self) -> None:
        """An orphan stays in place; repair is not the task of the reader."""
        transcript = read_written(Writer().user([result("lost")]).user("go"))
        assert messages(transcript) == [{"role": "user", "content": [result("lost"), text("go")]}]

    def test_an_open_call_is_kept(self) -> None:
        """An interruption leaves the call open."""
        transcript = read_written(Writer().user("go").assistant("m1", use("c1")).user("stop"))
        assert messages(transcript)[1]["content"] == [use("c1")]
        assert messages(transcript)[2] == {"role": "user", "content": "stop"}

    def test_a_summary_is_flagged_and_not_merged(self) -> None:
        """The summary of a compaction joins neither the results before it nor the text after it."""
        written = Writer().user("go").assistant("m1", use("c1")).user([result("c1")])
        written.user("so far: all", isCompactSummary=True).user("go on").assistant("m2", text("yes"))
        transcript = read_written(written)
        assert transcript.summaries == {3}
        assert messages(transcript)[3:5] == [
            {"role": "user", "content": "so far: all"},
            {"role": "user", "content": "go on"},
        ]

    @pytest.mark.parametrize(
        "kept",
        [
            {"preservedMessages": {"anchorUuid": "s", "uuids": ["u3", "u4", "u5"]}},
            {"preservedSegment": {"anchorUuid": "s", "headUuid": "u3", "tailUuid": "u5"}},
        ],
    )
    @pytest.mark.parametrize("is_written_again", [False, True])
    def test_what_a_compaction_kept_follows_its_summary(self, kept: dict[str, Any], is_written_again: bool) -> None:
        """The file has it before the summary, some versions also after it; it is read once."""
        written = Writer().user("go").assistant("m1", use("c1")).user([result("c1")])
        written.assistant("m2", use("c2")).user([result("c2")]).assistant("m3", text("kept"))
        boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "sessionId": "s"}
        summary = Writer(uuid="s", parentUuid="b").user("so far: all", isCompactSummary=True).records
        again = [{**record, "parentUuid": "s"} for record in written.records[3:]] if is_written_again else []
        after = Writer(uuid="n", parentUuid="u5").user("more").records
        transcript = read(lines(*written.records, {**boundary, "compactMetadata": kept}, *summary, *again, *after))
        assert messages(transcript) == [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [use("c1")]},
            {"role": "user", "content": [result("c1")]},
            {"role": "user", "content": "so far: all"},
            {"role": "assistant", "content": [use("c2")]},
            {"role": "user", "content": [result("c2")]},
            {"role": "assistant", "content": [text("kept")]},
            {"role": "user", "content": "more"},
        ]
        assert transcript.summaries == {3}
        assert transcript.problems == []
        assert transcript.left_out.get("copy of an earlier record", 0) == len(again)

    def test_what_a_compaction_kept_before_its_summary_stays_there(self) -> None:
        """The user summarized the end of the session: the kept messages follow the boundary itself."""
        written = Writer().user("kept").assistant("m1", text("a")).user("summarized")
        metadata = {"preservedMessages": {"anchorUuid": "b", "uuids": ["u0", "u1"]}}
        boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "compactMetadata": metadata}
        summary = Writer(uuid="s", parentUuid="b").user("so far: all", isCompactSummary=True).records
        transcript = read(lines(*written.records, boundary, *summary))
        assert transcript.summaries == {3}

    @pytest.mark.parametrize(
        "metadata", [None, 5, {"preservedMessages": 5}, {"preservedMessages": {"anchorUuid": "s", "uuids": {}}}]
    )
    def test_a_boundary_of_unknown_shape_costs_nothing(self, metadata: Any) -> None:
        boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "compactMetadata": metadata}
        summary = Writer(uuid="s").user("so far: all", isCompactSummary=True).records
        transcript = read(lines(*Writer().user("go").records, boundary, *summary))
        assert len(messages(transcript)) == 2

    @pytest.mark.parametrize("prompt", ["Use tabs.", [text("Use tabs.")]])
    def test_what_the_user_wrote_while_the_agent_worked(self, prompt: Any) -> None:
        """It is an attachment after the result, and part of the request that has the result."""
        queued = {"type": "attachment", "uuid": "q", "attachment": {"type": "queued_command", "prompt": prompt}}
        before = Writer().user("go").assistant("m1", use("c1")).user([result("c1")])
        after = Writer(prefix="a").assistant("m2", text("yes"))
        transcript = read(lines(*before.records, queued, *after.records))
        assert messages(transcript)[2]["content"] == [result("c1"), text("Use tabs.")]
        assert transcript.left_out == {}

    @pytest.mark.parametrize("prompt", [None, "", [], [1], 5, {}])
    def test_a_queued_command_of_another_shape_is_counted(self, prompt: Any) -> None:
        queued = {"type": "attachment", "uuid": "q", "attachment": {"type": "queued_command", "prompt": prompt}}
        transcript = read(lines(*Writer().user("go").records, queued))
        assert (len(messages(transcript)), transcript.left_out) == (1, {"attachment": 1})

    def test_meta_records_were_sent(self) -> None:
        """Reminders that the agent added are part of the history."""
        assert messages(read_written(Writer().user("reminder", isMeta=True)))[0]["content"] == "reminder"

    def test_records_without_a_message_are_counted(self) -> None:
        """Records without a message are skipped by type."""
        written = Writer().user("go")
        extra = [{"type": "summary", "summary": "t", "leafUuid": "u"}, {"type": "system", "sessionId": "s"}]
        transcript = read(lines(*extra, *written.records))
        assert transcript.left_out == {"summary": 1, "system": 1}
        assert transcript.records == 3
        assert len(messages(transcript)) == 1

    def test_usage_is_that_of_the_last_record(self) -> None:
        """Streaming repeats the usage; the last is complete. Messages no provider made have none."""
        written = Writer().user("go").assistant("m1", text("a")).assistant("m1", text("b"))
        written.assistant("m2", text("aborted"), model="<synthetic>")
        transcript = read_written(written)
        assert transcript.usages == ((1, {"input_tokens": 2, "output_tokens": 1}),)
        assert transcript.body["model"] == "claude-opus-4-5"

    def test_sub_agents_come_apart(self) -> None:
        """Sidechains are grouped by agent, or by the chain of their parents."""
        main = Writer().user("go").assistant("m1", text("a"))
        named = Writer(prefix="n", isSidechain=True, agentId="x").user("task").assistant("n1", text("b"))
        one = Writer(prefix="o", isSidechain=True).user("first").assistant("o1", text("c"))
        two = Writer(prefix="p", isSidechain=True).user("second")
        mixed = [*main.records[:1], *one.records[:1], *two.records, *named.records, *one.records[1:], *main.records[1:]]
        transcript = read(lines(*mixed))
        assert [m["content"] for m in messages(transcript)] == ["go", [text("a")]]
        assert [messages(side)[0]["content"] for side in transcript.sidechains] == ["first", "second", "task"]
        assert [len(messages(side)) for side in transcript.sidechains] == [2, 1, 2]

    def test_the_file_of_one_sub_agent_is_its_own_session(self) -> None:
        """A file with a single sub-agent is read as a session."""
        transcript = read_written(Writer(isSidechain=True, agentId="x").user("task"))
        assert messages(transcript) == [{"role": "user", "content": "task"}]
        assert transcript.sidechains == ()

    def test_the_same_record_twice_counts_once(self) -> None:
        """Exact copies are dropped and reported; a uuid that returns with other content is kept."""
        records = Writer().user("go").records
        changed = {**records[0], "message": {"role": "user", "content": "other"}}
        transcript = read(lines(*records, *records, changed))
        assert [m["content"] for m in messages(transcript)] == ["go", "other"]
        assert transcript.skipped == (Skipped(2, "a repeated record, uuid u0", "TF-3"),)

    def test_broken_lines_are_skipped_and_reported(self) -> None:
        """A torn line, a bare value and a record without a message cost only themselves."""
        good = lines(*Writer().user("go").records)
        broken = ['{"type": "user", "mess', "[]", '{"type": "user", "uuid": "z"}', '{"type": "user", "message": {}}']
        transcript = read([*good, *broken, "", '{"type":"user","uuid":"y","message":{"content":[1]}}'])
        assert [one.line for one in transcript.skipped] == [2, 3, 4, 5, 7]
        assert len(messages(transcript)) == 1

    def test_half_a_character_does_not_cost_its_line(self) -> None:
        """A lone surrogate, which no provider accepts, is replaced and reported."""
        record = json.dumps(Writer().user("cut X off").records[0]).replace("X", "\\ud83d").encode()
        transcript = read([record])
        assert messages(transcript)[0]["content"] == "cut \ufffd off"
        assert transcript.replaced == (1,)

    def test_content_is_not_touched(self) -> None:
        """Blank blocks, unsigned thinking and unknown fields are kept; repair is not the task of the reader."""
        odd = [{"type": "thinking", "thinking": "t", "signature": ""}, text(""), {"type": "new", "x": [1, {"y": None}]}]
        assert messages(read_written(Writer().user("go").assistant("m1", *odd)))[1]["content"] == odd

    @given(st.data())
    def test_every_block_is_in_the_body_once(self, data: st.DataObject) -> None:
        """In any order of records no block is lost or repeated, and rounds follow the ids."""
        writer = _draw_session(data)
        transcript = read_written(writer)
        sent = [b for r in writer.records for b in _blocks(r["message"]["content"])]
        found = [b for m in messages(transcript) for b in _blocks(m["content"])]
        assert Counter(sent) == Counter(found)
        ids = [r["message"]["id"] for r in writer.records if r["type"] == "assistant"]
        changes = sum(i == 0 or id != ids[i - 1] for i, id in enumerate(ids))
        assert count_rounds(transcript) == changes + (writer.records[0]["type"] == "user")


def _draw_session(data: st.DataObject) -> Writer:
    writer = Writer()
    calls = 0
    for step in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["say", "call", "result", "words", "summary"])):
            case "say":
                writer.assistant(data.draw(st.sampled_from(["m1", "m2"])), text(f"t{step}"))
            case "call":
                calls += 1
                writer.assistant(data.draw(st.sampled_from(["m1", "m2"])), use(f"c{calls}"))
            case "result":
                writer.user([result(f"c{data.draw(st.integers(0, calls + 1))}", f"r{step}")])
            case "words":
                writer.user(data.draw(st.sampled_from([f"w{step}", [text(f"w{step}")]])))
            case _:
                writer.user(f"s{step}", isCompactSummary=True)
    return writer


def _blocks(content: Any) -> list[str]:
    blocks = [text(content)] if isinstance(content, str) else content
    return [json.dumps(block, sort_keys=True) for block in blocks]


class TestCodex:
    def test_items_become_the_input(self) -> None:
        """Items come through in order, with model and instructions of the session."""
        records = [META, TURN, item(**said("user", "go")), item(**CALL), event(type="agent_message"), item(**OUTPUT)]
        transcript = read(lines(*records))
        assert transcript.body == {
            "model": "gpt-5.1-codex",
            "instructions": "Be brief.",
            "input": [said("user", "go"), CALL, OUTPUT],
            "store": False,
        }
        assert transcript.format == "openai-responses"
        assert transcript.ids == (None, None, None)
        assert judge("openai-responses", transcript.body) == []

    def test_items_that_are_never_sent_are_counted(self) -> None:
        """Snapshots of the work tree are no part of a request."""
        transcript = read(lines(META, item(**said("user", "go")), item(type="ghost_snapshot", ghost_commit={})))
        assert len(transcript.body["input"]) == 1
        assert transcript.left_out["ghost_snapshot"] == 1

    def test_what_a_compaction_added_is_a_summary(self) -> None:
        """Copies of earlier messages are not doubled; the new item is flagged."""
        copy = {**said("user", "go"), "id": "msg_9"}
        sealed = {"type": "compaction", "encrypted_content": "blob"}
        compacted = {"type": "compacted", "payload": {"message": "", "replacement_history": [copy, sealed]}}
        transcript = read(lines(META, item(**said("user", "go")), compacted, item(**said("user", "more"))))
        assert transcript.body["input"] == [said("user", "go"), sealed, said("user", "more")]
        assert transcript.summaries == {1}

    def test_a_compaction_without_a_replacement_is_its_message(self) -> None:
        """Older versions wrote only the text of the summary."""
        compacted = {"type": "compacted", "payload": {"message": "so far: all"}}
        transcript = read(lines(META, item(**said("user", "go")), compacted))
        assert transcript.body["input"][1] == said("user", "so far: all")
        assert transcript.summaries == {1}

    def test_text_of_another_agent_becomes_a_message(self) -> None:
        """The API has no item for them; the text stays, the sealed part is counted."""
        content = [{"type": "input_text", "text": "found it"}, {"type": "encrypted_content", "encrypted_content": "x"}]
        transcript = read(lines(META, item(type="agent_message", author="/root", content=content)))
        assert [part["text"] for part in transcript.body["input"][0]["content"]] == ["Message from /root:", "found it"]
        assert transcript.left_out["agent_message sealed"] == 1

    def test_usage_belongs_to_the_item_before_it(self) -> None:
        """Counts are written as the API's usage object."""
        counts = {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3, "reasoning_output_tokens": 1}
        usage = event(type="token_count", info={"last_token_usage": {**counts, "total_tokens": 13}})
        empty = event(type="token_count", info=None)
        transcript = read(lines(META, empty, item(**said("user", "go")), item(**CALL), item(**OUTPUT), usage))
        ((index, found),) = transcript.usages
        assert index == 1
        assert found["input_tokens_details"] == {"cached_tokens": 4}
        assert found["total_tokens"] == 13

    def test_outputs_and_arguments_get_their_type(self) -> None:
        """An object of some versions becomes the text or the parts that the API accepts."""
        part = {"type": "input_text", "text": "ok"}
        outputs: list[Any] = [{"content": "ok", "success": True}, part, "ok"]
        records = [item(**{**OUTPUT, "output": output}) for output in outputs]
        transcript = read(lines(META, item(**{**CALL, "arguments": {"a": 1}}), *records))
        assert transcript.body["input"][0]["arguments"] == '{"a":1}'
        assert [one["output"] for one in transcript.body["input"][1:]] == ["ok", [part], "ok"]

    def test_rollouts_without_wrappers(self) -> None:
        """Files of early versions contain the items themselves."""
        header = {"id": "s", "timestamp": "t", "instructions": "Be brief."}
        transcript = read(lines(header, {"record_type": "state"}, said("user", "go"), CALL))
        assert transcript.body["input"] == [said("user", "go"), CALL]
        assert transcript.body["instructions"] == "Be brief."

    def test_a_record_without_a_payload_is_reported(self) -> None:
        """A broken record costs only itself."""
        transcript = read(lines(META, {"type": "response_item"}, {"type": "turn_context", "payload": 1}))
        assert [one.line for one in transcript.skipped] == [2, 3]


def kind_of_lines(records: list[Any]) -> str | None:
    return kind_of(decode(lines(*records)))


class TestDetection:
    def test_the_agent_is_recognized_by_its_records(self) -> None:
        """Record shapes decide, also after lines without a clue."""
        assert kind_of_lines([1, {}, Writer().user("go").records[0]]) == "claude-code"
        assert kind_of_lines([{"type": "file-history-snapshot", "snapshot": {}}]) == "claude-code"
        assert kind_of_lines([META]) == "codex"

    def test_other_lines_are_no_transcript(self) -> None:
        """Messages of a request, one a line, are not mistaken for records."""
        others = [{"role": "user", "content": "go"}, {"type": "message", "role": "user", "content": "go"}]
        assert kind_of_lines([*others, {"type": "user", "content": "go"}, {"type": "progress"}, [], None]) is None

    def test_reading_something_else_is_an_error(self) -> None:
        """The error describes what was found instead."""
        with pytest.raises(UnreadableFile, match="1 JSON records, 1 other lines"):
            read(['{"role": "user"}', "nothing"])

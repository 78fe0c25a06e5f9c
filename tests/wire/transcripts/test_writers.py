"""Transcripts written back: a broken file becomes one that the agent resumes; what was right stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.judges import judge
from tests.wire.transcripts.transcript_files import (
    CALL,
    META,
    OUTPUT,
    TURN,
    Record,
    Writer,
    event,
    item,
    lines,
    result,
    said,
    text,
    use,
)

from kompakt import api, files
from kompakt.wire.wire import Problem


def encoded(*records: Any) -> bytes:
    return "".join(f"{line}\n" for line in lines(*records)).encode()


def repaired(data: bytes) -> bytes:
    """Repair a transcript as the command does."""
    loaded = files.decode(data, "session.jsonl")
    done = api.repair(loaded.payload, resting=True)
    return files.rewrite(loaded, done.payload)


def problems(data: bytes) -> list[Problem]:
    """List what is wrong with a transcript file."""
    loaded = files.decode(data, "session.jsonl")
    assert loaded.transcript is not None
    return [*loaded.transcript.problems, *api.check(loaded.payload, resting=True)]


def records(data: bytes) -> list[Record]:
    return [json.loads(line) for line in data.splitlines() if line]


def ancestors(found: list[Record]) -> list[str]:
    """Follow the parents from the last record to the first."""
    by_uuid = {record["uuid"]: record for record in found}
    chain = [found[-1]["uuid"]]
    while by_uuid[chain[-1]]["parentUuid"] is not None:
        chain.append(by_uuid[chain[-1]]["parentUuid"])
    return chain[::-1]


class TestClaudeCode:
    def test_a_good_file_comes_out_byte_for_byte(self) -> None:
        """Odd spacing and unknown records included."""
        written = Writer().user("go").assistant("m1", text("a"), use("c1")).user([result("c1")])
        data = encoded(*written.records, {"type": "custom", "x": 1}).replace(b'{"type"', b'{ "type"') + b"\r\n\n"
        assert repaired(data) == data

    def test_an_open_call_gets_a_record_with_its_result(self) -> None:
        """It is the child of the call, and what followed the call follows it."""
        written = Writer(cwd="/r", version="2").user("go").assistant("m1", use("c1")).user("stop")
        fixed = records(repaired(encoded(*written.records)))
        assert [record["uuid"] for record in fixed if record["uuid"].startswith("u")] == ["u0", "u1", "u2"]
        added = fixed[2]
        assert (added["type"], added["parentUuid"], added["sourceToolAssistantUUID"]) == ("user", "u1", "u1")
        assert (added["cwd"], added["version"], added["sessionId"]) == ("/r", "2", "s")
        assert added["message"]["content"][0]["tool_use_id"] == "c1"
        assert fixed[3]["parentUuid"] == added["uuid"]
        assert problems(encoded(*fixed)) == []

    def test_results_of_one_message_stay_in_one_chain(self) -> None:
        """Of parallel calls that were written as several records, one lost its result."""
        written = Writer().user("go").assistant("m1", use("c1")).assistant("m1", use("c2")).user([result("c2")])
        written.assistant("m2", text("end"))
        fixed = records(repaired(encoded(*written.records)))
        assert ancestors(fixed) == [record["uuid"] for record in fixed]
        assert problems(encoded(*fixed)) == []

    def test_a_torn_line_is_removed_and_its_children_get_another_parent(self) -> None:
        """The lines around it stay as they are."""
        written = Writer().user("go").assistant("m1", text("a")).assistant("m1", text("b")).user("more")
        broken = encoded(*written.records).splitlines(keepends=True)
        broken[2] = broken[2][:40] + b"\n"
        data = b"".join(broken)
        assert [one.code for one in problems(data)] == ["TF-1", "TF-5"]
        fixed = repaired(data).splitlines(keepends=True)
        assert fixed[:2] == broken[:2]
        assert json.loads(fixed[2])["parentUuid"] == "u1"
        assert problems(b"".join(fixed)) == []

    def test_a_repeated_record_is_removed(self) -> None:
        """Its uuid names the one that stays."""
        written = Writer().user("go").assistant("m1", text("a"))
        data = encoded(*written.records, written.records[1])
        assert [one.code for one in problems(data)] == ["TF-3"]
        assert repaired(data) == encoded(*written.records)

    def test_bad_ids_change_in_the_call_and_in_the_result(self) -> None:
        """Nothing else of the two records does."""
        written = Writer().user("go").assistant("m1", use("c.1")).user([result("c.1")], toolUseResult={"x": 1})
        fixed = records(repaired(encoded(*written.records)))
        name = fixed[1]["message"]["content"][0]["id"]
        assert fixed[2]["message"]["content"] == [result(name)]
        assert (fixed[2]["toolUseResult"], fixed[2]["parentUuid"]) == ({"x": 1}, "u1")
        assert judge("anthropic", files.decode(encoded(*fixed), "x").transcript.body) == []  # type: ignore[union-attr]

    def test_a_record_whose_only_block_goes_leaves_no_hole(self) -> None:
        """Thinking without its signature is dropped; children and leaves name the record before it."""
        unsigned = {"type": "thinking", "thinking": "t", "signature": ""}
        written = Writer().user("go").assistant("m1", unsigned).assistant("m1", text("a"))
        leaf = {"type": "summary", "summary": "s", "leafUuid": "u1"}
        fixed = records(repaired(encoded(*written.records, leaf)))
        assert [record.get("uuid") for record in fixed] == ["u0", "u2", None]
        assert (fixed[1]["parentUuid"], fixed[2]["leafUuid"]) == ("u0", "u0")

    def test_characters_that_no_text_can_hold_are_replaced_in_the_file(self) -> None:
        """The other lines are copied."""
        data = encoded(*Writer().user("cut X off").user("more").records).replace(b"X", b"\\ud83d")
        fixed = repaired(data)
        assert records(fixed)[0]["message"]["content"] == "cut \ufffd off"
        assert fixed.splitlines()[1] == data.splitlines()[1]

    def test_a_history_without_a_first_request_gets_a_first_record(self) -> None:
        """The record that was the first is its child."""
        written = Writer().assistant("m1", text("a")).user("more")
        fixed = records(repaired(encoded(*written.records)))
        assert (fixed[0]["type"], fixed[0]["parentUuid"]) == ("user", None)
        assert ancestors(fixed) == [record["uuid"] for record in fixed]
        assert problems(encoded(*fixed)) == []

    def test_sub_agents_and_branches_are_left_alone(self) -> None:
        """A record of another chain keeps its parent."""
        side = Writer(prefix="n", isSidechain=True, agentId="x").user("task").assistant("n1", use("c9"))
        main = Writer().user("go").assistant("m1", use("c1"))
        other = {**Writer(prefix="b").user("instead").records[0], "parentUuid": "u0"}
        data = encoded(*main.records, *side.records, other)
        fixed = {record["uuid"]: record for record in records(repaired(data))}
        assert fixed["n1"] == side.records[1]
        assert fixed["b0"]["parentUuid"] == "u0"

    @given(st.data())
    def test_the_result_is_accepted_after_any_damage(self, data: st.DataObject) -> None:
        """Lines are lost, torn, repeated and swapped; the result has no problems and needs no further repair."""
        broken = damaged(data, encoded(*draw_claude_code(data)))
        fixed = repaired(broken)
        assert problems(fixed) == []
        assert repaired(fixed) == fixed
        kept = [record for record in records(fixed) if record.get("parentUuid") is not None]
        uuids = {record["uuid"] for record in records(fixed)}
        assert all(record["parentUuid"] in uuids for record in kept[1:])


class TestCodex:
    def test_a_good_file_comes_out_byte_for_byte(self) -> None:
        """For any other content of the file."""
        data = encoded(
            META, TURN, item(**said("user", "go")), item(**CALL), item(**OUTPUT), {"type": "new", "payload": {}}
        )
        assert repaired(data) == data

    def test_an_open_call_gets_its_output_right_after_it(self) -> None:
        """Codex sends items in the order of the file; records are numbered again."""
        numbered = [META, item(**said("user", "go")), item(**CALL), item(**said("user", "more"))]
        given = [{**record, "ordinal": number} for number, record in enumerate(numbered)]
        fixed = records(repaired(encoded(*given)))
        assert [record["ordinal"] for record in fixed] == [0, 1, 2, 3, 4]
        assert (fixed[3]["type"], fixed[3]["payload"]["call_id"]) == ("response_item", "c1")
        assert fixed[4]["payload"] == said("user", "more")
        assert problems(encoded(*fixed)) == []

    def test_an_output_written_twice_goes(self) -> None:
        """A message that the user sent twice stays."""
        twice = item(**said("user", "go"))
        data = encoded(META, twice, twice, item(**CALL), item(**OUTPUT), item(**OUTPUT))
        assert [one.code for one in problems(data)] == ["TF-3"]
        assert repaired(data) == encoded(META, twice, twice, item(**CALL), item(**OUTPUT))

    def test_copies_in_a_compaction_change_with_their_original(self) -> None:
        """Codex resumes from the copy, so a bad id has to go there, too."""
        bad = {**said("assistant", "a"), "id": "wrong_1"}
        compacted = {
            "type": "compacted",
            "payload": {"message": "", "replacement_history": [bad, said("user", "so far")]},
        }
        data = encoded(META, item(**said("user", "go")), item(**bad), compacted, item(**said("user", "more")))
        fixed = records(repaired(data))
        assert "id" not in fixed[2]["payload"]
        assert fixed[3]["payload"]["replacement_history"] == [said("assistant", "a"), said("user", "so far")]
        assert problems(encoded(*fixed)) == []

    def test_a_file_without_its_header_cannot_be_repaired(self) -> None:
        """Codex does not open it, and the problem states that."""
        (problem,) = problems(encoded(TURN, item(**said("user", "go"))))
        assert (problem.code, problem.repairable) == ("TF-6", False)

    @given(st.data())
    def test_the_result_is_accepted_after_any_damage(self, data: st.DataObject) -> None:
        """Lines are lost, torn, repeated and swapped; the result has no problems and needs no further repair."""
        drawn = encoded(*draw_codex(data)).splitlines(keepends=True)
        broken = b"".join(drawn[:2]) + damaged(data, b"".join(drawn[2:]))
        fixed = repaired(broken)
        assert problems(fixed) == []
        assert repaired(fixed) == fixed


LONG = "the whole output of a long command, line by line " * 60


def compacted(data: bytes, budget: int) -> tuple[bytes, Any]:
    """Compact a transcript as the command does; return the file and the body."""
    loaded = files.decode(data, "session.jsonl")
    done = api.compact(loaded.payload, budget)
    return files.rewrite(loaded, done.payload, compacted=True), done.payload


def parts(body: Any) -> list[tuple[str, Any]]:
    """List the parts of all messages with their roles."""
    if "input" in body:
        return [("", item) for item in body["input"]]
    contents = [(message["role"], message["content"]) for message in body["messages"]]
    return [(role, one) for role, value in contents for one in ([text(value)] if isinstance(value, str) else value)]


def long_session() -> Writer:
    """Write 20 steps of one task, with the uuids u0 to u40."""
    writer = Writer(version="2", cwd="/r").user("Build the parser. Never delete a file.")
    for step in range(20):
        writer.assistant(f"m{step}", text(f"Step {step} looks at file {step}."), use(f"c{step}"))
        writer.user([result(f"c{step}", f"{step}: {LONG}")], toolUseResult={"stdout": LONG})
    return writer.assistant("end", text("The parser is built."))


class TestCompactedClaudeCode:
    def test_the_file_reads_as_the_compacted_body(self) -> None:
        """Every part, in order, in a single chain without problems, and much less of it."""
        data = encoded(*long_session().records)
        small, body = compacted(data, 4000)
        assert len(small) < len(data) / 2
        reread = files.decode(small, "x.jsonl").transcript
        assert reread is not None and parts(reread.body) == parts(body)
        assert problems(small) == []
        assert ancestors(records(small)) == [record["uuid"] for record in records(small)]

    def test_kept_records_keep_their_identity(self) -> None:
        """Uuid and fields stay; counts of the longer history, from which the agent would compact again, do not."""
        small, _ = compacted(encoded(*long_session().records), 4000)
        last = records(small)[-1]
        assert (last["uuid"], last["message"]["id"], last["version"]) == ("u41", "end", "2")
        usages = [record["message"]["usage"] for record in records(small) if record["type"] == "assistant"]
        assert all(usage["input_tokens"] == usage["output_tokens"] == 0 for usage in usages)

    def test_written_records_are_complete(self) -> None:
        """They have what every record of the session has, and an assistant message has an id of its own."""
        small = records(compacted(encoded(*long_session().records), 4000)[0])
        fresh = [record for record in small if not record["uuid"].startswith("u")]
        assert fresh and all((record["sessionId"], record["cwd"]) == ("s", "/r") for record in fresh)
        ids = [record["message"]["id"] for record in fresh if record["type"] == "assistant"]
        assert ids and all(name.startswith("msg_") for name in ids) and len(set(ids)) == len(ids)

    def test_a_shortened_output_is_shortened_everywhere(self) -> None:
        """The terminal's copy of the output would keep the file large."""
        small, _ = compacted(encoded(*long_session().records), 4000)
        results = [record for record in records(small) if "toolUseResult" in record]
        cut = [record for record in results if LONG not in str(record["message"])]
        assert cut and all(LONG not in str(record["toolUseResult"]) for record in cut)

    def test_earlier_compactions_and_other_chains_do_not_cut_the_new_chain(self) -> None:
        """A boundary would hide what is before it."""
        written = long_session()
        boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "sessionId": "s"}
        side = Writer(prefix="n", isSidechain=True, agentId="x").user("task").records
        given = [*written.records[:11], boundary, *written.records[11:], *side]
        given[12] = {**given[12], "parentUuid": "b"}
        small = records(compacted(encoded(*given), 4000)[0])
        assert {"b", "n0"} & {record["uuid"] for record in small} == set()
        assert ancestors(small) == [record["uuid"] for record in small]

    def test_records_about_the_session_stay_if_they_still_hold(self) -> None:
        """Attachments of kept messages, the newest settings, snapshots of kept messages; no logs of requests."""
        written = long_session().records
        first = {"type": "attachment", "uuid": "a1", "parentUuid": "u2", "attachment": {}, "sessionId": "s"}
        latest = {**first, "uuid": "a2", "parentUuid": "u41"}
        other: list[Record] = [
            {"type": "mode", "mode": "plan"},
            {"type": "mode", "mode": "normal"},
            {"type": "api-request-blob", "content": LONG},
            {"type": "file-history-snapshot", "messageId": "u2", "snapshot": {}},
            {"type": "file-history-snapshot", "messageId": "u41", "snapshot": {}},
            {"type": "last-prompt", "leafUuid": "u2"},
            {"type": "last-prompt", "leafUuid": "u5"},
        ]
        small = records(compacted(encoded(*written[:3], first, *written[3:], latest, *other), 4000)[0])
        assert [record["uuid"] for record in small if record["type"] == "attachment"] == ["a2"]
        assert small[-3:] == [other[1], other[4], {"type": "last-prompt", "leafUuid": "a2"}]

    def test_what_the_user_wrote_while_the_agent_worked_stays(self) -> None:
        """As the attachment that it was; a repair changes the attachment, too."""
        written = long_session().records
        queued = {"type": "attachment", "uuid": "q", "parentUuid": "u40", "sessionId": "s"}
        queued["attachment"] = {"type": "queued_command", "prompt": "Use tabs."}  # type: ignore[assignment]
        data = encoded(*written[:-1], queued, {**written[-1], "parentUuid": "q"})
        small, body = compacted(data, 4000)
        assert "Use tabs." in str(parts(body)[-2:])
        assert [one["attachment"] for one in records(small) if one["uuid"] == "q"] == [queued["attachment"]]
        assert repaired(data) == data
        cut = repaired(data.replace(b"Use tabs.", b"Use \\ud83d tabs."))
        assert "Use \ufffd tabs." in [one.get("attachment", {}).get("prompt") for one in records(cut)]

    def test_thinking_that_the_compaction_takes_out_leaves_no_empty_record(self) -> None:
        """It was signed for another prefix."""
        written = Writer().user("go")
        for step in range(20):
            written.assistant(f"m{step}", {"type": "thinking", "thinking": "hm", "signature": "c2ln"})
            written.assistant(f"m{step}", use(f"c{step}")).user([result(f"c{step}", f"{step}: {LONG}")])
        small, body = compacted(encoded(*written.assistant("end", text("done")).records), 4000)
        assert "thinking" not in str(parts(body))
        assert "thinking" not in small.decode()
        assert problems(small) == []

    @given(st.data())
    def test_any_session_and_budget(self, data: st.DataObject) -> None:
        """The file always reads as the compacted body."""
        given = draw_claude_code(data)
        for record in given:
            for block in record["message"]["content"] if isinstance(record["message"]["content"], list) else ():
                if block["type"] == "tool_result":
                    block["content"] += LONG * data.draw(st.integers(0, 2))
        small, body = compacted(encoded(*given), data.draw(st.sampled_from([1500, 3000, 100_000])))
        reread = files.decode(small, "x.jsonl").transcript
        assert reread is not None and parts(reread.body) == parts(body)
        assert problems(small) == []


def long_rollout() -> list[Record]:
    """Write 20 steps of one task as Codex does, with events and counts."""
    found = [META, TURN, item(**said("developer", "Be brief.")), item(**said("user", "Build it. Never delete a file."))]
    for step in range(20):
        call = {**CALL, "call_id": f"c{step}", "id": f"fc_{step}"}
        output = {**OUTPUT, "call_id": f"c{step}", "output": f"{step}: {LONG}"}
        done = event(type="item_completed", item={"type": "CommandExecution", "id": f"c{step}"})
        found += [item(**call), done, item(**output), event(type="token_count", info={})]
    found += [TURN, item(**said("assistant", "It is built."))]
    return [{**record, "ordinal": number} for number, record in enumerate(found)]


class TestCompactedCodex:
    def test_the_file_reads_as_the_compacted_body(self) -> None:
        """Every item, in order; the records are numbered again."""
        data = encoded(*long_rollout())
        small, body = compacted(data, 4000)
        assert len(small) < len(data) / 2
        reread = files.decode(small, "x.jsonl").transcript
        assert reread is not None and reread.body["input"] == body["input"]
        assert problems(small) == []
        assert [record["ordinal"] for record in records(small)] == list(range(len(records(small))))

    def test_events_follow_their_items(self) -> None:
        """Those of dropped calls go, and all counts; the settings of the last turn stay."""
        small = records(compacted(encoded(*long_rollout()), 4000)[0])
        calls = {one["payload"]["call_id"] for one in small if one["payload"].get("type") == "function_call"}
        shown = {one["payload"]["item"]["id"] for one in small if one["payload"].get("type") == "item_completed"}
        assert shown == calls and "c19" in calls
        assert [one for one in small if one["payload"].get("type") == "token_count"] == []
        assert [one["type"] for one in small].count("turn_context") >= 1

    def test_an_earlier_compaction_is_written_as_items(self) -> None:
        """Codex drops everything before a compaction record."""
        given = long_rollout()
        kept = {"type": "compacted", "payload": {"message": "", "replacement_history": [said("user", "so far: all")]}}
        small, body = compacted(encoded(*given[:60], {**kept, "ordinal": 60}, *given[60:]), 6000)
        assert "compacted" not in {record["type"] for record in records(small)}
        reread = files.decode(small, "x.jsonl").transcript
        assert reread is not None and reread.body["input"] == body["input"]

    @given(st.data())
    def test_any_session_and_budget(self, data: st.DataObject) -> None:
        """The file always reads as the compacted body."""
        given = draw_codex(data)
        for record in given:
            if "output" in record["payload"]:
                record["payload"] = {**record["payload"], "output": LONG * data.draw(st.integers(0, 2))}
        small, body = compacted(encoded(*given), data.draw(st.sampled_from([1500, 3000, 100_000])))
        reread = files.decode(small, "x.jsonl").transcript
        assert reread is not None and reread.body["input"] == body["input"]
        assert problems(small) == []


def draw_claude_code(data: st.DataObject) -> list[Record]:
    """Draw a session of turns with calls, as Claude Code writes it: one record a block."""
    writer = Writer().user("go")
    for turn in range(data.draw(st.integers(1, 4))):
        calls = [f"c{turn}_{number}" for number in range(data.draw(st.integers(0, 3)))]
        writer.assistant(f"m{turn}", text(f"says {turn}"))
        for call in calls:
            writer.assistant(f"m{turn}", use(call))
        for call in calls:
            writer.user([result(call, f"answer of {call}")])
        if not calls:
            writer.user(f"then {turn}")
    return writer.records


def draw_codex(data: st.DataObject) -> list[Record]:
    """Draw a rollout of turns with calls."""
    found = [META, TURN, item(**said("user", "go"))]
    for turn in range(data.draw(st.integers(1, 4))):
        calls = [f"c{turn}_{number}" for number in range(data.draw(st.integers(0, 3)))]
        found.append(item(**said("assistant", f"says {turn}")))
        found += [item(**{**CALL, "call_id": call}) for call in calls]
        found += [item(**{**OUTPUT, "call_id": call, "output": f"answer of {call}"}) for call in calls]
        found.append(item(**said("user", f"then {turn}")))
    return [{**record, "ordinal": number} for number, record in enumerate(found)]


def damaged(data: st.DataObject, whole: bytes) -> bytes:
    """Lose, tear, double or swap some lines; the first stays."""
    lines = whole.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(min(1, len(lines) - 1), len(lines) - 1))
        match data.draw(st.sampled_from(["lose", "tear", "double", "swap"])):
            case "lose" if len(lines) > 2:
                del lines[at]
            case "tear":
                lines[at] = lines[at][: data.draw(st.integers(0, max(0, len(lines[at]) - 2)))] + b"\n"
            case "double":
                lines.insert(at, lines[at])
            case "swap":
                lines[at - 1], lines[at] = lines[at], lines[at - 1]
            case _:
                pass
    return b"".join(lines)

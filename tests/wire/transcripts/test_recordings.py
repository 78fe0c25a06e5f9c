"""Recordings of every kind are read, in all their variants, and nothing in one makes reading fail."""

from __future__ import annotations

import copy
import json
import sqlite3
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.judges import judge
from tests.wire.transcripts.transcript_files import (
    SAMPLES,
    Record,
    chat_call,
    encode,
    opencode_messages,
    openhands_events,
    result,
    text,
    use,
)

from kompakt import api, files
from kompakt.errors import KompaktError, UnreadableFile
from kompakt.wire.transcripts import READERS, Transcript

KINDS = list(SAMPLES)


def loaded(content: Any, name: str = "file.json", session: str | None = None) -> Transcript:
    found = files.decode(encode(name, content), name, session=session).transcript
    assert found is not None
    return found


def words(transcript: Transcript) -> str:
    return json.dumps(transcript.body)


class TestEveryKind:
    def test_there_is_a_sample_of_each(self) -> None:
        """A new reader comes with one."""
        assert set(SAMPLES) == set(READERS)

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_recognised_and_valid_for_its_provider(self, kind: str) -> None:
        """All content is there exactly once."""
        name, content = SAMPLES[kind]
        transcript = loaded(content, name)
        assert transcript.kind == kind
        assert api.check(files.history(transcript), resting=True) == []
        body = {key: value for key, value in transcript.body.items() if key != "model" or transcript.format != "gemini"}
        faults = [str(fault) for fault in judge(transcript.format, body)]
        assert [fault for fault in faults if "assistant" not in fault and "end with" not in fault] == []
        assert words(transcript).count("list the files") == 1
        assert words(transcript).count("There is a.py.") == 1
        assert transcript.problems == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_torn_lines_and_half_characters_are_reported(self, kind: str) -> None:
        """Where a file has lines; other files are read with the character replaced."""
        name, content = SAMPLES[kind]
        data = encode(name, content).replace(b"list the files", b"list the \\ud83d files")
        if name.endswith(".jsonl"):
            data += b'{"torn": \n'
        transcript = files.decode(data, name).transcript
        assert transcript is not None
        assert "list the \ufffd files" in transcript.body[next(reversed(_lists(transcript.body)))].__repr__()
        codes = [one.code for one in transcript.problems]
        assert "TF-2" in codes or not name.endswith(".jsonl")
        assert "TF-1" in codes or not name.endswith(".jsonl")

    @pytest.mark.parametrize("kind", KINDS)
    @given(st.data())
    def test_no_shape_makes_reading_fail(self, kind: str, data: st.DataObject) -> None:
        """Any value may be missing or have another type: the file is read, or rejected with one line."""
        name, content = SAMPLES[kind]
        broken = copy.deepcopy(content)
        for _ in range(data.draw(st.integers(1, 6))):
            spoil(broken, data)
        try:
            found = files.decode(encode(name, broken), name)
            if found.transcript is not None:
                api.repair(found.payload, resting=True)
                api.count(found.payload)
        except KompaktError:
            return  # refused in the words of kompakt

    @pytest.mark.parametrize("kind", KINDS)
    @given(st.data())
    def test_no_bytes_make_reading_fail(self, kind: str, data: st.DataObject) -> None:
        """Bytes may be lost, doubled or wrong anywhere."""
        content = bytearray(encode(*SAMPLES[kind]))
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(content) - 1))
            new = data.draw(
                st.sampled_from([b"", b"\xff", b"\0", b"\n", b'"', b"{", b"}", b"[[", b"\\ud83d", b"9" * 30])
            )
            content[at : at + data.draw(st.integers(0, 40))] = new
        try:
            found = files.decode(bytes(content), "file")
            if found.transcript is not None:
                api.check(found.payload, resting=True)
        except KompaktError:
            return  # refused in the words of kompakt


def _lists(body: Record) -> list[str]:
    return [key for key, value in body.items() if isinstance(value, list)]


def spoil(value: Any, data: st.DataObject) -> None:
    """Change one value somewhere inside."""
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            if data.draw(st.booleans()):
                value[key] = data.draw(st.sampled_from([None, 0, True, "", "x", [], {}, [None], [1], {"type": None}]))
            else:
                del value[key]
            return
        value = inner


class TestSeveralSessions:
    def test_the_first_is_read_and_others_are_named(self) -> None:
        """By the name that the file gives them, or by number."""
        name, content = deepcopy(SAMPLES["tau-bench"])
        content[1]["traj"][1] = {"role": "user", "content": "something else"}
        found = files.decode(encode(name, content), name)
        assert found.sessions == ("task-0.trial-0", "task-1.trial-0")
        assert found.transcript is not None and found.transcript.name == "task-0.trial-0"
        assert "something else" in words(loaded(content, name, "task-1.trial-0"))
        assert "something else" in words(loaded(content, name, "2"))
        with pytest.raises(UnreadableFile, match="no session 'task-9'; the file has 2: task-0"):
            loaded(content, name, "task-9")

    def test_a_session_is_part_of_a_path(self, tmp_path: Path) -> None:
        """Unless a file is really called that."""
        name, content = SAMPLES["openhands"]
        (tmp_path / name).write_bytes(encode(name, content))
        second = files.load(tmp_path / f"{name}#i2")
        assert second.transcript is not None and second.transcript.name == "i2"
        (tmp_path / "a#b.json").write_bytes(encode(*SAMPLES["opencode"]))
        assert files.load(tmp_path / "a#b.json").transcript is not None


HEADER: Record = {"type": "session", "id": "s", "cwd": "/r"}


class TestPi:
    def test_a_message_without_content(self) -> None:
        """It is skipped and reported; the rest is read."""
        odd = [{"type": "message", "message": {"role": "user"}}, {"type": "message"}, {"type": "message", "message": 5}]
        good = {"type": "message", "message": {"role": "user", "content": "go"}}
        transcript = loaded([HEADER, *odd, good], "p.jsonl")
        assert transcript.body["messages"] == [{"role": "user", "content": [text("go")]}]
        assert [one.line for one in transcript.skipped] == [2, 3, 4]

    def test_branches_that_were_left_come_apart(self) -> None:
        """The conversation is the path to the newest entry."""

        def entry(id: str, parent: str | None, words: str) -> Record:
            message = {"role": "user", "content": words}
            return {"type": "message", "id": id, "parentId": parent, "message": message}

        entries = [entry("a", None, "one"), entry("b", "a", "left"), entry("c", "a", "two"), entry("d", "c", "three")]
        transcript = loaded([HEADER, *entries], "p.jsonl")
        assert [m["content"][0]["text"] for m in transcript.body["messages"]] == ["one", "two", "three"]
        assert "left" in words(transcript.sidechains[0])

    def test_summaries_shell_runs_and_extensions(self) -> None:
        """Content of the context is included; a summary is flagged, a hidden run is not sent."""
        entries = [
            {"type": "message", "message": {"role": "bashExecution", "command": "ls", "output": "a.py"}},
            {"type": "message", "message": {"role": "bashExecution", "command": "x", "excludeFromContext": True}},
            {"type": "custom_message", "content": "from an extension"},
            {"type": "custom", "data": {"count": 1}},
            {"type": "compaction", "summary": "so far", "firstKeptEntryId": "e"},
        ]
        transcript = loaded([HEADER, *entries], "p.jsonl")
        assert "Ran `ls`" in words(transcript) and "from an extension" in words(transcript)
        assert transcript.summaries == {len(transcript.body["messages"]) - 1}
        assert transcript.left_out == {"session": 1, "bashExecution": 1, "custom": 1}

    def test_a_compaction_precedes_what_it_kept(self) -> None:
        """As in the requests of pi; what it replaced is still read."""

        def entry(id: str, parent: str | None, **fields: Any) -> Record:
            return {"type": "message", "id": id, "parentId": parent, **fields}

        def asked(words: str) -> Record:
            return {"message": {"role": "user", "content": words}}

        summary = {"type": "compaction", "summary": "so far", "firstKeptEntryId": "b"}
        entries = [entry("a", None, **asked("old")), entry("b", "a", **asked("kept"))]
        entries += [entry("c", "b", **summary), entry("d", "c", **asked("new"))]
        transcript = loaded([HEADER, *entries], "p.jsonl")
        assert [m["content"][0]["text"] for m in transcript.body["messages"]] == ["old", "so far", "kept", "new"]
        assert transcript.summaries == {1}

    def test_the_system_prompt_and_the_tools(self) -> None:
        """Later messages replace and remove sections and tools; a compaction has all of them."""
        tool = {"name": "read", "description": "Read a file.", "parameters": {"type": "object", "properties": {}}}

        def system(**fields: Any) -> Record:
            return {"type": "message", "message": {"role": "system", "content": "", **fields}}

        asked = {"type": "message", "message": {"role": "user", "content": "go"}}
        first = system(sections={"preamble": "You code.", "skills": "none"}, toolsAdded=[tool, {**tool, "name": "x"}])
        later = system(sections={"skills": None}, content="Be brief.", toolsRemoved=[{"name": "x"}])
        transcript = loaded([HEADER, first, asked, later], "p.jsonl")
        assert transcript.problems == []
        assert transcript.body["system"] == "You code.\n\nBe brief."
        assert [one["name"] for one in transcript.body["tools"]] == ["read"]
        assert api.check(files.history(transcript)) == []
        whole = {"role": "system", "content": "", "sections": {"preamble": "You review."}}
        compaction = {"type": "compaction", "summary": "so far", "systemMessage": whole}
        assert loaded([HEADER, first, asked, compaction], "p.jsonl").body["system"] == "You review."


class TestSweAgent:
    STEPS: tuple[Record, ...] = (
        {"thought": "look", "action": "ls", "observation": "a.py", "response": "look\n```\nls\n```"},
        {"action": "submit", "observation": ""},
    )

    def test_only_a_trajectory(self) -> None:
        """Answers and observations alternate; the prompt comes from the first query."""
        asked = [{"role": "system", "content": "rules"}, {"role": "user", "content": "issue"}]
        transcript = loaded({"trajectory": [{**self.STEPS[0], "query": asked}, self.STEPS[1]]}, "x.traj")
        roles = [message["role"] for message in transcript.body["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        assert transcript.body["messages"][-1]["content"] == "submit"

    def test_only_a_history_with_calls(self) -> None:
        """Without a trajectory, without the usual keys."""
        history = [
            {"role": "user", "content": "issue"},
            {"role": "assistant", "content": "look", "tool_calls": [chat_call("c1")]},
            {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
            {"content": "no role"},
        ]
        transcript = loaded({"history": history}, "x.traj")
        assert transcript.body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "a.py"}
        assert judge("openai-chat", {"messages": transcript.body["messages"]}) == []

    def test_mini_swe_agent(self) -> None:
        """Its files contain the messages, with additional notes."""
        messages = [{"role": "user", "content": "issue", "extra": {}}, {"role": "assistant", "content": "done"}]
        transcript = loaded({"trajectory_format": "mini-swe-agent-1.1", "messages": messages, "info": {}}, "x.json")
        assert transcript.body["messages"] == [
            {"role": "user", "content": "issue"},
            {"role": "assistant", "content": "done"},
        ]


class TestOpenHands:
    @pytest.mark.parametrize("name", ["events.jsonl", "events.json"])
    def test_events_of_version_1(self, name: str) -> None:
        """Calls of one response are one message; errors answer calls; a list of events is one session."""
        transcript = loaded(openhands_events(), name)
        assert [message["role"] for message in transcript.body["messages"]] == [
            *("system", "user", "assistant", "tool", "tool"),
        ]
        assert len(transcript.body["messages"][2]["tool_calls"]) == 2
        assert transcript.body["messages"][4]["content"] == "no such tool"
        assert transcript.left_out == {"ConversationStateUpdateEvent": 1}
        assert judge("openai-chat", {"messages": transcript.body["messages"]}) == []

    def test_an_exported_trajectory(self) -> None:
        """A bare list of events of version 0."""
        (_, content) = SAMPLES["openhands"]
        transcript = loaded(content[0]["history"])
        assert (transcript.kind, transcript.name) == ("openhands", "")
        assert "There is a.py." in words(transcript)


class TestOpencode:
    def test_a_database_is_read_like_an_export(self, tmp_path: Path) -> None:
        """Sessions of the user, the newest first, then those of sub-agents."""
        path = tmp_path / "opencode.db"
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE session (id TEXT, parent_id TEXT, title TEXT, time_updated INTEGER)")
            db.execute("CREATE TABLE message (id TEXT, session_id TEXT, data TEXT)")
            db.execute("CREATE TABLE part (id TEXT, message_id TEXT, data TEXT)")
            sessions = [("ses_old", None, 1), ("ses_new", None, 2), ("ses_sub", "ses_new", 3), ("ses_empty", None, 9)]
            db.executemany("INSERT INTO session VALUES (?, ?, 'title', ?)", sessions)
            for session in ("ses_old", "ses_new", "ses_sub"):
                for number, message in enumerate(opencode_messages()):
                    id = f"msg_{session}_{number}"
                    db.execute("INSERT INTO message VALUES (?, ?, ?)", (id, session, json.dumps(message["info"])))
                    for at, part in enumerate(message["parts"]):
                        db.execute("INSERT INTO part VALUES (?, ?, ?)", (f"prt_{id}_{at}", id, json.dumps(part)))
            db.execute("INSERT INTO part VALUES ('prt_x', 'msg_ses_new_0', '{torn')")
        db.close()
        found = files.load(path)
        assert found.sessions == ("ses_new", "ses_old", "ses_sub")
        exported = loaded(SAMPLES["opencode"][1])
        assert found.transcript is not None and found.transcript.body == exported.body
        assert exported.usages[0][1]["prompt_tokens"] == 12
        assert exported.times[0] == (1, 1_767_225_600.0)

    def test_a_compaction_precedes_what_it_kept(self) -> None:
        """As in the requests of opencode; what it replaced is still read, and notes for the user are not."""

        def message(id: str, role: str, *parts: Record, **info: Any) -> Record:
            return {"info": {"id": id, "role": role, **info}, "parts": list(parts)}

        compaction = {"type": "compaction", "auto": True, "tail_start_id": "msg_3"}
        messages = [
            message("msg_1", "user", text("old")),
            message("msg_2", "assistant", text("done")),
            message("msg_3", "user", text("kept"), {**text("a note"), "ignored": True}),
            message("msg_4", "assistant", text("kept answer")),
            message("msg_5", "user", compaction),
            message("msg_6", "assistant", text("so far"), summary=True, parentID="msg_5"),
            message("msg_7", "user", text("new")),
        ]
        transcript = loaded({"info": {"id": "ses_1"}, "messages": messages})
        assert [one["content"] for one in transcript.body["messages"]] == [
            *("old", "done", "What did we do so far?", "so far", "kept", "kept answer", "new"),
        ]
        assert transcript.summaries == {3}
        assert transcript.left_out == {"ignored text": 1}

    @given(data=st.data())
    def test_a_damaged_database_is_rejected_or_read(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        """Whatever bytes are wrong in it."""
        path = tmp_path_factory.mktemp("db") / "opencode.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE session (id TEXT, parent_id TEXT, title TEXT, time_updated INTEGER)")
            db.execute("CREATE TABLE message (id TEXT, session_id TEXT, data)")
            db.execute("CREATE TABLE part (id TEXT, message_id TEXT, data)")
            db.execute("INSERT INTO session VALUES ('ses_1', NULL, 't', 1)")
            odd = data.draw(st.sampled_from([None, 5, "x", "[]", b"\xff", json.dumps({"role": "user"})]))
            db.execute("INSERT INTO message VALUES ('msg_1', 'ses_1', ?)", [odd])
            db.execute("INSERT INTO part VALUES ('prt_1', 'msg_1', ?)", [json.dumps(text("go"))])
            db.commit()
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 30))):
            content[data.draw(st.integers(16, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            files.load(path)
        except KompaktError:
            return  # refused in the words of kompakt

    def test_another_database_is_rejected(self, tmp_path: Path) -> None:
        """With the way to name a store."""
        with sqlite3.connect(tmp_path / "a.db") as db:
            db.execute("CREATE TABLE x (y)")
        db.close()
        with pytest.raises(UnreadableFile, match="but not of opencode; open a store of kompakt as sqlite:///"):
            files.load(tmp_path / "a.db")

    def test_states_of_calls_and_summaries(self) -> None:
        """An error is the result, an interrupted call has none; a compaction is flagged."""

        def tool(call_id: str, **state: Any) -> Record:
            return {"type": "tool", "callID": call_id, "tool": "bash", "state": {"input": {}, **state}}

        picture = {"mime": "image/png", "url": "data:image/png;base64,AA=="}
        messages = [
            {"info": {"role": "user"}, "parts": [text("look"), {"type": "file", **picture}, {"type": "compaction"}]},
            {"info": {"role": "assistant", "summary": True}, "parts": [text("so far")]},
            {
                "info": {"role": "assistant", "error": {"name": "MessageAbortedError"}},
                "parts": [
                    tool("c1", status="error", error="denied"),
                    tool("c2", status="completed", output="seen", attachments=[picture]),
                    text("again"),
                    tool("c3", status="running"),
                ],
            },
        ]
        transcript = loaded({"info": {"id": "ses_1"}, "messages": messages})
        found = transcript.body["messages"]
        assert [message["role"] for message in found] == ["user", "assistant", "assistant", "tool", "tool", "assistant"]
        assert transcript.summaries == {1}
        assert found[3]["content"] == "denied"
        assert found[4]["content"][1]["type"] == "image_url"
        assert transcript.notes[-1] == "call c3 has no result: it was running"


class TestGeminiCli:
    def test_the_object_of_older_versions(self) -> None:
        """One JSON value; a result is read from its call when it has no record."""
        call = {"id": "c1", "name": "run", "args": {}, "result": "a.py"}
        thought = {"subject": "S", "description": "d"}
        messages = [
            {"id": "1", "type": "user", "content": "list the files"},
            {"id": "2", "type": "gemini", "content": "", "toolCalls": [call], "thoughts": [thought]},
            {"id": "3", "type": "gemini", "content": [{"text": "There is a.py."}]},
        ]
        transcript = loaded({"sessionId": "s", "projectHash": "h", "messages": messages})
        contents = transcript.body["contents"]
        assert [content["role"] for content in contents] == ["user", "model", "user", "model"]
        assert contents[1]["parts"][0] == {"text": "**S** d", "thought": True}
        assert contents[2]["parts"][0]["functionResponse"]["response"] == {"output": "a.py"}

    def test_what_was_rewound_or_compressed_is_not_lost(self) -> None:
        """A rewound message is on a side chain; a compression keeps what it replaced and flags what it added."""
        header = {"sessionId": "s", "projectHash": "h"}

        def user(id: str) -> Record:
            return {"id": id, "type": "user", "content": f"says {id}"}

        def model(id: str) -> Record:
            return {"id": id, "type": "gemini", "content": f"answers {id}"}

        rewound = loaded([header, user("1"), model("2"), user("3"), {"$rewindTo": "3"}, user("4")], "g.jsonl")
        assert "says 3" not in words(rewound) and "says 4" in words(rewound)
        assert "says 3" in words(rewound.sidechains[0])
        update = {"$set": {"messages": [user("5"), model("6")]}}
        compressed = loaded([header, user("1"), model("2"), update, user("7")], "g.jsonl")
        assert all(f"says {number}" in words(compressed) for number in (1, 5, 7))
        assert compressed.summaries == {2, 3}

    def test_a_saved_chat(self) -> None:
        """What ``/chat save`` writes is a list of contents."""
        history = [{"role": "user", "parts": [{"text": "go"}]}, {"role": "model", "parts": [{"text": "yes"}]}]
        transcript = loaded({"history": history, "authType": "x"})
        assert (transcript.kind, transcript.body) == ("gemini-cli", {"contents": history})


class TestRequestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            {"model": "m", "messages": [{"role": "user", "content": "go"}]},
            {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
            {"model": "m", "input": [{"role": "user", "content": "go"}], "store": False},
            [
                {"role": "user", "content": [text("go")]},
                {"role": "assistant", "content": [use("a")]},
                {"role": "user", "content": [result("a")]},
            ],
        ],
    )
    def test_they_are_no_recordings(self, body: Any) -> None:
        """Each kind of recording has a feature that no request has."""
        assert files.decode(json.dumps(body).encode(), "body.json").transcript is None

"""Recorded sessions of every source become complete request bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.judges import judge

from kompakt.errors import UnreadableFile
from kompakt.evals.session_files import RecordedSession, sessions

Record = dict[str, Any]


def write(directory: Path, name: str, content: Any) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in content))
    else:
        path.write_text(json.dumps(content))


def only(directory: Path) -> RecordedSession:
    (session,) = sessions(directory)
    return session


def call(call_id: str) -> Record:
    return {"id": call_id, "type": "function", "function": {"name": "run", "arguments": "{}"}}


class TestDirectory:
    def test_only_data_files_are_read_in_order_of_their_names(self, tmp_path: Path) -> None:
        (tmp_path / "LICENSE").write_text("free")
        write(tmp_path, "b/x.json", [{"task_id": 2, "trial": 0, "traj": [{"role": "user", "content": "b"}]}])
        write(tmp_path, "a/x.json", [{"task_id": 1, "trial": 3, "traj": [{"role": "user", "content": "a"}]}])
        assert [session.name for session in sessions(tmp_path)] == [
            "a/x.json#task-1.trial-3",
            "b/x.json#task-2.trial-0",
        ]

    @pytest.mark.parametrize(("name", "content"), [("a.json", {"x": 1}), ("a.jsonl", []), ("a.json", [])])
    def test_an_unknown_file_is_an_error(self, tmp_path: Path, name: str, content: Any) -> None:
        write(tmp_path, name, content)
        with pytest.raises(UnreadableFile, match=name):
            list(sessions(tmp_path))

    def test_a_file_that_is_not_json_is_an_error(self, tmp_path: Path) -> None:
        """The error names the file."""
        (tmp_path / "a.traj").write_text("{")
        with pytest.raises(UnreadableFile, match=r"a\.traj"):
            list(sessions(tmp_path))


class TestTranscripts:
    def test_sub_agents_are_separate_sessions(self, tmp_path: Path) -> None:
        """Open calls and incomplete lines are noted."""
        use: Record = {"type": "tool_use", "id": "c1", "name": "run", "input": {}}
        message: Record = {"id": "m1", "role": "assistant", "content": [use]}
        records: list[Any] = [
            {"type": "user", "uuid": "1", "message": {"role": "user", "content": "go"}},
            {"type": "assistant", "uuid": "2", "message": message},
            {"type": "user", "uuid": "3", "isSidechain": True, "message": {"role": "user", "content": "task"}},
            '{"torn',
        ]
        write(tmp_path, "s.jsonl", records)
        main, agent = sessions(tmp_path)
        assert (main.name, agent.name) == ("s.jsonl", "s.jsonl#agent-1")
        assert main.ids == (None, "m1")
        assert main.notes[0].startswith("line 4 was skipped")
        assert main.notes[1] == "call c1 in message 1 has no result"
        assert agent.body["messages"] == [{"role": "user", "content": "task"}]


class TestTauBench:
    def test_messages_are_unchanged(self, tmp_path: Path) -> None:
        traj: list[Record] = [
            {"role": "system", "content": "policy"},
            {"role": "user", "content": "book"},
            {"role": "assistant", "content": None, "tool_calls": [call("c1")]},
            {"role": "tool", "tool_call_id": "c1", "name": "run", "content": ""},
        ]
        write(tmp_path, "t.json", [{"task_id": 0, "trial": 1, "traj": traj}])
        session = only(tmp_path)
        assert session.body == {"messages": traj}
        assert session.notes == ()
        assert judge("openai-chat", session.body) == []


def pi(role: str, content: Sequence[Record], **fields: Any) -> Record:
    return {"type": "message", "message": {"role": role, "content": list(content), **fields}}


class TestPi:
    def test_entries_become_anthropic_messages(self, tmp_path: Path) -> None:
        words = {"type": "text", "text": "go"}
        thinking = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
        calls = [{"type": "toolCall", "id": id, "name": "read", "arguments": {"p": id}} for id in ("c1", "c2")]
        usage: Record = {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "cost": {}}
        records = [
            {"type": "session", "id": "s", "modelId": "claude-sonnet-4-5"},
            pi("user", [words]),
            pi("assistant", [thinking, *calls], stopReason="toolUse", usage=usage),
            pi("toolResult", [words], toolCallId="c1", isError=False),
            pi("user", [words]),
            pi("toolResult", [words], toolCallId="c2", isError=True),
            {"type": "thinking_level_change", "thinkingLevel": "off"},
        ]
        write(tmp_path, "p.jsonl", records)
        session = only(tmp_path)
        assistant, answer = session.body["messages"][1:]
        assert [block["type"] for block in assistant["content"]] == ["thinking", "tool_use", "tool_use"]
        assert [block["type"] for block in answer["content"]] == ["tool_result", "tool_result", "text"]
        assert answer["content"][1]["is_error"]
        assert session.usages[0][1]["cache_read_input_tokens"] == 3
        assert session.body["model"] == "claude-sonnet-4-5"
        assert judge("anthropic", session.body) == []

    def test_aborted_answers_are_noted(self, tmp_path: Path) -> None:
        """An empty answer is dropped; a partial one is kept."""
        torn: Record = {"type": "toolCall", "id": "c1", "name": "edit", "arguments": {}, "partialJson": "{"}
        unsigned: Record = {"type": "thinking", "thinking": "hm"}
        records = [
            {"type": "session", "id": "s"},
            pi("user", [{"type": "text", "text": "go"}]),
            pi("assistant", [], stopReason="aborted"),
            pi("assistant", [unsigned, torn], stopReason="aborted"),
        ]
        write(tmp_path, "p.jsonl", records)
        session = only(tmp_path)
        assert len(session.body["messages"]) == 2
        assert session.notes == (
            "entry 3 is an assistant message without content (aborted) and was left out",
            "message 1 is an assistant message that was cut off (aborted)",
            "message 1 has thinking without a signature",
            "call c1 in message 1 has no result",
        )


def acted(action: str, *, response: str, calls: list[str], at: int = 0) -> Record:
    message = {
        "role": "assistant",
        "content": "let me",
        "tool_calls": [call(id) for id in calls],
        "function_call": None,
    }
    model_response = {"id": response, "choices": [{"message": message}], "usage": {"prompt_tokens": 5}}
    metadata = {"tool_call_id": calls[at], "function_name": "run", "model_response": model_response}
    return {"source": "agent", "action": action, "args": {"thought": "let me"}, "tool_call_metadata": metadata}


def observed(action: Record, content: str, **extras: Any) -> Record:
    shared = {"tool_call_metadata": action["tool_call_metadata"], "extras": extras}
    return {"source": "agent", "observation": action["action"], "content": content, **shared}


class TestOpenHands:
    def test_events_become_chat_messages(self, tmp_path: Path) -> None:
        """Actions of one response become one message; events between call and result come after the result."""
        one, two = (acted("run", response="r1", calls=["c1", "c2"], at=at) for at in (0, 1))
        history = [
            {"source": "agent", "action": "system", "args": {"content": "rules", "tools": [{"type": "function"}]}},
            {"source": "user", "action": "message", "args": {"content": "fix it"}},
            {"source": "user", "action": "recall", "args": {"query": "fix it", "thought": ""}},
            {"observation": "recall", "content": "context", "extras": {"microagent_knowledge": [{"content": "git"}]}},
            *(one, two, observed(one, "out", metadata={"suffix": "[exit 0]"})),
            {"observation": "error", "content": "slow"},
            observed(two, "more"),
            acted("finish", response="r2", calls=["c3"]),
        ]
        record = {"instance_id": "i1", "metadata": {"llm_config": {"model": "m"}}, "history": history}
        write(tmp_path, "o.jsonl", [record])
        session = only(tmp_path)
        roles = [message["role"] for message in session.body["messages"]]
        assert roles == ["system", "user", "user", "assistant", "tool", "tool", "user", "assistant"]
        contents = [message["content"] for message in session.body["messages"]]
        assert contents[2] == "context\n\ngit"
        assert contents[4:7] == ["out[exit 0]", "more", "slow"]
        assert session.body["tools"] == [{"type": "function"}]
        assert session.usages[0] == (3, {"prompt_tokens": 5})
        assert session.notes == ("1 recall events carry no message", "call c3 in message 7 has no result")
        assert judge("openai-chat", {"messages": session.body["messages"][:-1]}) == []


class TestSweAgent:
    def test_text_actions(self, tmp_path: Path) -> None:
        """The last observation is only in the trajectory."""
        history = [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "issue", "agent": "primary"},
            {"role": "assistant", "content": "try\n```\nls\n```", "thought": "try", "action": "ls"},
        ]
        steps = [{"response": "taken back"}, {"response": history[2]["content"], "observation": "a.py"}]
        write(tmp_path, "s.traj", {"history": history, "trajectory": steps})
        session = only(tmp_path)
        assert session.body["messages"][1] == {"role": "user", "content": "issue"}
        assert session.body["messages"][-1] == {"role": "user", "content": "a.py"}
        assert session.notes == ("the answer of step 0 is not in the history",)

    def test_tool_calls(self, tmp_path: Path) -> None:
        """The last result may be only in the trajectory."""
        history = [
            {"role": "user", "content": [{"type": "text", "text": "issue"}]},
            {"role": "assistant", "content": "look", "tool_calls": [call("c1")]},
            {"role": "tool", "content": "a.py", "tool_call_ids": ["c1"]},
            {"role": "assistant", "content": "", "tool_calls": [call("c2")]},
        ]
        write(tmp_path, "s.traj", {"history": history, "trajectory": [{"response": "look", "observation": "end"}]})
        session = only(tmp_path)
        assert session.body["messages"][-1] == {"role": "tool", "tool_call_id": "c2", "content": "end"}
        assert session.notes == ()
        assert judge("openai-chat", session.body) == []


class TestLocomo:
    def test_turns_and_questions(self, tmp_path: Path) -> None:
        """Evidence is resolved to messages."""
        conversation = {
            "speaker_a": "Ada",
            "speaker_b": "Bo",
            "session_2_date_time": "2 May",
            "session_2": [{"speaker": "Bo", "dia_id": "D2:1", "text": "Back", "blip_caption": "a cat"}],
            "session_1_date_time": "1 May",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "Hi"},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "Hello"},
            ],
        }
        questions = [
            {"question": "When?", "answer": 2022, "evidence": ["D1:2; D2:1"], "category": 2},
            {"question": "Who?", "adversarial_answer": "Bo", "evidence": ["D9:9"], "category": 5},
        ]
        write(tmp_path, "l.json", [{"sample_id": "conv", "conversation": conversation, "qa": questions}])
        session = only(tmp_path)
        assert session.name == "l.json#conv"
        assert session.body["messages"] == [
            {"role": "user", "content": "[1 May]\nAda: Hi"},
            {"role": "assistant", "content": "Bo: Hello"},
            {"role": "assistant", "content": "[2 May]\nBo: Back\n[shares a picture: a cat]"},
        ]
        first, second = session.questions
        assert (first.answer, first.evidence, first.messages) == ("2022", ("D1:2", "D2:1"), (1, 2))
        assert (second.answer, second.messages) == (None, ())
        assert session.notes == ("question 1 names the turn 'D9:9', which the dialogue does not have",)


class TestBadFiles:
    def test_bad_files_are_reported_and_the_others_are_read(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", {"nothing": "known"})
        (tmp_path / "b.traj").write_text('{"history": [')
        write(tmp_path, "c.jsonl", [{"type": "session", "id": "s"}, {"type": "message", "message": {"role": "user"}}])
        write(tmp_path, "d.traj", {"trajectory": [{"action": "ls", "observation": "a.py"}]})
        write(tmp_path, "e.json", [{"conversation": {"session_1": [{"speaker": "A"}]}, "qa": []}])
        reported: list[str] = []
        found = [session.name for session in sessions(tmp_path, reported.append)]
        assert found == ["c.jsonl", "d.traj"]
        assert [name for line in reported for name in ("a.json", "b.traj", "e.json") if name in line] == [
            *("a.json", "b.traj", "e.json"),
        ]

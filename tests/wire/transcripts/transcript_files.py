"""Builders of transcript files, record by record, as the agents write them."""

from __future__ import annotations

import json
from typing import Any

Record = dict[str, Any]


def text(words: str) -> Record:
    return {"type": "text", "text": words}


def use(call_id: str) -> Record:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {"path": "a.py"}}


def result(call_id: str, words: str = "done") -> Record:
    return {"type": "tool_result", "tool_use_id": call_id, "content": words}


class Writer:
    """Writes records the way Claude Code does, each with the one before as its parent."""

    def __init__(self, **fields: Any) -> None:
        self.records: list[Record] = []
        self._fields = fields

    def _add(self, kind: str, message: Record, fields: Record) -> Writer:
        parent = self.records[-1]["uuid"] if self.records else None
        number = f"{self._fields.get('prefix', 'u')}{len(self.records)}"
        base = {"type": kind, "uuid": number, "parentUuid": parent, "sessionId": "s", "isSidechain": False}
        self.records.append({**base, **self._fields, **fields, "message": message})
        return self

    def user(self, content: Any, **fields: Any) -> Writer:
        return self._add("user", {"role": "user", "content": content}, fields)

    def assistant(self, id: str, *blocks: Record, model: str = "claude-opus-4-5", **fields: Any) -> Writer:
        usage = {"input_tokens": len(self.records), "output_tokens": 1}
        message = {"id": id, "type": "message", "role": "assistant", "model": model, "usage": usage}
        return self._add("assistant", {**message, "content": list(blocks)}, fields)


def lines(*records: Any) -> list[str]:
    return [json.dumps(record) for record in records]


def item(**payload: Any) -> Record:
    return {"timestamp": "t", "type": "response_item", "payload": payload}


def said(role: str, words: str) -> Record:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def event(**payload: Any) -> Record:
    return {"timestamp": "t", "type": "event_msg", "payload": payload}


META: Record = {"type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "Be brief."}}}
TURN: Record = {"type": "turn_context", "payload": {"model": "gpt-5.1-codex", "cwd": "/r"}}
CALL: Record = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
OUTPUT: Record = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


# --- one small recording of each kind ------------------------------------------------------------------------------


def chat_call(call_id: str) -> Record:
    return {"id": call_id, "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}


def _pi() -> list[Record]:
    def entry(id: str, parent: str | None, message: Record) -> Record:
        base = {"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:00Z"}
        return {**base, "message": message}

    call = {"type": "toolCall", "id": "c1", "name": "run", "arguments": {"command": "ls"}}
    answer = {"role": "toolResult", "toolCallId": "c1", "toolName": "run", "content": [text("a.py")], "isError": False}
    usage = {"input": 10, "output": 5, "cacheRead": 0, "cacheWrite": 0}
    return [
        {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/r"},
        {"type": "model_change", "id": "e0", "parentId": None, "provider": "anthropic", "modelId": "claude-sonnet-4-5"},
        entry("e9", "e0", {"role": "system", "content": "", "sections": {"preamble": "You code."}, "toolsAdded": []}),
        entry("e1", "e9", {"role": "user", "content": "list the files"}),
        entry("e2", "e1", {"role": "assistant", "content": [text("Looking."), call], "usage": usage}),
        entry("e3", "e2", answer),
        entry("e4", "e3", {"role": "assistant", "content": [text("There is a.py.")], "stopReason": "stop"}),
    ]


def _gemini_cli() -> list[Record]:
    call = {"id": "c1", "name": "run", "args": {"command": "ls"}}
    response = {"functionResponse": {"id": "c1", "name": "run", "response": {"output": "a.py"}}}
    answer = {"id": "g1", "type": "gemini", "content": "Looking.", "model": "gemini-2.5-flash", "thoughts": []}
    tokens = {"input": 10, "output": 5, "cached": 0, "thoughts": 0, "tool": 0, "total": 15}
    context = {"id": "u0", "type": "user", "content": [{"text": "<session_context>today</session_context>"}]}
    return [
        {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z", "kind": "main"},
        {"$set": {"messages": [context], "lastUpdated": "2026-01-01T00:00:00Z"}},
        {"id": "u1", "timestamp": "2026-01-01T00:00:00Z", "type": "user", "content": [{"text": "list the files"}]},
        {**answer, "tokens": tokens},
        {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}},
        {**answer, "tokens": tokens, "toolCalls": [{**call, "status": "success", "result": [response]}]},
        {"id": "u2", "type": "user", "content": [response]},
        {"id": "i1", "type": "info", "content": "saved"},
        {"id": "g2", "type": "gemini", "content": "There is a.py.", "model": "gemini-2.5-flash"},
    ]


def opencode_messages() -> list[Record]:
    state = {"status": "completed", "input": {"command": "ls"}, "output": "a.py"}
    tool = {"type": "tool", "callID": "c1", "tool": "bash", "state": state}
    info = {"role": "assistant", "modelID": "test-model", "time": {"created": 1_767_225_600_000}}
    tokens = {"input": 10, "output": 5, "reasoning": 1, "cache": {"read": 2, "write": 0}}
    return [
        {"info": {"role": "user"}, "parts": [text("list the files")]},
        {
            "info": {**info, "tokens": tokens},
            "parts": [{"type": "step-start"}, {"type": "reasoning", "text": "hm"}, text("Looking."), tool],
        },
        {"info": info, "parts": [text("There is a.py."), {"type": "step-finish"}]},
    ]


def _openhands() -> Record:
    message = {"role": "assistant", "content": "Looking.", "tool_calls": [chat_call("c1")]}
    response = {"id": "r1", "choices": [{"message": message}], "usage": {"prompt_tokens": 5}}
    metadata = {"tool_call_id": "c1", "function_name": "run", "model_response": response}
    history = [
        {"source": "agent", "action": "system", "args": {"content": "rules"}},
        {"source": "user", "action": "message", "args": {"content": "list the files"}},
        {"source": "agent", "action": "run", "args": {}, "tool_call_metadata": metadata},
        {"source": "agent", "observation": "run", "content": "a.py", "tool_call_metadata": metadata, "extras": {}},
        {"source": "agent", "action": "message", "args": {"content": "There is a.py."}},
    ]
    return {"instance_id": "i1", "metadata": {"llm_config": {"model": "gpt-5"}}, "history": history}


def openhands_events() -> list[Record]:
    """Return the events of a conversation as version 1 writes them."""
    calls = {"kind": "ActionEvent", "source": "agent", "thought": [text("Looking.")], "llm_response_id": "r1"}
    answers = {"kind": "ObservationEvent", "source": "environment", "tool_name": "run"}

    asked = text("list the files")

    def call(call_id: str) -> Record:
        return {"id": call_id, "name": "run", "arguments": "{}", "origin": "completion"}

    return [
        {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": text("rules"), "tools": [{"title": "run"}]},
        {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [asked]}},
        {**calls, "tool_call": call("c1"), "tool_call_id": "c1"},
        {**calls, "tool_call": call("c2"), "tool_call_id": "c2"},
        {**answers, "tool_call_id": "c1", "observation": {"kind": "X", "content": [text("a.py")]}},
        {"kind": "AgentErrorEvent", "tool_call_id": "c2", "tool_name": "run", "error": "no such tool"},
        {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "x"},
    ]


def _swe_agent() -> Record:
    history = [
        {"role": "system", "content": "rules", "agent": "primary"},
        {"role": "user", "content": "list the files", "agent": "primary"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [chat_call("c1")], "action": "ls"},
        {"role": "tool", "content": [text("a.py")], "tool_call_ids": ["c1"]},
        {"role": "assistant", "content": "There is a.py.", "agent": "primary"},
    ]
    steps = [{"action": "ls", "observation": "a.py", "response": "Looking.", "thought": "Looking."}]
    return {"trajectory": steps, "history": history, "info": {}, "environment": "main"}


def _tau_bench() -> list[Record]:
    traj = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "name": "run", "content": "a.py"},
        {"role": "assistant", "content": "There is a.py."},
    ]
    return [{"task_id": task, "trial": 0, "reward": 1.0, "info": {}, "traj": traj} for task in (0, 1)]


def _claude_code() -> list[Record]:
    written = Writer().user("list the files").assistant("m1", text("Looking.")).assistant("m1", use("c1"))
    return written.user([result("c1", "a.py")]).assistant("m2", text("There is a.py.")).records


def _codex() -> list[Record]:
    asked, output = item(**said("user", "list the files")), item(**{**OUTPUT, "output": "a.py"})
    return [META, TURN, asked, item(**CALL), output, item(**said("assistant", "There is a.py."))]


SAMPLES: dict[str, tuple[str, Any]] = {
    "claude-code": ("session.jsonl", _claude_code()),
    "codex": ("rollout.jsonl", _codex()),
    "gemini-cli": ("session.jsonl", _gemini_cli()),
    "opencode": ("export.json", {"info": {"id": "ses_1", "title": "t"}, "messages": opencode_messages()}),
    "openhands": ("output.jsonl", [_openhands(), {**_openhands(), "instance_id": "i2"}]),
    "pi": ("session.jsonl", _pi()),
    "swe-agent": ("issue.traj", _swe_agent()),
    "tau-bench": ("results.json", _tau_bench()),
}
"""By kind: a file name and its content. In each session the user asks for the files, and there is a.py."""


def encode(name: str, content: Any) -> bytes:
    """Write a recording as its agent does: records on lines, or one JSON value."""
    if name.endswith(".jsonl"):
        return "".join(f"{line}\n" for line in lines(*content)).encode()
    return json.dumps(content).encode()

"""Small broken OpenAI Chat requests, one group for each contract code.

They are written by hand, so that each shows exactly one fault. Invariant: the judge reports the code.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
Cases = dict[str, list[tuple[str, Body]]]

USER: Body = {"role": "user", "content": "go"}


def _call(id_: str, arguments: Any = "{}", name: str = "read") -> Body:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _calling(*ids: str) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": [_call(id_) for id_ in ids]}


def _tool(id_: str) -> Body:
    return {"role": "tool", "tool_call_id": id_, "content": "done"}


def _chat(*messages: Body, **fields: Any) -> Body:
    return {"model": "gpt-5.4", "messages": list(messages), **fields}


def _said(text: str) -> Body:
    return {"role": "assistant", "content": text}


CHAT: Cases = {
    "OC-1": [
        ("call without result, then a user", _chat(USER, _calling("a"), USER)),
        ("call without result at the end", _chat(USER, _calling("a"))),
        ("one of two parallel results is missing", _chat(USER, _calling("a", "b"), _tool("a"), USER)),
        ("a user speaks between call and result", _chat(USER, _calling("a"), USER, _tool("a"))),
        (
            "a system message splits parallel results",
            _chat(USER, _calling("a", "b"), _tool("a"), {"role": "system", "content": "x"}, _tool("b")),
        ),
        ("two calls of one message share an id", _chat(USER, _calling("a", "a"), _tool("a"), _tool("a"))),
    ],
    "OC-2": [
        ("result first of all", _chat(_tool("a"), USER)),
        ("result after a user", _chat(USER, _tool("a"))),
        ("result after plain text", _chat(USER, _said("hi"), _tool("a"), USER)),
        ("function message without its call", _chat(USER, {"role": "function", "name": "f", "content": "1"})),
    ],
    "OC-3": [
        ("result with another id", _chat(USER, _calling("a"), _tool("a"), _tool("zz"))),
        ("result given twice", _chat(USER, _calling("a"), _tool("a"), _tool("a"))),
        ("result of an earlier round", _chat(USER, _calling("a"), _tool("a"), _calling("b"), _tool("b"), _tool("a"))),
        ("result without an id", _chat(USER, _calling("a"), {"role": "tool", "content": "done"})),
    ],
    "OC-4": [
        ("id of 46 characters", _chat(USER, _calling("c" * 46), _tool("c" * 46))),
        ("empty id", _chat(USER, _calling(""), _tool("a"))),
    ],
    "OC-5": [
        ("user content is null", _chat({"role": "user", "content": None})),
        ("assistant content is null without calls", _chat(USER, {"role": "assistant", "content": None}, USER)),
        ("tool content is null", _chat(USER, _calling("a"), {"role": "tool", "tool_call_id": "a", "content": None})),
    ],
    "OC-6": [
        ("no messages", _chat()),
        ("empty content list", _chat({"role": "user", "content": []})),
        ("empty list of calls", _chat(USER, {"role": "assistant", "content": "hi", "tool_calls": []}, USER)),
    ],
    "OC-7": [("unknown role", _chat(USER, {"role": "model", "content": "hi"}))],
    "OC-8": [
        (
            "arguments are an object",
            _chat(USER, {"role": "assistant", "content": None, "tool_calls": [_call("a", {})]}, _tool("a")),
        ),
    ],
}

MISTRAL: Cases = {
    "MI-1": [("a tool after a user", _chat(USER, _tool("a"), USER))],
    "MI-3": [("assistant last", _chat(USER, _said("hi")))],
    "MI-4": [
        ("one result too few", _chat(USER, _calling("a", "b"), _tool("a"))),
        ("result given twice", _chat(USER, _calling("a"), _tool("a"), _tool("a"))),
    ],
    "MI-5": [("the id null", _chat(USER, _calling("null"), _tool("null")))],
    "MI-6": [
        ("a system message after the assistant", _chat(USER, _said("hi"), {"role": "system", "content": "x"}, USER))
    ],
    "MI-7": [
        (
            "name with a dot",
            _chat(USER, {"role": "assistant", "content": "", "tool_calls": [_call("a", "{}", "a.b")]}, _tool("a")),
        )
    ],
}

DEEPSEEK: Cases = {
    "DS-1": [
        (
            "calling turn without reasoning",
            _chat(USER, _calling("a"), _tool("a"), model="deepseek-v4", thinking={"type": "enabled"}),
        ),
        (
            "one of two calling turns lost it",
            _chat(
                USER,
                _calling("a") | {"reasoning_content": ""},
                _tool("a"),
                _calling("b"),
                _tool("b"),
                model="deepseek-v4",
            ),
        ),
    ],
    "DS-2": [
        (
            "reasoning on a plain answer",
            _chat(USER, _said("hi") | {"reasoning_content": "x"}, USER, model="deepseek-reasoner"),
        )
    ],
}

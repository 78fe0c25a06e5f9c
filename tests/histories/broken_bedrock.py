"""Small broken Bedrock requests, one group for each contract code.

They are written by hand, so that each shows exactly one fault. Invariant: the judge reports the code.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
Cases = dict[str, list[tuple[str, Body]]]


def _uses(*ids: str, name: str = "read") -> Body:
    return {"role": "assistant", "content": [{"toolUse": {"toolUseId": id_, "name": name, "input": {}}} for id_ in ids]}


def _res(*ids: str) -> Body:
    return {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": id_, "content": [{"text": "done"}]}} for id_ in ids],
    }


def _b(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks)}


def _br(*messages: Body, **fields: Any) -> Body:
    tools = {"tools": [{"toolSpec": {"name": "read", "inputSchema": {"json": {}}}}]}
    return {"modelId": "anthropic.claude-opus-5-5-v1:0", "messages": list(messages), "toolConfig": tools, **fields}


GO = _b("user", {"text": "go"})
HI = _b("assistant", {"text": "hi"})

BEDROCK: Cases = {
    "BR-1": [
        ("use without result", _br(GO, _uses("a"), GO)),
        ("one of two results is missing", _br(GO, _uses("a", "b"), _res("a"))),
        ("text before the results", _br(GO, _uses("a"), _b("user", {"text": "here"}, *_res("a")["content"]))),
    ],
    "BR-2": [
        ("result without use", _br(GO, HI, _res("a"))),
        ("result first of all", _br(_res("a"))),
        ("one result too many", _br(GO, _uses("a"), _res("a", "b"))),
        ("result given twice", _br(GO, _uses("a"), _res("a", "a"))),
    ],
    "BR-3": [("tool blocks without toolConfig", _br(GO, _uses("a"), _res("a"), toolConfig=None))],
    "BR-4": [
        ("no messages", _br()),
        ("two user messages in a row", _br(GO, GO)),
        ("assistant first", _br(HI, GO)),
        ("assistant last", _br(GO, HI)),
    ],
    "BR-5": [
        (
            "text beside results",
            _br(
                GO,
                _uses("a"),
                _b("user", *_res("a")["content"], {"text": "so"}),
                modelId="meta.llama3-3-70b-instruct-v1:0",
            ),
        )
    ],
    "BR-6": [
        ("empty text", _br(_b("user", {"text": ""}))),
        ("no content", _br(_b("user"))),
        (
            "empty text in a result",
            _br(GO, _uses("a"), _b("user", {"toolResult": {"toolUseId": "a", "content": [{"text": ""}]}})),
        ),
        (
            "error without content",
            _br(GO, _uses("a"), _b("user", {"toolResult": {"toolUseId": "a", "content": [], "status": "error"}})),
        ),
    ],
    "BR-7": [
        ("id of 65 characters", _br(GO, _uses("c" * 65), _res("c" * 65))),
        ("id with a slash", _br(GO, _uses("a/b"), _res("a/b"))),
        ("name with a dot", _br(GO, _uses("a", name="a.b"), _res("a"))),
        ("unknown role", _br(GO, _b("model", {"text": "hi"}), GO)),
        ("result without content", _br(GO, _uses("a"), _b("user", {"toolResult": {"toolUseId": "a"}}))),
        ("id used again", _br(GO, _uses("a"), _res("a"), _uses("a"), _res("a"))),
    ],
    "BR-8": [
        (
            "reasoning without signature",
            _br(GO, _b("assistant", {"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "hi"}), GO),
        ),
        (
            "manual thinking, open turn starts with a use",
            _br(GO, _uses("a"), _res("a"), additionalModelRequestFields={"thinking": {"type": "enabled"}}),
        ),
        (
            "five cache points",
            _br(_b("user", {"text": "go"}, *({"cachePoint": {"type": "default"}} for _ in range(5)))),
        ),
    ],
}

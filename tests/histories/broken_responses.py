"""Small broken OpenAI Responses requests, one group for each contract code.

They are written by hand, so that each shows exactly one fault. Invariant: the judge reports the code.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
Cases = dict[str, list[tuple[str, Body]]]

USER: Body = {"role": "user", "content": "go"}


def _fc(call_id: str, **fields: Any) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": "read", "arguments": "{}", **fields}


def _out(call_id: str, **fields: Any) -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": "done", **fields}


def _rs(id_: str, **fields: Any) -> Body:
    return {"type": "reasoning", "id": id_, "summary": [], "encrypted_content": "gAAA", **fields}


def _msg(id_: str) -> Body:
    said = [{"type": "output_text", "text": "hi", "annotations": []}]
    return {"type": "message", "id": id_, "role": "assistant", "status": "completed", "content": said}


def _resp(*items: Body, **fields: Any) -> Body:
    return {"model": "gpt-5.4", "input": list(items), **fields}


APPROVAL: Body = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "q", "arguments": "{}", "server_label": "db"}
APPROVED: Body = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
CUSTOM: Body = {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "x"}
SHELL: Body = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "a",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}

RESPONSES: Cases = {
    "OR-1": [
        ("call without output", _resp(USER, _fc("a"), USER)),
        ("one of two outputs is missing", _resp(USER, _fc("a"), _fc("b"), _out("b"))),
        ("a user message between call and output", _resp(USER, _fc("a"), USER, _out("a"))),
        ("custom call without output", _resp(USER, CUSTOM, USER)),
        ("shell call without output", _resp(USER, SHELL, USER)),
        ("approval request without answer", _resp(USER, APPROVAL, USER)),
    ],
    "OR-2": [
        ("output without call", _resp(USER, _out("a"))),
        ("output before its call", _resp(USER, _out("a"), _fc("a"))),
        ("output given twice", _resp(USER, _fc("a"), _out("a"), _out("a"))),
        ("output of another kind", _resp(USER, CUSTOM, _out("a"))),
        ("approval without request", _resp(USER, APPROVED)),
    ],
    "OR-3": [
        (
            "call kept its id but lost its reasoning",
            _resp(USER, _fc("a", id="fc_1"), _out("a"), _rs("rs_2"), _fc("b", id="fc_2"), _out("b")),
        ),
        (
            "message kept its id but lost its reasoning",
            _resp(USER, _rs("rs_1"), _msg("msg_1"), USER, _msg("msg_2"), USER),
        ),
        (
            "reasoning comes after the call",
            _resp(USER, _fc("a", id="fc_1"), _rs("rs_1"), _fc("b", id="fc_2"), _out("a"), _out("b")),
        ),
    ],
    "OR-4": [
        ("reasoning at the end", _resp(USER, _rs("rs_1"))),
        ("reasoning before a user message", _resp(USER, _rs("rs_1"), USER)),
        ("reasoning between call and output", _resp(USER, _fc("a"), _rs("rs_1"), _out("a"))),
    ],
    "OR-5": [
        (
            "reasoning without content, not stored",
            _resp(USER, {"type": "reasoning", "id": "rs_1", "summary": []}, _msg("msg_1"), USER, store=False),
        ),
        ("reference that cannot be resolved", _resp({"type": "item_reference", "id": "msg_1"}, USER, store=False)),
    ],
    "OR-6": [("empty encrypted content", _resp(USER, _rs("rs_1", encrypted_content=""), _msg("msg_1"), USER))],
    "OR-7": [
        ("message id with another prefix", _resp(USER, _msg("fc_1"), USER)),
        ("reasoning id with another prefix", _resp(USER, _rs("msg_1"), _msg("msg_2"), USER)),
        ("call id as item id", _resp(USER, _fc("a", id="call_1"), _out("a"))),
    ],
    "OR-8": [
        ("call_id of 65 characters", _resp(USER, _fc("c" * 65), _out("c" * 65))),
        ("empty call_id", _resp(USER, _fc(""), _out(""))),
        ("empty compaction", _resp({"type": "compaction", "encrypted_content": ""}, USER)),
    ],
    "OR-9": [
        ("reasoning without id", _resp(USER, {"type": "reasoning", "summary": []}, _msg("msg_1"), USER)),
        ("reasoning without summary", _resp(USER, {"type": "reasoning", "id": "rs_1"}, _msg("msg_1"), USER)),
        ("unknown item", _resp(USER, {"type": "telepathy"})),
        ("call without arguments", _resp(USER, {"type": "function_call", "call_id": "a", "name": "read"}, _out("a"))),
    ],
    "OR-10": [("trigger in the middle", _resp(USER, {"type": "compaction_trigger"}, USER))],
    "OR-11": [("both kinds of server state", _resp(USER, previous_response_id="resp_1", conversation="conv_1"))],
    "OR-12": [
        ("item id twice", _resp(USER, _msg("msg_1"), USER, _msg("msg_1"), USER)),
        ("call_id twice", _resp(USER, _fc("a"), _out("a"), _fc("a"), _out("a"))),
    ],
}

"""Small broken Anthropic requests, one group for each contract code.

They are written by hand, so that each shows exactly one fault. Invariant: the judge reports the code.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
Cases = dict[str, list[tuple[str, Body]]]

USER: Body = {"role": "user", "content": "go"}
THINKING: Body = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
MARK: Body = {"cache_control": {"type": "ephemeral"}}


def _use(*ids: str, before: tuple[Body, ...] = ()) -> Body:
    uses = [{"type": "tool_use", "id": id_, "name": "read", "input": {}} for id_ in ids]
    return {"role": "assistant", "content": [*before, *uses]}


def _results(*ids: str) -> Body:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": "done"} for id_ in ids]}


def _text(text: str, **fields: Any) -> Body:
    return {"type": "text", "text": text, **fields}


def _said(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks)}


def _an(*messages: Body, **fields: Any) -> Body:
    return {"model": "claude-opus-5-5", "max_tokens": 64, "messages": list(messages), **fields}


SEARCH: Body = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "x"}}
FOUND: Body = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
SEARCH_TOOL: Body = {"type": "web_search_20250305", "name": "web_search"}
MCP: Body = {"type": "mcp_tool_use", "id": "m1", "name": "q", "server_name": "db", "input": {}}
MID: Body = {"role": "system", "content": "be brief"}
ADD: Body = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "ghost"}}

ANTHROPIC: Cases = {
    "AN-1": [
        ("call without result", _an(USER, _use("a"), USER)),
        ("one of two results is missing", _an(USER, _use("a", "b"), _results("a"))),
        ("call without result at the end", _an(USER, _use("a"))),
        (
            "an assistant speaks between call and result",
            _an(USER, _use("a"), _said("assistant", _text("hm")), _results("a")),
        ),
        ("a system message between call and result", _an(USER, _use("a"), MID, _results("a"))),
    ],
    "AN-2": [
        ("result without call", _an(USER, _said("assistant", _text("hi")), _results("a"))),
        ("result first of all", _an(_results("a"))),
        ("result with another id", _an(USER, _use("a"), _results("a", "zz"))),
    ],
    "AN-3": [
        ("text before the results", _an(USER, _use("a"), _said("user", _text("here"), *_results("a")["content"])))
    ],
    "AN-4": [("parallel results in two messages", _an(USER, _use("a", "b"), _results("a"), _results("b")))],
    "AN-5": [("two results for one call", _an(USER, _use("a"), _results("a", "a")))],
    "AN-6": [
        ("id used again in a later turn", _an(USER, _use("a"), _results("a"), _use("a"), _results("a"))),
        ("id used twice in one turn", _an(USER, _use("a", "a"), _results("a"))),
    ],
    "AN-7": [
        ("id with a colon", _an(USER, _use("functions.read:0"), _results("functions.read:0"))),
        ("empty id", _an(USER, _use(""), _results(""))),
    ],
    "AN-8": [
        ("server call left open", _an(USER, _said("assistant", SEARCH), USER, tools=[SEARCH_TOOL])),
        ("MCP call left open", _an(USER, _said("assistant", MCP, _text("so")), USER)),
        ("open call without its tool", _an(USER, _said("assistant", SEARCH))),
    ],
    "AN-9": [
        ("server result without call", _an(USER, _said("assistant", FOUND, _text("so")), USER)),
        (
            "result of another server tool",
            _an(USER, _said("assistant", SEARCH, FOUND | {"type": "web_fetch_tool_result"}), USER),
        ),
    ],
    "AN-10": [
        (
            "toolset name is not echoed",
            _an(USER, _said("assistant", _use("a")["content"][0] | {"toolset_name": "browser"}), _results("a")),
        ),
    ],
    "AN-12": [
        (
            "manual thinking, open turn starts with text",
            _an(
                USER,
                _use("a", before=(_text("hm"),)),
                _results("a"),
                thinking={"type": "enabled", "budget_tokens": 1024},
            ),
        ),
    ],
    "AN-13": [
        (
            "thinking without signature",
            _an(USER, _said("assistant", {"type": "thinking", "thinking": "hm"}, _text("hi")), USER),
        ),
        ("empty signature", _an(USER, _said("assistant", THINKING | {"signature": ""}, _text("hi")), USER)),
        (
            "redacted thinking without data",
            _an(USER, _said("assistant", {"type": "redacted_thinking"}, _text("hi")), USER),
        ),
    ],
    "AN-17": [
        ("no messages", _an()),
        ("empty user string", _an({"role": "user", "content": ""})),
        ("empty user list", _an({"role": "user", "content": []})),
        ("blank user text", _an({"role": "user", "content": "\n"})),
        ("empty text beside a call", _an(USER, _use("a", before=(_text(""),)), _results("a"))),
        ("blank assistant text alone", _an(USER, _said("assistant", _text(" ")), USER)),
        ("blank system", _an(USER, system="  ")),
        ("empty system block", _an(USER, system=[_text("")])),
    ],
    "AN-18": [
        (
            "prefill ends with a blank",
            _an(USER, {"role": "assistant", "content": "So "}, model="claude-3-opus-20240229"),
        )
    ],
    "AN-19": [("assistant last on a model without prefill", _an(USER, {"role": "assistant", "content": "So"}))],
    "AN-21": [("assistant first", _an(_said("assistant", _text("hi")), USER))],
    "AN-22": [
        ("system first", _an(MID, USER)),
        ("system after an assistant", _an(USER, _said("assistant", _text("hi")), MID, USER)),
        ("two in a row", _an(USER, MID, MID)),
        ("on a model that has none", _an(USER, MID, model="claude-sonnet-5")),
    ],
    "AN-23": [
        (
            "addition in a user message",
            _an(_said("user", _text("go"), ADD), tools=[{"name": "ghost", "input_schema": {}}]),
        ),
        (
            "addition of an undeclared tool",
            _an(USER, _said("system", ADD), tools=[{"name": "read", "input_schema": {}}]),
        ),
    ],
    "AN-24": [
        ("five breakpoints", _an(_said("user", *(_text(str(n), **MARK) for n in range(5))))),
        ("four and the automatic one", _an(_said("user", *(_text(str(n), **MARK) for n in range(4))), **MARK)),
        ("breakpoint on thinking", _an(USER, _said("assistant", THINKING | MARK, _text("hi")), USER)),
    ],
    "AN-25": [
        ("unknown key in a block", _an(_said("user", _text("go", note=1)))),
        ("unknown key in a message", _an(USER | {"name": "alice"})),
        (
            "input is a string",
            _an(
                USER, _said("assistant", {"type": "tool_use", "id": "a", "name": "read", "input": "{}"}), _results("a")
            ),
        ),
    ],
    "AN-26": [("more than 600 images", _an(_said("user", *({"type": "image", "source": {}} for _ in range(601)))))],
}

"""Small broken Gemini requests, one group for each contract code.

They are written by hand, so that each shows exactly one fault. Invariant: the judge reports the code.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
Cases = dict[str, list[tuple[str, Body]]]


def _fc(*names: str, signed: bool = True) -> Body:
    parts: list[Body] = [{"functionCall": {"name": name, "args": {}}} for name in names]
    if signed:
        parts[0]["thoughtSignature"] = "c2ln"
    return {"role": "model", "parts": parts}


def _fr(*names: str) -> Body:
    return {
        "role": "user",
        "parts": [{"functionResponse": {"name": name, "response": {"output": "done"}}} for name in names],
    }


def _ge(*contents: Body, **fields: Any) -> Body:
    return {"model": "gemini-3-pro-preview", "contents": list(contents), **fields}


ASK: Body = {"role": "user", "parts": [{"text": "go"}]}
ANSWER: Body = {"role": "model", "parts": [{"text": "hi"}]}

GEMINI: Cases = {
    "GE-1": [
        ("starts with a call", _ge(_fc("a"), _fr("a"))),
        ("call after a model turn", _ge(ASK, ANSWER, _fc("a"), _fr("a"))),
    ],
    "GE-2": [
        ("response without call", _ge(ASK, ANSWER, _fr("a"))),
        ("response first of all", _ge(_fr("a"))),
    ],
    "GE-3": [
        ("one response too few", _ge(ASK, _fc("a", "b"), _fr("a"))),
        ("one response too many", _ge(ASK, _fc("a"), _fr("a", "a"))),
        ("no response at all", _ge(ASK, _fc("a"), ASK)),
        ("code without its result", _ge(ASK, {"role": "model", "parts": [{"executableCode": {"code": "1"}}]}, ASK)),
    ],
    "GE-4": [
        ("current turn without signature", _ge(ASK, _fc("a", signed=False), _fr("a"))),
        ("second step without signature", _ge(ASK, _fc("a"), _fr("a"), _fc("b", signed=False), _fr("b"))),
    ],
    "GE-7": [
        ("no contents", _ge()),
        ("role tool", _ge(ASK, {"role": "tool", "parts": [{"text": "x"}]})),
        ("no parts", _ge({"role": "user", "parts": []})),
        ("empty text", _ge({"role": "user", "parts": [{"text": ""}]})),
        ("two user turns in a row", _ge(ASK, ASK)),
        ("ends with the model", _ge(ASK, ANSWER)),
        ("starts with the model", _ge(ANSWER, ASK)),
    ],
    "GE-8": [
        ("responses in another order", _ge(ASK, _fc("a", "b"), _fr("b", "a"))),
        (
            "text before the responses",
            _ge(ASK, _fc("a"), {"role": "user", "parts": [{"text": "here"}, *_fr("a")["parts"]]}),
        ),
        ("response with another name", _ge(ASK, _fc("a"), _fr("zz"))),
    ],
    "GE-9": [
        ("unknown field in a part", _ge({"role": "user", "parts": [{"text": "go", "note": 1}]})),
        (
            "signature inside the call",
            _ge(
                ASK,
                {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}, "thoughtSignature": "x"}}]},
                _fr("a"),
            ),
        ),
    ],
}

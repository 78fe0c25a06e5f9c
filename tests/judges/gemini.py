"""Strict judge of Gemini generateContent requests.

The one invariant: in a list without faults, user and model alternate, start and end with the user, and each
function call turn is followed by exactly its responses, in the order of the calls.

Not decidable from one body, and so left to ``prefix``: GE-5 and GE-6 (what was merged) and edited signatures.
GE-9 asks for thought parts to be stripped on replay; the provider takes them, so only unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any, TypeAlias

Content: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

ROLES = ("user", "model")
DATA = frozenset(
    [
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    ]
)
EXTRAS = frozenset(["thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"])
CALL_KEYS = frozenset(["id", "name", "args", "partialArgs", "willContinue"])
RESPONSE_KEYS = frozenset(["id", "name", "response", "parts", "willContinue", "scheduling"])
MODEL_ONLY = ("functionCall", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
SIGNED_MODELS = re.compile(r"(models/)?gemini-3(?!.*image)")


def judge(payload: Body | list[Any]) -> list[str]:
    """Return every fault of a generateContent request; an empty list means accepted."""
    body: Body = payload if isinstance(payload, dict) else {"contents": payload}
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["GE-7 contents: at least one content is needed"]
    shape = [fault for index, content in enumerate(contents) for fault in _shape(f"contents[{index}]", content)]
    shape += _system_shape(body.get("systemInstruction"))
    if shape:
        return shape
    return [fault for check in (_turns, _pairing, _hosted, _signatures) for fault in check(body)]


def parts_of(content: Content, key: str) -> list[Any]:
    """Return the values of one kind of part in a content."""
    return [part[key] for part in content["parts"] if key in part]


def current_turn(contents: list[Content]) -> int:
    """Return the index after the last user content with anything but function responses (GE-4)."""
    starts = (
        index
        for index, content in enumerate(contents)
        if content["role"] == "user" and any("functionResponse" not in part for part in content["parts"])
    )
    return max(starts, default=-1) + 1


def _shape(path: str, content: Any) -> Iterator[str]:
    if not isinstance(content, dict) or content.get("role") not in ROLES:
        yield f"GE-7 {path}.role: must be user or model"
        return
    yield from (f"GE-9 {path}.{key}: unknown field" for key in content.keys() - {"role", "parts"})
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        yield f"GE-7 {path}.parts: at least one part is needed"
        return
    for at, part in enumerate(parts):
        yield from _part_shape(f"{path}.parts[{at}]", part, content["role"])


def _part_shape(path: str, part: Any, role: str) -> Iterator[str]:
    kinds = DATA & part.keys() if isinstance(part, dict) else frozenset()
    if len(kinds) != 1:
        yield f"GE-7 {path}: expected exactly one kind of data, got {sorted(kinds)}"
        return
    (kind,) = kinds
    yield from (f"GE-9 {path}.{key}: unknown field" for key in part.keys() - DATA - EXTRAS)
    if kind in MODEL_ONLY and role != "model":
        yield f"GE-1 {path}: {kind} belongs in a model turn"
    if kind == "functionResponse" and role != "user":
        yield f"GE-2 {path}: functionResponse belongs in a user turn"
    # An empty text is how a late signature arrives; without one it is an empty part.
    if kind == "text" and (not isinstance(part["text"], str) or not (part["text"] or part.get("thoughtSignature"))):
        yield f"GE-7 {path}.text: expected a non-empty string"
    signature = part.get("thoughtSignature")
    if "thoughtSignature" in part and not (isinstance(signature, str) and signature):
        yield f"GE-4 {path}.thoughtSignature: expected a non-empty string"
    if kind in ("functionCall", "functionResponse"):
        yield from _function_shape(f"{path}.{kind}", kind, part[kind])


def _function_shape(path: str, kind: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        yield f"GE-8 {path}.name: required"
        return
    known = CALL_KEYS if kind == "functionCall" else RESPONSE_KEYS
    yield from (f"GE-9 {path}.{key}: unknown field" for key in value.keys() - known)
    data = value.get("args", {}) if kind == "functionCall" else value.get("response")
    if not isinstance(data, dict):
        yield f"GE-8 {path}: expected an object of data"


def _system_shape(system: Any) -> Iterator[str]:
    if system is None:
        return
    parts = system.get("parts") if isinstance(system, dict) else None
    if not isinstance(parts, list) or not parts or any(not part.get("text") for part in parts):
        yield "GE-7 systemInstruction.parts: expected non-empty text parts"


def _turns(body: Body) -> Iterator[str]:
    contents = body["contents"]
    roles = [content["role"] for content in contents]
    if roles[0] != "user":
        code = "GE-1" if parts_of(contents[0], "functionCall") else "GE-7"
        yield f"{code} contents[0].role: the history must start with a user turn"
    if roles[-1] != "user":
        yield f"GE-7 contents[{len(roles) - 1}].role: the history must end with a user turn"
    for index, (earlier, later) in enumerate(pairwise(roles), start=1):
        if earlier == later:
            code = "GE-1" if parts_of(contents[index], "functionCall") else "GE-7"
            yield f"{code} contents[{index}].role: two {later} turns in a row"


def _pairing(body: Body) -> Iterator[str]:
    contents = body["contents"]
    for index, content in enumerate(contents):
        calls = parts_of(content, "functionCall")
        following = contents[index + 1] if index + 1 < len(contents) else None
        responses = parts_of(following, "functionResponse") if following else []
        if calls and len(calls) != len(responses):
            yield f"GE-3 contents[{index}]: {len(calls)} calls but {len(responses)} responses"
        elif calls:
            yield from _matches(f"contents[{index + 1}]", calls, responses)
        if parts_of(content, "functionResponse"):
            if not index or not parts_of(contents[index - 1], "functionCall"):
                yield f"GE-2 contents[{index}]: a function response must come right after a function call turn"
            kinds = ["functionResponse" in part for part in content["parts"]]
            if any(later and not earlier for earlier, later in pairwise(kinds)):
                yield f"GE-8 contents[{index}]: responses must come before other parts"


def _matches(path: str, calls: list[Any], responses: list[Any]) -> Iterator[str]:
    """Compare calls and responses position by position; ids are optional but must agree (GE-8)."""
    ids = [call["id"] for call in calls if call.get("id")]
    if len(ids) != len(set(ids)):
        yield f"GE-8 {path}: two calls of one turn share an id"
    for call, response in zip(calls, responses, strict=True):
        if call["name"] != response["name"] or call.get("id") != response.get("id"):
            yield f"GE-8 {path}: response {response['name']!r} does not match call {call['name']!r}"


def _hosted(body: Body) -> Iterator[str]:
    """Keep server-side calls with their results: code and its result in order, tool calls by id."""
    for index, content in enumerate(body["contents"]):
        ran = [kind for part in content["parts"] for kind in part if kind in ("executableCode", "codeExecutionResult")]
        if ran != ["executableCode", "codeExecutionResult"] * (len(ran) // 2):
            yield f"GE-3 contents[{index}]: code and code results do not pair up"
        called = [call.get("id") for call in parts_of(content, "toolCall")]
        answered = [response.get("id") for response in parts_of(content, "toolResponse")]
        if any(call != answer for call, answer in zip_longest(called, answered)):
            yield f"GE-3 contents[{index}]: server tool calls and responses do not pair up"


def _signatures(body: Body) -> Iterator[str]:
    """Gemini 3 wants a signature on the first call of each step of the current turn; others are not checked."""
    if not SIGNED_MODELS.match(str(body.get("model", ""))):
        return
    contents = body["contents"]
    for index in range(current_turn(contents), len(contents)):
        first = next((part for part in contents[index]["parts"] if "functionCall" in part), None)
        if first is not None and not first.get("thoughtSignature"):
            name = first["functionCall"]["name"]
            yield f"GE-4 contents[{index}]: function call {name!r} is missing a thoughtSignature"

"""What OpenAI Chat Completions refuses, and how such a history is mended.

One pass over the wire form finds every problem; mending goes through the parsed messages, so what stands right is
not touched. The portable rules of compatible servers are in ``portable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kompakt.model.messages import History, Json, JsonObject, Message, Part, ToolCall, ToolResult
from kompakt.model.pairs import Place, pair
from kompakt.wire import portable
from kompakt.wire.mending import Codes, Mender, mend_pairs
from kompakt.wire.openai_chat import CONTRACT, MAX_ID
from kompakt.wire.problem import Change, Problem
from kompakt.wire.reading import written

_NO_SYSTEM = ("o1-mini", "o1-preview")
"""Reasoning models from before the developer role; they refuse system messages (OC-9, from memory, unverified)."""

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where OpenAI would refuse these messages, in order."""
    found: list[Problem] = []
    if not items:
        found.append(Problem("OC-6", "messages", "there is no message; a request needs at least one", False))
    report = found.append
    caller = -1
    known: dict[str, bool] = {}
    for i, raw in enumerate(items):
        role = raw["role"]
        if role == "tool":
            _check_result(raw, i, caller, known, report)
            continue
        if known:
            _check_answered(known, caller, report)
            known = {}
        caller = -1
        content = raw.get("content")
        if type(content) is not str or role not in _ROLES:
            _check_content(raw, i, report)
        if role == "function" and not (i and _asks(items[i - 1], raw)):
            report(Problem("OC-2", f"messages[{i}]", "a function message must answer the call right before it"))
        if role == "assistant" and "tool_calls" in raw:
            if raw["tool_calls"]:
                caller = i
                _check_calls(raw["tool_calls"], i, known, report)
            elif raw["tool_calls"] == []:
                report(Problem("OC-6", f"messages[{i}].tool_calls", "a list of calls needs at least one"))
    if known:
        _check_answered(known, caller, report)
    _check_model(items, body, report)
    if strict:
        found.extend(portable.problems(items, body))
    return found


def _check_result(raw: JsonObject, i: int, caller: int, known: dict[str, bool], report: Any) -> None:
    call_id = raw.get("tool_call_id") or ""
    if caller < 0:
        message = "a tool message must answer a call of the assistant message right before it"
        report(Problem("OC-2", f"messages[{i}]", message))
    elif call_id not in known:
        message = f"tool_call_id {call_id!r} is not among the calls of messages[{caller}]"
        report(Problem("OC-3", f"messages[{i}].tool_call_id", message))
    elif known[call_id]:
        report(Problem("OC-3", f"messages[{i}].tool_call_id", f"call {call_id!r} is answered a second time"))
    else:
        known[call_id] = True
    if type(raw.get("content")) is not str:
        _check_content(raw, i, report)


def _check_answered(known: dict[str, bool], caller: int, report: Any) -> None:
    for call_id, answered in known.items():
        if not answered:
            message = f"no tool message answers call {call_id!r} directly behind it"
            report(Problem("OC-1", f"messages[{caller}].tool_calls", message))


def _check_calls(calls: list[Any], i: int, known: dict[str, bool], report: Any) -> None:
    for j, call in enumerate(calls):
        call_id = call.get("id") or ""
        if not call_id or len(call_id) > MAX_ID:
            size = f"has {len(call_id)} characters, the limit is {MAX_ID}" if call_id else "is missing"
            report(Problem("OC-4", f"messages[{i}].tool_calls[{j}].id", f"the id of this call {size}"))
        if call_id in known:
            message = f"id {call_id!r} names two calls of one message"
            report(Problem("OC-3", f"messages[{i}].tool_calls[{j}].id", message))
        known[call_id] = False
        function = call.get("function")
        if function is not None and type(function.get("arguments")) is not str:
            message = "arguments must be a string that holds JSON"
            report(Problem("OC-8", f"messages[{i}].tool_calls[{j}].function.arguments", message))


def _check_content(raw: JsonObject, i: int, report: Any) -> None:
    role = raw["role"]
    if role not in _ROLES:
        report(Problem("OC-7", f"messages[{i}].role", f"there is no role {role!r}", False))
        return
    content = raw.get("content")
    if content is None:
        speaks = raw.get("tool_calls") or raw.get("function_call") or raw.get("audio")
        if role != "assistant" or not speaks:
            message = "content may be null only on an assistant message with calls"
            report(Problem("OC-5", f"messages[{i}].content", message))
    elif content == []:
        report(Problem("OC-6", f"messages[{i}].content", "a list of content parts needs at least one"))


def _check_model(items: Sequence[Json], body: JsonObject | None, report: Any) -> None:
    model = (body or {}).get("model")
    if type(model) is str and model.startswith(_NO_SYSTEM):
        for i, raw in enumerate(items):
            if raw["role"] in ("system", "developer"):
                report(Problem("OC-9", f"messages[{i}].role", f"{model} takes no {raw['role']} message"))


# --- repair ------------------------------------------------------------------------------------------------------


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Mend a history so that OpenAI takes it; say what was done."""
    changes: list[Change] = []
    model = history.model or ""
    messages = [_mend_message(message, i, model, changes) for i, message in enumerate(history)]
    messages, paired = mend_pairs(messages, portable.mender(MENDER) if strict else MENDER)
    changes += paired
    messages = list(_mend_functions(messages, changes))
    if strict:
        messages, ported = portable.repair(messages, history.model)
        changes += ported
    return messages, changes


def _mend_message(message: Message, i: int, model: str, changes: list[Change]) -> Message:
    raw: JsonObject = message.raw
    path = f"messages[{i}]"
    if raw["role"] in ("system", "developer") and model.startswith(_NO_SYSTEM):
        changes.append(Change("OC-9", "replaced", f"{path}.role", f"{model} takes it as a user message"))
        message = msgspec.structs.replace(message, role="user", raw={**raw, "role": "user"})
    if raw["role"] not in _ROLES:
        return message
    if raw["role"] == "assistant" and raw.get("tool_calls") == []:
        changes.append(Change("OC-6", "stripped", f"{path}.tool_calls", "an empty list of calls"))
        message = msgspec.structs.replace(message, raw={k: v for k, v in raw.items() if k != "tool_calls"})
    content = raw.get("content")
    speaks = raw.get("tool_calls") or raw.get("function_call") or raw.get("audio")
    if content == [] or (content is None and not (raw["role"] == "assistant" and speaks)):
        code = "OC-6" if content == [] else "OC-5"
        changes.append(Change(code, "replaced", f"{path}.content", "now an empty string"))
        return msgspec.structs.replace(message, raw={**message.raw, "content": ""})
    if any(type(part) is ToolCall and _bad_arguments(part) for part in message.parts):
        return message.with_parts(_mend_arguments(part, path, changes) for part in message.parts)
    return message


def _bad_arguments(call: ToolCall) -> bool:
    return type(call.raw) is dict and "function" in call.raw and type(call.input) is not str


def _mend_arguments(part: Part, path: str, changes: list[Change]) -> Part:
    if type(part) is not ToolCall or not _bad_arguments(part):
        return part
    changes.append(Change("OC-8", "replaced", f"{path}.tool_calls", f"arguments of {part.id!r} are now JSON text"))
    return msgspec.structs.replace(part, input=written(part.input or {}), edited=True)


def _mend_functions(messages: Sequence[Message], changes: list[Change]) -> Sequence[Message]:
    """Put each function message of the older API right behind its call; one without a place of its own goes."""
    behind: dict[int, list[Message]] = {}
    moved: set[int] = set()
    answers = {result.message: call.message for call, result in pair(messages).answers.items()}
    for i, message in enumerate(messages):
        if not _is_function(message) or (i and _asks(messages[i - 1].raw, message.raw)):
            continue
        moved.add(i)
        call = answers.get(i, -1)
        waits = call >= 0 and _asks(messages[call].raw, message.raw)
        free = waits and not any(map(_is_function, messages[call + 1 : call + 2]))
        if free and call not in behind:
            behind[call] = [message]
            changes.append(Change("OC-2", "moved", f"messages[{i}]", "a function message goes right behind its call"))
        else:
            changes.append(Change("OC-2", "dropped", f"messages[{i}]", "no function call waits for this message"))
    if not moved:
        return messages
    return [one for i, message in enumerate(messages) if i not in moved for one in (message, *behind.get(i, ()))]


def _is_function(message: Message) -> bool:
    return type(message.raw) is dict and message.raw.get("role") == "function"


def _asks(raw: Json, function: JsonObject) -> bool:
    """Tell whether a message holds the older kind of call that this function message answers."""
    call = raw.get("function_call") if type(raw) is dict else None
    return type(call) is dict and call.get("name") == function.get("name")


def _answer(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, text, call.name, is_error=True)


def _carry(results: Sequence[ToolResult]) -> Message:
    return Message("tool", tuple(results))


def _path(place: Place, message: Message) -> str:
    part = message.parts[place.part]
    if type(part) is not ToolCall:
        return f"messages[{place.message}]"
    number = sum(type(earlier) is ToolCall for earlier in message.parts[: place.part])
    return f"messages[{place.message}].tool_calls[{number}]"


def _expects_result(call: ToolCall) -> bool:
    """Tell calls from the older single function_call, whose answer has a role of its own."""
    return call.raw is None or "id" in call.raw or "type" in call.raw


MENDER = Mender(
    contract=CONTRACT,
    codes=Codes(
        open_call="OC-1",
        orphan_result="OC-2",
        duplicate_result="OC-3",
        misplaced_result="OC-1",
        bad_id="OC-4",
        reused_id="OC-3",
    ),
    answer=_answer,
    carry=_carry,
    path=_path,
    expects_result=_expects_result,
)

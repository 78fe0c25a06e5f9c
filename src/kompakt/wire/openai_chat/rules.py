"""Rules of OpenAI Chat Completions (OC-1 to OC-9) and the repair of histories that break them.

Problems are found in one pass over the wire form. Repair works on the parsed messages, so valid messages are not
touched. ``compatible`` has the additional rules of other servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from kompakt.model.groups import PartPlace
from kompakt.model.json import compact_json
from kompakt.model.messages import History, Json, JsonObject, Message, Opaque, Part, Text, ToolCall, ToolResult
from kompakt.wire.openai_chat import compatible as compatible
from kompakt.wire.openai_chat.messages import CONTRACT, MAX_ID, calls_of, is_custom
from kompakt.wire.pair_repair import PairCodes, PairRules, repair_pairs
from kompakt.wire.wire import Change, Problem

_NO_SYSTEM = ("o1-mini", "o1-preview")
"""Reasoning models from before the developer role, which reject system messages (OC-9, not verified)."""

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where OpenAI would reject these messages, in order."""
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
        if type(raw.get("content")) is not str or role not in _ROLES:
            _check_content(raw, i, report)
        if role == "function" and not (i and _is_answered_by(items[i - 1], raw)):
            report(Problem("OC-2", f"messages[{i}]", "a function message must directly follow its function_call"))
        if "tool_calls" in raw and role in _ROLES:
            calls = calls_of(raw)
            if calls:
                caller = i
                _check_calls(calls, i, known, report)
            elif raw["tool_calls"] is not None:
                message = (
                    "tool_calls must not be empty"
                    if role == "assistant"
                    else "only an assistant message has tool_calls"
                )
                report(Problem("OC-6", f"messages[{i}].tool_calls", message))
    if known:
        _check_answered(known, caller, report)
    _check_model(items, body, report)
    if strict:
        found.extend(compatible.problems(items, body))
    return found


def _check_result(raw: JsonObject, i: int, caller: int, known: dict[str, bool], report: Any) -> None:
    call_id = raw.get("tool_call_id") or ""
    if caller < 0:
        message = "a tool message must follow an assistant message with its call"
        report(Problem("OC-2", f"messages[{i}]", message))
    elif call_id not in known:
        message = f"tool_call_id {call_id!r} is not among the calls of messages[{caller}]"
        report(Problem("OC-3", f"messages[{i}].tool_call_id", message))
    elif known[call_id]:
        report(Problem("OC-3", f"messages[{i}].tool_call_id", f"call {call_id!r} has a second result"))
    else:
        known[call_id] = True
    if type(raw.get("content")) is not str:
        _check_content(raw, i, report)


def _check_answered(known: dict[str, bool], caller: int, report: Any) -> None:
    for call_id, answered in known.items():
        if not answered:
            message = f"no tool message answers call {call_id!r} directly after it"
            report(Problem("OC-1", f"messages[{caller}].tool_calls", message))


def _check_calls(calls: list[Any], i: int, known: dict[str, bool], report: Any) -> None:
    for j, call in enumerate(calls):
        call_id = call.get("id") or ""
        if not call_id or len(call_id) > MAX_ID:
            size = f"has {len(call_id)} characters, the limit is {MAX_ID}" if call_id else "is missing"
            report(Problem("OC-4", f"messages[{i}].tool_calls[{j}].id", f"the id of this call {size}"))
        if call_id in known:
            message = f"two calls of one message have the id {call_id!r}"
            report(Problem("OC-3", f"messages[{i}].tool_calls[{j}].id", message))
        known[call_id] = False
        function = call.get("function")
        if function and type(function.get("arguments")) is str and call.get("type", "function") == "function":
            continue
        kind = _type_of(call)
        key = "input" if kind == "custom" else "arguments"
        path = f"messages[{i}].tool_calls[{j}]"
        if call.get("type", "function") != kind:
            report(Problem("OC-8", f"{path}.type", f"the type of this call must be {kind!r}"))
        if type((call.get(kind) or {}).get(key)) is not str:
            message = (
                "the input of a custom tool must be a string"
                if kind == "custom"
                else "arguments must be a string of JSON"
            )
            report(Problem("OC-8", f"{path}.{kind}.{key}", message))


def _type_of(call: JsonObject) -> str:
    return "custom" if is_custom(call) else "function"


def _check_content(raw: JsonObject, i: int, report: Any) -> None:
    role = raw["role"]
    if role not in _ROLES:
        report(Problem("OC-7", f"messages[{i}].role", f"unknown role {role!r}", False))
        return
    content = raw.get("content")
    if content is None:
        if not _is_complete(raw):
            message = "content may be null only on an assistant message with calls"
            report(Problem("OC-5", f"messages[{i}].content", message))
    elif content == []:
        report(Problem("OC-6", f"messages[{i}].content", "a list of content parts must not be empty"))


def _is_complete(raw: JsonObject) -> bool:
    """Return whether a message is complete without content: it has calls or audio."""
    if raw["role"] != "assistant":
        return False
    return bool(raw.get("tool_calls") or raw.get("function_call") or raw.get("audio"))


def _check_model(items: Sequence[Json], body: JsonObject | None, report: Any) -> None:
    model = (body or {}).get("model")
    if type(model) is str and model.startswith(_NO_SYSTEM):
        for i, raw in enumerate(items):
            if raw["role"] in ("system", "developer"):
                report(Problem("OC-9", f"messages[{i}].role", f"{model} accepts no {raw['role']} message"))


# --- repair ------------------------------------------------------------------------------------------------------


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Repair the messages of a history and list the changes."""
    changes: list[Change] = []
    model = history.model or ""
    messages = [_repair_message(message, i, model, changes) for i, message in enumerate(history)]
    messages = list(_repair_functions(messages, changes))
    masked = [_masked(message) for message in messages]
    originals = {id(seen): message for seen, message in zip(masked, messages, strict=True)}
    paired, more = repair_pairs(masked, compatible.pair_rules(PAIR_RULES) if strict else PAIR_RULES, _path)
    changes += more
    messages = [originals.get(id(message)) or _unmasked(message) for message in paired]
    if strict:
        messages, more_changes = compatible.repair(messages, history.model)
        changes += more_changes
    return messages, changes


def _repair_message(message: Message, i: int, model: str, changes: list[Change]) -> Message:
    raw: JsonObject = message.raw
    path = f"messages[{i}]"
    if raw["role"] not in _ROLES:
        return message
    if raw["role"] in ("system", "developer") and model.startswith(_NO_SYSTEM):
        changes.append(
            Change("OC-9", "replaced", f"{path}.role", f"now a user message, because {model} accepts no other")
        )
        raw = {**raw, "role": "user"}
        message = msgspec.structs.replace(message, role="user", raw=raw)
    if raw.get("tool_calls") is not None and not calls_of(raw):
        changes.append(Change("OC-6", "stripped", f"{path}.tool_calls", "it contains no call"))
        raw = {key: value for key, value in raw.items() if key != "tool_calls"}
        message = msgspec.structs.replace(message, raw=raw)
    content = raw.get("content")
    if content == [] or (content is None and not _is_complete(raw)):
        code = "OC-6" if content == [] else "OC-5"
        changes.append(Change(code, "replaced", f"{path}.content", "now an empty string"))
        message = msgspec.structs.replace(message, raw={**raw, "content": ""})
    if any(type(part) is ToolCall and _is_misshapen(part, raw) for part in message.parts):
        return message.with_parts(_reshaped(part, raw, path, changes) for part in message.parts)
    return message


def _is_legacy(part: Part, raw: JsonObject) -> bool:
    """Return whether a call is the ``function_call`` of the older API: no id, answered by a function message."""
    return type(part) is ToolCall and part.raw is raw.get("function_call")


def _is_misshapen(call: ToolCall, raw: JsonObject) -> bool:
    """Return whether a call has the wrong type or an input that is not a string."""
    if _is_legacy(call, raw):
        return False
    return type(call.input) is not str or call.raw.get("type", "function") != _type_of(call.raw)


def _reshaped(part: Part, raw: JsonObject, path: str, changes: list[Change]) -> Part:
    if type(part) is not ToolCall or not _is_misshapen(part, raw):
        return part
    changes.append(
        Change("OC-8", "replaced", f"{path}.tool_calls", f"call {part.id!r} now has its type and a string of arguments")
    )
    given = part.input if type(part.input) is str else compact_json({} if part.input is None else part.input)
    return msgspec.structs.replace(part, input=given, raw={**part.raw, "type": _type_of(part.raw)}, edited=True)


def _repair_functions(messages: Sequence[Message], changes: list[Change]) -> Sequence[Message]:
    """Move each function message of the older API directly after its call; drop it without one."""
    waiting: dict[str, list[int]] = {}
    after: dict[int, Message] = {}
    moved: set[int] = set()
    for i, message in enumerate(messages):
        if not _is_function(message):
            name = _called_function(message.raw)
            answered = (
                i + 1 < len(messages)
                and _is_function(messages[i + 1])
                and _is_answered_by(message.raw, messages[i + 1].raw)
            )
            if name is not None and not answered:
                waiting.setdefault(name, []).append(i)
            continue
        if i and _is_answered_by(messages[i - 1].raw, message.raw):
            continue
        moved.add(i)
        calls = waiting.get(message.raw.get("name") or "")
        if calls:
            after[calls.pop()] = message
            changes.append(Change("OC-2", "moved", f"messages[{i}]", "a function message directly follows its call"))
        else:
            changes.append(Change("OC-2", "dropped", f"messages[{i}]", "no function call is open for this message"))
    if not moved:
        return messages
    out: list[Message] = []
    for i, message in enumerate(messages):
        out += [] if i in moved else [message]
        out += [after[i]] if i in after else []
    return out


class _Masked(Opaque, frozen=True, gc=False):
    """Hides a call or a result of the older API from pair repair: they pair by position, not by id."""

    part: Part = Text("")


def _masked(message: Message) -> Message:
    raw: JsonObject = message.raw
    if not (_is_function(message) or any(_is_legacy(part, raw) for part in message.parts)):
        return message
    hides = _is_function(message)
    parts = [_Masked("function", None, part) if hides or _is_legacy(part, raw) else part for part in message.parts]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _unmasked(message: Message) -> Message:
    parts = tuple(part.part if isinstance(part, _Masked) else part for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def _is_function(message: Message) -> bool:
    return type(message.raw) is dict and message.raw.get("role") == "function"


def _is_answered_by(raw: Json, function: JsonObject) -> bool:
    """Return whether a message makes the call of the older API that this function message answers."""
    name = _called_function(raw)
    return name is not None and name == (function.get("name") or "")


def _called_function(raw: Json) -> str | None:
    """Return the function name of a call of the older API if it is the only call of the message."""
    if type(raw) is not dict or raw["role"] != "assistant" or raw.get("tool_calls"):
        return None
    call: object = raw.get("function_call")
    name: object = cast("JsonObject", call).get("name") or "" if isinstance(call, dict) else None
    return name if isinstance(name, str) else None


def _path(place: PartPlace, message: Message) -> str:
    part = message.parts[place.part]
    if type(part) is not ToolCall:
        return f"messages[{place.message}]"
    number = sum(type(earlier) is ToolCall for earlier in message.parts[: place.part])
    return f"messages[{place.message}].tool_calls[{number}]"


PAIR_RULES = PairRules(
    contract=CONTRACT,
    codes=PairCodes(
        open_call="OC-1",
        orphan_result="OC-2",
        duplicate_result="OC-3",
        misplaced_result="OC-1",
        bad_id="OC-4",
        reused_id="OC-3",
    ),
    result_role="tool",
    answer=lambda call, text: ToolResult(call.id, text, call.name, is_error=True),
    expects_result=lambda call: True,
)

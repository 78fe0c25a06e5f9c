"""Rules that servers compatible with OpenAI Chat add: the strictest common ground.

Mistral's order and ids (MI), DeepSeek's reasoning (DS), what chat templates raise on (VL). A history that keeps these
goes anywhere; they are checked and mended only under ``strict``, since OpenAI itself does not ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from kompakt.model.contract import IdRule
from kompakt.model.messages import Json, JsonObject, Message, Reasoning, Text, ToolCall
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE
from kompakt.wire.mending import Mender
from kompakt.wire.problem import Change, Problem
from kompakt.wire.reading import written

MAX_MESSAGES = 2048
"""Reported, never confirmed, limit of the API itself (OC-9)."""

_OLD_REASONER = "deepseek-reasoner"
"""Refuses reasoning sent back on plain answers (DS-2); its successors ignore it there."""

_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def mender(base: Mender) -> Mender:
    """Return a mender that also gives calls the ids Mistral's older tokenizers ask for (MI-5)."""
    rule = IdRule(pattern=_ID.pattern, max_length=9, scope="message")
    contract = msgspec.structs.replace(base.contract, ids=rule)
    codes = msgspec.structs.replace(base.codes, bad_id="MI-5")
    return msgspec.structs.replace(base, contract=contract, codes=codes)


def problems(items: Sequence[Json], body: JsonObject | None) -> list[Problem]:
    """List what some compatible server would refuse."""
    found = [problem for i, raw in enumerate(items) for problem in _message_problems(raw, i)]
    found += _order_problems(items)
    found += _reasoning_problems(items, body)
    if len(items) > MAX_MESSAGES:
        found.append(Problem("OC-9", "messages", f"{len(items)} messages; some servers stop at {MAX_MESSAGES}", False))
    if items and not any(raw["role"] == "user" for raw in items):
        found.append(Problem("VL-2", "messages", "there is no user message"))
    return found


def _message_problems(raw: JsonObject, i: int) -> Iterator[Problem]:
    path = f"messages[{i}]"
    if raw["role"] == "tool" and not _ID.fullmatch(raw.get("tool_call_id") or ""):
        yield Problem("MI-5", f"{path}.tool_call_id", "the id must be nine letters and digits")
    for j, call in enumerate(raw.get("tool_calls") or ()):
        function = call.get("function") or {}
        where = f"{path}.tool_calls[{j}]"
        if not _ID.fullmatch(call.get("id") or ""):
            yield Problem("MI-5", f"{where}.id", "the id must be nine letters and digits")
        if function and not _NAME.fullmatch(function.get("name") or ""):
            yield Problem("MI-7", f"{where}.function.name", f"no server takes the name {function.get('name')!r}", False)
        if type(function.get("arguments")) is str and not is_json(function["arguments"]):
            yield Problem("OC-8", f"{where}.function.arguments", "arguments are not valid JSON")


def is_json(text: str) -> bool:
    """Tell whether a text is JSON."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def _order_problems(items: Sequence[Json]) -> list[Problem]:
    found: list[Problem] = []
    previous = ""
    for i, raw in enumerate(items):
        role = _voice(raw)
        if role == "user" and previous == "tool":
            found.append(Problem("MI-1", f"messages[{i}].role", "a user message follows a tool message"))
        if role == "system" and previous in ("assistant", "tool"):
            found.append(Problem("MI-6", f"messages[{i}].role", f"a system message follows the {previous} message"))
        if role in ("assistant", "tool") and i == 0:
            found.append(Problem("MI-1", "messages[0].role", f"the history begins with the {role}"))
        previous = role
    if previous == "assistant" and not items[-1].get("prefix"):
        found.append(Problem("MI-3", f"messages[{len(items) - 1}]", "the last message is the assistant's"))
    return found


def _voice(raw: JsonObject) -> str:
    return "system" if raw["role"] == "developer" else raw["role"]


def _reasoning_problems(items: Sequence[Json], body: JsonObject | None) -> list[Problem]:
    model = str((body or {}).get("model") or "")
    if "deepseek" not in model and not any("reasoning_content" in raw for raw in items):
        return []
    message = "in thinking mode an assistant message with calls must carry reasoning_content"
    found = [
        Problem("DS-2", f"messages[{i}].reasoning_content", f"{model} takes no reasoning back on a plain answer")
        for i, raw in enumerate(items)
        if model == _OLD_REASONER and "reasoning_content" in raw and not raw.get("tool_calls")
    ]
    return found + [
        Problem("DS-1", f"messages[{i}].reasoning_content", message)
        for i, raw in enumerate(items)
        if raw["role"] == "assistant" and raw.get("tool_calls") and type(raw.get("reasoning_content")) is not str
    ]


# --- repair ------------------------------------------------------------------------------------------------------


def repair(messages: Sequence[Message], model: str | None = None) -> tuple[list[Message], list[Change]]:
    """Mend what compatible servers refuse; say what was done."""
    changes: list[Change] = []
    thinks = "deepseek" in (model or "") or any(_reasons(message) for message in messages)
    refuses = model == _OLD_REASONER
    mended = [_mend_message(message, i, thinks, refuses, changes) for i, message in enumerate(messages)]
    return list(_in_order(mended, changes.append)), changes


def _reasons(message: Message) -> bool:
    return any(type(part) is Reasoning for part in message.parts)


def _mend_message(message: Message, i: int, thinks: bool, refuses: bool, changes: list[Change]) -> Message:
    path = f"messages[{i}]"
    calls = message.calls
    if refuses and not calls and _reasons(message):
        changes.append(Change("DS-2", "stripped", f"{path}.reasoning_content", f"{_OLD_REASONER} takes none back"))
        bare = {key: value for key, value in (message.raw or {}).items() if key != "reasoning_content"}
        message = msgspec.structs.replace(message, raw=bare)
        return message.with_parts(part for part in message.parts if type(part) is not Reasoning)
    if thinks and calls and not _reasons(message):
        changes.append(Change("DS-1", "added", f"{path}.reasoning_content", "an empty reasoning text"))
        message = message.with_parts((Reasoning(""), *message.parts))
    if any(map(_is_unquoted, calls)):
        changes.append(Change("OC-8", "replaced", f"{path}.tool_calls", "arguments that are no JSON are now quoted"))
        message = message.with_parts(_quoted(part) if type(part) is ToolCall else part for part in message.parts)
    return message


def _is_unquoted(call: ToolCall) -> bool:
    """Tell whether the arguments of a function are no JSON; a custom tool takes any text."""
    is_custom = isinstance(call.raw, dict) and call.raw.get("type") == "custom"
    return type(call.input) is str and not is_custom and not is_json(call.input)


def _quoted(call: ToolCall) -> ToolCall:
    if not _is_unquoted(call):
        return call
    return msgspec.structs.replace(call, input=written({"raw": call.input}), edited=True)


def _in_order(messages: Sequence[Message], report: Callable[[Change], None]) -> Iterator[Message]:
    """Put a voice where a server misses one, and make late system messages the user's."""
    previous = ""
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if message.role == "system" and previous in ("assistant", "tool"):
            report(Change("MI-6", "replaced", f"{path}.role", "a system message amid the talk is now the user's"))
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
        if message.role in ("assistant", "tool") and previous in ("", "system") and not _said(messages[:i]):
            report(Change("MI-1", "added", path, "a user message before the assistant's first"))
            yield Message("user", (Text(CONTINUE_LINE),))
        if message.role == "user" and previous == "tool":
            report(Change("MI-1", "added", path, "an assistant message between tool and user"))
            yield Message("assistant", (Text(BRIDGE),))
        yield message
        previous = message.role
    if previous == "assistant" and not (messages[-1].raw or {}).get("prefix"):
        report(Change("MI-3", "added", "messages", "a user message at the end"))
        yield Message("user", (Text(CONTINUE_LINE),))
    elif previous == "system":
        report(Change("VL-2", "added", "messages", "a user message"))
        yield Message("user", (Text(CONTINUE_LINE),))


def _said(messages: Sequence[Message]) -> bool:
    return any(message.role == "user" for message in messages)

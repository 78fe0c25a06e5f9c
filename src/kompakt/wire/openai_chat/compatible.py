"""Rules that servers compatible with OpenAI Chat add: the strictest common ground.

Mistral's order and ids (MI), DeepSeek's reasoning (DS), what chat templates raise on (VL). A history that keeps these
goes anywhere; they are checked and mended only under ``strict``, since OpenAI itself does not ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import msgspec

from kompakt.model.contract import IdRule
from kompakt.model.messages import Json, JsonObject, Message, Reasoning, Text, ToolCall
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE
from kompakt.wire.fields import compact_json, model_of
from kompakt.wire.openai_chat.messages import is_custom
from kompakt.wire.pair_repair import PairRules
from kompakt.wire.problems import Change, Problem

MAX_MESSAGES = 2048
"""Reported, never confirmed, limit of the API itself (OC-9)."""

_OLD_REASONER = "deepseek-reasoner"
"""Refuses reasoning sent back on plain answers (DS-2); its successors ignore it there."""

_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def pair_rules(base: PairRules) -> PairRules:
    """Return a rules_for_pairs that also gives calls the ids Mistral's older tokenizers ask for (MI-5)."""
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
    for j, call in enumerate(_calls(raw)):
        function = call.get("function") or {}
        where = f"{path}.tool_calls[{j}]"
        if not _ID.fullmatch(call.get("id") or ""):
            yield Problem("MI-5", f"{where}.id", "the id must be nine letters and digits")
        if function and not _NAME.fullmatch(function.get("name") or ""):
            yield Problem("MI-7", f"{where}.function.name", f"no server takes the name {function.get('name')!r}", False)
        if type(function.get("arguments")) is str and not is_json(function["arguments"]):
            yield Problem("OC-8", f"{where}.function.arguments", "arguments are not valid JSON")


def _calls(raw: JsonObject) -> list[JsonObject]:
    return raw.get("tool_calls") or [] if raw["role"] == "assistant" else []


def is_json(text: str) -> bool:
    """Tell whether a text is JSON."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
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
    model = model_of(body) or ""
    if not _thinks(items, model):
        return []
    message = "in thinking mode an assistant message with calls must carry reasoning_content"
    found = [
        Problem("DS-2", f"messages[{i}].reasoning_content", f"{model} takes no reasoning back on a plain answer")
        for i, raw in enumerate(items)
        if model == _OLD_REASONER and "reasoning_content" in raw and not _calls(raw)
    ]
    return found + [
        Problem("DS-1", f"messages[{i}].reasoning_content", message)
        for i, raw in enumerate(items)
        if _calls(raw) and type(raw.get("reasoning_content")) is not str
    ]


def _thinks(items: Iterable[JsonObject], model: str) -> bool:
    return "deepseek" in model or any("reasoning_content" in raw for raw in items)


# --- repair ------------------------------------------------------------------------------------------------------


def repair(messages: Sequence[Message], model: str | None = None) -> tuple[list[Message], list[Change]]:
    """Repair what compatible servers refuse; say what was done."""
    changes: list[Change] = []
    thinks = _thinks((message.raw for message in messages if message.raw is not None), model or "")
    refuses = model == _OLD_REASONER
    repaired = [_repair_message(message, i, thinks, refuses, changes) for i, message in enumerate(messages)]
    return list(_in_order(repaired, changes.append)), changes


def _repair_message(message: Message, i: int, thinks: bool, refuses: bool, changes: list[Change]) -> Message:
    path = f"messages[{i}]"
    raw: JsonObject = message.raw or {}
    calls = message.calls if raw.get("tool_calls") else ()
    if refuses and not calls and "reasoning_content" in raw:
        changes.append(Change("DS-2", "stripped", f"{path}.reasoning_content", f"{_OLD_REASONER} takes none back"))
        bare = {key: value for key, value in raw.items() if key != "reasoning_content"}
        kept = tuple(part for part in message.parts if type(part) is not Reasoning)
        return msgspec.structs.replace(message, raw=bare, parts=kept)
    if thinks and calls and type(raw.get("reasoning_content")) is not str:
        changes.append(Change("DS-1", "added", f"{path}.reasoning_content", "an empty reasoning text"))
        others = (part for part in message.parts if type(part) is not Reasoning)
        message = message.with_parts((Reasoning(""), *others))
    if any(map(_is_unquoted, calls)):
        changes.append(Change("OC-8", "replaced", f"{path}.tool_calls", "arguments that are no JSON are now quoted"))
        message = message.with_parts(_quoted(part) if type(part) is ToolCall else part for part in message.parts)
    return message


def _is_unquoted(call: ToolCall) -> bool:
    """Tell whether the arguments of a function are no JSON; a custom tool takes any text."""
    raw: object = call.raw
    custom = isinstance(raw, dict) and is_custom(cast("JsonObject", raw))
    return type(call.input) is str and not custom and not is_json(call.input)


def _quoted(call: ToolCall) -> ToolCall:
    if not _is_unquoted(call):
        return call
    return msgspec.structs.replace(call, input=compact_json({"raw": call.input}), edited=True)


def _in_order(messages: Sequence[Message], report: Callable[[Change], None]) -> Iterator[Message]:
    """Add a message where a server misses one, and turn late system messages into the user's."""
    previous = ""
    asked = False
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if _role(message) == "system" and previous in ("assistant", "tool"):
            report(Change("MI-6", "replaced", f"{path}.role", "a system message amid the talk is now the user's"))
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
        role = _role(message)
        if role in ("assistant", "tool") and (i == 0 or (previous == "system" and not asked)):
            report(Change("MI-1", "added", path, "a user message before the assistant's first"))
            yield Message("user", (Text(CONTINUE_LINE),))
            asked = True
        if role == "user" and previous == "tool":
            report(Change("MI-1", "added", path, "an assistant message between tool and user"))
            yield Message("assistant", (Text(BRIDGE),))
        yield message
        previous = role
        asked = asked or role == "user"
    if previous == "assistant" and not (messages[-1].raw or {}).get("prefix"):
        report(Change("MI-3", "added", "messages", "a user message at the end"))
        yield Message("user", (Text(CONTINUE_LINE),))
    elif messages and not asked:
        report(Change("VL-2", "added", "messages", "a user message"))
        if previous == "tool":
            yield Message("assistant", (Text(BRIDGE),))
        yield Message("user", (Text(CONTINUE_LINE),))


def _role(message: Message) -> str:
    """Name the role that a server sees."""
    raw: JsonObject = message.raw if type(message.raw) is dict else {"role": message.role}
    return _voice(raw)

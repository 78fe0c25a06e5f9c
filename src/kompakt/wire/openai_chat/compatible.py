"""Rules of servers that are compatible with OpenAI Chat, checked and repaired only with ``strict``.

Mistral's message order and ids (MI), DeepSeek's reasoning (DS), and what chat templates reject (VL). A history that
follows all of them works with every server.

Sources: https://docs.mistral.ai/api, the validator in mistral-common, https://api-docs.deepseek.com/guides/thinking_mode
and the chat templates that vLLM and llama.cpp run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import msgspec

from kompakt.model.contract import IdRule
from kompakt.model.json import compact_json
from kompakt.model.messages import Json, JsonObject, Message, Reasoning, Text, ToolCall
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE
from kompakt.wire.fields import model_of
from kompakt.wire.openai_chat.messages import calls_of, is_custom
from kompakt.wire.pair_repair import PairRules
from kompakt.wire.wire import Change, Problem

MAX_MESSAGES = 2048
"""A limit of the API that was reported but never confirmed (OC-9)."""

_OLD_REASONER = "deepseek-reasoner"
"""Rejects reasoning sent back on answers without calls (DS-2); later models ignore it there."""

_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def pair_rules(base: PairRules) -> PairRules:
    """Return rules that also give calls the ids that older tokenizers of Mistral require (MI-5)."""
    rule = IdRule(pattern=_ID.pattern, max_length=9, scope="message")
    contract = msgspec.structs.replace(base.contract, ids=rule)
    codes = msgspec.structs.replace(base.codes, bad_id="MI-5")
    return msgspec.structs.replace(base, contract=contract, codes=codes)


def problems(items: Sequence[Json], body: JsonObject | None) -> list[Problem]:
    """List what at least one compatible server would reject."""
    found = [problem for i, raw in enumerate(items) for problem in _message_problems(raw, i)]
    found += _order_problems(items)
    found += _reasoning_problems(items, body)
    if len(items) > MAX_MESSAGES:
        found.append(
            Problem("OC-9", "messages", f"{len(items)} messages; some servers accept at most {MAX_MESSAGES}", False)
        )
    if items and not any(raw["role"] == "user" for raw in items):
        found.append(Problem("VL-2", "messages", "there is no user message"))
    return found


def _message_problems(raw: JsonObject, i: int) -> Iterator[Problem]:
    path = f"messages[{i}]"
    if raw["role"] == "tool" and not _ID.fullmatch(raw.get("tool_call_id") or ""):
        yield Problem("MI-5", f"{path}.tool_call_id", "the id must have nine letters and digits")
    for j, call in enumerate(calls_of(raw)):
        function = call.get("function") or {}
        where = f"{path}.tool_calls[{j}]"
        if not _ID.fullmatch(call.get("id") or ""):
            yield Problem("MI-5", f"{where}.id", "the id must have nine letters and digits")
        if function and not _NAME.fullmatch(function.get("name") or ""):
            yield Problem(
                "MI-7", f"{where}.function.name", f"servers reject the function name {function.get('name')!r}", False
            )
        if type(function.get("arguments")) is str and not is_json(function["arguments"]):
            yield Problem("OC-8", f"{where}.function.arguments", "arguments are not valid JSON")


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _order_problems(items: Sequence[Json]) -> list[Problem]:
    found: list[Problem] = []
    previous = ""
    for i, raw in enumerate(items):
        role = _role_of(raw)
        if role == "user" and previous == "tool":
            found.append(Problem("MI-1", f"messages[{i}].role", "a user message follows a tool message"))
        if role == "system" and previous in ("assistant", "tool"):
            found.append(Problem("MI-6", f"messages[{i}].role", f"a system message follows a {previous} message"))
        if role in ("assistant", "tool") and i == 0:
            found.append(Problem("MI-1", "messages[0].role", f"the first message is a {role} message"))
        previous = role
    if previous == "assistant" and not items[-1].get("prefix"):
        found.append(Problem("MI-3", f"messages[{len(items) - 1}]", "the last message is an assistant message"))
    return found


def _role_of(raw: JsonObject) -> str:
    return "system" if raw["role"] == "developer" else raw["role"]


def _reasoning_problems(items: Sequence[Json], body: JsonObject | None) -> list[Problem]:
    model = model_of(body) or ""
    if not _thinks(items, model):
        return []
    message = "in thinking mode an assistant message with calls needs reasoning_content"
    found = [
        Problem("DS-2", f"messages[{i}].reasoning_content", f"{model} rejects reasoning on an answer without calls")
        for i, raw in enumerate(items)
        if model == _OLD_REASONER and "reasoning_content" in raw and not calls_of(raw)
    ]
    return found + [
        Problem("DS-1", f"messages[{i}].reasoning_content", message)
        for i, raw in enumerate(items)
        if calls_of(raw) and type(raw.get("reasoning_content")) is not str
    ]


def _thinks(items: Iterable[JsonObject], model: str) -> bool:
    return "deepseek" in model or any("reasoning_content" in raw for raw in items)


# --- repair ------------------------------------------------------------------------------------------------------


def repair(messages: Sequence[Message], model: str | None = None) -> tuple[list[Message], list[Change]]:
    """Repair what compatible servers reject and list the changes."""
    changes: list[Change] = []
    thinks = _thinks((message.raw for message in messages if message.raw is not None), model or "")
    refuses = model == _OLD_REASONER
    repaired = [_repair_message(message, i, thinks, refuses, changes) for i, message in enumerate(messages)]
    return list(_repair_order(repaired, changes.append)), changes


def _repair_message(message: Message, i: int, thinks: bool, refuses: bool, changes: list[Change]) -> Message:
    path = f"messages[{i}]"
    raw: JsonObject = message.raw or {}
    calls = message.calls if raw.get("tool_calls") else ()
    if refuses and not calls and "reasoning_content" in raw:
        changes.append(Change("DS-2", "stripped", f"{path}.reasoning_content", f"{_OLD_REASONER} rejects it"))
        bare = {key: value for key, value in raw.items() if key != "reasoning_content"}
        kept = tuple(part for part in message.parts if type(part) is not Reasoning)
        return msgspec.structs.replace(message, raw=bare, parts=kept)
    if thinks and calls and type(raw.get("reasoning_content")) is not str:
        thought = "".join(part.text for part in message.parts if type(part) is Reasoning)
        what = "the text of reasoning" if thought else "an empty reasoning text"
        changes.append(Change("DS-1", "added", f"{path}.reasoning_content", what))
        others = tuple(part for part in message.parts if type(part) is not Reasoning)
        message = msgspec.structs.replace(message, raw={**raw, "reasoning_content": thought})
        message = message.with_parts((Reasoning(thought), *others))
    if any(map(_lacks_json, calls)):
        changes.append(
            Change("OC-8", "replaced", f"{path}.tool_calls", "arguments that are not JSON are now wrapped in an object")
        )
        message = message.with_parts(_wrapped(part) if type(part) is ToolCall else part for part in message.parts)
    return message


def _lacks_json(call: ToolCall) -> bool:
    """Return whether the arguments of a function are not JSON; a custom tool accepts any text."""
    raw: object = call.raw
    custom = isinstance(raw, dict) and is_custom(cast("JsonObject", raw))
    return type(call.input) is str and not custom and not is_json(call.input)


def _wrapped(call: ToolCall) -> ToolCall:
    if not _lacks_json(call):
        return call
    return msgspec.structs.replace(call, input=compact_json({"raw": call.input}), edited=True)


def _repair_order(messages: Sequence[Message], report: Callable[[Change], None]) -> Iterator[Message]:
    """Add messages that a server requires, and turn later system messages into user messages."""
    previous = ""
    has_user = False
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if _role(message) == "system" and previous in ("assistant", "tool"):
            report(Change("MI-6", "replaced", f"{path}.role", "a later system message is now a user message"))
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
        role = _role(message)
        if role in ("assistant", "tool") and (i == 0 or (previous == "system" and not has_user)):
            report(Change("MI-1", "added", path, "a user message before the first assistant message"))
            yield Message("user", (Text(CONTINUE_LINE),))
            has_user = True
        if role == "user" and previous == "tool":
            report(Change("MI-1", "added", path, "an assistant message between tool and user"))
            yield Message("assistant", (Text(BRIDGE),))
        yield message
        previous = role
        has_user = has_user or role == "user"
    if previous == "assistant" and not (messages[-1].raw or {}).get("prefix"):
        report(Change("MI-3", "added", "messages", "a user message at the end"))
        yield Message("user", (Text(CONTINUE_LINE),))
    elif messages and not has_user:
        report(Change("VL-2", "added", "messages", "a user message"))
        if previous == "tool":
            yield Message("assistant", (Text(BRIDGE),))
        yield Message("user", (Text(CONTINUE_LINE),))


def _role(message: Message) -> str:
    """Return the role as servers read it."""
    raw: JsonObject = message.raw if type(message.raw) is dict else {"role": message.role}
    return _role_of(raw)

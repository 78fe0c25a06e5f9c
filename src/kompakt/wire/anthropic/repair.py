"""Repair a history so that Anthropic Messages accepts it.

The order matters: first each message by itself, then calls and results, then both ends, then the body. Thinking is
removed as a whole where it has lost its signature, and otherwise never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import msgspec

from kompakt.model.groups import PartPlace, pair
from kompakt.model.messages import (
    History,
    JsonObject,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from kompakt.model.phrases import CONTINUE_LINE, RESUME_LINE
from kompakt.wire.anthropic.messages import CONTRACT, MAX_BREAKPOINTS, build_block, render
from kompakt.wire.anthropic.rules import (
    BLOCK_KEYS,
    MESSAGE_KEYS,
    TOOL_CHANGES,
    blocks_of,
    breakpoints,
    fits_call,
    is_foreign,
    is_legal,
    offers,
    pauses,
    starts_thinking,
    system_fault,
    takes_prefill,
)
from kompakt.wire.fields import input_object
from kompakt.wire.pair_repair import PairCodes, PairRules, PlacePath, repair_pairs
from kompakt.wire.two_sided import SideCodes, split_by_side, with_repaired_parts
from kompakt.wire.wire import Change

Report: TypeAlias = Callable[[Change], None]


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Repair the messages of a history and list the changes."""
    del strict  # the rules of the API are already the strict ones
    changes: list[Change] = []
    report = changes.append
    pieces = [
        (i, piece)
        for i, message in enumerate(history)
        if i >= _leading(history)
        for piece in _repair_message(message, i, changes)
    ]

    def path(place: PartPlace, message: Message) -> str:
        del message
        return f"messages[{pieces[place.message][0]}].content[{place.part}]"

    messages = _repair_hosted([message for _, message in pieces], history.body, path, report)
    hosted_ids = frozenset(call.id for message in messages for call in message.calls if call.hosted)
    rules = msgspec.structs.replace(PAIR_RULES, reserved=hosted_ids)
    messages, paired = repair_pairs(messages, rules, path)
    changes += paired
    messages = _repair_toolsets(messages, report)
    messages = [message for message in messages if message.parts or _was_empty(message)]
    messages = _repair_system(messages, history, report)
    messages = list(_repair_ends(messages, history, report))
    return _repair_breakpoints(messages, history.body, report), changes


def _was_empty(message: Message) -> bool:
    """Return whether an assistant message came without content: the API accepts it, so it stays (AN-17)."""
    return message.role == "assistant" and not (message.raw or {}).get("content")


def _leading(history: History) -> int:
    """Count the system messages at the start, which move to the body if there is one."""
    if history.body is None:
        return 0
    return next((i for i, message in enumerate(history) if message.role != "system"), len(history))


# --- each message by itself --------------------------------------------------------------------------------------


def _repair_message(message: Message, i: int, changes: list[Change]) -> Iterator[Message]:
    """Yield a message without what the API rejects, in pieces where parts belong to the other side."""
    raw: JsonObject = message.raw
    path = f"messages[{i}]"
    report = changes.append
    if is_foreign(raw):
        yield message
        return
    extra = raw.keys() - MESSAGE_KEYS
    if extra:
        report(Change("AN-25", "stripped", path, f"unknown fields {', '.join(sorted(extra))}"))
        bare = {key: value for key, value in raw.items() if key in MESSAGE_KEYS}
        message = msgspec.structs.replace(message, raw=bare)
    parts = [
        kept
        for j, part in enumerate(message.parts)
        if (kept := _repair_part(part, message.role, f"{path}.content[{j}]", report)) is not None
    ]
    if parts and all(type(part) is Text and not part.text.strip() for part in parts):
        report(Change("AN-17", "dropped", f"{path}.content", "only white space"))
        parts = []
    if not parts and message.role != "assistant":
        report(Change("AN-17", "dropped", path, f"a {message.role} message without content"))
        return
    if not parts and raw.get("content") is None:
        report(Change("AN-17", "added", f"{path}.content", "an empty list"))
        message = message.with_parts(())
    message = with_repaired_parts(message, parts)
    yield from split_by_side(message, path, changes, codes=_SIDES, names=_ROLE_NAMES)


_SIDES = SideCodes(call="AN-1", result="AN-2", open_call="AN-8", stray_result="AN-9")
_ROLE_NAMES: dict[Role, str] = {"assistant": "assistant", "user": "user", "system": "system"}


def _repair_part(part: Part, role: str, path: str, report: Report) -> Part | None:
    """Return the part, a copy without what the API rejects, or ``None`` when it rejects all of it."""
    if type(part) is Text and not part.text:
        report(Change("AN-17", "dropped", path, "an empty text block"))
        return None
    if type(part) is Reasoning and (role != "assistant" or not part.blob):
        why = "thinking without its signature" if role == "assistant" else f"thinking in a {role} message"
        report(Change("AN-13", "dropped", path, why))
        return None
    if type(part) is Opaque and part.type in TOOL_CHANGES and role != "system":
        report(Change("AN-23", "dropped", path, f"a {part.type} block outside a system message"))
        return None
    raw: object = getattr(part, "raw", None)
    if isinstance(raw, dict):
        fields = cast("JsonObject", raw)
        known = BLOCK_KEYS.get(str(fields.get("type")))
        extra = fields.keys() - known if known is not None else frozenset[str]()
        if extra:
            code = "AN-24" if type(part) is Reasoning and "cache_control" in extra else "AN-25"
            report(Change(code, "stripped", path, f"fields {', '.join(sorted(extra))}"))
            part = msgspec.structs.replace(part, raw={key: fields[key] for key in fields if key not in extra})
    if type(part) is ToolCall and not isinstance(part.input, dict):
        report(Change("AN-25", "replaced", f"{path}.input", "the input is now an object"))
        part = msgspec.structs.replace(part, input=input_object(part.input), edited=True)
    return part


def _repair_hosted(messages: list[Message], body: JsonObject | None, path: PlacePath, report: Report) -> list[Message]:
    """Drop server calls without a result and server results without a call; the newest answer may have open calls."""
    pairs = pair(messages)
    last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
    waits = all(type(part) is ToolResult for message in messages[last + 1 :] for part in message.parts)
    drops: dict[PartPlace, str] = {}
    seen: set[str] = set()
    for i, message in enumerate(messages):
        for j, part in enumerate(message.parts):
            if type(part) is ToolCall and part.hosted:
                if part.id in seen or not is_legal(part.id):
                    drops[PartPlace(i, j)] = "AN-6" if part.id in seen else "AN-7"
                seen.add(part.id)
    for place in pairs.open:
        part = messages[place.message].parts[place.part]
        if type(part) is ToolCall and part.hosted:
            if place.message != last or not waits or not offers(body, part.name):
                drops[place] = "AN-8"
    for place in (*pairs.orphans, *pairs.duplicates):
        part = messages[place.message].parts[place.part]
        if type(part) is ToolResult and part.hosted:
            drops[place] = "AN-9"
    for call, result in pairs.answers.items():
        one, other = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        if type(one) is ToolCall and type(other) is ToolResult and (one.hosted or other.hosted):
            if call in drops or result < call or not fits_call(str(other.raw.get("type")), one.raw):
                drops[call], drops[result] = drops.get(call, "AN-8"), "AN-9"
    for place, code in drops.items():
        what = "a server result without its call" if code == "AN-9" else "a server call that cannot be sent"
        report(Change(code, "dropped", path(place, messages[place.message]), what))
    touched = {place.message for place in drops}
    return [
        message.with_parts(part for j, part in enumerate(message.parts) if PartPlace(i, j) not in drops)
        if i in touched
        else message
        for i, message in enumerate(messages)
    ]


def _repair_toolsets(messages: list[Message], report: Report) -> list[Message]:
    """Add the toolset name of a call to its result (AN-10)."""
    named: dict[PartPlace, Part] = {}
    for call, result in pair(messages).answers.items():
        one, other = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        toolset = one.raw.get("toolset_name") if type(one) is ToolCall and type(one.raw) is dict else None
        if toolset is None or type(other) is not ToolResult or type(other.raw) is not dict:
            continue
        if other.raw.get("toolset_name") != toolset:
            path = f"messages[{result.message}].content[{result.part}]"
            report(Change("AN-10", "added", path, f"toolset_name {toolset!r}"))
            named[result] = msgspec.structs.replace(other, raw={**other.raw, "toolset_name": toolset})
    repaired_messages = list(messages)
    for i in {place.message for place in named}:
        repaired_messages[i] = messages[i].with_parts(
            named.get(PartPlace(i, j), part) for j, part in enumerate(messages[i].parts)
        )
    return repaired_messages


# --- order -------------------------------------------------------------------------------------------------------


def _repair_system(messages: Sequence[Message], history: History, report: Report) -> list[Message]:
    """Turn system messages in forbidden places into user messages."""
    raws: list[JsonObject] = [render(message)[0] for message in messages]
    out: list[Message] = []
    for i, message in enumerate(messages):
        before = render(out[-1])[0] if out else None
        if system_fault(before, raws[i], raws[i + 1] if i + 1 < len(raws) else None, history.model):
            report(Change("AN-22", "replaced", f"messages[{i}].role", "a system message is now a user message"))
            kept = [part for part in message.parts if not (type(part) is Opaque and part.type in TOOL_CHANGES)]
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
            if len(kept) < len(message.parts):
                report(
                    Change("AN-23", "dropped", f"messages[{i}]", "tool changes, which only a system message can have")
                )
                message = message.with_parts(kept)
            if not kept:
                continue
        out.append(message)
    return out


def _repair_ends(messages: Sequence[Message], history: History, report: Report) -> Iterator[Message]:
    if messages and messages[0].role == "assistant" and not _is_compaction(messages[0]):
        report(Change("AN-21", "added", "messages[0]", "a user message before the first assistant message"))
        yield Message("user", (Text(RESUME_LINE),))
    yield from messages[:-1]
    if not messages:
        return
    last = messages[-1]
    if last.role != "assistant":
        yield last
    elif not takes_prefill(history.model) and not pauses(blocks_of(render(last)[0])):
        yield last
        report(Change("AN-19", "added", "messages", "a user message after the last assistant message"))
        yield Message("user", (Text(CONTINUE_LINE),))
    else:
        yield _trimmed(last, len(history) - 1, report)


def _is_compaction(message: Message) -> bool:
    return bool(message.parts) and type(message.parts[0]) is Opaque and message.parts[0].type == "compaction"


def _trimmed(message: Message, i: int, report: Report) -> Message:
    parts = list(message.parts)
    while parts and type(part := parts[-1]) is Text and part.text != part.text.rstrip():
        parts.pop()
        if part.text.strip():
            parts.append(msgspec.structs.replace(part, text=part.text.rstrip(), edited=True))
    trimmed = with_repaired_parts(message, parts)
    if trimmed is not message:
        report(Change("AN-18", "replaced", f"messages[{i}]", "trailing white space removed"))
    return trimmed


# --- cache breakpoints and the body ------------------------------------------------------------------------------


def _repair_breakpoints(messages: list[Message], body: JsonObject | None, report: Report) -> list[Message]:
    """Keep the newest breakpoints within the limit; those of tools and system take precedence."""
    marks = breakpoints([render(message)[0] for message in messages], body)
    surplus = len(marks) - MAX_BREAKPOINTS
    if surplus <= 0:
        return messages
    dropped = {path for path, _ in [mark for mark in marks if mark[0].startswith("messages")][:surplus]}
    repaired_messages = list(messages)
    for i, message in enumerate(messages):
        if any(path.startswith(f"messages[{i}].") for path in dropped):
            parts = [_unmarked(part, f"messages[{i}].content[{j}]", dropped) for j, part in enumerate(message.parts)]
            repaired_messages[i] = message.with_parts(parts)
    for path in sorted(dropped):
        report(Change("AN-24", "stripped", path, "a cache breakpoint over the limit"))
    return repaired_messages


def _unmarked(part: Part, path: str, dropped: set[str]) -> Part:
    raw: object = getattr(part, "raw", None)
    if not isinstance(raw, dict):
        return part
    bare: JsonObject = dict(raw)
    if path in dropped:
        bare.pop("cache_control", None)
    inner = bare.get("content")
    if isinstance(inner, list):
        bare["content"] = [
            {key: value for key, value in block.items() if key != "cache_control"}
            if f"{path}.content[{k}]" in dropped
            else block
            for k, block in enumerate(inner)
        ]
    return msgspec.structs.replace(part, raw=bare)


def repair_body(history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
    """Repair the body: leading system messages, empty system text, breakpoints, thinking that cannot continue."""
    body = history.body
    changes: list[Change] = []
    if body is None:
        return None, changes
    repaired = dict(body)
    leading = history.messages[: _leading(history)]
    if leading:
        system = body.get("system") or []
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
        texts = [part for message in leading for part in message.parts if type(part) is Text]
        repaired["system"] = [*blocks, *(build_block(part) for part in texts)]
        changes.append(Change("AN-22", "moved", "messages[0]", "leading system messages are now in the system field"))
    _repair_body_system(repaired, changes)
    _repair_body_breakpoints(repaired, changes)
    if not starts_thinking([render(message)[0] for message in messages], repaired):
        repaired["thinking"] = {"type": "disabled"}
        changes.append(
            Change(
                "AN-12",
                "replaced",
                "thinking",
                "disabled for this request: the newest answer has lost its thinking block",
            )
        )
    return (repaired if changes else body), changes


def _repair_body_system(body: JsonObject, changes: list[Change]) -> None:
    system = body.get("system")
    if isinstance(system, str) and system and not system.strip():
        body["system"] = ""
        changes.append(Change("AN-17", "replaced", "system", "white space is now an empty string"))
    elif isinstance(system, list):
        blocks = cast("list[JsonObject]", system)
        kept = [b for b in blocks if b.get("type") != "text" or str(b.get("text") or "").strip()]
        if len(kept) < len(blocks):
            body["system"] = kept
            changes.append(Change("AN-17", "dropped", "system", "empty text blocks"))


def _repair_body_breakpoints(body: JsonObject, changes: list[Change]) -> None:
    """Strip the oldest breakpoints of tools and system where these alone exceed the limit."""
    marks = [path for path, _ in breakpoints([], body)]
    surplus = set(marks[: max(0, len(marks) - MAX_BREAKPOINTS)])
    for key in ("tools", "system"):
        if any(path.startswith(f"{key}[") for path in surplus):
            body[key] = [
                {name: value for name, value in entry.items() if name != "cache_control"}
                if f"{key}[{j}]" in surplus
                else entry
                for j, entry in enumerate(cast("list[JsonObject]", body[key]))
            ]
    changes.extend(Change("AN-24", "stripped", path, "a cache breakpoint over the limit") for path in sorted(surplus))


# --- pairs -------------------------------------------------------------------------------------------------------


def _answer(call: ToolCall, text: str) -> ToolResult:
    toolset: object = call.raw.get("toolset_name") if type(call.raw) is dict else None
    named = {"toolset_name": toolset} if toolset is not None else {}
    raw = {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True, **named}
    return ToolResult(call.id, text, call.name, is_error=True, raw=raw)


PAIR_RULES = PairRules(
    contract=CONTRACT,
    codes=PairCodes(
        open_call="AN-1",
        orphan_result="AN-2",
        duplicate_result="AN-5",
        misplaced_result="AN-4",
        bad_id="AN-7",
        reused_id="AN-6",
    ),
    result_role="user",
    answer=_answer,
)

"""Mend a history so that Anthropic Messages takes it.

Order matters and is the module's one idea: first each message by itself, then pairs, then the two ends, then what
belongs to the body. Thinking is removed whole where it lost its signature and otherwise never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from kompakt.model.messages import History, JsonObject, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.pairs import Place, pair
from kompakt.model.phrases import CONTINUE_LINE, RESUME_LINE
from kompakt.wire.anthropic import CONTRACT, MAX_BREAKPOINTS, render
from kompakt.wire.anthropic_rules import (
    BLOCK_KEYS,
    MESSAGE_KEYS,
    TOOL_CHANGES,
    blocks_of,
    breakpoints,
    fits_call,
    offers,
    pauses,
    starts_thinking,
    takes_prefill,
    takes_system,
)
from kompakt.wire.mending import Codes, Mender, mend_pairs
from kompakt.wire.problem import Change
from kompakt.wire.reading import parsed_input

Report: TypeAlias = Callable[[Change], None]


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Mend the messages of a history; say what was done."""
    del strict  # the API's own rules are the strict ones
    changes: list[Change] = []
    report = changes.append
    messages = [_mend_message(message, i, report) for i, message in enumerate(history)]
    messages = _mend_hosted(messages, history.body, report)
    messages, paired = mend_pairs(messages, MENDER)
    changes += paired
    messages = _mend_toolsets(messages, report)
    messages = [message for message in messages if message.parts or message.role == "assistant"]
    messages = list(_mend_system(messages, history, report))
    messages = list(_mend_ends(messages, history, report))
    return _mend_breakpoints(messages, history.body, report), changes


# --- each message by itself --------------------------------------------------------------------------------------


def _mend_message(message: Message, i: int, report: Report) -> Message:
    raw: JsonObject = message.raw
    path = f"messages[{i}]"
    extra = raw.keys() - MESSAGE_KEYS
    if extra:
        report(Change("AN-25", "stripped", path, f"unknown fields {', '.join(sorted(extra))}"))
        bare = {key: value for key, value in raw.items() if key in MESSAGE_KEYS}
        message = msgspec.structs.replace(message, raw=bare)
    parts = [
        kept
        for j, part in enumerate(message.parts)
        if (kept := _mend_part(part, message.role, f"{path}.content[{j}]", report))
    ]
    if parts and all(type(part) is Text and not part.text.strip() for part in parts):
        report(Change("AN-17", "dropped", f"{path}.content", "nothing but white space"))
        parts = []
    if not parts and message.role != "assistant" and message.raw.get("content") in ("", []):
        report(Change("AN-17", "dropped", path, f"a {message.role} message without content"))
    same = len(parts) == len(message.parts) and all(map(_is, parts, message.parts))
    return message if same else message.with_parts(parts)


def _is(one: object, other: object) -> bool:
    return one is other


def _mend_part(part: Part, role: str, path: str, report: Report) -> Part | None:
    """Return the part, a copy without unknown fields, or nothing when the API would refuse it as it is."""
    if type(part) is Text and not part.text:
        report(Change("AN-17", "dropped", path, "an empty text block"))
        return None
    if type(part) is Reasoning and not part.blob:
        report(Change("AN-13", "dropped", path, "thinking without its signature"))
        return None
    if type(part) is Opaque and part.type in TOOL_CHANGES and role != "system":
        report(Change("AN-23", "dropped", path, f"a {part.type} block outside a system message"))
        return None
    if type(part) is ToolCall and not isinstance(part.input, dict):
        report(Change("AN-25", "replaced", f"{path}.input", "the input is now an object"))
        return msgspec.structs.replace(part, input=parsed_input(part.input), edited=True)
    raw: object = getattr(part, "raw", None)
    if not isinstance(raw, dict):
        return part
    known = BLOCK_KEYS.get(str(raw.get("type")))
    if known is None or not raw.keys() - known:
        return part
    code = "AN-24" if type(part) is Reasoning and "cache_control" in raw else "AN-25"
    report(Change(code, "stripped", path, f"fields {', '.join(sorted(raw.keys() - known))}"))
    bare = {key: value for key, value in raw.items() if key in known}
    return msgspec.structs.replace(part, raw=bare)


def _mend_hosted(messages: list[Message], body: JsonObject | None, report: Report) -> list[Message]:
    """Drop server calls without a result and server results without a call; the newest answer may wait for its own."""
    pairs = pair(messages)
    last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
    waits = all(type(part) is ToolResult for message in messages[last + 1 :] for part in message.parts)
    gone: dict[Place, str] = {}
    for place in pairs.open:
        part = messages[place.message].parts[place.part]
        if type(part) is ToolCall and part.hosted:
            if place.message != last or not waits or not offers(body, part.name):
                gone[place] = "AN-8"
    for place in pairs.orphans:
        part = messages[place.message].parts[place.part]
        if type(part) is ToolResult and part.hosted:
            gone[place] = "AN-9"
    for call, result in pairs.answers.items():
        one, other = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        if type(one) is ToolCall and type(other) is ToolResult and (one.hosted or other.hosted):
            if not fits_call(str(other.raw.get("type")), one.raw):
                gone[call], gone[result] = "AN-8", "AN-9"
    for place, code in gone.items():
        what = "a server call without a result" if code == "AN-8" else "a server result without its call"
        report(Change(code, "dropped", _path(place, messages[place.message]), what))
    touched = {place.message for place in gone}
    return [
        message.with_parts(part for j, part in enumerate(message.parts) if Place(i, j) not in gone)
        if i in touched
        else message
        for i, message in enumerate(messages)
    ]


def _mend_toolsets(messages: list[Message], report: Report) -> list[Message]:
    """Make results of a toolset's calls name the toolset (AN-10)."""
    named: dict[Place, Part] = {}
    for call, result in pair(messages).answers.items():
        one, other = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        toolset = one.raw.get("toolset_name") if type(one) is ToolCall and type(one.raw) is dict else None
        if toolset is None or type(other) is not ToolResult or type(other.raw) is not dict:
            continue
        if other.raw.get("toolset_name") != toolset:
            report(Change("AN-10", "added", _path(result, messages[result.message]), f"toolset_name {toolset!r}"))
            named[result] = msgspec.structs.replace(other, raw={**other.raw, "toolset_name": toolset})
    mended = list(messages)
    for i in {place.message for place in named}:
        mended[i] = messages[i].with_parts(named.get(Place(i, j), part) for j, part in enumerate(messages[i].parts))
    return mended


# --- order -------------------------------------------------------------------------------------------------------


def _mend_system(messages: Sequence[Message], history: History, report: Report) -> Iterator[Message]:
    """Make system messages that stand where they may not the user's; leading ones are the body's to take."""
    for i, message in enumerate(messages):
        if message.role != "system":
            yield message
            continue
        before = messages[i - 1].role if i else "nothing"
        after = messages[i + 1].role if i + 1 < len(messages) else "assistant"
        if takes_system(history.model) and before in ("user", "tool") and after == "assistant":
            yield message
        elif before == "nothing" and _hoistable(history):
            continue
        else:
            report(Change("AN-22", "replaced", f"messages[{i}].role", "a system message is now the user's"))
            yield msgspec.structs.replace(message, role="user", raw={**message.raw, "role": "user"})


def _hoistable(history: History) -> bool:
    return history.body is not None and not isinstance(history.body.get("system"), dict)


def _mend_ends(messages: Sequence[Message], history: History, report: Report) -> Iterator[Message]:
    if messages and messages[0].role == "assistant" and not _is_compaction(messages[0]):
        report(Change("AN-21", "added", "messages[0]", "a line from the user's side before the assistant's first"))
        yield Message("user", (Text(RESUME_LINE),))
    yield from messages[:-1]
    if not messages:
        return
    last = messages[-1]
    if last.role != "assistant":
        yield last
    elif not takes_prefill(history.model) and not pauses(blocks_of(render(last)[0])):
        yield last
        report(Change("AN-19", "added", "messages", "a line from the user's side behind the assistant's last"))
        yield Message("user", (Text(CONTINUE_LINE),))
    else:
        yield _trimmed(last, len(history) - 1, report)


def _is_compaction(message: Message) -> bool:
    return bool(message.parts) and type(message.parts[0]) is Opaque and message.parts[0].type == "compaction"


def _trimmed(message: Message, i: int, report: Report) -> Message:
    part = message.parts[-1] if message.parts else None
    if type(part) is not Text or part.text == part.text.rstrip():
        return message
    report(Change("AN-18", "replaced", f"messages[{i}]", "white space at the very end is gone"))
    return message.with_parts(
        (*message.parts[:-1], msgspec.structs.replace(part, text=part.text.rstrip(), edited=True))
    )


# --- cache breakpoints and the body ------------------------------------------------------------------------------


def _mend_breakpoints(messages: list[Message], body: JsonObject | None, report: Report) -> list[Message]:
    """Keep the newest breakpoints that the limit allows; tools and system have theirs first."""
    marks = breakpoints([render(message)[0] for message in messages], body)
    surplus = len(marks) - MAX_BREAKPOINTS
    if surplus <= 0:
        return messages
    dropped = {path for path, _ in [mark for mark in marks if mark[0].startswith("messages")][:surplus]}
    mended = list(messages)
    for i, message in enumerate(messages):
        if any(path.startswith(f"messages[{i}].") for path in dropped):
            parts = [_unmarked(part, f"messages[{i}].content[{j}]", dropped) for j, part in enumerate(message.parts)]
            mended[i] = message.with_parts(parts)
    for path in sorted(dropped):
        report(Change("AN-24", "stripped", path, "a cache breakpoint over the limit"))
    return mended


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
    """Mend what stands beside the messages: leading system messages, empty system text, thinking that cannot go on."""
    body = history.body
    changes: list[Change] = []
    if body is None:
        return None, changes
    mended = dict(body)
    leading = []
    for message in history:
        if message.role != "system":
            break
        leading.append({"type": "text", "text": message.text})
    leading = [block for block in leading if block["text"].strip()]
    if leading and _hoistable(history):
        system = body.get("system") or []
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
        mended["system"] = [*blocks, *leading]
        changes.append(Change("AN-22", "moved", "messages[0]", "leading system messages are now the body's system"))
    _mend_body_system(mended, changes)
    if not starts_thinking([render(message)[0] for message in messages], mended):
        mended["thinking"] = {"type": "disabled"}
        changes.append(Change("AN-12", "replaced", "thinking", "off for this request: the newest answer lost its own"))
    return (mended if changes else body), changes


def _mend_body_system(body: JsonObject, changes: list[Change]) -> None:
    system = body.get("system")
    if isinstance(system, str) and system and not system.strip():
        body["system"] = ""
        changes.append(Change("AN-17", "replaced", "system", "white space is now an empty string"))
    elif isinstance(system, list):
        blocks: list[JsonObject] = system
        kept = [b for b in blocks if b.get("type") != "text" or str(b.get("text") or "").strip()]
        if len(kept) < len(blocks):
            body["system"] = kept
            changes.append(Change("AN-17", "dropped", "system", "empty text blocks"))


# --- pairs -------------------------------------------------------------------------------------------------------


def _answer(call: ToolCall, text: str) -> ToolResult:
    toolset: object = call.raw.get("toolset_name") if type(call.raw) is dict else None
    named = {"toolset_name": toolset} if toolset is not None else {}
    raw = {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True, **named}
    return ToolResult(call.id, text, call.name, is_error=True, raw=raw)


def _carry(results: Sequence[ToolResult]) -> Message:
    return Message("user", tuple(results))


def _path(place: Place, message: Message) -> str:
    del message
    return f"messages[{place.message}].content[{place.part}]"


MENDER = Mender(
    contract=CONTRACT,
    codes=Codes(
        open_call="AN-1",
        orphan_result="AN-2",
        duplicate_result="AN-5",
        misplaced_result="AN-4",
        bad_id="AN-7",
        reused_id="AN-6",
    ),
    answer=_answer,
    carry=_carry,
    path=_path,
    expects_result=lambda call: not call.hosted,
)

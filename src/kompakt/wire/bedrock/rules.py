"""Rules of Bedrock Converse (BR-1 to BR-8) and the repair of histories that break them.

Problems are found in the wire form. Repair works on the parsed messages, so valid messages are not touched.
``repair_body`` repairs the two things outside the messages: tool definitions, which any tool block requires (BR-3), and
extended thinking that an open turn can no longer satisfy (BR-8).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from kompakt.model.groups import PartPlace
from kompakt.model.messages import (
    History,
    Json,
    JsonObject,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from kompakt.model.phrases import BRIDGE, NO_OUTPUT
from kompakt.wire.bedrock.messages import CONTRACT, HOSTED, MAX_CACHE_POINTS, MAX_ID, ROLES, kind_of, mixes, render
from kompakt.wire.fields import enables_thinking, input_object, model_of
from kompakt.wire.pair_repair import PairCodes, PairRules
from kompakt.wire.two_sided import SideCodes, Sides, TwoSidedRepair
from kompakt.wire.wire import Change, Problem

_ID = re.compile(CONTRACT.ids.pattern)
_NAME = re.compile(r"[a-zA-Z0-9_-]+")

_FIELDS = frozenset(["role", "content"])

_SIGNS = re.compile(r"anthropic|claude")
"""Models whose reasoning has a signature; others send plain reasoning text."""


def _signs(model: str | None) -> bool:
    return model is None or bool(_SIGNS.search(model))


# --- problems ----------------------------------------------------------------------------------------------------


class _Turn(NamedTuple):
    """A message as the rules see it; ``role`` is empty for an unknown role."""

    role: str
    kinds: list[tuple[str, Any]]
    uses: list[str]
    """Ids of tool uses that the client has to answer."""
    results: list[str]
    """Ids of results that the client sends."""


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where Bedrock would reject these messages, rule by rule."""
    if not items:
        return [Problem("BR-4", "messages", "there is no message; a request needs at least one", False)]
    turns = [_read_turn(raw) for raw in items]
    found: list[Problem] = []
    seen: dict[str, bool] = {}
    signs = _signs(model_of(body, "modelId", "model"))
    for i, turn in enumerate(turns):
        found += _message_problems(items[i], turn, f"messages[{i}]")
        for j, (kind, value) in enumerate(turn.kinds):
            found += _block_problems(kind, value, f"messages[{i}].content[{j}]", seen, signs)
        found += _pair_problems(turns, i)
        found += _hosted_problems(turn, i)
    found += _order_problems(turns)
    found += _body_problems(items, turns, body)
    if strict:
        found += _strict_problems(turns)
    return found


def _read_turn(raw: JsonObject) -> _Turn:
    role = raw["role"] if raw["role"] in ROLES else ""
    blocks: list[JsonObject] = (raw.get("content") or []) if role else []
    kinds: list[tuple[str, Any]] = [(kind, block.get(kind)) for block in blocks for kind in (kind_of(block),)]
    served = {value.get("toolUseId") for kind, value in kinds if kind == "toolUse" and value.get("type") == HOSTED}
    uses = [_id(value) for kind, value in kinds if kind == "toolUse" and value.get("type") != HOSTED]
    results = [_id(value) for kind, value in kinds if kind == "toolResult" and not _is_hosted(value, role, served)]
    return _Turn(role, kinds, uses, results)


def _id(value: JsonObject) -> str:
    return value.get("toolUseId") or ""


def _is_hosted(result: JsonObject, role: str, served: set[Any]) -> bool:
    return role == "assistant" and (_id(result) in served or "type" in result)


def _message_problems(raw: JsonObject, turn: _Turn, path: str) -> Iterator[Problem]:
    if not turn.role:
        yield Problem("BR-7", f"{path}.role", f"unknown role {raw['role']!r}", False)
        return
    for key in raw.keys() - _FIELDS:
        yield Problem("BR-7", f"{path}.{key}", "a message has no such field")
    if all(kind in ("", "cachePoint") for kind, _ in turn.kinds):
        yield Problem("BR-6", f"{path}.content", "a message needs at least one block with content")
    elif turn.role != "assistant" and any(kind == "toolUse" for kind, _ in turn.kinds):
        yield Problem("BR-1", path, f"a toolUse in a {turn.role} message; it belongs to the assistant")
    elif turn.role != "user" and turn.results:
        yield Problem("BR-2", path, f"a toolResult in an {turn.role} message; it belongs to the user")


def _block_problems(kind: str, value: Any, path: str, seen: dict[str, bool], signs: bool) -> Iterator[Problem]:
    if not kind:
        yield Problem("BR-6", path, "an empty block")
    elif kind == "text" and not value.strip():
        yield Problem("BR-6", f"{path}.text", "a blank text")
    elif kind == "toolUse":
        yield from _use_problems(value, f"{path}.toolUse", seen)
    elif kind == "toolResult":
        yield from _result_problems(value, f"{path}.toolResult")
    elif kind == "reasoningContent" and signs and _is_unsigned(value):
        yield Problem("BR-8", f"{path}.reasoningContent", "reasoning without its signature")


def _use_problems(use: JsonObject, path: str, seen: dict[str, bool]) -> Iterator[Problem]:
    call_id, name, hosted = _id(use), use.get("name") or "", use.get("type") == HOSTED
    if not _ID.fullmatch(call_id) or len(call_id) > MAX_ID:
        yield Problem("BR-7", f"{path}.toolUseId", f"an id has 1 to {MAX_ID} letters, digits or _ . : -", not hosted)
    elif call_id in seen:
        message = f"two tool uses have the id {call_id!r}"
        yield Problem("BR-7", f"{path}.toolUseId", message, not (hosted or seen[call_id]))
    seen[call_id] = hosted
    if not _NAME.fullmatch(name) or len(name) > MAX_ID:
        yield Problem("BR-7", f"{path}.name", f"a tool name has 1 to {MAX_ID} letters, digits or _ -")
    if type(use.get("input")) is not dict:
        yield Problem("BR-7", f"{path}.input", "the input of a tool must be an object")


def _result_problems(result: JsonObject, path: str) -> Iterator[Problem]:
    content = result.get("content")
    if content is None:
        yield Problem("BR-7", f"{path}.content", "a toolResult needs content, which may be an empty list")
    elif not content and result.get("status") == "error":
        yield Problem("BR-6", f"{path}.content", "a toolResult with status error needs content")
    elif any(_is_blank(item) for item in content):
        yield Problem("BR-6", f"{path}.content", "a blank text in a toolResult")
    if result.get("status") not in (None, "success", "error"):
        yield Problem("BR-7", f"{path}.status", f"the status is success or error, not {result['status']!r}")


def _is_blank(item: JsonObject) -> bool:
    return type(item.get("text")) is str and not item["text"].strip()


def _is_unsigned(reasoning: JsonObject) -> bool:
    return reasoning.get("redactedContent") is None and not (reasoning.get("reasoningText") or {}).get("signature")


def _pair_problems(turns: Sequence[_Turn], i: int) -> Iterator[Problem]:
    turn = turns[i]
    if turn.role == "assistant" and turn.uses:
        given = turns[i + 1].results if i + 1 < len(turns) and turns[i + 1].role == "user" else []
        for call_id in turn.uses:
            if call_id not in given:
                yield Problem("BR-1", f"messages[{i}]", f"the next message has no toolResult for {call_id!r}")
    if turn.role != "user" or not turn.results:
        return
    called = turns[i - 1].uses if i and turns[i - 1].role == "assistant" else []
    for call_id, count in Counter(turn.results).items():
        if call_id not in called:
            yield Problem("BR-2", f"messages[{i}]", f"the message before has no toolUse for result {call_id!r}")
        elif count > 1:
            yield Problem("BR-2", f"messages[{i}]", f"tool use {call_id!r} has {count} results")
    if any(kind != "toolResult" for kind, _ in turn.kinds[: len(turn.results)]):
        yield Problem("BR-1", f"messages[{i}]", "toolResult blocks must precede all other blocks")


def _hosted_problems(turn: _Turn, i: int) -> Iterator[Problem]:
    """Find tool uses that Bedrock ran itself and that have no result, and such results without their tool use."""
    if turn.role != "assistant":
        return
    waiting: dict[str, int] = {}
    for j, (kind, value) in enumerate(turn.kinds):
        if kind == "toolUse" and value.get("type") == HOSTED:
            waiting[_id(value)] = j
        elif kind == "toolResult" and _id(value) not in turn.results and waiting.pop(_id(value), None) is None:
            yield Problem("BR-2", f"messages[{i}].content[{j}]", "a server tool result without its toolUse before it")
    for j in waiting.values():
        yield Problem("BR-1", f"messages[{i}].content[{j}]", "a server toolUse without its result")


def _order_problems(turns: Sequence[_Turn]) -> Iterator[Problem]:
    if turns[0].role == "assistant":
        yield Problem("BR-4", "messages[0].role", "the first message must be the user's")
    for i, (earlier, later) in enumerate(pairwise(turns), start=1):
        if earlier.role == later.role and later.role in ("user", "assistant"):
            yield Problem("BR-4", f"messages[{i}].role", f"two {later.role} messages in a row; roles must alternate")
    for i, turn in enumerate(turns):
        if turn.role != "system":
            continue
        follows = turns[i + 1].role if i + 1 < len(turns) else "assistant"
        if i == 0 or turns[i - 1].role != "user" or follows != "assistant":
            message = "a system message must follow a user message and precede an assistant message"
            is_text = all(kind in ("text", "cachePoint") for kind, _ in turn.kinds)
            yield Problem("BR-4", f"messages[{i}].role", message, is_text)


def _body_problems(items: Sequence[Json], turns: Sequence[_Turn], body: JsonObject | None) -> Iterator[Problem]:
    tools = any(kind in ("toolUse", "toolResult") for turn in turns for kind, _ in turn.kinds)
    if body is not None and tools and not (body.get("toolConfig") or {}).get("tools"):
        yield Problem("BR-3", "toolConfig", "tools must be defined while the messages contain tool blocks")
    if manual_thinking(body) and _lacks_opening_thought(items):
        message = "with extended thinking an open turn must start with reasoningContent"
        yield Problem("BR-8", "additionalModelRequestFields.thinking", message)
    fixed = _fixed_cache_points(body)
    count = fixed + sum(kind == "cachePoint" for turn in turns for kind, _ in turn.kinds)
    if count > MAX_CACHE_POINTS:
        message = f"{count} cache points; the limit is {MAX_CACHE_POINTS} per request"
        yield Problem("BR-8", "messages", message, fixed <= MAX_CACHE_POINTS)


def manual_thinking(body: JsonObject | None) -> bool:
    """Return whether a request passes Claude's extended thinking with a token budget through to the model."""
    return enables_thinking((body or {}).get("additionalModelRequestFields"))


def _lacks_opening_thought(items: Sequence[Json]) -> bool:
    """Return whether the history ends in a tool round whose turn does not start with reasoning."""
    if not items or "toolResult" not in _kinds(items[-1]):
        return False
    opening: JsonObject | None = None
    for raw in items[:-1]:
        if raw["role"] == "user" and not _kinds(raw) <= {"toolResult", "cachePoint"}:
            opening = None
        elif raw["role"] == "assistant" and opening is None:
            opening = raw
    content = (opening or {}).get("content") or [{}]
    return kind_of(content[0]) != "reasoningContent"


def _kinds(raw: JsonObject) -> set[str]:
    return {kind_of(block) for block in raw.get("content") or ()} if raw["role"] in ROLES else set()


def _fixed_cache_points(body: JsonObject | None) -> int:
    """Count the cache points outside the messages."""
    given: JsonObject = body or {}
    places: list[Any] = [given.get("system") or [], (given.get("toolConfig") or {}).get("tools") or []]
    return sum("cachePoint" in block for place in places for block in place)


def _strict_problems(turns: Sequence[_Turn]) -> Iterator[Problem]:
    """Find what only some models reject."""
    for i, turn in enumerate(turns):
        mixed = any(kind not in ("toolResult", "cachePoint") for kind, _ in turn.kinds)
        if turn.role == "user" and turn.results and mixed:
            yield Problem("BR-5", f"messages[{i}]", "some models accept no other content beside tool results")
    if turns[-1].role == "assistant":
        yield Problem("BR-4", f"messages[{len(turns) - 1}].role", "newer models do not continue an assistant message")


# --- repair ------------------------------------------------------------------------------------------------------


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Repair the messages of a history and list the changes."""
    work = TwoSidedRepair(history, _SIDES)
    results_apart = strict or not mixes(history.model)
    messages: list[Message] = []
    for i, message in enumerate(history):
        messages += _repair_message(message, i, work, signs=_signs(history.model))
    messages = work.merged(messages, ["assistant"], results_apart=False)
    messages = [work.without_unpaired_hosted(message) for message in messages]
    messages = work.paired(_without_results_of_hosted_calls(messages, work))
    messages = _repair_system([message for message in messages if _has_content(message, work)], work)
    messages = work.merged(messages, ["assistant", "user"], results_apart=results_apart)
    if strict:
        messages = [piece for message in messages for piece in _split_results(message, work)]
    if history.messages:
        messages = work.with_user_ends(messages, last=strict or history[-1].role != "assistant")
    return _repair_cache_points(messages, history.body, work), work.changes


def repair_body(history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
    """Repair tool definitions and thinking for the repaired messages; ``None`` where there was no body."""
    body = history.body
    changes: list[Change] = []
    if body is None:
        return None, changes
    calls = [part for message in messages for part in message.parts if type(part) is ToolCall]
    config: JsonObject = body.get("toolConfig") or {}
    if calls and not config.get("tools"):
        stubs = [_stub(call) for call in {call.name: call for call in calls}.values()]
        changes.append(Change("BR-3", "added", "toolConfig", f"definitions of {len(stubs)} tools, by name only"))
        body = {**body, "toolConfig": {**config, "tools": stubs}}
    if manual_thinking(body) and _lacks_opening_thought([wire for message in messages for wire in render(message)]):
        fields = {key: value for key, value in body["additionalModelRequestFields"].items() if key != "thinking"}
        message = "thinking is off: the open turn has lost the reasoning that extended thinking requires"
        changes.append(Change("BR-8", "stripped", "additionalModelRequestFields.thinking", message))
        body = {**body, "additionalModelRequestFields": fields}
    return body, changes


def _stub(call: ToolCall) -> JsonObject:
    """Define a tool of which only the name is known."""
    if call.hosted:
        return {"systemTool": {"name": call.name}}
    return {"toolSpec": {"name": call.name, "inputSchema": {"json": {"type": "object"}}}}


def _is_cache_point(part: Part) -> bool:
    return type(part) is Opaque and part.type == "cachePoint"


# --- each message


def _repair_message(message: Message, i: int, work: TwoSidedRepair, *, signs: bool) -> Iterator[Message]:
    """Repair one message by itself; yield it, its pieces, or nothing."""
    if work.is_foreign(message):
        yield message
        return

    def repair_part(part: Part, path: str) -> Part | None:
        if _drops(part, path, work, signs=signs):
            return None
        if type(part) is ToolCall:
            return _repair_use(part, path, work)
        return _repair_result(part, path, work) if type(part) is ToolResult and part.raw is not None else part

    path = f"messages[{i}]"
    yield from work.repaired(_repair_fields(message, path, work), path, repair_part, empty_code="BR-6")


def _repair_fields(message: Message, path: str, work: TwoSidedRepair) -> Message:
    unknown = sorted(message.raw.keys() - _FIELDS) if type(message.raw) is dict else []
    if not unknown:
        return message
    work.report("BR-7", "stripped", path, f"unknown fields {', '.join(unknown)}")
    raw = {key: value for key, value in message.raw.items() if key in _FIELDS}
    return msgspec.structs.replace(message, raw=raw)


def _drops(part: Part, path: str, work: TwoSidedRepair, *, signs: bool) -> bool:
    """Return whether a part has to be dropped, and report it."""
    if type(part) is Text and not part.text.strip():
        work.report("BR-6", "dropped", path, "a blank text")
    elif type(part) is Opaque and not part.type:
        work.report("BR-6", "dropped", path, "an empty block")
    elif type(part) is Reasoning and signs and part.raw is not None and _is_unsigned(part.raw["reasoningContent"]):
        work.report("BR-8", "stripped", path, "reasoning without its signature")
    else:
        return False
    return True


def _repair_use(call: ToolCall, path: str, work: TwoSidedRepair) -> ToolCall:
    if not _NAME.fullmatch(call.name) or len(call.name) > MAX_ID:
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:MAX_ID] or "unnamed"
        work.report("BR-7", "renamed", f"{path}.toolUse.name", f"the tool name is now {name!r}")
        call = msgspec.structs.replace(call, name=name, edited=True)
    if type(call.input) is not dict:
        work.report("BR-7", "replaced", f"{path}.toolUse.input", "the input is now an object")
        call = msgspec.structs.replace(call, input=input_object(call.input), edited=True)
    return call


def _repair_result(result: ToolResult, path: str, work: TwoSidedRepair) -> ToolResult:
    if next(_result_problems(result.raw["toolResult"], path), None) is None:
        return result
    inner: JsonObject = dict(result.raw["toolResult"])
    if inner.get("status") not in (None, "success", "error"):
        work.report("BR-7", "stripped", f"{path}.toolResult.status", "an unknown status")
        del inner["status"]
    content: list[JsonObject] = inner.get("content") or []
    kept = [item for item in content if not _is_blank(item)]
    if not kept and (content or inner.get("status") == "error"):
        kept = [{"text": NO_OUTPUT}]
    if kept != inner.get("content"):
        code = "BR-7" if inner.get("content") is None else "BR-6"
        work.report(code, "replaced", f"{path}.toolResult.content", "content without blank texts")
        inner["content"] = kept
    return msgspec.structs.replace(result, raw={**result.raw, "toolResult": inner})


def _without_results_of_hosted_calls(messages: Sequence[Message], work: TwoSidedRepair) -> Iterator[Message]:
    """Drop results that the client sends for tool uses which Bedrock ran and answered itself."""
    hosted = {call.id for message in messages for call in message.calls if call.hosted}
    for message in messages:
        extra = [result for result in message.results if not result.hosted and result.call_id in hosted]
        for part in extra:
            work.report("BR-2", "dropped", part, "the server has already answered this call")
        kept = (part for part in message.parts if not any(part is one for one in extra))
        yield message.with_parts(kept) if extra else message


# --- all messages together


def _has_content(message: Message, work: TwoSidedRepair) -> bool:
    """Return whether a message still has content after results have left it."""
    if not all(map(_is_cache_point, message.parts)):
        return True
    work.report("BR-6", "dropped", message.parts[0], "a message with nothing but a cache point")
    return False


def _repair_system(messages: Sequence[Message], work: TwoSidedRepair) -> list[Message]:
    """Turn system messages in forbidden places into user messages."""
    out: list[Message] = []
    for i, message in enumerate(messages):
        follows = messages[i + 1].role if i + 1 < len(messages) else "assistant"
        after_user = bool(out) and out[-1].role == "user" and not work.is_foreign(out[-1])
        is_text = all(type(part) is Text or _is_cache_point(part) for part in message.parts)
        if message.role == "system" and is_text and not (after_user and follows == "assistant"):
            work.report("BR-4", "replaced", message.parts[0], "a system message is now a user message")
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
        out.append(message)
    return out


def _split_results(message: Message, work: TwoSidedRepair) -> Iterator[Message]:
    """Yield results and other content as two messages with an assistant message between them (BR-5)."""
    is_result = [type(part) is ToolResult or _is_cache_point(part) for part in message.parts]
    if message.role != "user" or not message.results or all(is_result):
        yield message
        return
    first = is_result.index(False)
    work.report("BR-5", "moved", message.parts[first], "other content is now in a message after the tool results")
    yield message.with_parts(message.parts[:first])
    yield Message("assistant", (Text(BRIDGE),))
    yield message.with_parts(message.parts[first:])


def _repair_cache_points(messages: Sequence[Message], body: JsonObject | None, work: TwoSidedRepair) -> list[Message]:
    """Keep the newest cache points within the limit."""
    places = [
        PartPlace(i, j) for i, m in enumerate(messages) for j, part in enumerate(m.parts) if _is_cache_point(part)
    ]
    surplus = min(len(places), max(0, _fixed_cache_points(body) + len(places) - MAX_CACHE_POINTS))
    out = list(messages)
    for i, group in groupby(places[:surplus], key=lambda place: place.message):
        dropped = {place.part for place in group}
        for j in sorted(dropped):
            work.report("BR-8", "stripped", messages[i].parts[j], "a cache point over the limit")
        out[i] = messages[i].with_parts(part for j, part in enumerate(messages[i].parts) if j not in dropped)
    return out


_SIDES = Sides(
    items="messages",
    parts="content",
    roles=ROLES,
    names={"assistant": "assistant", "user": "user", "system": "system"},
    codes=SideCodes(call="BR-1", result="BR-2", open_call="BR-1", stray_result="BR-2"),
    order_code=lambda message: "BR-4",
    pairs=PairRules(
        contract=CONTRACT,
        codes=PairCodes(
            open_call="BR-1",
            orphan_result="BR-2",
            duplicate_result="BR-2",
            misplaced_result="BR-1",
            bad_id="BR-7",
            reused_id="BR-7",
        ),
        result_role="user",
        answer=lambda call, text: ToolResult(call.id, text, call.name, is_error=True),
    ),
    is_filler=_is_cache_point,
)

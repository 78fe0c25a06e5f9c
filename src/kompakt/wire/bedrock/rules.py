"""What Bedrock Converse refuses, and how such a history is mended.

Problems are found on the wire form; mending goes through the parsed messages, so what stands right is not touched.
Two things stand in the request beside the messages and are mended by ``repair_body``: the tool definitions that any
tool block asks for (BR-3) and manual thinking that an open turn can no longer serve (BR-8).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from kompakt.model.messages import (
    History,
    Json,
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
from kompakt.model.pairs import PartPlace
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE, NO_OUTPUT, RESUME_LINE
from kompakt.wire.bedrock.messages import CONTRACT, HOSTED, MAX_CACHE_POINTS, MAX_ID, ROLES, kind_of, mixes, render
from kompakt.wire.fields import as_object, enables_thinking, model_of
from kompakt.wire.pair_repair import PairCodes, PairRules, repair_pairs
from kompakt.wire.problems import Change, Problem
from kompakt.wire.two_sided import SideCodes, drop_unpaired_hosted, paths, split_by_side

_ID = re.compile(CONTRACT.ids.pattern)
_NAME = re.compile(r"[a-zA-Z0-9_-]+")

_FIELDS = frozenset(["role", "content"])

_SIGNS = re.compile(r"anthropic|claude")
"""Models whose reasoning carries a signature; others send plain reasoning text."""


def _signs(model: str | None) -> bool:
    return model is None or bool(_SIGNS.search(model))


# --- problems ----------------------------------------------------------------------------------------------------


_SIDES = SideCodes(call="BR-1", result="BR-2", open_call="BR-1", stray_result="BR-2")
_SPEAKERS: dict[Role, str] = {"assistant": "assistant", "user": "user", "system": "system"}


class _Turn(NamedTuple):
    """A message as the rules see it; ``role`` is empty when Converse has no such role."""

    role: str
    kinds: list[tuple[str, Any]]
    uses: list[str]
    """The ids of tool uses that the client has to answer."""
    results: list[str]
    """The ids of the results that the client gives."""


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where Bedrock would refuse these messages, rule by rule."""
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
        yield Problem("BR-7", f"{path}.role", f"there is no role {raw['role']!r}", False)
        return
    for key in raw.keys() - _FIELDS:
        yield Problem("BR-7", f"{path}.{key}", "a message has no such field")
    if all(kind in ("", "cachePoint") for kind, _ in turn.kinds):
        yield Problem("BR-6", f"{path}.content", "a message needs at least one block that says something")
    elif turn.role != "assistant" and any(kind == "toolUse" for kind, _ in turn.kinds):
        yield Problem("BR-1", path, f"a toolUse stands in a {turn.role} message; it is the assistant's")
    elif turn.role != "user" and turn.results:
        yield Problem("BR-2", path, f"a toolResult stands in an {turn.role} message; it is the user's")


def _block_problems(kind: str, value: Any, path: str, seen: dict[str, bool], signs: bool) -> Iterator[Problem]:
    if not kind:
        yield Problem("BR-6", path, "this block is empty")
    elif kind == "text" and not value.strip():
        yield Problem("BR-6", f"{path}.text", "this text is blank")
    elif kind == "toolUse":
        yield from _use_problems(value, f"{path}.toolUse", seen)
    elif kind == "toolResult":
        yield from _result_problems(value, f"{path}.toolResult")
    elif kind == "reasoningContent" and signs and _is_unsigned(value):
        yield Problem("BR-8", f"{path}.reasoningContent", "reasoning without the signature that proves it")


def _use_problems(use: JsonObject, path: str, seen: dict[str, bool]) -> Iterator[Problem]:
    call_id, name, hosted = _id(use), use.get("name") or "", use.get("type") == HOSTED
    if not _ID.fullmatch(call_id) or len(call_id) > MAX_ID:
        yield Problem("BR-7", f"{path}.toolUseId", f"an id has 1 to {MAX_ID} letters, digits or _ . : -", not hosted)
    elif call_id in seen:
        message = f"id {call_id!r} names two tool uses"
        yield Problem("BR-7", f"{path}.toolUseId", message, not (hosted or seen[call_id]))
    seen[call_id] = hosted
    if not _NAME.fullmatch(name) or len(name) > MAX_ID:
        yield Problem("BR-7", f"{path}.name", f"the name of a tool has 1 to {MAX_ID} letters, digits or _ -")
    if type(use.get("input")) is not dict:
        yield Problem("BR-7", f"{path}.input", "the input of a tool must be an object")


def _result_problems(result: JsonObject, path: str) -> Iterator[Problem]:
    content = result.get("content")
    if content is None:
        yield Problem("BR-7", f"{path}.content", "a toolResult must have content, be it an empty list")
    elif not content and result.get("status") == "error":
        yield Problem("BR-6", f"{path}.content", "a toolResult with status error must say something")
    elif any(_is_blank(item) for item in content):
        yield Problem("BR-6", f"{path}.content", "a text of this toolResult is blank")
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
                yield Problem("BR-1", f"messages[{i}]", f"the next message holds no toolResult for {call_id!r}")
    if turn.role != "user" or not turn.results:
        return
    asked = turns[i - 1].uses if i and turns[i - 1].role == "assistant" else []
    for call_id, count in Counter(turn.results).items():
        if call_id not in asked:
            yield Problem("BR-2", f"messages[{i}]", f"no toolUse in the message before asks for result {call_id!r}")
        elif count > 1:
            yield Problem("BR-2", f"messages[{i}]", f"tool use {call_id!r} is answered {count} times")
    if any(kind != "toolResult" for kind, _ in turn.kinds[: len(turn.results)]):
        yield Problem("BR-1", f"messages[{i}]", "toolResult blocks must stand before all other blocks")


def _hosted_problems(turn: _Turn, i: int) -> Iterator[Problem]:
    """Find tool uses that Bedrock ran itself and that lost their result, or the other way round."""
    if turn.role != "assistant":
        return
    waiting: dict[str, int] = {}
    for j, (kind, value) in enumerate(turn.kinds):
        if kind == "toolUse" and value.get("type") == HOSTED:
            waiting[_id(value)] = j
        elif kind == "toolResult" and _id(value) not in turn.results and waiting.pop(_id(value), None) is None:
            yield Problem("BR-2", f"messages[{i}].content[{j}]", "a result without the server's tool use before it")
    for j in waiting.values():
        yield Problem("BR-1", f"messages[{i}].content[{j}]", "a tool use of the server without its result")


def _order_problems(turns: Sequence[_Turn]) -> Iterator[Problem]:
    if turns[0].role == "assistant":
        yield Problem("BR-4", "messages[0].role", "the conversation begins with the assistant, not with the user")
    for i, (earlier, later) in enumerate(pairwise(turns), start=1):
        if earlier.role == later.role and later.role in ("user", "assistant"):
            yield Problem("BR-4", f"messages[{i}].role", f"two {later.role} messages in a row; roles must alternate")
    for i, turn in enumerate(turns):
        if turn.role != "system":
            continue
        follows = turns[i + 1].role if i + 1 < len(turns) else "assistant"
        if i == 0 or turns[i - 1].role != "user" or follows != "assistant":
            message = "a system message may stand only behind a user message and before the assistant's"
            said = all(kind in ("text", "cachePoint") for kind, _ in turn.kinds)
            yield Problem("BR-4", f"messages[{i}].role", message, said)


def _body_problems(items: Sequence[Json], turns: Sequence[_Turn], body: JsonObject | None) -> Iterator[Problem]:
    tools = any(kind in ("toolUse", "toolResult") for turn in turns for kind, _ in turn.kinds)
    if body is not None and tools and not (body.get("toolConfig") or {}).get("tools"):
        yield Problem("BR-3", "toolConfig", "tools must be defined as long as the messages hold tool blocks")
    if manual_thinking(body) and _lacks_opening_thought(items):
        message = "with manual thinking the open turn must begin with reasoningContent"
        yield Problem("BR-8", "additionalModelRequestFields.thinking", message)
    fixed = _fixed_cache_points(body)
    count = fixed + sum(kind == "cachePoint" for turn in turns for kind, _ in turn.kinds)
    if count > MAX_CACHE_POINTS:
        message = f"{count} cache points; a model takes {MAX_CACHE_POINTS} in one request"
        yield Problem("BR-8", "messages", message, fixed <= MAX_CACHE_POINTS)


def manual_thinking(body: JsonObject | None) -> bool:
    """Return whether a request passes Claude's extended thinking with a token budget through to the model."""
    return enables_thinking((body or {}).get("additionalModelRequestFields"))


def _lacks_opening_thought(items: Sequence[Json]) -> bool:
    """Tell whether the history ends in a tool round whose turn does not begin with reasoning."""
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
    """Count the cache points beside the messages."""
    given: JsonObject = body or {}
    places: list[Any] = [given.get("system") or [], (given.get("toolConfig") or {}).get("tools") or []]
    return sum("cachePoint" in block for place in places for block in place)


def _strict_problems(turns: Sequence[_Turn]) -> Iterator[Problem]:
    """Find what only some models refuse."""
    for i, turn in enumerate(turns):
        words = any(kind not in ("toolResult", "cachePoint") for kind, _ in turn.kinds)
        if turn.role == "user" and turn.results and words:
            yield Problem("BR-5", f"messages[{i}]", "some models take no words beside tool results in one message")
    if turns[-1].role == "assistant":
        yield Problem("BR-4", f"messages[{len(turns) - 1}].role", "newer models do not continue the assistant's words")


# --- repair ------------------------------------------------------------------------------------------------------


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Mend a history so that Bedrock takes it; say what was done."""
    changes: list[Change] = []
    path = paths(history, messages="messages", parts="content")
    signs = _signs(history.model)
    apart = strict or not mixes(history.model)
    messages: list[Message] = []
    for i, message in enumerate(history):
        messages += _mend_message(message, i, changes, signs=signs)
    spoken = _merged(messages, path, changes, "assistant", apart=False)
    messages = [drop_unpaired_hosted(message, path, changes, codes=_SIDES) for message in spoken]
    messages = _without_doubles(messages, path, changes)
    rules_for_pairs = msgspec.structs.replace(PAIR_RULES, path=lambda place, message: path(message.parts[place.part]))
    messages, paired = repair_pairs([message for message in messages if message.parts], rules_for_pairs)
    changes += paired
    messages = _placed([message for message in messages if _speaks(message, path, changes)], path, changes)
    messages = _merged(messages, path, changes, "assistant", apart=apart)
    messages = _merged(messages, path, changes, "user", apart=apart)
    if strict:
        messages = [piece for message in messages for piece in _unmixed(message, path, changes)]
    if history.messages:
        messages = _framed(messages, changes, ends=strict or history[-1].role != "assistant")
    return _mend_cache_points(messages, history.body, path, changes), changes


def repair_body(history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
    """Mend what stands beside the messages, given the messages as they are now; ``None`` where there was no body."""
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
        message = "thinking is off: the open turn lost the reasoning that manual thinking asks for"
        changes.append(Change("BR-8", "stripped", "additionalModelRequestFields.thinking", message))
        body = {**body, "additionalModelRequestFields": fields}
    return body, changes


def _stub(call: ToolCall) -> JsonObject:
    """Define a tool of which only the name is known."""
    if call.hosted:
        return {"systemTool": {"name": call.name}}
    return {"toolSpec": {"name": call.name, "inputSchema": {"json": {"type": "object"}}}}


def _is_foreign(message: Message) -> bool:
    """Tell a message whose role nobody knows: it is passed on as it is and belongs to no side."""
    return type(message.raw) is dict and message.raw.get("role", "user") not in ROLES


def _is_cache_point(part: Part) -> bool:
    return type(part) is Opaque and part.type == "cachePoint"


# --- each message by itself


def _mend_message(message: Message, i: int, changes: list[Change], *, signs: bool) -> Iterator[Message]:
    """Put right what one message shows by itself; yield it, what it has to be split into, or nothing."""
    if _is_foreign(message):
        yield message
        return
    path = f"messages[{i}]"
    message = _mend_fields(message, path, changes)
    kept: list[Part] = []
    for j, part in enumerate(message.parts):
        where = f"{path}.content[{j}]"
        if _drops(part, where, changes, signs=signs):
            continue
        if type(part) is ToolCall:
            part = _mend_use(part, where, changes)
        elif type(part) is ToolResult and part.raw is not None:
            part = _mend_result(part, where, changes)
        kept.append(part)
    if len(kept) < len(message.parts) or any(a is not b for a, b in zip(kept, message.parts, strict=True)):
        message = message.with_parts(kept)
    if all(map(_is_cache_point, kept)):
        changes.append(Change("BR-6", "dropped", path, "a message that says nothing"))
        return
    yield from split_by_side(message, path, changes, codes=_SIDES, names=_SPEAKERS)


def _mend_fields(message: Message, path: str, changes: list[Change]) -> Message:
    unknown = sorted(message.raw.keys() - _FIELDS) if type(message.raw) is dict else []
    if not unknown:
        return message
    changes.append(Change("BR-7", "stripped", path, f"fields that a message does not have: {', '.join(unknown)}"))
    raw = {key: value for key, value in message.raw.items() if key in _FIELDS}
    return msgspec.structs.replace(message, raw=raw)


def _drops(part: Part, path: str, changes: list[Change], *, signs: bool) -> bool:
    """Tell whether a part has to go, and say so."""
    if type(part) is Text and not part.text.strip():
        changes.append(Change("BR-6", "dropped", path, "a blank text"))
    elif type(part) is Opaque and not part.type:
        changes.append(Change("BR-6", "dropped", path, "an empty block"))
    elif type(part) is Reasoning and signs and part.raw is not None and _is_unsigned(part.raw["reasoningContent"]):
        changes.append(Change("BR-8", "stripped", path, "reasoning without its signature"))
    else:
        return False
    return True


def _mend_use(call: ToolCall, path: str, changes: list[Change]) -> ToolCall:
    if not _NAME.fullmatch(call.name) or len(call.name) > MAX_ID:
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:MAX_ID] or "unnamed"
        changes.append(Change("BR-7", "renamed", f"{path}.toolUse.name", f"the name of the tool is now {name!r}"))
        call = msgspec.structs.replace(call, name=name, edited=True)
    if type(call.input) is not dict:
        changes.append(Change("BR-7", "replaced", f"{path}.toolUse.input", "the input is now an object"))
        call = msgspec.structs.replace(call, input=as_object(call.input), edited=True)
    return call


def _mend_result(result: ToolResult, path: str, changes: list[Change]) -> ToolResult:
    if next(_result_problems(result.raw["toolResult"], path), None) is None:
        return result
    inner: JsonObject = dict(result.raw["toolResult"])
    if inner.get("status") not in (None, "success", "error"):
        changes.append(Change("BR-7", "stripped", f"{path}.toolResult.status", "a status that there is not"))
        del inner["status"]
    content: list[JsonObject] = inner.get("content") or []
    said = [item for item in content if not _is_blank(item)]
    if not said and (content or inner.get("status") == "error"):
        said = [{"text": NO_OUTPUT}]
    if said != inner.get("content"):
        code = "BR-7" if inner.get("content") is None else "BR-6"
        changes.append(Change(code, "replaced", f"{path}.toolResult.content", "content without a blank in it"))
        inner["content"] = said
    return msgspec.structs.replace(result, raw={**result.raw, "toolResult": inner})


def _without_doubles(messages: Sequence[Message], path: Callable[[Part], str], changes: list[Change]) -> list[Message]:
    """Drop results that the client gives for tool uses which Bedrock ran and answered itself."""
    served = {call.id for message in messages for call in message.calls if call.hosted}
    out = list(messages)
    for i, message in enumerate(messages):
        doubles = [result for result in message.results if not result.hosted and result.call_id in served]
        if doubles:
            changes.extend(Change("BR-2", "dropped", path(part), "the server answered this itself") for part in doubles)
            out[i] = message.with_parts(part for part in message.parts if not any(part is one for one in doubles))
    return out


# --- all messages together


def _speaks(message: Message, path: Callable[[Part], str], changes: list[Change]) -> bool:
    """Tell whether a message says anything, now that results have left it."""
    if not all(map(_is_cache_point, message.parts)):
        return True
    changes.append(Change("BR-6", "dropped", path(message.parts[0]), "a cache point with nothing left around it"))
    return False


def _placed(messages: Sequence[Message], path: Callable[[Part], str], changes: list[Change]) -> list[Message]:
    """Make a system message the user's where it may not stand."""
    out: list[Message] = []
    for i, message in enumerate(messages):
        follows = messages[i + 1].role if i + 1 < len(messages) else "assistant"
        behind_user = bool(out) and out[-1].role == "user" and not _is_foreign(out[-1])
        said = all(type(part) is Text or _is_cache_point(part) for part in message.parts)
        if message.role == "system" and said and not (behind_user and follows == "assistant"):
            changes.append(Change("BR-4", "replaced", path(message.parts[0]), "a system message is now the user's"))
            message = msgspec.structs.replace(message, role="user", raw={**(message.raw or {}), "role": "user"})
        out.append(message)
    return out


def _merged(
    messages: Sequence[Message], path: Callable[[Part], str], changes: list[Change], role: Role, *, apart: bool
) -> list[Message]:
    """Join neighbours of one role; ``apart`` keeps words from results by a line of the assistant's."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if last is None or not (last.role == message.role == role) or _is_foreign(last) or _is_foreign(message):
            out.append(message)
        elif role == "user" and apart and last.results:
            changes.append(Change("BR-4", "added", path(message.parts[0]), "a line of the assistant's before this"))
            out += [Message("assistant", (Text(BRIDGE),)), message]
        else:
            changes.append(Change("BR-4", "merged", path(message.parts[0]), "this message joined the one before it"))
            out[-1] = last.with_parts((*last.parts, *message.parts))
    return out


def _unmixed(message: Message, path: Callable[[Part], str], changes: list[Change]) -> Iterator[Message]:
    """Yield results and words as two messages with a line of the assistant's between them (BR-5)."""
    first = next((j for j, part in enumerate(message.parts) if not _stays_with_results(part)), len(message.parts))
    if message.role != "user" or not message.results or first == len(message.parts):
        yield message
        return
    changes.append(Change("BR-5", "moved", path(message.parts[first]), "words now stand apart from tool results"))
    yield message.with_parts(message.parts[:first])
    yield Message("assistant", (Text(BRIDGE),))
    yield message.with_parts(message.parts[first:])


def _stays_with_results(part: Part) -> bool:
    return type(part) is ToolResult or _is_cache_point(part)


def _framed(messages: Sequence[Message], changes: list[Change], *, ends: bool) -> list[Message]:
    """Let the user speak first, and with ``ends`` last: a prefill that the caller wrote may stay."""
    out = list(messages)
    if out and out[0].role == "assistant":
        changes.append(Change("BR-4", "added", "messages", "a user message at the beginning"))
        out.insert(0, Message("user", (Text(RESUME_LINE),)))
    if not out or (ends and out[-1].role == "assistant"):
        changes.append(Change("BR-4", "added", "messages", "a user message at the end"))
        out.append(Message("user", (Text(CONTINUE_LINE),)))
    return out


def _mend_cache_points(
    messages: Sequence[Message], body: JsonObject | None, path: Callable[[Part], str], changes: list[Change]
) -> list[Message]:
    """Keep the newest cache points that a request may have."""
    places = [
        PartPlace(i, j) for i, m in enumerate(messages) for j, part in enumerate(m.parts) if _is_cache_point(part)
    ]
    surplus = min(len(places), max(0, _fixed_cache_points(body) + len(places) - MAX_CACHE_POINTS))
    out = list(messages)
    for i, group in groupby(places[:surplus], key=lambda place: place.message):
        gone = {place.part for place in group}
        parts = messages[i].parts
        changes.extend(Change("BR-8", "stripped", path(parts[j]), "one cache point too many") for j in sorted(gone))
        out[i] = messages[i].with_parts(part for j, part in enumerate(parts) if j not in gone)
    return out


def _answer(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, text, call.name, is_error=True)


def _path(place: PartPlace, message: Message) -> str:
    return f"messages[{place.message}].content[{place.part}]"


def _expects_result(call: ToolCall) -> bool:
    """Tell whether the client runs the tool; what Bedrock ran itself is answered in the same message."""
    return not call.hosted


PAIR_RULES = PairRules(
    contract=CONTRACT,
    codes=PairCodes(
        open_call="BR-1",
        orphan_result="BR-2",
        duplicate_result="BR-2",
        misplaced_result="BR-1",
        bad_id="BR-7",
        reused_id="BR-7",
    ),
    answer=_answer,
    carry=lambda results: Message("user", tuple(results)),
    path=_path,
    expects_result=_expects_result,
)

"""Rules of OpenAI Responses (OR-1 to OR-12).

``repair`` uses the same faults and the same view of calls and outputs, so it repairs exactly what is reported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from kompakt.model.groups import Pairs, PartPlace, is_user_message, pair
from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject, Message, Opaque, ToolCall, ToolResult
from kompakt.wire.openai_responses.items import ANSWERED_BY, CALLS, MAX_CALL_ID, OUTPUTS, input_text, kind_of, parse
from kompakt.wire.wire import Action, Problem

MAX_OUTPUT = 10_485_760
MAX_COMPACTION = 20_971_520
"""Characters of one output and of a compaction (OR-8)."""

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""Required prefixes of ids (OR-7); the API is not known to reject others."""

_SPOKEN = {"message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_"}
"""Ids for which the server looks up the reasoning item that led to them (OR-3)."""

_NEEDS_CALL_ID = ANSWERED_BY.keys() - {"tool_search_call", "mcp_approval_request"}
_OTHERS = frozenset({"message", "reasoning", "compaction", "compaction_trigger", "item_reference"})
_KNOWN = _OTHERS | CALLS.keys() | OUTPUTS.keys() | {"additional_tools", "configuration_update"}
_ROLES = frozenset({"system", "developer", "user", "assistant"})

# --- faults of single items --------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault of one item and its repair."""

    code: str
    field: str
    message: str
    action: Action | None = "dropped"
    """``None`` when only the caller can repair it."""
    fix: Callable[[Json], Json] | None = None
    """Builds the replacement item; ``None`` drops the item."""


def item_faults(items: Sequence[Json], i: int, body: JsonObject | None) -> Iterator[Fault]:
    """List the faults that an item has by itself."""
    raw: Json = items[i]
    envelope = body or {}
    stored = envelope.get("store") is not False
    kind = kind_of(raw)
    if type(raw) is str:
        if len(items) > 1 or type(envelope.get("input")) is not str:
            message = "a string can only be the whole input; in a list it must be a message"
            yield Fault("OR-9", "", message, "replaced", _with_content)
        return
    if kind == "reasoning":
        yield from _reasoning_faults(raw, stored)
    elif kind == "compaction":
        yield from _compaction_faults(raw.get("encrypted_content"))
    elif kind == "item_reference" and not stored:
        yield Fault("OR-5", ".id", "with store=false the server has no item for this reference")
    elif kind == "compaction_trigger" and i != len(items) - 1:
        yield Fault("OR-10", "", "a compaction_trigger must be the last item")
    elif kind not in _KNOWN:
        yield Fault("OR-9", ".type", f"unknown item type {kind!r}", None)
    elif kind in OUTPUTS and any(len(text) > MAX_OUTPUT for text in _output_texts(raw, kind)):
        message = f"an output has at most {MAX_OUTPUT:,} characters"
        yield Fault("OR-8", f".{OUTPUTS[kind]}", message, "replaced", _cut)
    else:
        yield from _message_or_call_faults(raw, kind)


def _reasoning_faults(raw: JsonObject, stored: bool) -> Iterator[Fault]:
    blob = raw.get("encrypted_content")
    if not raw.get("id"):
        yield Fault("OR-9", ".id", "a reasoning item needs its id")
    elif not raw["id"].startswith("rs"):
        yield Fault("OR-7", ".id", f"the id of a reasoning item starts with 'rs', got {raw['id']!r}")
    if raw.get("summary") is None:
        yield Fault("OR-9", ".summary", "a reasoning item needs its summary, which may be empty")
    if blob is None:
        if not stored:
            message = "with store=false a reasoning item needs its encrypted_content"
            yield Fault("OR-5", ".encrypted_content", message)
    elif type(blob) is not str or not blob:
        yield Fault("OR-6", ".encrypted_content", "encrypted_content must be the string that the server sent")


def _compaction_faults(blob: Json) -> Iterator[Fault]:
    if type(blob) is not str:
        yield Fault("OR-6", ".encrypted_content", "encrypted_content must be the string that the server sent")
    elif not 1 <= len(blob) <= MAX_COMPACTION:
        message = f"encrypted_content has {len(blob):,} characters; the limit is 1 to {MAX_COMPACTION:,}"
        yield Fault("OR-8", ".encrypted_content", message)


def _message_or_call_faults(raw: JsonObject, kind: str) -> Iterator[Fault]:
    prefix, item_id = _PREFIXES.get(kind), raw.get("id")
    if kind in _NEEDS_CALL_ID and item_id and not raw.get("call_id"):
        yield Fault("OR-8", ".call_id", "a call needs its call_id", "added", _with_call_id)
    if prefix is not None and item_id is not None and not item_id.startswith(prefix):
        message = f"the id of this item starts with {prefix!r}, got {item_id!r}"
        yield Fault("OR-7", ".id", message, "stripped", without_id)
    if kind == "message":
        if raw["role"] not in _ROLES:
            yield Fault("OR-9", ".role", f"unknown role {raw['role']!r}", None)
        elif not raw.get("content") and raw.get("content") != "":
            yield Fault("OR-9", ".content", "a message needs content", "replaced", _with_content)
    elif kind in ("function_call", "custom_tool_call"):
        field = CALLS[kind].input
        if type(raw.get(field)) is not str:
            yield Fault("OR-9", f".{field}", f"{field} must be a string", "replaced", _with_input)
        if not raw.get("name"):
            yield Fault("OR-9", ".name", "a call needs the name of its tool", None)


def _with_content(item: Json) -> JsonObject:
    """Wrap a string in a message, or give a message empty content."""
    return {"role": "user", "content": item} if type(item) is str else {**item, "content": ""}


def _with_call_id(item: JsonObject) -> JsonObject:
    return {**item, "call_id": item["id"]}


def _with_input(item: JsonObject) -> JsonObject:
    field = CALLS[kind_of(item)].input
    return {**item, field: input_text(item.get(field))}


def without_id(item: JsonObject) -> JsonObject:
    """Copy an item without its id; calls and outputs pair by ``call_id``."""
    return {key: value for key, value in item.items() if key != "id"}


def _output_texts(raw: JsonObject, kind: str) -> Iterator[str]:
    value: Any = raw.get(OUTPUTS[kind])
    if type(value) is str:
        yield value
    elif kind != "tool_search_output" and type(value) is list:
        yield from (text for block in cast("list[Any]", value) for text in _block_texts(block).values())


def _block_texts(block: JsonObject) -> dict[str, str]:
    return {key: block[key] for key in ("text", "stdout", "stderr") if type(block.get(key)) is str}


def _cut(item: JsonObject) -> JsonObject:
    """Cut the texts of an output to ``MAX_OUTPUT``."""
    field = OUTPUTS[kind_of(item)]
    value: Any = item[field]
    if type(value) is str:
        return {**item, field: value[:MAX_OUTPUT]}
    cut = [{**block, **{key: text[:MAX_OUTPUT] for key, text in _block_texts(block).items()}} for block in value]
    return {**item, field: cut}


# --- calls and outputs -------------------------------------------------------------------------------------------


def pairing_view(messages: Sequence[Message], *, strict: bool) -> list[Message]:
    """Return the messages as the pairing rules see them.

    Calls that the provider runs and answers itself become opaque. A user message, a compaction, or text of a later
    answer must not come between a call and its output; these get the role ``system`` here. Text of the same answer and
    system or developer messages may: OpenAI accepts them (Codex sends its instructions there), while some compatible
    servers do not, so this is checked with ``strict`` only. Such a message becomes part of the answer that contains it.
    """
    view: list[Message] = []
    earlier: set[str] = set()
    """Open calls of earlier answers."""
    current: set[str] = set()
    """Open calls of the current answer."""
    last_role = ""
    for message in messages:
        kind = kind_of(message.raw)
        if message.role == "system" and not strict and (earlier or current):
            view.append(Message("assistant", (Opaque(kind, message.raw),), None, message.raw))
            continue
        if message.role == "assistant" and last_role != "assistant":
            earlier, current = earlier | current, set()
        last_role = message.role
        is_text = kind == "message" and message.role == "assistant"
        if kind in CALLS and kind not in ANSWERED_BY:
            message = Message("assistant", (Opaque(kind, message.raw),), None, message.raw)
        elif kind == "compaction" or (is_text and (earlier or (strict and current))):
            message = msgspec.structs.replace(message, role="system")
        current.update(call.id for call in message.calls if expects_result(call))
        for result in message.results:
            earlier.discard(result.call_id)
            current.discard(result.call_id)
        view.append(message)
    return view


def expects_result(call: ToolCall) -> bool:
    """Return whether the client must answer a call; of the provider's own calls only approval requests."""
    return not call.hosted or call.asks


def part_path(place: PartPlace, message: Message) -> str:
    """Return the path of the field that pairs a call or an output."""
    field = {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}.get(kind_of(message.raw))
    return f"input[{place.message}].{field or 'call_id'}"


def _is_legal(call_id: str) -> bool:
    return 1 <= len(call_id) <= MAX_CALL_ID


def is_managed(body: JsonObject | None) -> bool:
    """Return whether the server has earlier items, so that outputs here may answer calls stored there."""
    return any((body or {}).get(key) for key in ("previous_response_id", "conversation"))


def may_answer_stored_call(place: PartPlace, view: Sequence[Message]) -> bool:
    """Return whether the call of this output may be stored on the server."""
    return view[place.message].role == "tool" and _is_legal(result_at(view, place).call_id)


def result_at(view: Sequence[Message], place: PartPlace) -> ToolResult:
    """Return the result at a place."""
    part = view[place.message].parts[place.part]
    assert type(part) is ToolResult
    return part


def _call_at(view: Sequence[Message], place: PartPlace) -> ToolCall:
    part = view[place.message].parts[place.part]
    assert type(part) is ToolCall
    return part


def mismatched(view: Sequence[Message], pairs: Pairs) -> Iterator[tuple[PartPlace, PartPlace]]:
    """List calls that an output of another type answers."""
    for call, result in pairs.answers.items():
        kind = kind_of(view[call.message].raw)
        if kind in ANSWERED_BY and kind_of(view[result.message].raw) not in ANSWERED_BY[kind]:
            yield call, result


# --- ids and reasoning -------------------------------------------------------------------------------------------


def item_id_of(raw: Json) -> str | None:
    """Return the id of an item; the id of a local shell output belongs to its call."""
    return as_object(raw).get("id") or None if kind_of(raw) != "local_shell_call_output" else None


def approval_request_ids(messages: Sequence[Message]) -> set[str]:
    """Return the ids of approval requests; responses refer to them, so other items give way to them."""
    return {message.raw.get("id") or "" for message in messages if kind_of(message.raw) == "mcp_approval_request"}


def lacks_approval_request(message: Message, requested: set[str]) -> bool:
    """Return whether a call refers to an approval request that does not precede it."""
    return any(call.follows is not None and call.follows not in requested for call in message.calls)


def has_reasoning(messages: Sequence[Message]) -> bool:
    """Return whether any item is reasoning."""
    return any(kind_of(message.raw) == "reasoning" for message in messages)


def unfollowed_reasoning(messages: Sequence[Message]) -> list[int]:
    """List reasoning items after which the model neither writes nor calls anything."""
    found: list[int] = []
    followed = False
    for i in range(len(messages) - 1, -1, -1):
        kind = kind_of(messages[i].raw)
        if kind != "reasoning":
            followed = messages[i].role == "assistant" and kind != "compaction"
        elif not followed:
            found.append(i)
    return found


def items_without_reasoning(messages: Sequence[Message]) -> Iterator[int]:
    """List items that have a server id and no reasoning before them in their answer."""
    reasoned = False
    for i, message in enumerate(messages):
        kind = kind_of(message.raw)
        if message.role != "assistant" or kind == "compaction":
            reasoned = False
        elif kind in ("reasoning", "item_reference"):
            reasoned = True
        elif not reasoned and kind in _SPOKEN and (as_object(message.raw).get("id") or "").startswith(_SPOKEN[kind]):
            yield i


# --- problems ----------------------------------------------------------------------------------------------------

Located: TypeAlias = tuple[int, Problem]


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where OpenAI would reject these items, in order."""
    messages = parse(items, body).messages
    found: list[Located] = list(_body_problems(messages, body, strict))
    for i in range(len(items)):
        for fault in item_faults(items, i, body):
            path = f"input[{i}]{fault.field}"
            found.append((i, Problem(fault.code, path, fault.message, fault.action is not None)))
    found.extend(_pair_problems(pairing_view(messages, strict=strict), is_managed(body)))
    found.extend(_id_problems(messages, is_managed(body)))
    found.extend(_reasoning_problems(messages))
    return [problem for _, problem in sorted(found, key=lambda entry: entry[0])]


def _body_problems(messages: Sequence[Message], body: JsonObject | None, strict: bool) -> Iterator[Located]:
    envelope = body or {}
    if envelope.get("previous_response_id") and envelope.get("conversation"):
        message = "a request has previous_response_id or conversation, not both"
        yield -1, Problem("OR-11", "previous_response_id", message, False)
    if not messages and not is_managed(body) and not envelope.get("prompt"):
        yield -1, Problem("OR-9", "input", "the input is empty; a request needs at least one item", False)
    elif strict and not is_managed(body) and not any(map(is_user_message, messages)):
        yield -1, Problem("VL-2", "input", "there is no user message")


def _pair_problems(view: Sequence[Message], managed: bool) -> Iterator[Located]:
    pairs = pair(view)
    walls = [0]
    for message in view:
        walls.append(walls[-1] + (message.role not in ("assistant", "tool")))
    for place in pairs.open:
        if expects_result(_call_at(view, place)):
            message = f"no output answers call {_call_at(view, place).id!r}"
            yield place.message, Problem("OR-1", f"input[{place.message}]", message)
    for place in pairs.orphans:
        if not (managed and may_answer_stored_call(place, view)):
            message = f"no call has the id {result_at(view, place).call_id!r} of this output"
            yield place.message, Problem("OR-2", part_path(place, view[place.message]), message)
    for place in pairs.duplicates:
        message = f"a later output answers call {result_at(view, place).call_id!r} again"
        yield place.message, Problem("OR-2", part_path(place, view[place.message]), message)
    for call, result in pairs.answers.items():
        if expects_result(_call_at(view, call)) and walls[result.message] > walls[call.message]:
            message = f"another message is between call {_call_at(view, call).id!r} and this output"
            yield result.message, Problem("OR-1", f"input[{result.message}]", message)
        elif result < call:
            message = f"this output precedes its call {_call_at(view, call).id!r}"
            yield result.message, Problem("OR-2", part_path(result, view[result.message]), message)
    for call, result in mismatched(view, pairs):
        kind = kind_of(view[call.message].raw)
        message = f"a {kind} is answered by a {ANSWERED_BY[kind][0]}"
        yield result.message, Problem("OR-2", f"input[{result.message}].type", message)
    yield from _call_id_problems(view)


def _call_id_problems(view: Sequence[Message]) -> Iterator[Located]:
    used: set[str] = set()
    for i, message in enumerate(view):
        for part in message.parts:
            if type(part) is ToolCall and expects_result(part):
                if part.id in used:
                    path = part_path(PartPlace(i, 0), message)
                    yield i, Problem("OR-12", path, f"an earlier call has the same id {part.id!r}")
                used.add(part.id)
                illegal = not _is_legal(part.id)
            else:
                illegal = type(part) is ToolResult and not part.hosted and not _is_legal(part.call_id)
            if illegal:
                text = f"a call_id has 1 to {MAX_CALL_ID} characters"
                yield i, Problem("OR-8", part_path(PartPlace(i, 0), message), text)


def _id_problems(messages: Sequence[Message], managed: bool) -> Iterator[Located]:
    used = approval_request_ids(messages)
    requested: set[str] = set()
    for i, message in enumerate(messages):
        item_id = item_id_of(message.raw)
        if kind_of(message.raw) == "mcp_approval_request":
            requested.add(item_id or "")
        elif item_id is not None:
            if item_id in used:
                yield i, Problem("OR-12", f"input[{i}].id", f"another item has the same id {item_id!r}")
            used.add(item_id)
        if lacks_approval_request(message, requested) and not managed:
            yield i, Problem("OR-2", f"input[{i}].approval_request_id", "no earlier item is this approval request")


def _reasoning_problems(messages: Sequence[Message]) -> Iterator[Located]:
    for i in unfollowed_reasoning(messages):
        yield i, Problem("OR-4", f"input[{i}]", "the item that this reasoning led to must follow it")
    # Only the server knows whether an id needs reasoning. A history without any reasoning gives no hint. If there is
    # reasoning elsewhere, the model reasons, and an id without it has most likely lost it.
    if has_reasoning(messages):
        for i in items_without_reasoning(messages):
            yield i, Problem("OR-3", f"input[{i}].id", "the reasoning item that led to this item must precede it")

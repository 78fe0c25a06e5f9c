"""What OpenAI Responses refuses, and how such a history is mended.

Checking and mending look at the same faults through the same view, so what one names the other mends. Encrypted
content stays byte-equal or goes with its item; an item that stands right is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from kompakt.model.groups import is_user_message
from kompakt.model.messages import History, Json, JsonObject, Message, Opaque, Text, ToolCall, ToolResult
from kompakt.model.pairs import Pairs, Place, pair
from kompakt.model.phrases import CONTINUE_LINE
from kompakt.wire.openai_responses.items import (
    ANSWERED_BY,
    CALLS,
    CONTRACT,
    MAX_CALL_ID,
    OUTPUTS,
    answering_item,
    fields,
    json_text,
    kind_of,
    parse,
    parse_item,
    render,
)
from kompakt.wire.pair_repair import Codes, Mender, fresh_id, mend_pairs
from kompakt.wire.problems import Action, Change, Problem

MAX_OUTPUT = 10_485_760
MAX_COMPACTION = 20_971_520
"""Characters of one output and of a compaction (OR-8)."""

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""How ids must begin (OR-7); for other types no refusal has been seen."""

_SPOKEN = {"message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_"}
"""Ids by which the server looks for the reasoning that led to an item (OR-3)."""

_NEEDS_ID = frozenset(
    {"computer_call", "local_shell_call", "program", "program_output", "mcp_approval_request"}
    | {kind for kind, shape in CALLS.items() if shape.hosted}
)
"""Types that are refused without an id, so that a doubtful one is renamed."""

_GOES_WITH_ID = frozenset({"reasoning", "item_reference"})
"""Types that are nothing without their id: a doubtful one takes the item along."""

_NEEDS_CALL_ID = ANSWERED_BY.keys() - {"tool_search_call", "mcp_approval_request"}
_OTHERS = frozenset({"message", "reasoning", "compaction", "compaction_trigger", "item_reference"})
_KNOWN = _OTHERS | CALLS.keys() | OUTPUTS.keys() | {"additional_tools", "configuration_update"}
_ROLES = frozenset({"system", "developer", "user", "assistant"})

# --- faults of single items --------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What is wrong with one item, and how it is mended."""

    code: str
    field: str
    message: str
    action: Action | None = "dropped"
    """``None`` when nobody but the caller can mend it."""
    fix: Callable[[Json], Json] | None = None
    """Gives the item that takes its place; ``None`` when it goes."""


def _faults(raw: Json, *, last: bool, alone: bool, stored: bool) -> Iterator[Fault]:
    """List what is wrong with an item by itself."""
    kind = kind_of(raw)
    if type(raw) is str:
        if not alone:
            message = "a bare text can only be the whole input; among items it must be a message"
            yield Fault("OR-9", "", message, "replaced", _with_content)
        return
    if kind == "reasoning":
        yield from _reasoning_faults(raw, stored)
    elif kind == "compaction":
        yield from _compaction_faults(raw.get("encrypted_content"))
    elif kind == "item_reference" and not stored:
        yield Fault("OR-5", ".id", "nothing is stored, so a reference finds no item")
    elif kind == "compaction_trigger" and not last:
        yield Fault("OR-10", "", "a compaction_trigger must be the last item")
    elif kind not in _KNOWN:
        yield Fault("OR-9", ".type", f"there is no item type {kind!r} that kompakt knows", None)
    elif kind in OUTPUTS and any(len(text) > MAX_OUTPUT for text in _output_texts(raw, kind)):
        message = f"an output may have {MAX_OUTPUT:,} characters"
        yield Fault("OR-8", f".{OUTPUTS[kind]}", message, "replaced", _cut)
    else:
        yield from _spoken_faults(raw, kind)


def _reasoning_faults(raw: JsonObject, stored: bool) -> Iterator[Fault]:
    blob = raw.get("encrypted_content")
    if not raw.get("id"):
        yield Fault("OR-9", ".id", "reasoning must carry its id")
    elif not raw["id"].startswith("rs"):
        yield Fault("OR-7", ".id", f"the id of reasoning begins with 'rs', not as in {raw['id']!r}")
    if raw.get("summary") is None:
        yield Fault("OR-9", ".summary", "reasoning must carry its summary, if only an empty one")
    if blob is None:
        if not stored:
            message = "nothing is stored, so reasoning without encrypted_content is not found again"
            yield Fault("OR-5", ".encrypted_content", message)
    elif type(blob) is not str or not blob:
        yield Fault("OR-6", ".encrypted_content", "encrypted_content must be the text the server gave")


def _compaction_faults(blob: Json) -> Iterator[Fault]:
    if type(blob) is not str:
        yield Fault("OR-6", ".encrypted_content", "encrypted_content must be the text the server gave")
    elif not 1 <= len(blob) <= MAX_COMPACTION:
        message = f"encrypted_content has {len(blob):,} characters; 1 to {MAX_COMPACTION:,} are taken"
        yield Fault("OR-8", ".encrypted_content", message)


def _spoken_faults(raw: JsonObject, kind: str) -> Iterator[Fault]:
    """List what is wrong with a message or a call by itself."""
    prefix, item_id = _PREFIXES.get(kind), raw.get("id")
    if kind in _NEEDS_CALL_ID and item_id and not raw.get("call_id"):
        yield Fault("OR-8", ".call_id", "a call must carry its call_id", "added", _with_call_id)
    if prefix is not None and item_id is not None and not item_id.startswith(prefix):
        message = f"the id of this item begins with {prefix!r}, not as in {item_id!r}"
        yield Fault("OR-7", ".id", message, "stripped", without_id)
    if kind == "message":
        if raw["role"] not in _ROLES:
            yield Fault("OR-9", ".role", f"there is no role {raw['role']!r}", None)
        elif not raw.get("content") and raw.get("content") != "":
            yield Fault("OR-9", ".content", "a message needs content", "replaced", _with_content)
    elif kind in ("function_call", "custom_tool_call"):
        field = CALLS[kind].input
        if type(raw.get(field)) is not str:
            yield Fault("OR-9", f".{field}", f"{field} must be a string", "replaced", _with_input)
        if not raw.get("name"):
            yield Fault("OR-9", ".name", "a call must name its tool", None)


def _with_content(item: Json) -> JsonObject:
    """Make a message of a bare text, and of one without content an empty one."""
    return {"role": "user", "content": item} if type(item) is str else {**item, "content": ""}


def _with_call_id(item: JsonObject) -> JsonObject:
    return {**item, "call_id": item["id"]}


def _with_input(item: JsonObject) -> JsonObject:
    field = CALLS[kind_of(item)].input
    return {**item, field: json_text(item.get(field))}


def without_id(item: JsonObject) -> JsonObject:
    """Copy an item without its id: what pairs calls and outputs is the call_id."""
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
    """Cut the texts of an output to the length that is taken."""
    field = OUTPUTS[kind_of(item)]
    value: Any = item[field]
    if type(value) is str:
        return {**item, field: value[:MAX_OUTPUT]}
    cut = [{**block, **{key: text[:MAX_OUTPUT] for key, text in _block_texts(block).items()}} for block in value]
    return {**item, field: cut}


# --- the view through which pairs are judged ---------------------------------------------------------------------


def _view(messages: Sequence[Message], *, strict: bool) -> list[Message]:
    """Show a history as its pairing is judged.

    What the provider runs and answers itself takes no part. A user message, a compaction, or the model's words of a
    later answer must not stand between a call and its output. Words of the same answer and system or developer
    messages may: OpenAI accepts them (Codex sends its own instructions there), while some compatible servers do not,
    hence ``strict``. Such a message is shown as part of the answer that it stands in.
    """
    seen: list[Message] = []
    waiting: set[str] = set()
    current: set[str] = set()
    before = ""
    for message in messages:
        kind = kind_of(message.raw)
        if message.role == "system" and not strict and (waiting or current):
            seen.append(Message("assistant", (Opaque(kind, message.raw),), None, message.raw))
            continue
        if message.role == "assistant" and before != "assistant":
            waiting, current = waiting | current, set()
        before = message.role
        if kind in CALLS and kind not in ANSWERED_BY:
            message = Message("assistant", (Opaque(kind, message.raw),), None, message.raw)
        elif kind == "compaction" or (_speaks(message, kind) and (waiting or (strict and current))):
            message = msgspec.structs.replace(message, role="system")
        current.update(call.id for call in message.calls if _expects_result(call))
        for result in message.results:
            waiting.discard(result.call_id)
            current.discard(result.call_id)
        seen.append(message)
    return seen


def _speaks(message: Message, kind: str) -> bool:
    return kind == "message" and message.role == "assistant"


def _legal(call_id: str) -> bool:
    return 1 <= len(call_id) <= MAX_CALL_ID


def is_managed(body: JsonObject | None) -> bool:
    """Tell whether the server holds earlier items, so that calls answered here may be there."""
    return any((body or {}).get(key) for key in ("previous_response_id", "conversation"))


def _is_held(place: Place, view: Sequence[Message]) -> bool:
    """Tell whether the server may hold the call that this output answers."""
    return view[place.message].role == "tool" and _legal(_result(view, place).call_id)


def _result(view: Sequence[Message], place: Place) -> ToolResult:
    part = view[place.message].parts[place.part]
    assert type(part) is ToolResult
    return part


def _call(view: Sequence[Message], place: Place) -> ToolCall:
    part = view[place.message].parts[place.part]
    assert type(part) is ToolCall
    return part


def _mismatched(view: Sequence[Message], pairs: Pairs) -> Iterator[tuple[Place, Place]]:
    """List calls that an output of another kind answers."""
    for call, result in pairs.answers.items():
        kind = kind_of(view[call.message].raw)
        if kind in ANSWERED_BY and kind_of(view[result.message].raw) not in ANSWERED_BY[kind]:
            yield call, result


# --- problems ----------------------------------------------------------------------------------------------------

Located: TypeAlias = tuple[int, Problem]
Report: TypeAlias = Callable[[Change], None]


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where OpenAI would refuse these items, in order."""
    messages = parse(items, body).messages
    found: list[Located] = list(_body_problems(messages, body, strict))
    for i, raw in enumerate(items):
        for fault in _faults(raw, **_standing(i, items, body)):
            path = f"input[{i}]{fault.field}"
            found.append((i, Problem(fault.code, path, fault.message, fault.action is not None)))
    found.extend(_pair_problems(_view(messages, strict=strict), is_managed(body)))
    found.extend(_id_problems(messages, is_managed(body)))
    found.extend(_reasoning_problems(messages))
    return [problem for _, problem in sorted(found, key=lambda entry: entry[0])]


def _standing(i: int, items: Sequence[object], body: JsonObject | None) -> dict[str, bool]:
    stored = (body or {}).get("store") is not False
    alone = len(items) == 1 and type((body or {}).get("input")) is str
    return {"last": i == len(items) - 1, "alone": alone, "stored": stored}


def _body_problems(messages: Sequence[Message], body: JsonObject | None, strict: bool) -> Iterator[Located]:
    envelope = body or {}
    if envelope.get("previous_response_id") and envelope.get("conversation"):
        message = "a request continues a response or a conversation, not both"
        yield -1, Problem("OR-11", "previous_response_id", message, False)
    if not messages and not is_managed(body) and not envelope.get("prompt"):
        yield -1, Problem("OR-9", "input", "there is no item; a request needs at least one", False)
    elif strict and not is_managed(body) and not any(map(is_user_message, messages)):
        yield -1, Problem("VL-2", "input", "there is no user message")


def _pair_problems(view: Sequence[Message], managed: bool) -> Iterator[Located]:
    pairs = pair(view)
    walls = [0]
    for message in view:
        walls.append(walls[-1] + (message.role not in ("assistant", "tool")))
    for place in pairs.open:
        if _expects_result(_call(view, place)):
            message = f"no output answers call {_call(view, place).id!r}"
            yield place.message, Problem("OR-1", f"input[{place.message}]", message)
    for place in pairs.orphans:
        if not (managed and _is_held(place, view)):
            message = f"no call has the id {_result(view, place).call_id!r} of this output"
            yield place.message, Problem("OR-2", _path(place, view[place.message]), message)
    for place in pairs.duplicates:
        message = f"call {_result(view, place).call_id!r} is answered again further on"
        yield place.message, Problem("OR-2", _path(place, view[place.message]), message)
    for call, result in pairs.answers.items():
        if _expects_result(_call(view, call)) and walls[result.message] > walls[call.message]:
            message = f"another message stands between call {_call(view, call).id!r} and this output"
            yield result.message, Problem("OR-1", f"input[{result.message}]", message)
        elif result < call:
            message = f"this output stands before its call {_call(view, call).id!r}"
            yield result.message, Problem("OR-2", _path(result, view[result.message]), message)
    for call, result in _mismatched(view, pairs):
        kind = kind_of(view[call.message].raw)
        message = f"a {kind} is answered by a {ANSWERED_BY[kind][0]}"
        yield result.message, Problem("OR-2", f"input[{result.message}].type", message)
    yield from _call_id_problems(view)


def _call_id_problems(view: Sequence[Message]) -> Iterator[Located]:
    used: set[str] = set()
    for i, message in enumerate(view):
        for part in message.parts:
            if type(part) is ToolCall and _expects_result(part):
                if part.id in used:
                    path = _path(Place(i, 0), message)
                    yield i, Problem("OR-12", path, f"an earlier call has the id {part.id!r} too")
                used.add(part.id)
                illegal = not _legal(part.id)
            else:
                illegal = type(part) is ToolResult and not part.hosted and not _legal(part.call_id)
            if illegal:
                text = f"the id of a call has 1 to {MAX_CALL_ID} characters"
                yield i, Problem("OR-8", _path(Place(i, 0), message), text)


def _id_problems(messages: Sequence[Message], managed: bool) -> Iterator[Located]:
    """Find item ids that name two items, and approvals that are not there."""
    used = _request_ids(messages)
    asked: set[str] = set()
    for i, message in enumerate(messages):
        item_id = _item_id(message.raw)
        if kind_of(message.raw) == "mcp_approval_request":
            asked.add(item_id or "")
        elif item_id is not None:
            if item_id in used:
                yield i, Problem("OR-12", f"input[{i}].id", f"another item has the id {item_id!r} too")
            used.add(item_id)
        if _lacks_approval(message, asked) and not managed:
            yield i, Problem("OR-2", f"input[{i}].approval_request_id", "there is no such request for approval before")


def _item_id(raw: Json) -> str | None:
    """Give the id of the item itself: the one of a local shell output is its call's."""
    return fields(raw).get("id") or None if kind_of(raw) != "local_shell_call_output" else None


def _request_ids(messages: Sequence[Message]) -> set[str]:
    """Collect the ids of requests for approval: the answers hang on them, so they are the last to change."""
    return {message.raw.get("id") or "" for message in messages if kind_of(message.raw) == "mcp_approval_request"}


def _lacks_approval(message: Message, asked: set[str]) -> bool:
    return any(call.follows is not None and call.follows not in asked for call in message.calls)


def _reasoning_problems(messages: Sequence[Message]) -> Iterator[Located]:
    for i in _unfollowed(messages):
        yield i, Problem("OR-4", f"input[{i}]", "what this reasoning led to must follow it")
    # Whether an id needs reasoning only the server knows. A history without any reasoning says nothing; one with
    # reasoning elsewhere shows that the model reasons, and then an id without it is most likely a lost one.
    if any(kind_of(message.raw) == "reasoning" for message in messages):
        for i in _unreasoned(messages):
            yield i, Problem("OR-3", f"input[{i}].id", "the reasoning that led to this item must stand before it")


def _unfollowed(messages: Sequence[Message]) -> list[int]:
    """List reasoning items behind which the model says and calls nothing."""
    found: list[int] = []
    followed = False
    for i in range(len(messages) - 1, -1, -1):
        kind = kind_of(messages[i].raw)
        if kind != "reasoning":
            followed = messages[i].role == "assistant" and kind != "compaction"
        elif not followed:
            found.append(i)
    return found


def _unreasoned(messages: Sequence[Message]) -> Iterator[int]:
    """List items that carry a server's id and have no reasoning before them in their answer."""
    reasoned = False
    for i, message in enumerate(messages):
        kind = kind_of(message.raw)
        if message.role != "assistant" or kind == "compaction":
            reasoned = False
        elif kind in ("reasoning", "item_reference"):
            reasoned = True
        elif not reasoned and kind in _SPOKEN and (fields(message.raw).get("id") or "").startswith(_SPOKEN[kind]):
            yield i


# --- repair ------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """A message and where it stood in the history that was given; -1 when it is new."""

    at: int
    message: Message


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Mend a history so that OpenAI takes it; say what was done."""
    changes: list[Change] = []
    report = changes.append
    given = [Placed(i, read) for i, message in enumerate(history) for read in _reread(message)]
    placed = list(_mend_items(given, history.body, report))
    placed = _mend_calls(placed, is_managed(history.body), strict, changes)
    placed = list(_mend_ids(placed, is_managed(history.body), report))
    placed = _mend_reasoning(placed, given, report)
    if strict and placed and not is_managed(history.body) and not any(is_user_message(one.message) for one in placed):
        report(Change("VL-2", "added", "input", "a user message"))
        at = len(placed) - (kind_of(placed[-1].message.raw) == "compaction_trigger")
        placed.insert(at, Placed(-1, _reread(Message("user", (Text(CONTINUE_LINE),)))[0]))
    return [one.message for one in placed], changes


def _reread(message: Message) -> list[Message]:
    """Turn a message into one that is its wire form and nothing else; most are already."""
    if message.raw is not None and not message.edited:
        return [message]
    return [_relabelled(message, raw) for raw in render(message)]


def _relabelled(message: Message, raw: Json) -> Message:
    """Read another wire form in place of a message."""
    read = parse_item(raw, "input")
    return msgspec.structs.replace(read, is_summary=message.is_summary, source_id=message.source_id)


def _mend_items(given: Sequence[Placed], body: JsonObject | None, report: Report) -> Iterator[Placed]:
    for i, one in enumerate(given):
        raw: Json = one.message.raw
        for fault in _faults(raw, **_standing(i, given, body)):
            if fault.action is None:
                continue
            report(Change(fault.code, fault.action, f"input[{one.at}]{fault.field}", fault.message))
            raw = None if fault.fix is None else fault.fix(raw)
            if raw is None:
                break
        if raw is not None:
            yield one if raw is one.message.raw else Placed(one.at, _relabelled(one.message, raw))


def _mend_calls(placed: Sequence[Placed], managed: bool, strict: bool, changes: list[Change]) -> list[Placed]:
    """Give every call its one output, of its kind and in its place."""
    view = _view([one.message for one in placed], strict=strict)
    ats = [one.at for one in placed]
    shown = {id(seen): one for seen, one in zip(view, placed, strict=True)}
    while wrong := list(_mismatched(view, pair(view))):
        for call, result in wrong:
            _retype(view, call, result, ats[result.message], changes.append)
    if managed:
        for place in pair(view).orphans:
            if _is_held(place, view):
                one = placed[place.message]
                view[place.message] = Message("tool", (Opaque("output", one.message.raw),), None, one.message.raw)
                shown[id(view[place.message])] = one
    kept = [(at, seen) for at, seen in zip(ats, view, strict=True) if seen.parts or seen.raw is not None]
    stood = {id(seen.raw): at for at, seen in kept}
    mender = msgspec.structs.replace(MENDER, path=_Paths([at for at, _ in kept]))
    mended, paired = mend_pairs([seen for _, seen in kept], mender)
    changes += paired
    out: list[Placed] = []
    for seen in mended:
        known = shown.get(id(seen))
        out += [known] if known else [Placed(stood.get(id(seen.raw), -1), read) for read in _reread(seen)]
    return out


class _Paths:
    """Names a place by where its message stood in the history that was given."""

    def __init__(self, ats: Sequence[int]) -> None:
        self.ats = ats

    def __call__(self, place: Place, message: Message) -> str:
        return _path(Place(self.ats[place.message], place.part), message)


def _retype(view: list[Message], call: Place, result: Place, at: int, report: Report) -> None:
    """Put an output of the right kind in the place of another, or nothing where none can be made."""
    kind = kind_of(view[call.message].raw)
    given = _result(view, result)
    item = answering_item(kind, given) if given.media or kind != "computer_call" else None
    action: Action = "dropped" if item is None else "replaced"
    report(Change("OR-2", action, f"input[{at}].type", f"a {kind} is answered by a {ANSWERED_BY[kind][0]}"))
    view[result.message] = Message("tool", ()) if item is None else _relabelled(view[result.message], item)


def _mend_ids(placed: Sequence[Placed], managed: bool, report: Report) -> Iterator[Placed]:
    """Leave every item id to one item, and refer to approvals that are there."""
    taken = {item_id for one in placed if (item_id := _item_id(one.message.raw))}
    used = _request_ids([one.message for one in placed])
    asked: set[str] = set()
    for one in placed:
        raw: JsonObject = one.message.raw
        item_id = _item_id(raw)
        if kind_of(raw) == "mcp_approval_request":
            asked.add(item_id or "")
        elif item_id is not None and item_id in used:
            if kind_of(raw) in _GOES_WITH_ID:
                report(Change("OR-12", "dropped", f"input[{one.at}]", f"another item has the id {item_id!r}"))
                continue
            raw, change = _renamed(raw, item_id, one.at, taken)
            report(change)
        used.add(item_id or "")
        if not managed and _lacks_approval(one.message, asked):
            path = f"input[{one.at}].approval_request_id"
            report(Change("OR-2", "stripped", path, "there is no such request for approval before"))
            raw = {key: value for key, value in raw.items() if key != "approval_request_id"}
        yield one if raw is one.message.raw else Placed(one.at, _relabelled(one.message, raw))


def _renamed(raw: JsonObject, item_id: str, at: int, taken: set[str]) -> tuple[JsonObject, Change]:
    """Take an id from an item that shares it: for good, or for another where the type must have one."""
    path = f"input[{at}].id"
    if kind_of(raw) not in _NEEDS_ID:
        return without_id(raw), Change("OR-12", "stripped", path, f"another item has the id {item_id!r}")
    name = fresh_id(item_id, CONTRACT.ids, taken)
    taken.add(name)
    return {**raw, "id": name}, Change("OR-12", "renamed", path, f"the id of this item is now {name!r}")


def _mend_reasoning(placed: Sequence[Placed], given: Sequence[Placed], report: Report) -> list[Placed]:
    """Let reasoning go with what it led to, and ids that need it with the reasoning."""
    left = {one.at for one in placed}
    lost = {at for at, follower in _followers(given) if follower not in left}
    kept = [one for one in placed if not (kind_of(one.message.raw) == "reasoning" and one.at in lost)]
    alone = {kept[i].at for i in _unfollowed([one.message for one in kept])}
    for at in sorted((lost & left) | alone):
        report(Change("OR-4", "dropped", f"input[{at}]", "what this reasoning led to does not follow it"))
    kept = [one for one in kept if not (kind_of(one.message.raw) == "reasoning" and one.at in alone)]
    messages = [one.message for one in kept]
    reasons = any(kind_of(message.raw) == "reasoning" for message in messages)
    had = {one.at for one in given} - {given[i].at for i in _unreasoned([one.message for one in given])}
    for i in list(_unreasoned(messages)):
        if reasons or kept[i].at in had:
            path = f"input[{kept[i].at}].id"
            report(Change("OR-3", "stripped", path, "the reasoning that led to this item is not there"))
            kept[i] = Placed(kept[i].at, _relabelled(messages[i], without_id(messages[i].raw)))
    return kept


def _followers(given: Sequence[Placed]) -> Iterator[tuple[int, int]]:
    """Pair each reasoning item with the item behind it that is not reasoning, if there is one."""
    follower: int | None = None
    for one in reversed(given):
        if kind_of(one.message.raw) != "reasoning":
            follower = one.at
        elif follower is not None:
            yield one.at, follower


# --- what mending asks -------------------------------------------------------------------------------------------


def _answer(call: ToolCall, text: str) -> ToolResult | None:
    """Close a call with an output of its kind; a computer call would need a screenshot."""
    kind = kind_of(call.raw) if call.raw is not None else "function_call"
    answer = ToolResult(call.id, text, call.name, is_error=True)
    item = answering_item(kind, answer) if kind != "computer_call" else None
    return None if item is None else msgspec.structs.replace(answer, raw=item)


def _carry(results: Sequence[ToolResult]) -> Message:
    return Message("tool", tuple(results))


def _path(place: Place, message: Message) -> str:
    field = {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}.get(kind_of(message.raw))
    return f"input[{place.message}].{field or 'call_id'}"


def _expects_result(call: ToolCall) -> bool:
    """Tell whether the client must answer a call: what the provider runs waits for a person's approval only."""
    return not call.hosted or call.asks


_CODES = Codes("OR-1", "OR-2", duplicate_result="OR-2", misplaced_result="OR-1", bad_id="OR-8", reused_id="OR-12")

MENDER = Mender(
    contract=CONTRACT,
    codes=_CODES,
    answer=_answer,
    carry=_carry,
    path=_path,
    expects_result=_expects_result,
)

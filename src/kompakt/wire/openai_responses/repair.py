"""Repair a history so that OpenAI Responses accepts it.

Encrypted content stays byte-equal or is removed with its item. Valid items are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from kompakt.model.groups import PartPlace, is_user_message, pair
from kompakt.model.messages import History, Json, JsonObject, Message, Opaque, Text, ToolCall, ToolResult
from kompakt.model.phrases import CONTINUE_LINE
from kompakt.wire.openai_responses.items import (
    ANSWERED_BY,
    CALLS,
    CONTRACT,
    answering_item,
    kind_of,
    parse_item,
    render,
)
from kompakt.wire.openai_responses.rules import (
    approval_request_ids,
    expects_result,
    has_reasoning,
    is_managed,
    item_faults,
    item_id_of,
    items_without_reasoning,
    lacks_approval_request,
    may_answer_stored_call,
    mismatched,
    pairing_view,
    part_path,
    result_at,
    unfollowed_reasoning,
    without_id,
)
from kompakt.wire.pair_repair import PairCodes, PairRules, fresh_id, repair_pairs
from kompakt.wire.wire import Action, Change

_NEEDS_ID = frozenset(
    {"computer_call", "local_shell_call", "program", "program_output", "mcp_approval_request"}
    | {kind for kind, shape in CALLS.items() if shape.hosted}
)
"""Item types that the API rejects without an id, so a duplicate id is renamed."""

_DROPPED_WITH_ID = frozenset({"reasoning", "item_reference"})
"""Item types that mean nothing without their id, so a duplicate id drops the item."""

Report: TypeAlias = Callable[[Change], None]


class IndexedItem(NamedTuple):
    """A message and its index in the given history; -1 when it is new."""

    at: int
    message: Message


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Repair the messages of a history and list the changes."""
    changes: list[Change] = []
    report = changes.append
    managed = is_managed(history.body)
    given = [IndexedItem(i, item) for i, message in enumerate(history) for item in _as_items(message)]
    kept = list(_repair_items(given, history.body, report))
    kept = _repair_calls(kept, managed, strict, changes)
    kept = list(_repair_item_ids(kept, managed, report))
    kept = _repair_reasoning(kept, given, report)
    if strict and kept and not managed and not any(is_user_message(one.message) for one in kept):
        report(Change("VL-2", "added", "input", "a user message"))
        at = len(kept) - (kind_of(kept[-1].message.raw) == "compaction_trigger")
        kept.insert(at, IndexedItem(-1, _as_items(Message("user", (Text(CONTINUE_LINE),)))[0]))
    return [one.message for one in kept], changes


def _as_items(message: Message) -> list[Message]:
    """Split a message into messages that each are one unedited item; most already are."""
    if message.raw is not None and not message.edited:
        return [message]
    return [_with_raw(message, raw) for raw in render(message)]


def _with_raw(message: Message, raw: Json) -> Message:
    """Parse another item in place of a message."""
    read = parse_item(raw, "input")
    return msgspec.structs.replace(read, is_summary=message.is_summary, source_id=message.source_id)


def _repair_items(given: Sequence[IndexedItem], body: JsonObject | None, report: Report) -> Iterator[IndexedItem]:
    raws = [one.message.raw for one in given]
    for i, one in enumerate(given):
        raw: Json = one.message.raw
        for fault in item_faults(raws, i, body):
            if fault.action is None:
                continue
            report(Change(fault.code, fault.action, f"input[{one.at}]{fault.field}", fault.message))
            raw = None if fault.fix is None else fault.fix(raw)
            if raw is None:
                break
        if raw is not None:
            yield one if raw is one.message.raw else IndexedItem(one.at, _with_raw(one.message, raw))


def _repair_calls(
    given: Sequence[IndexedItem], managed: bool, strict: bool, changes: list[Change]
) -> list[IndexedItem]:
    """Give every call one output, of the right type and in the right place."""
    view = pairing_view([one.message for one in given], strict=strict)
    indices = [one.at for one in given]
    originals = {id(seen): one for seen, one in zip(view, given, strict=True)}
    while wrong := list(mismatched(view, pair(view))):
        for call, result in wrong:
            _retype(view, call, result, indices[result.message], changes.append)
    if managed:
        for place in pair(view).orphans:
            if may_answer_stored_call(place, view):
                one = given[place.message]
                view[place.message] = Message("tool", (Opaque("output", one.message.raw),), None, one.message.raw)
                originals[id(view[place.message])] = one
    kept = [(at, seen) for at, seen in zip(indices, view, strict=True) if seen.parts or seen.raw is not None]
    index_of = {id(seen.raw): at for at, seen in kept}
    repaired, paired = repair_pairs(
        [seen for _, seen in kept],
        PAIR_RULES,
        lambda place, message: part_path(PartPlace(kept[place.message][0], place.part), message),
    )
    changes += paired
    out: list[IndexedItem] = []
    for seen in repaired:
        known = originals.get(id(seen))
        out += [known] if known else [IndexedItem(index_of.get(id(seen.raw), -1), item) for item in _as_items(seen)]
    return out


def _retype(view: list[Message], call: PartPlace, result: PartPlace, at: int, report: Report) -> None:
    """Replace an output by one of the right type; drop it where none can be built."""
    kind = kind_of(view[call.message].raw)
    given = result_at(view, result)
    item = answering_item(kind, given) if given.media or kind != "computer_call" else None
    action: Action = "dropped" if item is None else "replaced"
    report(Change("OR-2", action, f"input[{at}].type", f"a {kind} is answered by a {ANSWERED_BY[kind][0]}"))
    view[result.message] = Message("tool", ()) if item is None else _with_raw(view[result.message], item)


def _repair_item_ids(given: Sequence[IndexedItem], managed: bool, report: Report) -> Iterator[IndexedItem]:
    """Make item ids unique and remove references to missing approval requests."""
    taken = {item_id for one in given if (item_id := item_id_of(one.message.raw))}
    used = approval_request_ids([one.message for one in given])
    requested: set[str] = set()
    for one in given:
        raw: JsonObject = one.message.raw
        item_id = item_id_of(raw)
        if kind_of(raw) == "mcp_approval_request":
            requested.add(item_id or "")
        elif item_id is not None and item_id in used:
            if kind_of(raw) in _DROPPED_WITH_ID:
                report(Change("OR-12", "dropped", f"input[{one.at}]", f"another item has the same id {item_id!r}"))
                continue
            raw, change = _with_unique_id(raw, item_id, one.at, taken)
            report(change)
        used.add(item_id or "")
        if not managed and lacks_approval_request(one.message, requested):
            path = f"input[{one.at}].approval_request_id"
            report(Change("OR-2", "stripped", path, "no earlier item is this approval request"))
            raw = {key: value for key, value in raw.items() if key != "approval_request_id"}
        yield one if raw is one.message.raw else IndexedItem(one.at, _with_raw(one.message, raw))


def _with_unique_id(raw: JsonObject, item_id: str, at: int, taken: set[str]) -> tuple[JsonObject, Change]:
    """Remove a duplicate id, or rename it where the item type requires one."""
    path = f"input[{at}].id"
    if kind_of(raw) not in _NEEDS_ID:
        return without_id(raw), Change("OR-12", "stripped", path, f"another item has the same id {item_id!r}")
    name = fresh_id(item_id, CONTRACT.ids, taken)
    taken.add(name)
    return {**raw, "id": name}, Change("OR-12", "renamed", path, f"the id of this item is now {name!r}")


def _repair_reasoning(kept: Sequence[IndexedItem], given: Sequence[IndexedItem], report: Report) -> list[IndexedItem]:
    """Drop reasoning whose result is gone, and ids whose reasoning is gone."""
    left = {one.at for one in kept}
    lost = {at for at, follower in _followers(given) if follower not in left}
    kept = [one for one in kept if not (kind_of(one.message.raw) == "reasoning" and one.at in lost)]
    alone = {kept[i].at for i in unfollowed_reasoning([one.message for one in kept])}
    for at in sorted((lost & left) | alone):
        report(Change("OR-4", "dropped", f"input[{at}]", "the item that this reasoning led to does not follow it"))
    kept = [one for one in kept if not (kind_of(one.message.raw) == "reasoning" and one.at in alone)]
    messages = [one.message for one in kept]
    reasons = has_reasoning(messages)
    had = {one.at for one in given} - {given[i].at for i in items_without_reasoning([one.message for one in given])}
    for i in list(items_without_reasoning(messages)):
        if reasons or kept[i].at in had:
            path = f"input[{kept[i].at}].id"
            report(Change("OR-3", "stripped", path, "the reasoning that led to this item is missing"))
            kept[i] = IndexedItem(kept[i].at, _with_raw(messages[i], without_id(messages[i].raw)))
    return kept


def _followers(given: Sequence[IndexedItem]) -> Iterator[tuple[int, int]]:
    """Pair each reasoning item with the next item that is not reasoning."""
    follower: int | None = None
    for one in reversed(given):
        if kind_of(one.message.raw) != "reasoning":
            follower = one.at
        elif follower is not None:
            yield one.at, follower


def _answer(call: ToolCall, text: str) -> ToolResult | None:
    """Close a call with an output of its type; a computer call would need a screenshot."""
    kind = kind_of(call.raw) if call.raw is not None else "function_call"
    answer = ToolResult(call.id, text, call.name, is_error=True)
    item = answering_item(kind, answer) if kind != "computer_call" else None
    return None if item is None else msgspec.structs.replace(answer, raw=item)


PAIR_RULES = PairRules(
    contract=CONTRACT,
    codes=PairCodes(
        open_call="OR-1",
        orphan_result="OR-2",
        duplicate_result="OR-2",
        misplaced_result="OR-1",
        bad_id="OR-8",
        reused_id="OR-12",
    ),
    answer=_answer,
    result_role="tool",
    expects_result=expects_result,
)

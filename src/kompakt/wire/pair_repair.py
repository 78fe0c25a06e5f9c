"""Repair of calls and results, for every provider.

Invariant: afterwards each call has exactly one result, in the place that the contract requires, and each result has a
call. A message that is already valid is passed through unchanged, so it renders byte-equal. ``PairRules`` holds the
differences between providers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from kompakt.model.contract import Contract, IdRule
from kompakt.model.groups import Pairs, PartPlace, pair
from kompakt.model.messages import Message, Part, Role, ToolCall, ToolResult
from kompakt.model.phrases import INTERRUPTED
from kompakt.wire.wire import Action, Change

PlacePath: TypeAlias = Callable[[PartPlace, Message], str]
"""Returns the path of a place in the payload that was given."""


class PairCodes(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's rule for each pairing fault."""

    open_call: str
    orphan_result: str
    duplicate_result: str
    misplaced_result: str
    bad_id: str
    reused_id: str


def _is_client_call(call: ToolCall) -> bool:
    return not call.hosted


class PairRules(msgspec.Struct, frozen=True, kw_only=True):
    """What pair repair needs to know about a provider."""

    contract: Contract
    codes: PairCodes
    result_role: Role
    """The role of a new message that carries results."""
    answer: Callable[[ToolCall, str], ToolResult | None]
    """Builds an error result for an open call; ``None`` when only the server can, so the call is dropped."""
    expects_result: Callable[[ToolCall], bool] = _is_client_call
    """Whether the client has to answer a call."""
    reserved: frozenset[str] = frozenset()
    """Ids that client calls must not use."""


def repair_pairs(messages: Sequence[Message], rules: PairRules, path: PlacePath) -> tuple[list[Message], list[Change]]:
    """Give every call exactly one result in the right place, and list the changes."""
    messages, changes = _repair_ids(messages, rules, path)
    pairs = pair(messages)
    if _in_place(messages, pairs, rules):
        return list(messages), changes
    return _Rebuild(messages, pairs, rules, path, changes).run()


# --- ids ---------------------------------------------------------------------------------------------------------


def _repair_ids(
    messages: Sequence[Message], rules: PairRules, path: PlacePath
) -> tuple[Sequence[Message], list[Change]]:
    """Rename calls whose id is illegal or already used, together with their results."""
    rule = rules.contract.ids
    if rule.scope == "none":
        return messages, []
    allowed = re.compile(rule.pattern)
    seen: set[tuple[int, str]] = set()
    renames: dict[PartPlace, tuple[str, str]] = {}
    calls = [
        (PartPlace(i, j), part.id)
        for i, message in enumerate(messages)
        for j, part in enumerate(message.parts)
        if type(part) is ToolCall and rules.expects_result(part)
    ]
    taken = {call_id for _, call_id in calls} | rules.reserved
    for place, call_id in calls:
        legal = bool(allowed.fullmatch(call_id)) and len(call_id) <= rule.max_length
        key = (place.message if rule.scope == "message" else 0, call_id)
        if legal and key not in seen and call_id not in rules.reserved:
            seen.add(key)
            continue
        fresh = fresh_id(call_id, rule, taken)
        taken.add(fresh)
        renames[place] = (fresh, rules.codes.reused_id if legal else rules.codes.bad_id)
    if not renames:
        return messages, []
    changes = [
        Change(code, "renamed", path(place, messages[place.message]), f"the id of this call is now {name!r}")
        for place, (name, code) in renames.items()
    ]
    return _renamed(messages, {place: name for place, (name, _) in renames.items()}), changes


def fresh_id(call_id: str, rule: IdRule, taken: set[str] | frozenset[str]) -> str:
    """Derive a legal, unused id; the same history always gives the same id."""
    kept = re.sub(r"[^a-zA-Z0-9]", "", call_id)[: max(0, rule.max_length - 9)]
    for attempt in range(len(taken) + 1):
        digest = hashlib.blake2b(f"{call_id}\0{attempt}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        candidate = f"{kept}{digest}"[-rule.max_length :] if rule.max_length < 16 else f"{kept}{digest[:9]}"
        if candidate not in taken and re.fullmatch(rule.pattern, candidate):
            return candidate
    raise AssertionError("more attempts than taken ids: one must be free")


def _renamed(messages: Sequence[Message], names: dict[PartPlace, str]) -> list[Message]:
    answers = pair(messages).answers
    names = names | {answers[place]: name for place, name in names.items() if place in answers}
    renamed = list(messages)
    for index in {place.message for place in names}:
        parts = [_with_id(part, names.get(PartPlace(index, j))) for j, part in enumerate(messages[index].parts)]
        renamed[index] = messages[index].with_parts(parts)
    return renamed


def _with_id(part: Part, name: str | None) -> Part:
    if name is None:
        return part
    if type(part) is ToolCall:
        return msgspec.structs.replace(part, id=name, edited=True)
    if type(part) is ToolResult:
        return msgspec.structs.replace(part, call_id=name, edited=True)
    return part


# --- places ------------------------------------------------------------------------------------------------------


def _in_place(messages: Sequence[Message], pairs: Pairs, rules: PairRules) -> bool:
    """Return whether nothing has to change: the common case, decided without building anything."""
    if pairs.orphans or pairs.duplicates:
        return False
    if any(rules.expects_result(_call(messages, place)) for place in pairs.open):
        return False
    return all(
        _is_placed(messages, call, result, rules)
        for call, result in pairs.answers.items()
        if rules.expects_result(_call(messages, call))
    )


def _is_placed(messages: Sequence[Message], call: PartPlace, result: PartPlace, rules: PairRules) -> bool:
    layout = rules.contract.results
    if layout == "next-user-message":
        leading = all(type(part) is ToolResult for part in messages[result.message].parts[: result.part])
        return leading and result.message == call.message + 1
    between = messages[call.message + 1 : result.message]
    if layout == "own-message":
        return result.message > call.message and all(message.role == "tool" for message in between)
    return result.message > call.message and all(message.role in ("tool", "assistant") for message in between)


def _call(messages: Sequence[Message], place: PartPlace) -> ToolCall:
    part = messages[place.message].parts[place.part]
    assert type(part) is ToolCall
    return part


class _Rebuild:
    """Rebuilds a history: each answer of the model, then the results of its calls, then everything else."""

    def __init__(
        self, messages: Sequence[Message], pairs: Pairs, rules: PairRules, path: PlacePath, changes: list[Change]
    ) -> None:
        self.messages = messages
        self.rules = rules
        self.path = path
        self.changes = changes
        self.answers = pairs.answers
        self.orphans = set(pairs.orphans)
        self.duplicates = set(pairs.duplicates)
        self.placed = {result for call, result in pairs.answers.items() if result < call}
        """Results that are emitted, or will be with their call because they precede it."""
        self.out: list[Message] = []

    def run(self) -> tuple[list[Message], list[Change]]:
        index = 0
        while index < len(self.messages):
            stop = self._run_end(index)
            if self.messages[index].role == "assistant":
                self._place_run(index, stop)
            else:
                self._place_other(index)
            index = stop
        return self.out, self.changes

    def _run_end(self, index: int) -> int:
        """Return the end of the model's answer that starts here: one message, or a run of items."""
        stop = index + 1
        if self.rules.contract.results == "after-run" and self.messages[index].role == "assistant":
            while stop < len(self.messages) and self.messages[stop].role == "assistant":
                stop += 1
        return stop

    def _place_run(self, start: int, stop: int) -> None:
        results: list[tuple[PartPlace, ToolResult]] = []
        for i in range(start, stop):
            message = self.messages[i]
            kept = [part for j, part in enumerate(message.parts) if self._keeps(PartPlace(i, j), part, results)]
            if kept or not message.parts:
                self.out.append(message if len(kept) == len(message.parts) else message.with_parts(kept))
        self._place_results(results, stop)

    def _keeps(self, place: PartPlace, part: Part, results: list[tuple[PartPlace, ToolResult]]) -> bool:
        """Return whether a part of an answer is kept; collect the result of a call."""
        if type(part) is ToolResult:
            return not self._drops(place)
        if type(part) is not ToolCall or not self.rules.expects_result(part):
            return True
        found = self.answers.get(place)
        path = self.path(place, self.messages[place.message])
        if found is not None and self.messages[found.message].role != "assistant":
            result = self.messages[found.message].parts[found.part]
            assert type(result) is ToolResult
            results.append((found, result))
            return True
        answer = self.rules.answer(part, INTERRUPTED)
        if answer is None:
            self._report(self.rules.codes.open_call, "dropped", path, f"a call of {part.name!r} without a result")
            return False
        self._report(self.rules.codes.open_call, "added", path, f"closed the open call of {part.name!r} as interrupted")
        results.append((PartPlace(-1, -1), answer))
        return True

    def _place_results(self, results: list[tuple[PartPlace, ToolResult]], stop: int) -> None:
        """Emit the results of an answer; existing messages that hold only these are reused."""
        if not results:
            return
        self.placed.update(place for place, _ in results)
        if self.rules.contract.results == "next-user-message":
            self._place_together(results, stop)
            return
        own = self._own_messages(results, stop)
        others = [(place, result) for place, result in results if place.message not in own]
        self._report_moved(place for place, _ in others)
        self.out.extend(self.messages[index] for index in own)
        self.out.extend(self._carried(place, result) for place, result in others)

    def _report_moved(self, places: Iterable[PartPlace]) -> None:
        for place in places:
            if place.message >= 0:
                path = self.path(place, self.messages[place.message])
                self._report(self.rules.codes.misplaced_result, "moved", path, "a result directly follows its call")

    def _carried(self, place: PartPlace, result: ToolResult) -> Message:
        """Return the message that carries a result: its own one if it holds nothing else."""
        if place.message >= 0 and len(self.messages[place.message].parts) == 1:
            return self.messages[place.message]
        return self._carrier([result])

    def _carrier(self, results: Sequence[ToolResult]) -> Message:
        return Message(self.rules.result_role, tuple(results))

    def _own_messages(self, results: list[tuple[PartPlace, ToolResult]], stop: int) -> list[int]:
        """List the messages directly after the answer that hold only results of it."""
        places = {place for place, _ in results}
        own: list[int] = []
        for index in range(stop, len(self.messages)):
            message = self.messages[index]
            held = [PartPlace(index, j) for j in range(len(message.parts))]
            if message.role == "assistant" or not held:
                break
            if all(self._is_stray(place) for place in held):
                continue
            if not all(place in places for place in held):
                break
            own.append(index)
        return own

    def _place_together(self, results: list[tuple[PartPlace, ToolResult]], stop: int) -> None:
        """Emit all results of an answer as one user message, followed by the other content of that message."""
        host = stop if stop < len(self.messages) and self._can_host(stop, results) else None
        if host is None:
            self._report_moved(place for place, _ in results)
            self.out.append(self._carrier([result for _, result in results]))
            return
        self._report_moved(place for place, _ in results if place.message != host or not self._leads(place))
        message = self.messages[host]
        rest = [
            part
            for j, part in enumerate(message.parts)
            if PartPlace(host, j) not in self.placed
            and not (type(part) is ToolResult and self._drops(PartPlace(host, j)))
        ]
        ordered = sorted(results, key=lambda entry: (entry[0].message != host, entry[0]))
        parts = (*[result for _, result in ordered], *rest)
        self.out.append(message if parts == message.parts else message.with_parts(parts))
        self.placed.update(PartPlace(host, j) for j in range(len(message.parts)))

    def _can_host(self, index: int, results: list[tuple[PartPlace, ToolResult]]) -> bool:
        """Return whether a message can carry the results: it holds one of them and none of another answer."""
        message = self.messages[index]
        places = {place for place, _ in results}
        held = [PartPlace(index, j) for j, part in enumerate(message.parts) if type(part) is ToolResult]
        foreign = [place for place in held if place not in places and not self._is_stray(place)]
        return message.role != "assistant" and not foreign and any(place in places for place in held)

    def _leads(self, place: PartPlace) -> bool:
        return all(type(part) is ToolResult for part in self.messages[place.message].parts[: place.part])

    def _is_stray(self, place: PartPlace) -> bool:
        return place in self.orphans or place in self.duplicates

    def _place_other(self, index: int) -> None:
        """Emit a message that is not the model's, without results that belong elsewhere or nowhere."""
        message = self.messages[index]
        if message.parts and all(PartPlace(index, j) in self.placed for j in range(len(message.parts))):
            return
        kept = [
            part
            for j, part in enumerate(message.parts)
            if type(part) is not ToolResult or not self._leaves(PartPlace(index, j))
        ]
        if len(kept) == len(message.parts):
            self.out.append(message)
        elif kept:
            self.out.append(message.with_parts(kept))

    def _leaves(self, place: PartPlace) -> bool:
        return place in self.placed or self._drops(place)

    def _drops(self, place: PartPlace) -> bool:
        """Return whether a result has no place in the history, and report it."""
        if place in self.orphans:
            code, why = self.rules.codes.orphan_result, "no call has the id of this result"
        elif place in self.duplicates:
            code, why = self.rules.codes.duplicate_result, "a later result answers the same call"
        else:
            return False
        self._report(code, "dropped", self.path(place, self.messages[place.message]), why)
        return True

    def _report(self, code: str, action: Action, path: str, message: str) -> None:
        self.changes.append(Change(code, action, path, message))

"""Mend the pairing of calls and results, for every provider.

One invariant: afterwards each call has exactly one result, where the contract wants it, and each result one call.
A message that already stands right is passed through as it is, so it renders byte-equal. What differs between
providers — what a result looks like, how an interrupted call is closed — comes in as a ``PairRules``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kompakt.model.contract import Contract, IdRule
from kompakt.model.messages import Message, Part, ToolCall, ToolResult
from kompakt.model.pairs import Pairs, PartPlace, pair
from kompakt.model.phrases import INTERRUPTED
from kompakt.wire.problems import Action, Change


class PairCodes(msgspec.Struct, frozen=True):
    """The contract rules a provider has for each fault of pairing."""

    open_call: str
    orphan_result: str
    duplicate_result: str
    misplaced_result: str
    bad_id: str
    reused_id: str


class PairRules(msgspec.Struct, frozen=True):
    """What mending needs to know of a provider."""

    contract: Contract
    codes: PairCodes
    answer: Callable[[ToolCall, str], ToolResult | None]
    """Close a call with an error text; ``None`` when this kind of call cannot be closed and has to go."""
    carry: Callable[[Sequence[ToolResult]], Message]
    """Wrap results in the message that carries them."""
    path: Callable[[PartPlace, Message], str]
    """Name a place as the provider would."""
    expects_result: Callable[[ToolCall], bool]
    """Tell whether the client has to answer this call."""
    reserved: frozenset[str] = frozenset()
    """Ids that no call of the client may have."""


def repair_pairs(messages: Sequence[Message], rules: PairRules) -> tuple[list[Message], list[Change]]:
    """Give every call its one result, in its place; say what was done."""
    messages, changes = _repair_ids(messages, rules)
    pairs = pair(messages)
    if _in_place(messages, pairs, rules):
        return list(messages), changes
    return _Rebuild(messages, pairs, rules, changes).run()


# --- ids ---------------------------------------------------------------------------------------------------------


def _repair_ids(messages: Sequence[Message], rules: PairRules) -> tuple[Sequence[Message], list[Change]]:
    """Rename calls whose id the provider refuses or that reuse one, together with their results."""
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
    return _rename(messages, renames, rules)


def fresh_id(call_id: str, rule: IdRule, taken: set[str] | frozenset[str]) -> str:
    """Derive a legal id from an illegal or taken one: the same for the same history, on every machine."""
    kept = re.sub(r"[^a-zA-Z0-9]", "", call_id)[: max(0, rule.max_length - 9)]
    for attempt in range(len(taken) + 1):
        digest = hashlib.blake2b(f"{call_id}\0{attempt}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        candidate = f"{kept}{digest}"[-rule.max_length :] if rule.max_length < 16 else f"{kept}{digest[:9]}"
        if candidate not in taken and re.fullmatch(rule.pattern, candidate):
            return candidate
    raise AssertionError("more attempts than ids taken: one must be free")


def _rename(
    messages: Sequence[Message], renames: dict[PartPlace, tuple[str, str]], rules: PairRules
) -> tuple[list[Message], list[Change]]:
    answers = pair(messages).answers
    names = {place: name for place, (name, _) in renames.items()}
    names.update({answers[place]: name for place, (name, _) in renames.items() if place in answers})
    changes = [
        Change(code, "renamed", rules.path(place, messages[place.message]), f"the id of this call is now {name!r}")
        for place, (name, code) in renames.items()
    ]
    renamed = list(messages)
    for index in {place.message for place in names}:
        parts = [_with_id(part, names.get(PartPlace(index, j))) for j, part in enumerate(messages[index].parts)]
        renamed[index] = messages[index].with_parts(parts)
    return renamed, changes


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
    """Tell whether nothing has to move: the common case, decided without building anything."""
    if pairs.orphans or pairs.duplicates:
        return False
    if any(rules.expects_result(_call(messages, place)) for place in pairs.open):
        return False
    return all(
        _stands_right(messages, call, result, rules)
        for call, result in pairs.answers.items()
        if rules.expects_result(_call(messages, call))
    )


def _stands_right(messages: Sequence[Message], call: PartPlace, result: PartPlace, rules: PairRules) -> bool:
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
    """Lays a history out anew: each answer of the model, then the results of its calls, then the rest."""

    def __init__(self, messages: Sequence[Message], pairs: Pairs, rules: PairRules, changes: list[Change]) -> None:
        self.messages = messages
        self.rules = rules
        self.changes = changes
        self.answers = pairs.answers
        self.orphans = set(pairs.orphans)
        self.duplicates = set(pairs.duplicates)
        self.placed = {result for call, result in pairs.answers.items() if result < call}
        """Results that were emitted, or will be: those that stand before their call wait for it."""
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
        """Find the end of the model's answer that begins here: one message, or a run of items."""
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
        """Decide over a part of an answer; collect the result of a call."""
        if type(part) is ToolResult:
            return not self._drops(place)
        if type(part) is not ToolCall or not self.rules.expects_result(part):
            return True
        found = self.answers.get(place)
        path = self.rules.path(place, self.messages[place.message])
        if found is not None and not self._hosted(found):
            result = self.messages[found.message].parts[found.part]
            assert type(result) is ToolResult
            results.append((found, result))
            return True
        answer = self.rules.answer(part, INTERRUPTED)
        if answer is None:
            self._say(self.rules.codes.open_call, "dropped", path, f"a call of {part.name!r} without a result")
            return False
        self._say(self.rules.codes.open_call, "added", path, f"closed the open call of {part.name!r} as interrupted")
        results.append((PartPlace(-1, -1), answer))
        return True

    def _hosted(self, place: PartPlace) -> bool:
        return self.messages[place.message].role == "assistant"

    def _place_results(self, results: list[tuple[PartPlace, ToolResult]], stop: int) -> None:
        """Emit the results of an answer, in messages that already hold just these where there are such."""
        if not results:
            return
        self.placed.update(place for place, _ in results)
        if self.rules.contract.results == "next-user-message":
            self._place_together(results, stop)
            return
        own = self._own_messages(results, stop)
        strangers = [(place, result) for place, result in results if place.message not in own]
        self._say_moved(place for place, _ in strangers)
        self.out.extend(self.messages[index] for index in own)
        self.out.extend(self._carried(place, result) for place, result in strangers)

    def _say_moved(self, places: Iterable[PartPlace]) -> None:
        for place in places:
            if place.message >= 0:
                path = self.rules.path(place, self.messages[place.message])
                self._say(self.rules.codes.misplaced_result, "moved", path, "a result goes directly behind its call")

    def _carried(self, place: PartPlace, result: ToolResult) -> Message:
        """Return the message that carries a result: its own, when it holds nothing else."""
        if place.message >= 0 and len(self.messages[place.message].parts) == 1:
            return self.messages[place.message]
        return self.rules.carry([result])

    def _own_messages(self, results: list[tuple[PartPlace, ToolResult]], stop: int) -> list[int]:
        """List the messages right behind the answer that hold results of it and nothing else."""
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
        """Emit all results of an answer as one user message, followed by that message's own words."""
        host = stop if stop < len(self.messages) and self._can_host(stop, results) else None
        if host is None:
            self._say_moved(place for place, _ in results)
            self.out.append(self.rules.carry([result for _, result in results]))
            return
        self._say_moved(place for place, _ in results if place.message != host or not self._leads(place))
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
        """Tell whether the next message may carry the results: it must hold one of them and none of another answer."""
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
        """Tell whether a result has no place in the history, and say so."""
        if place in self.orphans:
            code, why = self.rules.codes.orphan_result, "no call has the id of this result"
        elif place in self.duplicates:
            code, why = self.rules.codes.duplicate_result, "a later result answers the same call"
        else:
            return False
        self._say(code, "dropped", self.rules.path(place, self.messages[place.message]), why)
        return True

    def _say(self, code: str, action: Action, path: str, message: str) -> None:
        self.changes.append(Change(code, action, path, message))

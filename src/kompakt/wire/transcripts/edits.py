"""What a repair did to the parts of a conversation, told by comparing the two, so that a file can be edited to match.

A repair hands back whole messages. Parts that it left alone are the same objects; others are found again by what they
say, by the id they carry, or by where they are. What is found nowhere is new.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence

import msgspec

from kompakt.model.messages import JsonObject

_CALLS = ("tool_use", "function_call", "custom_tool_call", "local_shell_call")
_SAID = ("text", "thinking", "data", "content", "output", "summary", "encrypted_content", "input", "arguments")
_IDS = ("id", "call_id", "tool_use_id")


def match(before: Sequence[JsonObject], after: Sequence[JsonObject]) -> list[int | None]:
    """Find for each part after a repair the part before it that it is or was made of; ``None`` for a new part."""
    found: list[int | None] = [None] * len(after)
    taken: set[int] = set()
    places = {id(part): index for index, part in enumerate(before)}
    for index, part in enumerate(after):
        place = places.get(id(part))
        if place is not None and place not in taken:
            found[index] = place
            taken.add(place)
    for keys in (_whole, _words, _name):
        waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for place, part in enumerate(before):
            if place not in taken and (key := keys(part)) is not None:
                waiting[key].append(place)
        for index, part in enumerate(after):
            if found[index] is None and (key := keys(part)) is not None and waiting[key]:
                place = waiting[key].popleft()
                found[index] = place
                taken.add(place)
    _match_by_place(before, after, found, taken)
    return found


def _whole(part: JsonObject) -> Hashable:
    return msgspec.json.encode(part, order="sorted")


def _words(part: JsonObject) -> Hashable:
    """Reduce a part to its type and what it says: a call whose id was changed says the same."""
    said = {key: part[key] for key in _SAID if part.get(key)}
    return (part.get("type"), part.get("name"), msgspec.json.encode(said, order="sorted")) if said else None


def _name(part: JsonObject) -> Hashable:
    """Reduce a part to its type and the id it carries: a result whose content was changed has the same."""
    ids = tuple(str(part[key]) for key in _IDS if isinstance(part.get(key), str))
    return (part.get("type"), ids) if ids else None


def _match_by_place(
    before: Sequence[JsonObject], after: Sequence[JsonObject], found: list[int | None], taken: set[int]
) -> None:
    """Match what is left between the same neighbours; a part may have become one of another type there."""
    limits: list[int] = []
    limit = len(before)
    for place in reversed(found):
        limits.append(limit)
        limit = place if place is not None else limit
    limits.reverse()
    lower = -1
    for index, part in enumerate(after):
        place = found[index]
        if place is not None:
            lower = place
            continue
        if part.get("type") in _CALLS or any(part.get(key) for key in ("tool_use_id", "call_id")):
            continue  # a call or result that nothing before resembles is new
        free = [place for place in range(lower + 1, limits[index]) if place not in taken]
        same = [place for place in free if before[place].get("type") == part.get("type")]
        if same or free:
            place = (same or free)[0]
            found[index] = place
            taken.add(place)
            lower = place

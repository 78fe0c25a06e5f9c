"""What a call changed in an object outside: a booking, an order, a ticket.

Such a call answers with the object as it is now. If an earlier answer showed the same object, only the difference is
stated, with the value before and the value after::

    update_booking JG7FMM: cabin business → economy; payments + card_29/-305

Objects are the same if they have the same id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from kompakt.engine.ledger.excerpts import flat, harmless, one_line
from kompakt.engine.ledger.extract.records import Record, cell_text, identifiers, inner_keys
from kompakt.engine.ledger.extract.tool_calls import snake_case
from kompakt.model.messages import Json

MAX_CHANGE = 420
"""Characters kept of a change."""

MAX_GIVEN = 160
"""Characters kept of the arguments that the answer does not repeat."""


def identity(record: Record) -> str:
    """Return the id of an object: its first value under a key such as ``id`` or ``order_id``; empty without one."""
    for key, value in record.items():
        if isinstance(value, str | int) and not isinstance(value, bool):
            if snake_case(key).rpartition("_")[2] == "id":
                return str(value)
    return ""


def change_text(
    name: str, given: Mapping[str, Json], after: Record, *, before: Record | None = None, other: Record | None = None
) -> str:
    """State what a call changed: the object after it, as far as it differs from the object before it.

    ``before`` is the same object, if an earlier answer showed it. ``other`` is what an earlier call of the same tool
    made: a second object is stated as far as it differs from the first.
    """
    repeated = set(_plain_values(after))
    extra = flat({key: value for key, value in given.items() if not _is_repeated(value, repeated)}, MAX_GIVEN)
    own = identity(after)
    if before is not None and len(before.keys() & after.keys()) * 2 >= len(after):
        asked = f"asked for {extra}; " if extra else ""
        text = f"{name} {own}: {asked}{_differences(before, after) or 'no difference in the answer'}"
    elif other is not None and identity(other) and sum(other.get(key) == after[key] for key in after) * 2 > len(after):
        asked = f"({extra})" if extra else ""
        differs = _differences(other, after)
        text = f"{name}{asked} → {own}, like {identity(other)}" + (f", but: {differs}" if differs else "")
    else:
        said = ", ".join(_stated(key, value) for key, value in after.items() if value not in (None, "", [], {}))
        text = f"{name}({extra}) → {said}" if extra else f"{name} → {said}"
    return harmless(one_line(text, MAX_CHANGE))


def _differences(old: Record, new: Record) -> str:
    """State which fields differ, apart from the id."""
    own = identity(new)
    parts = (_difference(key, old.get(key), value) for key, value in new.items() if value != own)
    return "; ".join(filter(None, parts))


def _is_repeated(value: Json, values: set[Json]) -> bool:
    """Return whether an argument is among the values of a record."""
    if isinstance(value, list):
        return all(_is_repeated(item, values) for item in value)
    if isinstance(value, dict):
        return all(_is_repeated(item, values) for item in value.values())
    return value in (None, "") or value in values


def _plain_values(value: Json | Record) -> Iterator[Json]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _plain_values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _plain_values(inner)
    else:
        yield value


def _stated(key: str, value: Json) -> str:
    inner = inner_keys([value])
    if inner and isinstance(value, list):
        return f"{key} ({'/'.join(inner)}) {cell_text(value, inner)}"
    return f"{key} ({flat(value, MAX_CHANGE)})" if isinstance(value, dict) else f"{key} {cell_text(value, None)}"


def _difference(key: str, old: Json, new: Json) -> str:
    """State how a field changed; empty if it did not."""
    if old == new:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        parts = (_difference(one, old.get(one), value) for one, value in new.items())
        return f"{key} {', '.join(filter(None, parts))}"
    if isinstance(old, list) and isinstance(new, list):
        return f"{key} {_list_difference(old, new)}"
    after = cell_text(new, None)
    return f"{key} {after}" if old in (None, "", [], {}) else f"{key} {cell_text(old, None)} → {after}"


def _list_difference(old: list[Json], new: list[Json]) -> str:
    """State what was appended to a list, what changed in its items, or what it contains now."""
    if new[: len(old)] == old:
        added = new[len(old) :]
        return f"+ {cell_text(added, inner_keys([added]))}"
    pairs = list(zip(old, new, strict=False))
    if len(old) == len(new) and all(isinstance(one, dict) and isinstance(other, dict) for one, other in pairs):
        differences = [_item_difference(*cast("tuple[Record, Record]", pair)) for pair in pairs if pair[0] != pair[1]]
        if all(differences):
            return ", ".join(differences)
    return f"now {cell_text(new, inner_keys([new]))}"


def _item_difference(old: Record, new: Record) -> str:
    """State what changed in an item of a list, if a name in it shows that it is the same item."""
    same = [value for key, value in new.items() if isinstance(value, str) and old.get(key) == value]
    name = next((value for value in same if identifiers(value)), same[0] if same else "")
    if not name:
        return ""
    return f"{name} " + " ".join(part for key, value in new.items() if (part := _difference(key, old.get(key), value)))

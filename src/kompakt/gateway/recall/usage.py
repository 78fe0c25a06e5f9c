"""What several rounds used together, in the words of the provider that counted: every number is added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from kompakt.gateway.recall.turn import as_list, as_object
from kompakt.model.messages import Json, JsonObject


def summed(usages: Iterable[Mapping[str, Json]]) -> JsonObject:
    """Add up usages."""
    total: JsonObject = {}
    for usage in usages:
        total = cast("JsonObject", _added(total, dict(usage)))
    return total


def _added(one: Json, two: Json) -> Json:
    """Add numbers wherever they stand; of anything else the later one counts."""
    if isinstance(one, dict) and isinstance(two, dict):
        first, second = as_object(one), as_object(two)
        added = {name: _added(first.get(name), value) for name, value in second.items()}
        return {**first, **added}
    if isinstance(one, list) and isinstance(two, list):
        return _listed(as_list(one), as_list(two))
    if _is_number(one) and _is_number(two):
        return one + two
    return one if two is None else two


def _listed(one: list[Json], two: list[Json]) -> list[Json]:
    """Add lists of counts by what is counted (Gemini: modality); other lists go one behind the other."""
    found: dict[Json, Json] = {}
    for entry in (*one, *two):
        kind = as_object(entry).get("modality")
        if not isinstance(kind, str):
            return [*one, *two]
        found[kind] = _added(found.get(kind), entry)
    return list(found.values())


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plus(usage: JsonObject, tokens: int, *names: str) -> JsonObject:
    """Raise those counts that are there."""
    more = {name: usage[name] + tokens for name in names if _is_number(usage.get(name))}
    return {**usage, **more}

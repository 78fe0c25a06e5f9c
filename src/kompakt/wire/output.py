"""How long an answer a request asks for, as each provider spells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kompakt.model.messages import JsonObject

_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_NESTED = (("generationConfig", "maxOutputTokens"), ("inferenceConfig", "maxTokens"))


def stated_output(field: Callable[[str], object]) -> int | None:
    """Return the tokens of answer that a request asks for; ``field`` reads one of its fields."""
    values: list[object] = [field(name) for name in _FIELDS]
    for name, inner in _NESTED:
        holder = field(name)
        values.append(cast("JsonObject", holder).get(inner) if isinstance(holder, dict) else None)
    counts = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return counts[0] if counts else None

"""Which items a ledger has when not all of them fit.

Greedy by value per cost, which is within one item of the best choice for a knapsack whose items are small. The cost is
raised to a power below one: otherwise short fragments crowd out the longer sentences that explain them. Sizes are
estimated from characters while choosing, and only the finished text is counted, so the work follows the room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kompakt.engine.ledger.items import Item, write

COST_POWER = 0.75
"""Weight of an item's size: 1 prefers short items, 0 ignores the size."""

OVERHEAD = 6
"""Tokens added to each size when items are compared, so that the shortest ones do not always win."""

CHARS_PER_TOKEN = 3.6
"""Characters of a token, about; corrected by counting the text that was chosen."""

LEAST_VALUE = 1.0
"""Items below this value are left out even when there is room for them."""

_ATTEMPTS = 5
_SLACK = 0.03
"""Share of the room that may stay empty while there are items left."""


def choose(items: Sequence[Item], room: int, count: Callable[[str], int]) -> str:
    """Write the most valuable items that fit into a number of tokens."""
    ranked = sorted(
        (item for item in items if item.value >= LEAST_VALUE),
        key=lambda item: (-item.value / (_tokens(item) ** COST_POWER + OVERHEAD), -item.at, item.passage),
    )
    estimated, best = float(room), ""
    for attempt in range(_ATTEMPTS):
        chosen = _filled(ranked, estimated)
        text = write(chosen)
        if not text:
            break
        tokens = count(text)
        if tokens <= room:
            best = text
            if len(chosen) == len(ranked) or tokens >= room * (1 - _SLACK):
                break
            estimated += room - tokens
        elif not best and attempt == _ATTEMPTS - 1:
            best = _shrunk(chosen, room, count)
        else:
            estimated -= (tokens - room) * 1.1 + 5
    return best


def _tokens(item: Item) -> float:
    return len(item.text) / CHARS_PER_TOKEN + (12 if item.reference else 4)


def _filled(ranked: Sequence[Item], room: float) -> list[Item]:
    left = room - 60  # headings
    chosen: list[Item] = []
    for item in ranked:
        tokens = _tokens(item)
        if tokens <= left:
            chosen.append(item)
            left -= tokens
        elif left < OVERHEAD:
            break
    return chosen


def _shrunk(chosen: list[Item], room: int, count: Callable[[str], int]) -> str:
    """Drop the least valuable items until the text fits."""
    while chosen:
        chosen = chosen[: len(chosen) * 3 // 4]
        text = write(chosen)
        if count(text) <= room:
            return text
    return ""

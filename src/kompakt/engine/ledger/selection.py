"""Which items a ledger has when not all of them fit.

Greedy by value per cost, which is within one item of the best choice for a knapsack whose items are small. The cost is
raised to a power below one: otherwise short fragments crowd out the longer sentences that explain them. Sizes are
estimated from characters while choosing, and only the finished text is counted, so the work follows the room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kompakt.engine.ledger.items import CELL_GAP, CHANGES, FINDINGS, RUNS, USER, Item, write

COST_POWER = 0.75
"""Weight of an item's size: 1 prefers short items, 0 ignores the size."""

OVERHEAD = 6
"""Tokens added to each size when items are compared, so that the shortest ones do not always win."""

CHARS_PER_TOKEN = 3.6
"""Characters of a token, about; corrected by counting the text that was chosen."""

CHARS_PER_CELL = 2.0
"""The same in a row of a table, which consists of numbers and names."""

LEAST_VALUE = 1.0
"""Items below this value are left out even when there is room for them."""

SHARES = {USER: 0.4, FINDINGS: 0.5, CHANGES: 0.35, RUNS: 0.3}
"""Share of the room that a section takes before others had their turn. A reader needs the wishes, what came of them and
where things stand; the thirtieth request is worth less than the first finding.
"""

_ATTEMPTS = 6
_SLACK = 0.03
"""Share of the room that may stay empty while there are items left."""


def choose(items: Sequence[Item], room: int, count: Callable[[str], int]) -> str:
    """Write the most valuable items that fit into a number of tokens."""
    ranked = sorted(
        (item for item in items if item.value >= LEAST_VALUE),
        key=lambda item: (-item.value / (_tokens(item) ** COST_POWER + OVERHEAD), -item.at, item.passage),
    )
    # An estimate that fits and one that does not close in on the room. The measured size places the next attempt.
    estimate, fitting, over, best = float(room), 0.0, float("inf"), ""
    for attempt in range(_ATTEMPTS):
        chosen, is_complete = _filled(ranked, estimate)
        text = write(chosen)
        if not text:
            break
        tokens = count(text)
        if tokens <= room:
            best, fitting = text, estimate
            if is_complete or tokens >= room * (1 - _SLACK):
                break
        else:
            over = estimate
            if not best and attempt == _ATTEMPTS - 1:
                best = _shrunk(chosen, room, count)
        wanted = estimate * room / tokens * (1 - _SLACK / 2)
        if not fitting < wanted < over:
            wanted = (fitting + min(over, 2 * room)) / 2
        estimate = wanted
    return best


def _tokens(item: Item) -> float:
    per_token = CHARS_PER_CELL if CELL_GAP in item.text else CHARS_PER_TOKEN
    return len(item.text) / per_token + (12 if item.reference else 4)


def _filled(ranked: Sequence[Item], room: float) -> tuple[list[Item], bool]:
    """Take items by rank, first as far as the share of their section allows, then whatever fits.

    Returns them, and whether they are all there are.
    """
    left = room - 60  # headings
    shares = {section: share * room for section, share in SHARES.items()}
    chosen: dict[int, Item] = {}
    shorter: dict[str, Item] = {}
    """Chosen items that a longer one may replace, by their text."""
    extended: set[str] = set()
    skipped: list[Item] = []
    is_complete = True
    for by_share, candidates in ((True, ranked), (False, skipped)):
        for item in candidates:
            if item.section == CHANGES and item.text in extended:
                continue
            replaced = shorter.get(item.extends) if item.extends else None
            tokens = _tokens(item) - (_tokens(replaced) if replaced is not None else 0)
            share = shares.get(item.section, room)
            if by_share and tokens > share:
                skipped.append(item)
            elif tokens <= left:
                if replaced is not None:
                    del chosen[id(replaced)]
                if item.extends:
                    extended.add(item.extends)
                elif item.section == CHANGES:
                    shorter[item.text] = item
                chosen[id(item)] = item
                left -= tokens
                shares[item.section] = share - tokens
            else:
                is_complete = False
                if left < OVERHEAD:
                    break
    return list(chosen.values()), is_complete


def _shrunk(chosen: list[Item], room: int, count: Callable[[str], int]) -> str:
    """Drop the least valuable items until the text fits."""
    while chosen:
        chosen = chosen[: len(chosen) * 3 // 4]
        text = write(chosen)
        if count(text) <= room:
            return text
    return ""

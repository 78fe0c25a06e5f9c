"""Fit a context into a token limit exactly, when the policy alone did not.

A policy works with estimates and stops near its goal. Fitting measures the rendered projection and removes the cheapest
content first, in a fixed order:

1. the input of calls that were answered: the effect is visible in the result;
2. the ledger, down to its minimum: its facts can be recalled;
3. the oldest groups;
4. the rest of the ledger;
5. the reserve for the answer, up to the ceiling;
6. tool results, those that the model has not read included, all to one cap;
7. the first request, to its head, tail and rules.

System messages, the newest request, pins and calls that wait for a result never change. Each shortened text names the
reference that restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from kompakt.engine.context.context import Context
from kompakt.engine.ledger.extract.user_words import binding, is_injected
from kompakt.engine.pivot.pivot import PLAIN, pivot_text, pivot_tokens, release_notes, resize
from kompakt.engine.strategies.shortened_results import shorten_calls, shorten_results, shortened
from kompakt.engine.strategies.strategy import answered_calls, results_of
from kompakt.engine.strategies.summarization import MIN_LEDGER
from kompakt.model.messages import Part, Text
from kompakt.model.phrases import RUNTIME_LINE

PartsOf: TypeAlias = Callable[[Context, int], Iterator[tuple[int, Part]]]
"""Yields the parts of one kind that a message shows, with their positions."""

CutParts: TypeAlias = Callable[[Context, int, int], bool]
"""Cuts the parts of one kind in a message to a number of tokens."""

_ATTEMPTS = 6
"""Attempts at a cap before everything is cut to the minimum. Each cap is a fifth lower, because counts of single parts
are estimates and only the whole projection is exact."""

GIVEN_PART = 0.1
"""Share of the free tokens that the input of answered calls may take when ledger and results need the rest."""

CUT_PART = 0.5
"""Minimum share of the free tokens for an unread result that cannot stay whole. It is cut in any case, so the ledger
and older groups may use the rest."""

MIN_USEFUL_LEDGER = 40
"""Minimum tokens of a ledger: a smaller one contains little more than headings."""


def fit(context: Context, limit: int, *, ceiling: int = 0) -> bool:
    """Reduce the projection to the limit; return whether it fits.

    ``ceiling`` is the limit without the reserve for the answer. The reserve is used before unread results are cut.
    """
    ceiling = max(limit, ceiling)
    context.strip_reasoning()  # whatever is done next changes the prefix
    release_notes(context)
    resize(context)
    context.note_pins()  # from here on the projection differs from what was given, so pins must be in it
    if (
        _limit_given(context, limit)
        or _shrink_ledger(context, limit, least=MIN_LEDGER)
        or _drop(context, limit)
        or _shrink_ledger(context, limit, least=MIN_USEFUL_LEDGER)
    ):
        return _rewrite_ledger(context, limit)
    reduce_to_line(context)
    return (
        context.projected_tokens <= ceiling
        or _shorten(context, ceiling, results_of, shorten_results)
        or _shorten(context, ceiling, answered_calls, shorten_calls)
        or _shorten_first_request(context, ceiling)
    )


def cut_unread(context: Context, ceiling: int) -> bool:
    """Shorten unread results that do not fit even if everything else is removed; return whether anything changed."""
    sizes = _sizes(context, results_of, protected=True)
    pivot = pivot_tokens(context, RUNTIME_LINE, 0, PLAIN) if context.hides or context.droppable() else 0
    free = ceiling - (context.required_tokens - sum(sizes)) - pivot
    missing = sum(sizes) - free
    if not ceiling or missing <= 0:
        return False
    cap = largest_cap(sizes, max(free - missing, int(free * CUT_PART)))
    places = _places(context, results_of, protected=True)
    return max([shorten_results(context, index, cap) for index in places], default=False)


def reduce_to_line(context: Context) -> None:
    """Reduce the pivot to one line which says that earlier steps are hidden."""
    if context.summary_text is None:
        if not context.hides:
            return
        context.replace((), RUNTIME_LINE, reason="left out")
    context.reword(RUNTIME_LINE, room=0)


def _rewrite_ledger(context: Context, limit: int) -> bool:
    """Write the ledger again for the final projection, so that it covers what fitting itself removed.

    Restores the previous ledger if no attempt fits.
    """
    summary, cached = context.summary_text, context.pivot_cache
    for _ in range(_ATTEMPTS):
        if context.summary_text is None or not context.summary_text.room:
            break
        context.pivot_cache = None
        context.visibility.touch()
        over = context.projected_tokens - limit
        if over <= 0:
            return True
        resize(context, max(1, context.summary_text.room - over - 10))
    context.summary_text, context.pivot_cache = summary, cached
    context.visibility.touch()
    return context.projected_tokens <= limit


def minimal(context: Context) -> None:
    """Keep only protected content, with each result and the first request at its minimum."""
    context.exclude_all(context.droppable(), reason="does not fit")
    for group in context.live:
        if not group.pinned:
            for index in group.indices:
                shorten_results(context, index, 0)
                shorten_calls(context, index, 0)
    _cut_first_request(context, 0)
    reduce_to_line(context)
    context.strip_reasoning()


def _drop(context: Context, limit: int) -> bool:
    """Exclude the oldest groups until the exact size fits."""
    while True:
        context.note_pins()
        over = context.projected_tokens - limit
        if over <= 0:
            return True
        groups = context.droppable()
        if not groups:
            return False
        for group in groups:
            context.exclude(group, reason="truncation")
            over -= group.tokens
            if over <= 0:
                break
        context.strip_reasoning()


def _shrink_ledger(context: Context, limit: int, *, least: int) -> bool:
    """Give the ledger the tokens that the rest leaves, but at least ``least``."""
    for _ in range(_ATTEMPTS):
        over = context.projected_tokens - limit
        summary = context.summary_text
        if over <= 0 or summary is None or not summary.room:
            break
        room = max(least, _pivot_text_tokens(context) - over)
        if room >= summary.room:
            break
        resize(context, room)
    return context.projected_tokens <= limit


def _limit_given(context: Context, limit: int) -> bool:
    """Limit the input of answered calls to a share of the free tokens, or to what ledger and results leave."""
    given = _sizes(context, answered_calls)
    results, text = sum(_sizes(context, results_of)), _pivot_text_tokens(context)
    free = limit - (context.projected_tokens - results - text - sum(given))
    room = max(int(free * GIVEN_PART), free - results - text)
    if context.projected_tokens > limit and sum(given) > room:
        cap = largest_cap(given, room)
        _lower(context, answered_calls, shorten_calls, cap, lambda: sum(_sizes(context, answered_calls)) <= room)
    return context.projected_tokens <= limit


def _pivot_text_tokens(context: Context) -> int:
    if context.summary_text is None:
        return 0
    return context.counter.tokens(pivot_text(context))


def _shorten(context: Context, limit: int, parts_of: PartsOf, cut: CutParts) -> bool:
    """Shorten all parts of a kind to the largest common cap that fits."""
    sizes = _sizes(context, parts_of)
    cap = largest_cap(sizes, limit - (context.projected_tokens - sum(sizes)))
    return _lower(context, parts_of, cut, cap, lambda: context.projected_tokens <= limit)


def _places(context: Context, parts_of: PartsOf, *, protected: bool = False) -> list[int]:
    """List the messages with shortenable parts of a kind; with ``protected``, only those of protected groups."""
    groups = context.archive.protected(context.live) if protected else context.live
    kept = (index for group in groups if not group.pinned for index in group.indices)
    return [index for index in kept if any(parts_of(context, index))]


def _sizes(context: Context, parts_of: PartsOf, *, protected: bool = False) -> list[int]:
    places = _places(context, parts_of, protected=protected)
    return [context.counter.part(part) for index in places for _, part in parts_of(context, index)]


def _lower(context: Context, parts_of: PartsOf, cut: CutParts, cap: int, fits: Callable[[], bool]) -> bool:
    """Cut parts of a kind to one cap and lower it until they fit; the last attempt uses 0. Return whether they fit."""
    shown = {index: context.shown(index) for index in _places(context, parts_of)}
    for attempt in range(_ATTEMPTS + 1):
        for index, message in shown.items():
            context.visibility.put(index, message)
            cut(context, index, cap)
        context.note_pins()
        if fits() or (cap == 0 and attempt):
            break
        cap = max(0, int(cap * 0.8) - 10) if attempt < _ATTEMPTS - 1 else 0
    return fits()


def largest_cap(sizes: Sequence[int], room: int) -> int:
    """Find the largest cap for which the sum of ``min(size, cap)`` fits.

    Goes from the smallest size up: a size below an equal share of what is left stays whole and leaves the rest of its
    share to the larger ones.
    """
    left = room = max(0, room)
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return room


def _shorten_first_request(context: Context, limit: int) -> bool:
    """Shorten the first request to the tokens left for it; the newest request never changes."""
    first, newest = context.archive.requests()
    if first is None or first is newest or first.pinned:
        return False
    index = first.indices[0]
    shown = context.shown(index)
    room = limit - (context.projected_tokens - context.message_tokens(index))
    for share in (0.95, 0.75, 0.5, 0.25, 0.0):
        context.visibility.put(index, shown)
        _cut_first_request(context, int(room * share))
        context.note_pins()
        if context.projected_tokens <= limit:
            return True
    return False


READ_IN = 80
"""Tokens left of a skill or command file beside the first request, once another request is the newest."""


def cut_read_in(context: Context) -> None:
    """Shorten the skill and command files beside the first request: the user's own words are the task, not they."""
    first, newest = context.archive.requests()
    if first is None or first is newest or first.pinned:
        return
    for index in first.indices:
        for j, part in enumerate(context.shown(index).parts):
            if type(part) is Text and is_injected(part.text) and context.counter.part(part) > 2 * READ_IN:
                text = shortened(part.text, READ_IN, context.counter, reference=context.reference(index, j))
                short = msgspec.structs.replace(part, text=text, edited=True)
                context.show(index, j, short, what="shortened", why="a skill or command file, not the task")


def _cut_first_request(context: Context, limit: int) -> None:
    first, newest = context.archive.requests()
    if first is None or first is newest or first.pinned:
        return
    index = first.indices[0]
    texts = [(j, part) for j, part in enumerate(context.shown(index).parts) if type(part) is Text]
    cap = largest_cap([context.counter.part(part) for _, part in texts], limit)
    for j, part in texts:
        text = _with_rules(part.text, cap, context, context.reference(index, j))
        short = msgspec.structs.replace(part, text=text, edited=True)
        if context.counter.part(short) < context.counter.part(part):
            context.show(index, j, short, what="shortened", why="the first request alone is too large")


def _with_rules(text: str, limit: int, context: Context, reference: str) -> str:
    """Shorten a request to its head, its tail and its rules, which may take half of the limit."""
    counter = context.counter
    rules: list[str] = []
    left = limit // 2
    for rule in binding(text):
        left -= counter.tokens(rule) + 1
        if left < 0:
            break
        rules.append(rule)
    short = shortened(text, limit, counter, reference=reference)
    kept: set[str] = set()
    for _ in range(_ATTEMPTS):
        missing = {rule for rule in rules if rule not in short}
        if not missing:
            break
        kept |= missing
        middle = "".join(f"{rule}\n" for rule in rules if rule in kept)
        short = shortened(text, limit, counter, reference=reference, middle=middle)
    return short

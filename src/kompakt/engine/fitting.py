"""Make a context fit exactly, when the policy alone did not: drop, then shorten, then the first request.

The order is fixed. System, newest request, pins and the open round's calls are never touched; an oversized result is
shortened with a reference to the rest; the first request is shortened last and only when a newer one exists.
"""

from __future__ import annotations

import msgspec

from kompakt.engine.context import Context
from kompakt.engine.inheritance import release_notes
from kompakt.engine.ledger.speech import binding
from kompakt.engine.retelling import resize, retell
from kompakt.engine.strategies.shortening import shorten_results, shortened
from kompakt.engine.strategies.strategy import results_of
from kompakt.model.messages import Text

_ATTEMPTS = 6
"""Tries at a cap before everything is shortened to the least: each is a fifth lower, counts being estimates."""

LEDGER_PART = 0.85
"""Share of what is left that the ledger may take before the newest results have their own."""

LEAST_LEDGER = 120
"""A ledger of fewer tokens says too little to be worth its frame."""


def fit(context: Context, limit: int) -> bool:
    """Bring the projection down to the limit; return whether that worked."""
    context.strip_reasoning()  # whatever is done next changes the prefix
    release_notes(context)
    resize(context)
    fits = (
        _drop(context, limit)
        or _share_out(context, limit)
        or _shorten(context, limit)
        or _without_summary(context, limit)
        or _shorten_first_request(context, limit)
    )
    return fits and _told_anew(context, limit)


def _told_anew(context: Context, limit: int) -> bool:
    """Write the ledger once more for what is shown in the end: what was cut on the way has to be told too."""
    summary, told = context.summary_text, context.told
    for _ in range(_ATTEMPTS):
        if context.summary_text is None or not context.summary_text.room:
            break
        context.told = None
        context.view.touch()
        over = context.projected_tokens - limit
        if over <= 0:
            return True
        resize(context, max(1, context.summary_text.room - over - 10))
    context.summary_text, context.told = summary, told
    context.view.touch()
    return context.projected_tokens <= limit


def minimal(context: Context) -> None:
    """Leave only what must stay, each result and the first request at its shortest."""
    context.exclude_all(context.droppable(), reason="does not fit")
    for group in context.live:
        if not group.pinned:
            for index in group.indices:
                shorten_results(context, index, 0)
    _cut_first_request(context, 0)
    context.strip_reasoning()


def _drop(context: Context, limit: int) -> bool:
    """Leave out the oldest groups until the exact size fits."""
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


def _share_out(context: Context, limit: int) -> bool:
    """Divide what is left between the ledger and the results that must stay, so that neither takes all."""
    summary = context.summary_text
    if summary is None or not summary.room:
        return False
    results = sum(
        context.counter.part(result) for index in _places(context) for _, result in results_of(context, index)
    )
    told = context.counter.scaled(context.counter.text(retell(context)))
    free = limit - (context.projected_tokens - results - told)
    wanted = min(summary.room, max(int(free * LEDGER_PART), free - results))
    if wanted < LEAST_LEDGER:
        return False
    resize(context, wanted)
    return _shorten(context, limit)


def _places(context: Context) -> list[int]:
    """List the messages that hold results which may be shortened."""
    shown = [index for group in context.live if not group.pinned for index in group.indices]
    return [index for index in shown if any(results_of(context, index))]


def _shorten(context: Context, limit: int) -> bool:
    """Shorten what results are left, all to one cap, as large a cap as fits."""
    places = _places(context)
    sizes = [context.counter.part(result) for index in places for _, result in results_of(context, index)]
    cap = largest_cap(sizes, limit - (context.projected_tokens - sum(sizes)))
    shown = {index: context.shown(index) for index in places}
    for _ in range(_ATTEMPTS):
        for index in places:
            context.view.put(index, shown[index])
            shorten_results(context, index, cap)
        context.note_pins()
        if context.projected_tokens <= limit:
            return True
        cap = int(cap * 0.8) - 10
        if cap <= 0:
            break
    for index in places:
        context.view.put(index, shown[index])
        shorten_results(context, index, 0)
    context.note_pins()
    return context.projected_tokens <= limit


def largest_cap(sizes: list[int], room: int) -> int:
    """Find the largest cap under which the sizes together fit into the room."""
    left = room = max(0, room)
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return room


def _without_summary(context: Context, limit: int) -> bool:
    context.drop_summary()
    return context.projected_tokens <= limit


def _shorten_first_request(context: Context, limit: int) -> bool:
    """Shorten the first request to what is left for it; never the newest one."""
    first, newest = context.archive.requests()
    if first is None or first is newest or first.pinned:
        return False
    index = first.indices[0]
    shown = context.shown(index)
    room = limit - (context.projected_tokens - context.message_tokens(index))
    for share in (0.95, 0.75, 0.5, 0.25, 0.0):
        context.view.put(index, shown)
        _cut_first_request(context, int(room * share))
        context.note_pins()
        if context.projected_tokens <= limit:
            return True
    return False


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
    """Shorten a request to its head and tail, and to what it demands or forbids as far as half of the room goes."""
    counter = context.counter
    rules: list[str] = []
    left = limit // 2
    for rule in binding(text):
        left -= counter.scaled(counter.text(rule)) + 1
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

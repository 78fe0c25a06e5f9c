"""How the requests of a session grew: tokens by kind for every step, compactions, and what it cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.model.budget import Budget, Usage
from kompakt.model.limits import Price, price_of
from kompakt.view.index import SessionIndex, kind_of
from kompakt.view.sources import Moment, ShownRequest, Source, ViewPoint, ViewState
from kompakt.view.status import timestamp
from kompakt.view.values import KINDS, CacheClasses, CompactionMark, ContentKind, Growth, GrowthPoint

MAX_POINTS = 1_500
"""Points of a chart. Of more steps, a selection is shown that contains the steps around every compaction."""

BudgetOf = Callable[[str | None], Budget | None]
"""Returns the budget of a model; ``None`` if its window is unknown."""

Sizes = dict[ContentKind, int]


class StepSizes:
    """The tokens of every request of a session, by kind."""

    def __init__(
        self,
        source: Source,
        moment: Moment,
        index: SessionIndex,
        views: dict[str, Sizes],
        now: ShownRequest,
        total: int,
    ) -> None:
        self._moment = moment
        self._index = index
        self._views = views
        """Tokens by kind that each compaction shows, by its id."""
        self._fixed: Sizes = {"system": moment.system_tokens, "tools": moment.tools_tokens}
        self.states: list[ViewState] = []
        """The state of each step."""
        self.sizes: list[Sizes] = []
        self.starts = tuple(index.starts[: bisect_right(index.starts, moment.rows)])
        """The first row of each answer. The index may have more by now."""
        states, at = moment.states, 0
        for start in self.starts:
            while at + 1 < len(states) and states[at + 1].since < start:
                at += 1
            self.states.append(states[at])
            self.sizes.append(self.before(states[at], start))
        self.billed = _billed(source, self.starts)
        reported = ((usage.prompt, sizes) for usage, sizes in zip(self.billed, self.sizes, strict=True) if usage.prompt)
        self.hidden = next((max(0, prompt - sum(sizes.values())) for prompt, sizes in reported), 0)
        """Tokens of the system prompt and tools that a transcript does not contain, by its first reported request."""
        self.now = request_sizes(moment, now, total, self.hidden)
        """Tokens of the next request."""

    def before(self, state: ViewState, row: int) -> Sizes:
        """Return the tokens of a request before a row."""
        point = state.point
        sizes = dict(self._views.get(point.id, self._fixed)) if point is not None else dict(self._fixed)
        after = point.tip if point is not None else 0
        for kind in KINDS:
            added = self._index.live_tokens(kind, after, row - 1, state.dead)
            if added:
                sizes[kind] = sizes.get(kind, 0) + added
        for seq in state.muted:
            one = self._index.find(seq) if after < seq < row else None
            if one is not None:
                sizes[one.kind] = sizes.get(one.kind, 0) - one.tokens
        return sizes

    def whole(self, row: int, state: ViewState) -> int:
        """Return the tokens of a request before a row if nothing had ever been compacted."""
        own = sum(self._index.live_tokens(kind, 0, row - 1, state.dead) for kind in KINDS if kind != "ledger")
        return own + sum(self._fixed.values())


async def sizes_of(source: Source, moment: Moment, index: SessionIndex, now: ShownRequest, total: int) -> StepSizes:
    """Compute the tokens of every request. The index must be complete."""
    views: dict[str, Sizes] = {}
    for point in moment.points:
        shown = await source.shown(moment, rows=point.tip, events=point.number)
        views[point.id] = request_sizes(moment, shown, shown.total)
    return StepSizes(source, moment, index, views, now, total)


def request_sizes(moment: Moment, shown: ShownRequest, total: int, hidden: int = 0) -> Sizes:
    """Return the tokens of a request by kind; see ``reconciled``."""
    sizes: Sizes = {"system": moment.system_tokens, "tools": moment.tools_tokens, "ledger": shown.pivot_tokens}
    for row in shown.rows:
        kind = kind_of(row.message)
        sizes[kind] = sizes.get(kind, 0) + row.tokens
    return reconciled(sizes, total, hidden, rest="ledger" if shown.pivot else "system")


def reconciled(sizes: Sizes, total: int, hidden: int = 0, *, rest: ContentKind = "system") -> Sizes:
    """Make sizes add up to ``total``, the size of the request.

    What is missing is counted as ``rest``: with a pivot, what is added around it; without one, a system prompt and
    tools that a transcript does not contain. What is too much is taken from all kinds, in proportion. ``hidden`` is the
    size of that system prompt and these tools: they do not shrink because an agent left out messages without a note.
    """
    counted = sum(sizes.values())
    if not counted or counted + hidden <= total:
        return {**sizes, rest: sizes.get(rest, 0) + total - counted}
    kept = min(hidden, max(total - counted, total // 2))
    scaled: Sizes = {kind: size * (total - kept) // counted for kind, size in sizes.items()}
    largest = max(scaled, key=lambda kind: scaled[kind])
    scaled[largest] += total - kept - sum(scaled.values())
    return {**scaled, rest: scaled.get(rest, 0) + kept}


def growth_of(moment: Moment, index: SessionIndex, steps: StepSizes, budget: Budget | None) -> Growth:
    """Return the chart of a session with all of its points."""
    billed = steps.billed
    points: list[GrowthPoint] = []
    previous, was = 0, None
    for number, (start, sizes, state) in enumerate(zip(steps.starts, steps.sizes, steps.states, strict=True), 1):
        usage = billed[number - 1]
        if usage.prompt:
            sizes = reconciled(sizes, usage.prompt, steps.hidden)
        total = sum(sizes.values())
        same = previous if was is None or was == _view(state) else steps_shared(sizes)
        cached = usage.cache_read if usage.prompt else min(same, total)
        found = index.find(start)
        at = timestamp(found.at) if found is not None and found.at is not None else None
        points.append(GrowthPoint(step=number, seq=start, at=at, tokens=_named(sizes), total=total, cached=cached))
        previous, was = total, _view(state)
    total = sum(steps.now.values())
    points.append(
        GrowthPoint(
            step=len(steps.starts) + 1,
            seq=moment.rows + 1,
            tokens=_named(steps.now),
            total=total,
            cached=min(previous if was is None or was == _view(moment.now) else steps_shared(steps.now), total),
        )
    )
    marks = tuple(_mark(point, steps.starts, points) for point in moment.points)
    return Growth(
        window=budget.window if budget is not None else None,
        reserve=budget.reserve if budget is not None else 0,
        trigger=budget.trigger if budget is not None else None,
        target=budget.target if budget is not None else None,
        steps=len(steps.starts),
        points=tuple(points),
        compactions=marks,
        reported=any(usage.prompt for usage in billed),
    )


def _billed(source: Source, starts: Sequence[int]) -> list[Usage]:
    """Return what the provider reported for each step. A transcript can repeat it for each message of an answer."""
    billed = [Usage()] * len(starts)
    for seq, usage in source.usages.items():
        step = bisect_right(starts, seq) - 1
        if step >= 0:
            billed[step] = usage
    return billed


def _view(state: ViewState) -> tuple[object, ...]:
    """Return what the prefix of a request depends on."""
    return (state.point.id if state.point is not None else None, state.dead)


def steps_shared(sizes: Sizes) -> int:
    """Return what a request after a rewriting shares with the one before: system prompt and tools."""
    return sizes.get("system", 0) + sizes.get("tools", 0)


def _named(sizes: Sizes) -> dict[str, int]:
    return {kind: sizes.get(kind, 0) for kind in KINDS}


def _mark(point: ViewPoint, starts: Sequence[int], points: Sequence[GrowthPoint]) -> CompactionMark:
    step = bisect_right(starts, point.since) + 1
    before, after = point.tokens_before, point.tokens_after
    if before is None and step >= 2:
        before = points[step - 2].total
    if after is None:
        after = points[min(step, len(points)) - 1].total
    return CompactionMark(id=point.id, step=step, before=before, after=after, undone=point.undone)


def selected(
    points: Sequence[GrowthPoint], marks: Sequence[CompactionMark], most: int = MAX_POINTS
) -> tuple[GrowthPoint, ...]:
    """Select at most ``most`` points: the first, the last, those around compactions, and others at equal distances."""
    if len(points) <= most:
        return tuple(points)
    around = [place for mark in marks for place in (mark.step - 2, mark.step - 1) if 0 <= place < len(points)]
    wanted = {0, len(points) - 1, *around[-(most // 2) :]}
    rest = most - len(wanted)
    wanted |= {round(place * (len(points) - 1) / rest) for place in range(rest)}
    return tuple(points[place] for place in sorted(wanted)[:most])


# --- costs ---------------------------------------------------------------------------------------------------------


class SessionCost(msgspec.Struct, frozen=True):
    """What the requests of a session cost, and what compactions saved."""

    cache: CacheClasses
    saved: float | None
    """USD; ``None`` if the price of the model is unknown."""


def cost_of(index: SessionIndex, steps: StepSizes, model: str | None) -> SessionCost:
    """Return the cost of a session: reported by the provider where it was, else estimated."""
    price = price_of(model) if model else None
    economy = Economy(Prices.of(price))
    estimated, was = Usage(), None
    answers = _answer_tokens(index, steps.starts)
    for number, (start, sizes, state) in enumerate(zip(steps.starts, steps.sizes, steps.states, strict=True)):
        shown, whole = sum(sizes.values()), steps.whole(start, state)
        output = answers[number]
        rewritten = was is not None and was != _view(state)
        shared = steps_shared(sizes) if rewritten else economy.shown
        cached = min(shared, economy.shown, shown)
        estimated += Usage(input=shown - cached, cache_read=cached, cache_write=shown - cached, output=output)
        note = economy.rewrote if rewritten else economy.sent
        note(shown, total=max(shown, whole), output=output, **({"shared": shared} if rewritten else {}))
        was = _view(state)
    reported = sum(steps.billed, Usage())
    used = reported if reported.prompt else estimated
    saved = None if price is None else max(0.0, economy.untouched - economy.paid)
    return SessionCost(_classes(used, price, reported=bool(reported.prompt)), saved)


def _answer_tokens(index: SessionIndex, starts: Sequence[int]) -> list[int]:
    ends = [*starts, index.seqs[-1] + 1 if index.seqs else 1]
    return [index.tokens("assistant", start - 1, end - 1) for start, end in pairwise(ends)]


def _classes(used: Usage, price: Price | None, *, reported: bool) -> CacheClasses:
    fresh = max(0, used.input - used.cache_write)
    classes = CacheClasses(
        fresh=fresh, cached=used.cache_read, written=used.cache_write, output=used.output, reported=reported
    )
    if price is None:
        return classes
    prices = Prices.of(price)
    money = {
        "money_fresh": fresh * prices.input,
        "money_cached": used.cache_read * prices.cache_read,
        "money_written": used.cache_write * prices.cache_write,
        "money_output": used.output * prices.output,
    }
    return msgspec.structs.replace(classes, money=sum(money.values()), **money)

"""The cost of whole sessions, replayed request by request and priced with a prompt cache.

Each answer of the model is one request. The prefix that a request shares with the previous one is read from the cache
while the cache lives; the rest is written. The engine itself rewrites the context, so sizes are real. The clairvoyant
plans with the size that a rewrite should leave; its plan is then replayed like the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from kompakt.agent.compaction import MIN_SHARE
from kompakt.engine.compaction.compact import rewrite, run_sync
from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.engine.compaction.fit import fit
from kompakt.engine.compaction.policies import Policy, policy_named
from kompakt.engine.context.context import Context
from kompakt.evals.case import Recording
from kompakt.evals.measures.score import ResultRow
from kompakt.model.budget import Budget
from kompakt.model.limits import Limits, limits
from kompakt.model.messages import History
from kompakt.model.tokens import counter_for

WINDOW = Limits(model="", context=200_000, output=32_000)
"""Assumed for unknown models. Most recorded sessions used this window."""

FULL, BY_DEFAULT, ECONOMIC, CLAIRVOYANT = "when full", "by default", "economic", "clairvoyant"
SAVED, READS, UNTOUCHED_READS, WORST = "saved", "cache reads", "cache reads, untouched", "saved, worst moment"


Schedule: TypeAlias = "Callable[[int, Economy, Context, BilledRequest], int | None]"
"""Returns the tokens to rewrite a context to before a request, or ``None`` to leave it."""


class BilledRequest(msgspec.Struct, frozen=True):
    """One request of a recorded session, if the whole history is sent."""

    at: int
    """Index of the message that answers it."""
    total: int
    output: int
    now: float | None = None


class Bill(msgspec.Struct):
    """The cost of a replay."""

    paid: float = 0.0
    untouched: float = 0.0
    """The cost of sending everything, at the same prices."""
    reads: int = 0
    writes: int = 0
    rewrites: int = 0
    peak: int = 0
    """Tokens of the largest request."""
    dearest: float = 0.0
    """The highest ratio of this bill to sending everything, over all moments."""
    left: list[float] = []
    """What each rewrite left, as a share of the whole history at that moment."""

    @property
    def cache(self) -> float:
        """The share of input tokens read from the cache."""
        return self.reads / max(1, self.reads + self.writes)


def measure_bills(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Price a session: compacted when full, by default, by the economic trigger, and by a plan that knows it all."""
    sent = requests(recording)
    if not sent:
        return
    budget, prices = _budget(recording.history), Prices()
    untouched = cost_of_everything(sent, prices)
    found = {
        FULL: replay(recording, sent, policy, budget, prices),
        BY_DEFAULT: replay(recording, sent, policy, budget, prices, schedule=above_half(budget)),
        ECONOMIC: replay(recording, sent, policy, budget, prices, schedule=economic),
    }
    plan = clairvoyant(sent, Economy(prices))
    planned = replay(recording, sent, policy, budget, prices, schedule=follow(plan))
    fits = [untouched] if untouched.peak <= budget.usable else []
    found[CLAIRVOYANT] = min([planned, *found.values(), *fits], key=lambda bill: bill.paid)
    for mode, bill in found.items():
        yield _row(recording, mode, bill, untouched, budget)


def _row(recording: Recording, mode: str, bill: Bill, untouched: Bill, budget: Budget) -> ResultRow:
    whole = round(untouched.paid)
    passed = {SAVED: whole - round(bill.paid), READS: bill.reads, UNTOUCHED_READS: untouched.reads}
    passed[WORST] = round((1 - bill.dearest) * whole)
    total = {SAVED: whole, READS: bill.reads + bill.writes, UNTOUCHED_READS: untouched.reads + untouched.writes}
    total[WORST] = whole
    note = f"{bill.rewrites} rewrites, largest request {bill.peak}"
    session = recording.session
    return ResultRow(
        measure="bill", mode=mode, session=session.name, source=session.source, at=len(recording.history),
        passed=passed, total=total, tokens=untouched.peak, budget=budget.usable, note=note,
    )  # fmt: skip


def _budget(history: History) -> Budget:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a window is assumed here as well
        found = limits(history.model or "")
    return Budget.for_model(found if found.known else WINDOW)


# --- requests ----------------------------------------------------------------------------------------------------


def requests(recording: Recording) -> list[BilledRequest]:
    """List the requests of a session, one for each answer of the model."""
    times = dict(recording.session.times)
    context = _empty(recording.history)
    found: list[BilledRequest] = []
    for index, message in enumerate(recording.history):
        if index > 0 and message.role == "assistant" and recording.history[index - 1].role != "assistant":
            total = context.archive.tokens + context.fixed_tokens
            found.append(BilledRequest(index, total, context.counter.message(message), times.get(index)))
        context.append(message)
    return found


def _empty(history: History) -> Context:
    return Context(history.with_messages(()), counter=counter_for(history.model).own())


# --- replays -----------------------------------------------------------------------------------------------------


def cost_of_everything(sent: Sequence[BilledRequest], prices: Prices) -> Bill:
    """Price sending the whole history each time, even beyond the window."""
    economy, bill, cached = Economy(prices), Bill(), 0
    for one in sent:
        cached = 0 if economy.is_cold(one.now) else cached
        bill.reads, bill.writes = bill.reads + cached, bill.writes + one.total - cached
        economy.sent(one.total, total=one.total, now=one.now, output=one.output)
        cached = bill.peak = one.total
    bill.paid = bill.untouched = economy.paid
    bill.dearest = 1.0
    return bill


def economic(step: int, economy: Economy, context: Context, one: BilledRequest) -> int | None:
    """Rewrite whenever it is cheaper, as a user can opt in to."""
    del step
    shown = context.projected_tokens
    due = economy.due(shown, total=one.total, now=one.now, shared=context.fixed_tokens)
    return economy.goal(shown) if due else None


def above_half(budget: Budget) -> Schedule:
    """Return the default schedule: rewrite when it is cheaper, above half of the window, and to the usual size."""

    def due(step: int, economy: Economy, context: Context, one: BilledRequest) -> int | None:
        del step
        shown = context.projected_tokens
        if shown <= budget.limit * MIN_SHARE:
            return None
        least = budget.goal(context.step_tokens, fixed=context.required_tokens)
        is_due = economy.due(shown, total=one.total, now=one.now, after=least, shared=context.fixed_tokens)
        return max(economy.goal(shown), least) if is_due else None

    return due


def follow(plan: frozenset[int]) -> Schedule:
    """Return a schedule that rewrites at given steps."""
    return lambda step, economy, context, _: economy.goal(context.projected_tokens) if step in plan else None


def replay(
    recording: Recording,
    sent: Sequence[BilledRequest],
    policy: str,
    budget: Budget,
    prices: Prices,
    *,
    schedule: Schedule | None = None,
) -> Bill:
    """Replay a session on a live context, rewritten when it is full and when the schedule asks for it."""
    context, economy, bill, at = _empty(recording.history), Economy(prices), Bill(left=[]), 0
    plan = policy_named(policy)
    for step, one in enumerate(sent):
        context.extend(recording.history[at : one.at])
        at = one.at
        cached = 0 if economy.is_cold(one.now) else economy.shown
        full = budget.due(context.projected_tokens)
        goal = schedule(step, economy, context, one) if schedule is not None else None
        kept = None
        if full or goal is not None:
            before = context.snapshot()
            kept = min(cached, _rewrite(context, plan, budget, goal))
            shown = context.projected_tokens
            if (
                schedule is economic
                and not full
                and not economy.keeps(shown, total=one.total, now=one.now, shared=kept)
            ):
                context.rollback(before)
                kept = None
        shown = context.projected_tokens
        if kept is None:
            economy.sent(shown, total=one.total, now=one.now, output=one.output)
        else:
            cached, bill.rewrites = kept, bill.rewrites + 1
            bill.left.append(shown / max(1, one.total))
            economy.rewrote(shown, total=one.total, now=one.now, output=one.output, shared=kept)
        bill.reads, bill.writes = bill.reads + cached, bill.writes + shown - cached
        bill.peak, bill.dearest = max(bill.peak, shown), max(bill.dearest, economy.paid / economy.untouched)
    bill.paid, bill.untouched = economy.paid, economy.untouched
    return bill


def _rewrite(context: Context, policy: Policy, budget: Budget, goal: int | None) -> int:
    """Rewrite a context and return the number of leading tokens that did not change."""
    before = list(context.project())
    run_sync(rewrite(context, policy, budget, [], at_most=goal), may_wait=policy.awaits)
    if budget.usable and context.projected_tokens > budget.usable:
        fit(context, budget.usable)
    shared = context.fixed_tokens
    for old, new in zip(before, context.project(), strict=False):
        if old is not new and old != new:
            break
        shared += context.counter.message(new)
    return shared


# --- the clairvoyant ---------------------------------------------------------------------------------------------


class _Way(msgspec.Struct, frozen=True):
    """A schedule up to a step: its cost without the answers, the tokens it carries, and the steps of its rewrites."""

    paid: float
    carried: int
    steps: tuple[int, ...] = ()


def clairvoyant(sent: Sequence[BilledRequest], economy: Economy) -> frozenset[int]:
    """Plan the cheapest schedule of rewrites, knowing all requests. Each rewrite leaves the goal of the economy.

    Dynamic programming: of two schedules that carry the same tokens only the cheaper can win.
    """
    prices, ways, before = economy.prices, [_Way(0.0, 0)], 0
    for step, one in enumerate(sent):
        new, cold = one.total - before, economy.is_cold(one.now)
        left = max(economy.least, int(economy.share * before))
        held = [0 if cold else way.carried for way in ways]
        going = [
            _Way(way.paid + prices.request(way.carried + new, cached=cached), way.carried + new, way.steps)
            for way, cached in zip(ways, held, strict=True)
        ]
        longer = [way for way in ways if way.carried > left]
        if longer:
            best = min(longer, key=lambda way: way.paid)
            going.append(_Way(best.paid + prices.request(left + new), left + new, (*best.steps, step)))
        ways = _undominated(going)
        economy.sent(one.total, total=one.total, now=one.now)
        before = one.total
    return frozenset(min(ways, key=lambda way: way.paid).steps)


def _undominated(ways: list[_Way]) -> list[_Way]:
    """Drop schedules that cost more and carry at least as much as another."""
    kept: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.paid, way.carried)):
        if not kept or way.carried < kept[-1].carried:
            kept.append(way)
    return kept

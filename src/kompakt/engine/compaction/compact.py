"""Compact a history: the result is a valid projection within the budget, or an error with the size that must stay.

A history is compacted as of the message at which the run that produced it was last due (``last_due``): once, from the
original messages before it. Later messages are appended as they are. A history that grew by one step therefore extends
the previous projection, with or without stored state, and prompt caches stay valid. Policies with triggers or admission
are checked at every answer instead. Fitting then enforces the exact limit.

That message follows from token counts alone. A compaction ends at its goal, so the size of the request after it is
known without doing it: the goal, then the messages that follow. The last message at which that size passed the trigger
stays the same when the history grows by one step, unless that step makes another compaction due. Cost: linear in the
messages for their counts, and a binary search for each compaction that was due.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from kompakt.engine.admission.admit import Gate
from kompakt.engine.compaction.fit import cut_read_in, cut_unread, fit, minimal, reduce_to_line
from kompakt.engine.compaction.policies import Due, Policy
from kompakt.engine.compaction.report import Step
from kompakt.engine.context.archive import speaks, states_task, step_size
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import PivotFrame, pivot_tokens, release_notes, resize
from kompakt.engine.strategies import Strategy, Truncation
from kompakt.engine.strategies.shortened_results import tabulate_unread
from kompakt.errors import DoesNotFit, UsageError
from kompakt.model.budget import Budget
from kompakt.model.messages import History, Message
from kompakt.model.tokens import Counter

_log = logging.getLogger("kompakt.compaction")

_PROGRESS_EVERY = 256
"""Messages between two progress reports."""

Result = TypeVar("Result")


class CompactionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one compaction."""

    budget: Budget
    policy: Policy
    counter: Counter
    pins: tuple[str | int, ...] = ()
    instructions: str | None = None
    progress: Callable[[int, int], None] | None = None
    """Called with the number of processed messages and their total."""
    manual_thinking: bool = False
    """Whether the request enables thinking explicitly. An open tool round then needs its own signed reasoning."""
    references: tuple[str, ...] = ()
    """Known references of the messages, from a store."""
    seal_key: bytes = b""
    """Seals pivots; see ``Context.seal_key``."""
    question: str | None = None
    """The application's own words for the question of a pivot; ``None`` keeps those of the latest pivot."""
    spare: int = 0
    """Tokens of the budget reserved for what the caller appends."""
    fixed: int = 0
    """Tokens of the request that neither its messages nor its envelope contain, such as a separate system prompt."""


class Outcome(msgspec.Struct, frozen=True):
    """A context that fits, and the steps that produced it."""

    context: Context
    steps: tuple[Step, ...]
    reason: str | None = None
    """Why content was rewritten; ``None`` if nothing was."""


async def compact(history: History, order: CompactionOrder) -> Outcome:
    """Compact a history as of the last time it was due, and fit the result.

    Raises:
        DoesNotFit: the protected content is larger than the budget.
    """
    context = _context(history, order)
    pinned = _pinned_indices(len(history), order.pins)
    counts = list(map(order.counter.message, history))
    first = _first_check(context, history, counts, order, pinned)
    gate, admits = _Gate(order.policy), order.policy.admission is not None
    steps: list[Step] = []
    reason: str | None = None
    previous = "system"
    for index, message in enumerate(history):
        if index >= first and message.role == "assistant" and previous != "assistant":
            reason = await _relieve(context, order, gate, steps, waiting=False) or reason
        context.append_counted(message, counts[index])
        if index in pinned:
            context.pin(context.group_at(index))
        if admits:
            gate.admit_new(context)
        previous = message.role
        if order.progress is not None and index % _PROGRESS_EVERY == 0:
            order.progress(index, len(history))
    if order.progress is not None:
        order.progress(len(history), len(history))
    reason = await _relieve(context, order, gate, steps) or reason
    await _perform(context, order, steps)
    return _fitted(context, history, order, steps, reason)


def _first_check(
    context: Context, history: History, counts: list[int], order: CompactionOrder, pinned: frozenset[int]
) -> int:
    """Return the number of messages at which the size is first checked.

    Where each compaction of a policy ends at the goal, only the last one matters, and the counts say when it was due.
    Other policies are checked at each answer.
    """
    if not order.policy.ends_at_goal:
        return 0
    required = Required(history, counts, counter=order.counter, fixed=context.fixed_tokens, pinned=pinned)
    frame = pivot_tokens(context, "", 1, PivotFrame(context.seal_key, context.question))
    return last_due(history, counts, order.budget, required, share=order.policy.target_share, surplus=frame)


async def proceed(
    context: Context, history: History, order: CompactionOrder, *, forced: bool = False, replays: bool = False
) -> Outcome:
    """Compact a live or resumed context once, if the budget or a trigger is due or ``forced`` is set.

    ``history`` provides the envelope. With ``replays``, a context that was never compacted gives the same result as a
    stateless call.

    Raises:
        DoesNotFit: the protected content is larger than the budget.
    """
    if replays and order.budget.due(context.tokens):
        return await compact(history, order)
    context.instructions, context.manual_thinking = order.instructions, order.manual_thinking
    context.question = context.question if order.question is None else order.question
    context.pinned_texts = [pin for pin in order.pins if isinstance(pin, str)]
    steps: list[Step] = []
    reason: str | None = None
    due = order.budget.due(context.tokens)
    if due or forced:
        half = (context.required_tokens + context.tokens) // 2
        await rewrite(context, order.policy, order.budget, steps, at_most=None if due else half)
        reason = _over(order.budget) if due else "asked for"
    elif (fired := order.policy.due(context)) is not None and await run_due(context, order, fired, steps):
        reason = fired.reason
    outcome = _fitted(context, history.with_messages(context.messages), order, steps, reason)
    outcome.context.inherited = context.inherited
    return outcome


def _fitted(
    context: Context, history: History, order: CompactionOrder, steps: list[Step], reason: str | None
) -> Outcome:
    """Fit the result of the policy into the exact limit."""
    limit, ceiling = (max(1, size - order.spare) if size else 0 for size in (order.budget.limit, order.budget.ceiling))
    if context.differs:  # an output admitted here may have been sent as it came before
        context.strip_reasoning()
        if order.policy.admission is not None:
            context.note_pins()
    if limit and context.projected_tokens > limit and not fit(context, limit, ceiling=ceiling):
        least = _least(history, order, ceiling)
        least.failures, least.narratives = context.failures, context.narratives
        floor = Step("floor", context.tokens, context.tokens, len(history))
        return Outcome(least, (floor,), _over(order.budget))
    return Outcome(context, tuple(steps), reason)


def _over(budget: Budget) -> str:
    return f"over {budget.trigger} tokens"


class _Gate:
    """Applies admission from the first message, from the first compaction on, or never, as the policy says."""

    def __init__(self, policy: Policy) -> None:
        self._gate = Gate(policy.admission) if policy.admission is not None else None
        self._open = policy.admits_always

    def admit_new(self, context: Context) -> None:
        """Admit the newest message."""
        if self._gate is not None and self._open:
            self._gate.admit(context)

    def open(self, context: Context, steps: list[Step]) -> None:
        """Start admission with all messages so far; later ones are admitted when they are appended."""
        if self._gate is None or self._open:
            return
        self._open, before = True, context.tokens
        if self._gate.admit(context):
            steps.append(Step("admission", before, context.tokens, len(context.messages)))
            context.strip_reasoning()


async def _relieve(
    context: Context, order: CompactionOrder, gate: _Gate, steps: list[Step], *, waiting: bool = True
) -> str | None:
    """Compact if the budget is due, else run the steps whose trigger fired; return the reason.

    Admission comes first if it has not started, then the steps of the policy until the goal is reached.
    """
    if order.budget.due(context.tokens):
        gate.open(context, steps)
        await rewrite(context, order.policy, order.budget, steps)
        return _over(order.budget)
    due = order.policy.due(context, waiting=waiting) if order.policy.has_triggers else None
    return due.reason if due is not None and await run_due(context, order, due, steps) else None


async def _perform(context: Context, order: CompactionOrder, steps: list[Step]) -> None:
    """Run the deferred summarizer once for the whole replay; if it fails, the ledger stays alone.

    In a single call, narrative and ledger may use what the replay left of the budget: no later step needs it.
    """
    deferred_summary, context.deferred_summary = context.deferred_summary, None
    if deferred_summary is not None:
        if not order.budget.steady:
            context.unused = max(0, order.budget.limit - order.spare - context.projected_tokens)
        await attempt(context, deferred_summary, "Summarization", steps)


def _context(history: History, order: CompactionOrder) -> Context:
    context = Context(
        history.with_messages(()), counter=order.counter, references=order.references, seal_key=order.seal_key
    )
    context.fixed_tokens += order.fixed
    context.instructions = order.instructions
    context.question = order.question or ""
    context.is_replay = True
    context.manual_thinking = order.manual_thinking
    context.pinned_texts = [pin for pin in order.pins if isinstance(pin, str)]
    return context


def _pinned_indices(length: int, pins: Iterable[str | int]) -> frozenset[int]:
    """Resolve pins given as indices, from either end; the replay must not exclude these messages."""
    wanted = [pin for pin in pins if isinstance(pin, int)]
    for pin in wanted:
        if not -length <= pin < length:
            raise UsageError(f"pin {pin!r} is not the index of a message; the history has {length}")
    return frozenset(range(length)[pin] for pin in wanted)


async def rewrite(
    context: Context, policy: Policy, budget: Budget, steps: list[Step], *, at_most: int | None = None
) -> None:
    """Run the steps of a policy once; a step that raises is rolled back and the next one runs.

    ``at_most`` is an upper limit for the goal.
    """
    release_notes(context)
    cut_read_in(context)
    tabulate_unread(context, budget.ceiling)
    cut_unread(context, budget.ceiling)
    context.goal = _goal(context, policy, budget)
    if at_most is not None:
        context.goal = min(context.goal, at_most) if budget.trigger else at_most
    context.in_policy = True
    context.drops_oldest = policy.ends_at_goal
    for strategy in policy.steps:
        if context.tokens > context.goal or getattr(strategy, "concludes", False):
            await attempt(context, strategy, _name(strategy), steps)
    if budget.due(context.tokens):  # the policy alone does not do it: drop the oldest, or every step would try again
        await attempt(context, Truncation(), Truncation.__name__, steps)
        resize(context)
    context.in_policy = context.drops_oldest = False
    context.note_run()
    if context.summary_text is None:
        reduce_to_line(context)
    if context.is_rewritten:
        context.strip_reasoning()
        context.note_pins()


async def run_due(context: Context, order: CompactionOrder, due: Due, steps: list[Step]) -> bool:
    """Run the strategies whose trigger fired although the budget is not due; return whether anything changed."""
    before = context.visibility.version
    context.goal = _goal(context, order.policy, order.budget)
    release_notes(context)
    context.in_policy, context.aim = True, due.target
    for strategy in due.steps:
        enough = due.target is not None and due.target.reached(context)
        if not enough or getattr(strategy, "concludes", False):
            await attempt(context, strategy, _name(strategy), steps)
    context.in_policy, context.aim = False, None
    context.note_run()
    if context.visibility.version == before:
        return False
    context.strip_reasoning()
    context.note_pins()
    return True


def _goal(context: Context, policy: Policy, budget: Budget) -> int:
    """Return the target of a policy under a budget in tokens; 0 for an unlimited budget."""
    return budget.goal(context.step_tokens, fixed=context.required_tokens, share=policy.target_share)


def _name(strategy: Strategy) -> str:
    return getattr(strategy, "__name__", None) or type(strategy).__name__


async def attempt(context: Context, strategy: Strategy, name: str, steps: list[Step]) -> None:
    """Run a strategy and record the step; roll back if it raises."""
    before, snapshot = context.tokens, context.snapshot()
    try:
        changed = await strategy(context)
    except Exception as error:  # noqa: BLE001 — a strategy may be anybody's code; the run must outlive it
        context.rollback(snapshot)
        _log.warning("strategy %s failed and was undone: %r", name, error)
        steps.append(Step(name, before, before, len(context.messages), failed=repr(error)))
        return
    if changed:
        steps.append(Step(name, before, context.tokens, len(context.messages)))


def _least(history: History, order: CompactionOrder, limit: int) -> Context:
    """Start over with only the protected content.

    Raises:
        DoesNotFit: even that exceeds the limit; the error names the size.
    """
    context = _context(history, order)
    context.extend(history)
    for index in _pinned_indices(len(history), order.pins):
        context.pin(context.group_at(index))
    minimal(context)
    context.note_pins()
    if context.projected_tokens > limit:
        floor = context.projected_tokens + order.spare
        largest, places = _largest(context)
        raise DoesNotFit(floor=floor, budget=limit + order.spare, largest=largest, places=places)
    return context


def _largest(context: Context) -> tuple[list[tuple[str, int]], list[str]]:
    """List the largest protected messages, and where each is."""
    sizes = [(context.message_tokens(index), index) for index in context.shown_indices()]
    largest = sorted(sizes, reverse=True)[:5]
    found = [(context.reference(index), tokens) for tokens, index in largest]
    messages = context.messages
    places = [f"message {index + 1} of {len(messages)}, {messages[index].role}" for _, index in largest]
    pinned = sum(context.counter.tokens(pin) for pin in context.missing_pins)
    rest = [("system and tools", context.fixed_tokens), *([("pinned texts", pinned)] if pinned else [])]
    return [*found, *rest], places


class Required:
    """The tokens that no compaction of the first messages of a history may remove, estimated from their counts.

    ``Archive.protected`` has the exact rule. The estimate covers instructions, first and newest request, pins, and what
    the model has not answered yet, without the input of answered calls.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        counts: Sequence[int],
        *,
        counter: Counter,
        fixed: int,
        pinned: Iterable[int] = (),
    ) -> None:
        self.fixed = fixed
        """Tokens of system prompt and tools."""
        self._messages, self._counts, self._counter = messages, counts, counter
        self._requests = [index for index, message in enumerate(messages) if message.role == "user" and speaks(message)]
        first = next((index for index in self._requests if states_task(messages[index])), None)
        self._task = [] if first is None else [first]
        self._instructions = [index for index, message in enumerate(messages) if message.role == "system"]
        self._pinned = sorted(pinned)

    def among(self, upto: int) -> int:
        """Count what has to stay of the first ``upto`` messages."""
        messages, inputs = self._messages, 0
        kept = {index for index in (*self._task, *self._instructions, *self._pinned) if index < upto}
        kept.update(self._requests[max(0, bisect_left(self._requests, upto) - 1) : bisect_left(self._requests, upto)])
        index = upto - 1
        while index >= 0 and messages[index].role != "assistant":
            kept.add(index)
            index -= 1
        while index >= 0 and messages[index].role == "assistant" and (calls := messages[index].calls):
            kept.add(index)
            inputs += sum(map(self._counter.part, calls))
            index -= 1
        return self.fixed + sum(self._counts[index] for index in kept) - inputs


def last_due(
    messages: Sequence[Message],
    counts: Sequence[int],
    budget: Budget,
    required: Required,
    *,
    share: float | None = None,
    surplus: int = 0,
) -> int:
    """Return how many messages there were when a compaction was last due; all of them if it never was.

    The budget is checked before each answer of the model and at the end. ``share`` is the target share of the policy,
    ``surplus`` the tokens of the frame around the pivot, which may come on top of the goal.
    """
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    checks = [index for index in answers if not index or messages[index - 1].role != "assistant"]
    sums = list(accumulate(counts, initial=0))
    sizes = [sums[index] for index in checks]
    due = len(messages)
    size, at = required.fixed, 0
    while True:
        # At a check the request has size + sums[check] - sums[at] tokens.
        number = max(bisect_right(checks, at), bisect_right(sizes, budget.trigger - size + sums[at]))
        if number == len(checks):
            return len(messages) if size + sums[-1] - sums[at] > budget.trigger else due
        due = at = checks[number]
        size = surplus + budget.goal(step_size(messages, counts, at), fixed=required.among(at), share=share)


def run_sync(work: Coroutine[Any, Any, Result], *, may_wait: bool = True) -> Result:
    """Run a coroutine to completion from synchronous code.

    With ``may_wait=False`` the coroutine never suspends and no event loop is created.

    Raises:
        UsageError: the coroutine suspends inside a running event loop.
    """
    if may_wait and "asyncio" in sys.modules and not _in_a_loop():  # who never imported it has nothing to wait for
        return _in_own_loop(work)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise UsageError("this policy has to wait for something (a summarizer, most likely); use await acompact(…) instead")


def _in_a_loop() -> bool:
    import asyncio  # late, here and below: `import kompakt` should not pay for it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_own_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop; the current loop of the caller stays set."""
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()

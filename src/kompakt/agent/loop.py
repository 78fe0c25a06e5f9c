"""One run of an agent: pending requests to compact first, then the budget, the model, the tools, and again.

Each part is done before the next begins and is in the store before it counts, so a run may end at any point and another
takes it up: nothing that finished is repeated, what was open is closed as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from kompakt.agent.background_compaction import Preparing
from kompakt.agent.client import ChatClient, Delta, Reply
from kompakt.agent.config import CompactionConfig, budget_of, economic_of, limits_of, policy_of, prepares_at
from kompakt.agent.cost_trigger import Saving, reason_for
from kompakt.agent.events import Answered, Called, Compacted, Recovered, Result, RunEvent, Spoke, Stepped, Thought
from kompakt.agent.live_session import Live
from kompakt.agent.provider_compaction import Native
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.agent.tools import Tool, failed, interrupted
from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, Overflowed
from kompakt.model.budget import Usage, size_after_refusal
from kompakt.model.messages import Message, ToolCall, ToolResult
from kompakt.model.tokens import json_text
from kompakt.session.compaction import CompactionOptions, PreparedCompaction, SessionCompaction
from kompakt.wire.overflow import Overflow, truncated

T = TypeVar("T")

_log = logging.getLogger("kompakt.agent")

TRIES = 3
"""How often a request that was too long is cut where it grew, before everything is compacted to the least."""

_FULL = 0.5
"""Share of the window below which nobody would cut a prompt: counts differ more while it is small."""


_NOISE = 50
"""Tokens by which a prompt has to grow so that the provider must have noticed."""


class Loop:
    """The state of one run."""

    def __init__(
        self,
        client: ChatClient,
        live: Live,
        tools: dict[str, Tool],
        *,
        config: CompactionConfig,
        emit: Callable[[RunEvent], None],
        max_steps: int,
        streams: bool,
    ) -> None:
        self._client = client
        self._live = live
        self._tools = tools
        self._config = config
        self._emit = emit
        self._max_steps = max_steps
        self._streams = streams
        self._budget = budget_of(client, config)
        self._policy = policy_of(config)
        self._ratio = 1.0
        """Tokens that the provider counts for each that is counted here."""
        self._ahead, self._share = Preparing(live.session), prepares_at(config)
        self._native = Native(client, live, how=config.native, budget=self._budget)
        self._saving = Saving(client.model, economic=economic_of(config))
        self._sent = 0
        """Tokens of the newest request, as they are counted here."""
        self._before: tuple[int, int] | None = None
        """What was sent last and what of it the provider read; nothing when it was rewritten since."""
        self._paid = Usage()
        self._steps = 0
        self.produced: list[Message] = []
        """What the run has said and done: answers, calls, results."""
        self.compacted = False
        """Whether the model sees something else than all that was said."""
        self._guilty = "the whole history"
        """The round that brought the newest overflow."""
        self._finished: dict[str, ToolResult] = {}
        """Results of the step whose tools are at work."""

    async def run(self) -> Result:
        """Go on until the model has nothing more to do."""
        try:
            return await self._stepped()
        finally:
            await self._ahead.drop()

    async def _stepped(self) -> Result:
        asked = bool(await self._live.session.pending())  # before this run began
        self._saving.begin(self._live.context)
        while True:
            await self._relieve(asked=asked)
            asked = False
            reply = await self._ask()
            said = await surely(self._live.say(reply.items))
            self.produced += said
            self._native.heard(said)
            await self._account(reply)
            calls = self._live.open_calls()
            if not calls:
                return self._result(said, "end" if reply.stop == "tools" else reply.stop)
            await self._answer(calls)
            if self._steps >= self._max_steps:
                return self._result(said, "steps")

    def _result(self, said: Sequence[Message], stop: str) -> Result:
        text = "\n".join(filter(None, (message.text for message in said)))
        return Result(text, self._live.session.id, self._steps, self._paid, stop)

    def said_last(self) -> Result:
        """Return the end of a run that had come to it before."""
        return self._result([self._live.context.messages[-1]], "end")

    def broken_off(self) -> list[Message]:
        """Return what the run has produced, with the calls closed whose tools have not answered."""
        answered = {result.call_id for message in self.produced for result in message.results}
        calls = [call for message in self.produced for call in message.calls if not call.hosted]
        left = [call for call in calls if call.id not in answered]
        closed = [self._finished.get(call.id) or interrupted(call) for call in left]
        return [*self.produced, *(self._live.laid_out(closed) if closed else ())]

    # --- the window -----------------------------------------------------------------------------------------------

    async def _relieve(self, *, asked: bool) -> None:
        """Carry out what was asked for; compact when the budget or a trigger of the policy is due."""
        if not await self._live.is_current():
            await self._live.load()
            asked = bool(await self._live.session.pending())
        await self._rewritten(await self._native.cut())
        tokens = int(self._live.context.tokens * self._ratio)
        if asked or (self._budget.due(tokens) and self._config.auto is not False):
            await self.compact()
        elif self._config.auto is not False and self._policy.due(self._live.context) is not None:
            await self._run_triggers()
        elif (goal := self._saving.goal(self._live.context, self._budget.scaled(self._ratio))) is not None:
            if self._share and not self._ahead.is_over:  # to save is not urgent: nobody waits for a summary
                await self._prepare(goal)
            else:
                await self.compact(goal)
        elif self._is_near(tokens):
            await self._prepare()

    async def _run_triggers(self) -> None:
        """Run what the policy's triggers ask for while the budget is not due."""
        done = await self._live.session.compact(**msgspec.structs.asdict(self._wish(None)))
        await self._rewritten(done if done.changed else None)

    def _is_near(self, tokens: int) -> bool:
        """Tell whether a request of this size, as the provider counts, will soon call for a compaction."""
        if not self._share or not self._budget.trigger:
            return False
        return self._budget.mark(self._share, fixed=int(self._live.context.fixed_tokens * self._ratio)) < tokens

    async def _prepare(self, goal: int | None = None) -> None:
        """Have a compaction worked out while the run goes on."""
        if self._ahead.may_begin:
            await self._ahead.begin(self._wish(goal))

    def _wish(self, goal: int | None, *, reason: str | None = None) -> CompactionOptions:
        budget, shown = self._budget.scaled(self._ratio), self._live.context.projected_tokens
        return CompactionOptions(
            reason=reason if goal is None else reason_for(goal, shown),
            budget=budget if goal is None else budget.down_to(goal, shown=shown),
            policy=self._policy,
            summarizer=self._summarizer(),
            instructions=self._config.instructions,
            model=self._client.model,
            tokenizer=self._config.tokenizer,
        )

    def _summarizer(self) -> Summarizer | None:
        """Return the summariser; one that asks a model may ask behind this run's request, and tells what it cost."""
        found = self._config.summarizer
        if not isinstance(found, LLMSummarizer):
            return found
        body = None
        if found.reuse_prefix and found.client is self._client:
            body = self._live.body(copied=True)
        return found.with_prefix(body, paid=self._pay)

    def _pay(self, usage: Usage) -> None:
        self._paid = _sum(self._paid, usage)

    async def compact(self, goal: int | None = None) -> None:
        """Compact the session; what the model is shown is made again from the store."""
        due = self._budget.due(int(self._live.context.tokens * self._ratio))
        reason = f"over {self._budget.trigger} tokens" if due else None
        instructions = self._config.instructions
        done = await self._native.compacted(fits=self._has_room, paid=self._pay, instructions=instructions)
        if done is None:
            done = await self._ahead.published(fits=self._still_fits)
        if done is None:
            done = await self._live.session.compact(**msgspec.structs.asdict(self._wish(goal, reason=reason)))
        await self._rewritten(done)

    async def _rewritten(self, done: SessionCompaction | None) -> None:
        """Show the model what a compaction left; what was being prepared is void."""
        if done is None:
            return
        shown = self._live.context.projected_tokens
        await self._ahead.drop()
        await self._live.load()
        self._before = None
        if done.changed and done.id is not None:
            self.compacted = True
            self._saving.rewrote(shown, self._live.context.projected_tokens)
            self._emit(Compacted(done.id, done.report))

    def _has_room(self, tokens: int) -> bool:
        """Tell whether so many tokens, as they are counted here, are less than there are and leave room."""
        counted = int(tokens * self._ratio)
        return tokens < self._live.context.projected_tokens and not self._budget.due(counted)

    def _still_fits(self, prepared: PreparedCompaction) -> bool:
        """Tell whether what was prepared leaves room, now that more was said."""
        grown = self._live.context.projected_tokens - prepared.record.tokens_before
        tokens = prepared.record.tokens_after + grown
        return self._has_room(tokens) and not self._is_near(int(tokens * self._ratio))

    async def _request(self, reason: str) -> None:
        """Request a compaction, durably, unless one is pending."""
        if not await self._live.session.pending():
            await self._live.session.request_compaction(auto=True, reason=reason)

    # --- the model ------------------------------------------------------------------------------------------------

    async def _ask(self) -> Reply:
        """Send the request; when it is too long, cut it where it grew and send it again.

        Raises:
            Overflowed: it is too long also when nothing is left that could go.
        """
        for attempt in range(TRIES + 2):
            self._saving.sending(self._live.context)
            self._sent = self._live.context.projected_tokens
            try:
                told = self._told if self._streams else None
                reply = await self._client.send(self._live.body(), on_delta=told, changes=self._native.changes)
            except Overflowed as error:
                if attempt > TRIES:
                    told = f"{error}; the overflow came with {self._guilty}, also with the least of it sent"
                    raise Overflowed(told, status=error.status, overflow=error.overflow, round=self._guilty) from error
                await self._recover(error.overflow, attempt)
                continue
            if reply.stop != "overflow":
                return reply
            self._pay(reply.billed)
            if attempt > TRIES:
                told = "the window was full before the answer was over, also with the least in it"
                raise Overflowed(f"{told}; the overflow came with {self._guilty}", round=self._guilty)
            await self._recover(None, attempt)
        raise AssertionError("unreachable")

    def _told(self, delta: Delta) -> None:
        if delta.kind == "text":
            self._emit(Spoke(delta.text))
        elif delta.kind == "reasoning":
            self._emit(Thought(delta.text))

    async def _recover(self, overflow: object, attempt: int) -> None:
        """Bring the history down to what the provider takes: the guilty round first, at last to the least."""
        session, counted = self._live.session, self._live.context.projected_tokens
        goal = self._goal(overflow if isinstance(overflow, Overflow) else None, counted)
        strategy = OverflowByRounds(target=goal)
        if attempt < TRIES:
            await session.apply(strategy, tokenizer=self._config.tokenizer)
            self._guilty = strategy.guilty or self._guilty
        else:
            strategy.guilty = self._guilty
            await self._to_the_least(max(1, goal // 2), strategy.reason)
        _log.warning("the request of %d tokens was too long: cut at %s, to %d", counted, self._guilty, goal)
        await self._ahead.drop()
        await self._live.load()
        self._saving.rewrote(counted, self._live.context.projected_tokens)
        self._before = None
        self.compacted = True
        self._emit(Recovered(self._guilty, self._live.context.projected_tokens))

    async def _to_the_least(self, goal: int, reason: str) -> None:
        """Compact to a goal; where what must stay is larger, to that: the provider may take it."""
        session, model, tokenizer = self._live.session, self._client.model, self._config.tokenizer
        for _ in range(2):
            try:
                await session.compact(goal, model=model, tokenizer=tokenizer, reason=reason)
                return
            except DoesNotFit as error:
                goal = max(1, error.floor)

    def _goal(self, overflow: Overflow | None, counted: int) -> int:
        """Return how many tokens, counted here, the provider would take; learn how it counts."""
        if overflow is None or overflow.by_bytes:
            return size_after_refusal(counted, limit=None)[0]
        size, ratio = size_after_refusal(
            counted,
            limit=overflow.limit,
            actual=overflow.actual,
            output=overflow.output,
            reserve=0 if limits_of(self._client).input else self._client.output_limit,
        )
        self._ratio = max(self._ratio, ratio)
        return size

    async def _account(self, reply: Reply) -> None:
        """Learn from what the provider reports; ask for a compaction when the window is full."""
        self._steps += 1
        self._pay(reply.billed)
        self._saving.answered(reply.usage.output)
        self._emit(Stepped(self._steps, reply.usage))
        sent = self._sent
        if reply.usage.prompt and sent > 0:
            if self._is_cut(sent, reply.usage):
                _log.warning("the provider read %d of %d tokens: it cut the prompt", reply.usage.prompt, sent)
                if self._config.auto is not False:
                    self._budget = self._budget.within(reply.usage.prompt)
                    await self._request(f"the provider read only {reply.usage.prompt} of {sent} tokens")
                return
            observed = min(4.0, max(0.25, reply.usage.prompt / sent))
            self._ratio += 0.5 * (observed - self._ratio)
        if self._config.auto is not False and self._budget.overflows(reply.usage):
            await self._request(f"over {self._budget.limit} tokens: the provider counts {reply.usage.total}")

    def _is_cut(self, sent: int, usage: Usage) -> bool:
        """Tell whether a provider read less than was sent: far less than expected, or no more although more came."""
        if self._native.edits:  # as it was told to
            return False
        before, self._before = self._before, (sent, usage.prompt)
        expected, window = int(sent * self._ratio), max(self._client.context_window, self._budget.window)
        if before is not None and sent > before[0] + _NOISE and sent / 2 < usage.prompt <= min(before[1], sent - 1):
            # Far fewer tokens than were sent are a server that reports only what is not cached. At least as many as
            # were sent are a server that rounds, or counts otherwise: nothing is missing.
            return True
        return expected > window * _FULL and self._steps > 1 and truncated(expected, usage, window=window)

    # --- the tools ------------------------------------------------------------------------------------------------

    async def _answer(self, calls: Sequence[ToolCall]) -> None:
        """Run the tools that the model asks for, side by side; what finishes early is remembered."""
        for call in calls:
            self._emit(Called(call.id, call.name, call.input if isinstance(call.input, str) else json_text(call.input)))
        left = len(calls)

        async def one(call: ToolCall) -> ToolResult:
            nonlocal left
            result = await self._called(call)
            self._finished[call.id] = result
            if left > 1:
                await surely(self._live.remember(result))
            left -= 1
            self._emit(Answered(call.id, call.name, result.output, result.is_error))
            return result

        results = await asyncio.gather(*map(one, calls))
        self.produced += await surely(self._live.answer(results))
        self._finished = {}

    async def _called(self, call: ToolCall) -> ToolResult:
        """Run a tool; note when it began and ended, and how."""
        began, tool = time.time(), self._tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            result = failed(call, f"there is no tool {call.name!r}; there are: {known}")
        else:
            result = await tool(call)
        status = "failed" if result.is_error else "completed"
        return msgspec.structs.replace(result, status=status, started_at=began, finished_at=time.time())


async def surely(work: Coroutine[Any, Any, T]) -> T:
    """Write what cannot be had again also when the run is cancelled meanwhile; cancelled again, let go."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("what was said last is not in the store: %s", error)
        raise


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(*(getattr(one, name) + getattr(other, name) for name in Usage.__struct_fields__))

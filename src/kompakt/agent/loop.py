"""The loop of an agent run: compact if due, call the model, run the tools, repeat.

Each part completes, and is in the store, before the next one starts. So a run can be interrupted at any point and
resumed: completed work is not repeated, and open calls are closed as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from kompakt.agent.client import ChatClient, Delta, Reply, limits_of
from kompakt.agent.compaction import BackgroundCompaction, CostTrigger, ProviderCompactor, reason_for
from kompakt.agent.config import (
    CompactionConfig,
    budget_of,
    economic_of,
    instructions_of,
    policy_of,
    prepares_at,
    summarizer_of,
)
from kompakt.agent.live_session import LiveSession
from kompakt.agent.recall.rounds import MAX_ROOM, MAX_ROUNDS, recall_result
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.agent.tools import Tool, failed, interrupted
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, Overflowed, StoreError
from kompakt.events import Answered, Called, Compacted, Recovered, Result, RunEvent, Spoke, Stepped, Thought
from kompakt.model.budget import Usage, size_after_refusal
from kompakt.model.json import json_text
from kompakt.model.messages import Message, ToolCall, ToolResult
from kompakt.model.phrases import RECALL_DOWN
from kompakt.session.compaction import CompactionOptions, SessionCompaction, resume_text
from kompakt.session.timeline import PreparedCompaction
from kompakt.wire.overflow import Overflow, truncated

T = TypeVar("T")

_log = logging.getLogger("kompakt.agent")

MAX_UNUSABLE = 2
"""Failed narratives in a row after which the agent's own model is not asked again in a run."""

TRIES = 3
"""How often a request that is too long is shortened where it grew, before the whole history is compacted."""

_MIN_TRUNCATED_SHARE = 0.5
"""Share of the window below which a prompt is not checked for truncation, because small counts differ more."""

_MIN_GROWTH = 50
"""Tokens by which a prompt has to grow before the provider's count must grow too."""


class Loop:
    """One run of an agent."""

    def __init__(
        self,
        client: ChatClient,
        live: LiveSession,
        tools: dict[str, Tool],
        *,
        config: CompactionConfig,
        emit: Callable[[RunEvent], None],
        max_steps: int,
        streams: bool,
        recall: str | None = None,
    ) -> None:
        self._client = client
        self._live = live
        self._tools = tools
        self._config = config
        self._emit = emit
        self._max_steps = max_steps
        self._streams = streams
        self._recall_tool = recall
        """The name of the recall tool."""
        self._recall_rounds = 0
        """Steps in a row in which the model only called the recall tool."""
        self._budget = budget_of(client, config)
        self._policy = policy_of(config)
        self._resume = True if config.resume is None else config.resume
        self._ratio = 1.0
        """Tokens counted by the provider for each token counted here."""
        self._background, self._share = BackgroundCompaction(live.session), prepares_at(config)
        self._provider = ProviderCompactor(client, live, how=config.native, budget=self._budget)
        self._cost = CostTrigger(client.model, economic=economic_of(config))
        self._sent = 0
        """Tokens of the latest request, as counted here."""
        self._previous: tuple[int, int] | None = None
        """Tokens sent with the previous request and tokens read by the provider; ``None`` after a compaction."""
        self._paid = Usage()
        self._unusable = 0
        """Compactions in a row for which the model wrote no usable narrative."""
        self._steps = 0
        self.produced: list[Message] = []
        """Messages of the run: answers, calls, results."""
        self.compacted = False
        """Whether the run compacted the history."""
        self._cause = "the whole history"
        """The round that caused the latest overflow."""
        self._finished: dict[str, ToolResult] = {}
        """Results of the current step."""

    async def run(self) -> Result:
        """Run until the model is done or the step limit is reached."""
        try:
            result = await self._run_steps()
            await self._reload_after(await self._provider.apply())  # the last answer may contain a compaction
            return result
        finally:
            await self._background.drop()

    async def _run_steps(self) -> Result:
        requested = bool(await self._live.session.pending())  # before this run started
        self._cost.begin(self._live.context)
        while True:
            await self._compact_if_due(requested=requested)
            requested = False
            reply = await self._ask()
            said = await shielded(self._live.append_items(reply.items))
            self.produced += said
            self._provider.observe(said)
            await self._account(reply)
            calls = self._live.open_calls()
            if not calls:
                return self._result(said, "end" if reply.stop == "tools" else reply.stop)
            only_recalls = all(call.name == self._recall_tool for call in calls)
            self._recall_rounds = self._recall_rounds + 1 if only_recalls else 0
            await self._run_tools(calls)
            if self._recall_rounds > MAX_ROUNDS:  # it calls the tool although the request did not offer it
                return self._result(said, "recalls")
            if self._steps >= self._max_steps:
                return self._result(said, "steps")

    def _result(self, said: Sequence[Message], stop: str) -> Result:
        text = "\n".join(filter(None, (message.text for message in said)))
        return Result(text, self._live.session.id, self._steps, self._paid, stop)

    def last_result(self) -> Result:
        """Return the result of a run that was already complete."""
        return self._result([self._live.context.messages[-1]], "end")

    def interrupted_messages(self) -> list[Message]:
        """Return the messages of an interrupted run, with results for the calls that are still open."""
        answered = {result.call_id for message in self.produced for result in message.results}
        calls = [call for message in self.produced for call in message.calls if not call.hosted]
        left = [call for call in calls if call.id not in answered]
        closed = [self._finished.get(call.id) or interrupted(call) for call in left]
        return [*self.produced, *(self._live.result_messages(closed) if closed else ())]

    # --- compaction -----------------------------------------------------------------------------------------------

    async def _compact_if_due(self, *, requested: bool) -> None:
        """Compact if requested, or if the budget, a trigger of the policy or the cost trigger is due."""
        if not await self._live.is_current():
            await self._live.load()
            requested = bool(await self._live.session.pending())
        await self._reload_after(await self._provider.apply())
        tokens = int(self._live.context.projected_tokens * self._ratio)
        if requested or (self._budget.due(tokens) and self._config.auto is not False):
            await self.compact()
        elif self._config.auto is not False and self._policy.due(self._live.context) is not None:
            await self._run_triggers()
        elif (goal := self._cost.goal(self._live.context, self._budget.scaled(self._ratio))) is not None:
            if self._share and not self._background.is_done:  # saving money is not urgent: do not wait for a summary
                await self._prepare(goal)
            else:
                await self.compact(goal)
        elif self._is_near(tokens):
            await self._prepare()

    async def _run_triggers(self) -> None:
        """Run the policy's own triggers while the budget is not due."""
        done = await self._live.session.compact(**msgspec.structs.asdict(await self._options(None)))
        await self._reload_after(done if done.changed else None)

    def _is_near(self, tokens: int) -> bool:
        """Return whether a request of this size, as counted by the provider, is close to the trigger."""
        if not self._share or not self._budget.trigger:
            return False
        return self._budget.mark(self._share, fixed=int(self._live.context.fixed_tokens * self._ratio)) < tokens

    async def _prepare(self, goal: int | None = None) -> None:
        if self._background.may_start:
            await self._background.start(await self._options(goal))

    async def _options(self, goal: int | None, *, reason: str | None = None) -> CompactionOptions:
        budget, shown = self._budget.scaled(self._ratio), self._live.context.projected_tokens
        return CompactionOptions(
            reason=reason if goal is None else reason_for(goal, shown),
            budget=budget if goal is None else budget.down_to(goal, shown=shown),
            policy=self._policy,
            summarizer=self._summarizer(),
            instructions=await self._instructions(),
            model=self._client.model,
            tokenizer=self._config.tokenizer,
            resume=self._resume,
            question=self._config.question,
        )

    async def _instructions(self) -> str | None:
        return await instructions_of(self._config, self._live.session.id)

    def _summarizer(self) -> Summarizer | None:
        """Return the summarizer. An ``LLMSummarizer`` may reuse this run's prompt cache and reports its cost."""
        if self._unusable >= MAX_UNUSABLE and self._config.summarizer in (None, "auto"):
            return None
        found = summarizer_of(self._client, self._config)
        if not isinstance(found, LLMSummarizer):
            return found
        body = None
        if found.reuse_prefix and found.client is self._client:
            body = self._live.body(copied=True)
        return found.with_prefix(body, paid=self._pay)

    def _pay(self, usage: Usage) -> None:
        self._paid += usage

    async def compact(self, goal: int | None = None) -> None:
        """Compact the session and reload it."""
        due = self._budget.due(int(self._live.context.projected_tokens * self._ratio))
        reason = f"over {self._budget.trigger} tokens" if due else None
        done = None
        if self._provider.on_demand:
            done = await self._provider.compact(
                fits=self._has_room,
                paid=self._pay,
                instructions=await self._instructions(),
                resume=resume_text(self._resume),
            )
        if done is None:
            done = await self._background.publish(fits=self._still_fits)
        if done is None:
            done = await self._live.session.compact(**msgspec.structs.asdict(await self._options(goal, reason=reason)))
        await self._reload_after(done)

    async def _reload_after(self, done: SessionCompaction | None) -> None:
        """Reload the session after a compaction and drop the one in the background."""
        if done is None:
            return
        shown = self._live.context.projected_tokens
        await self._background.drop()
        await self._live.load()
        self._previous = None
        if (account := done.report.narrative if done.report is not None else None) is not None:
            self._unusable = 0 if account.sentences else self._unusable + 1
            if self._unusable == MAX_UNUSABLE:
                _log.warning("the model wrote no usable summary %d times; code writes summaries alone", MAX_UNUSABLE)
        if done.changed and done.id is not None:
            self.compacted = True
            self._cost.rewrote(shown, self._live.context.projected_tokens)
            self._emit(Compacted(done.id, done.report))

    def _has_room(self, tokens: int) -> bool:
        """Return whether ``tokens``, as counted here, are fewer than now and below the trigger."""
        counted = int(tokens * self._ratio)
        return tokens < self._live.context.projected_tokens and not self._budget.due(counted)

    def _still_fits(self, prepared: PreparedCompaction) -> bool:
        """Return whether a prepared compaction still leaves room after the messages added since."""
        grown = self._live.context.projected_tokens - prepared.record.tokens_before
        tokens = prepared.record.tokens_after + grown
        return self._has_room(tokens) and not self._is_near(int(tokens * self._ratio))

    async def _request(self, reason: str) -> None:
        """Request a compaction in the store, unless one is pending."""
        if not await self._live.session.pending():
            await self._live.session.request_compaction(auto=True, reason=reason)

    # --- model ----------------------------------------------------------------------------------------------------

    async def _ask(self) -> Reply:
        """Send the request. If it is too long, shorten it where it grew and send it again.

        Raises:
            Overflowed: the request is still too long when nothing more can be removed.
        """
        for attempt in range(TRIES + 2):
            self._cost.sending(self._live.context)
            self._sent = self._live.context.projected_tokens
            try:
                on_delta = self._emit_delta if self._streams else None
                body = self._live.body(recall=self._recall_rounds < MAX_ROUNDS)
                reply = await self._client.send(body, on_delta=on_delta, changes=self._provider.changes)
            except Overflowed as error:
                if attempt > TRIES:
                    message = f"{error}; caused by {self._cause}; nothing more can be removed"
                    raise Overflowed(
                        message, status=error.status, overflow=error.overflow, round=self._cause
                    ) from error
                await self._recover(error.overflow, attempt)
                continue
            if reply.stop != "overflow":
                return reply
            self._pay(reply.billed)
            if attempt > TRIES:
                message = "the context window was full before the answer was complete"
                raise Overflowed(f"{message}; caused by {self._cause}; nothing more can be removed", round=self._cause)
            await self._recover(None, attempt)
        raise AssertionError("unreachable")

    def _emit_delta(self, delta: Delta) -> None:
        if delta.kind == "text":
            self._emit(Spoke(delta.text))
        elif delta.kind == "reasoning":
            self._emit(Thought(delta.text))

    async def _recover(self, overflow: object, attempt: int) -> None:
        """Shrink the history to what the provider accepts: first the round that caused the overflow, at last all."""
        session, counted = self._live.session, self._live.context.projected_tokens
        goal = self._goal(overflow if isinstance(overflow, Overflow) else None, counted)
        strategy = OverflowByRounds(target=goal)
        if attempt < TRIES:
            await session.apply(strategy, tokenizer=self._config.tokenizer)
            self._cause = strategy.guilty or self._cause
        else:
            strategy.guilty = self._cause
            await self._compact_to(max(1, goal // 2), strategy.reason)
        _log.warning(
            "overflow: the request of %d tokens is too long; shortened %s to reach %d tokens",
            counted,
            self._cause,
            goal,
        )
        await self._background.drop()
        await self._live.load()
        self._cost.rewrote(counted, self._live.context.projected_tokens)
        self._previous = None
        self.compacted = True
        self._emit(Recovered(self._cause, self._live.context.projected_tokens))

    async def _compact_to(self, goal: int, reason: str) -> None:
        """Compact to a goal, or to the smallest possible size: the provider may accept that."""
        session, model, tokenizer = self._live.session, self._client.model, self._config.tokenizer
        for _ in range(2):
            try:
                await session.compact(goal, model=model, tokenizer=tokenizer, reason=reason)
                return
            except DoesNotFit as error:
                goal = max(1, error.floor)

    def _goal(self, overflow: Overflow | None, counted: int) -> int:
        """Return how many tokens, as counted here, the provider accepts, and update the ratio of the counts."""
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
        """Update the counts from the reported usage; request a compaction if the window is full."""
        self._steps += 1
        self._pay(reply.billed)
        self._cost.answered(reply.usage.output)
        self._emit(Stepped(self._steps, reply.usage))
        sent = self._sent
        if reply.usage.prompt and sent > 0:
            if self._is_truncated(sent, reply.usage):
                _log.warning("the provider truncated the prompt: it read %d of %d tokens", reply.usage.prompt, sent)
                if self._config.auto is not False:
                    self._budget = self._budget.within(reply.usage.prompt)
                    await self._request(f"the provider read only {reply.usage.prompt} of {sent} tokens")
                return
            observed = min(4.0, max(0.25, reply.usage.prompt / sent))
            self._ratio += 0.5 * (observed - self._ratio)
        if self._config.auto is not False and self._budget.overflows(reply.usage):
            await self._request(f"over {self._budget.limit} tokens: the provider counts {reply.usage.total}")

    def _is_truncated(self, sent: int, usage: Usage) -> bool:
        """Return whether the provider read less than was sent: far less than expected, or no more than before."""
        if self._provider.edits:  # intended: the provider clears tool outputs
            return False
        previous, self._previous = self._previous, (sent, usage.prompt)
        expected, window = int(sent * self._ratio), max(self._client.context_window, self._budget.window)
        if (
            previous is not None
            and sent > previous[0] + _MIN_GROWTH
            and sent / 2 < usage.prompt <= min(previous[1], sent - 1)
        ):
            # Far fewer tokens than sent: the server reports only uncached tokens. At least as many as sent: the server
            # rounds, or counts differently. Neither is a truncation.
            return True
        return (
            expected > window * _MIN_TRUNCATED_SHARE and self._steps > 1 and truncated(expected, usage, window=window)
        )

    # --- tools ----------------------------------------------------------------------------------------------------

    async def _run_tools(self, calls: Sequence[ToolCall]) -> None:
        """Run the called tools concurrently and save each result as soon as it is there.

        If a result cannot be saved, the other tools are cancelled: nothing may be written after the run has ended.
        """
        for call in calls:
            if call.name == self._recall_tool:
                continue
            self._emit(Called(call.id, call.name, call.input if isinstance(call.input, str) else json_text(call.input)))
        left = len(calls)
        recalls = sum(call.name == self._recall_tool for call in calls)

        async def one(call: ToolCall) -> ToolResult:
            nonlocal left
            result = await self._run_tool(call, recalls)
            self._finished[call.id] = result
            if left > 1:
                await shielded(self._live.save_result(result))
            left -= 1
            if call.name != self._recall_tool:
                self._emit(Answered(call.id, call.name, result.output, result.is_error))
            return result

        running = [asyncio.ensure_future(one(call)) for call in calls]
        try:
            results = await asyncio.gather(*running)
        finally:
            unfinished = [task for task in running if task.cancel()]
            if unfinished:
                await shielded(asyncio.wait(unfinished))
        self.produced += await shielded(self._live.append_results(results))
        self._finished = {}

    async def _recall(self, query: str, tokens: int) -> str:
        try:
            return (await self._live.session.recall(query, tokens)).text
        except StoreError as error:
            _log.warning("recall failed: %s", error)
            return RECALL_DOWN

    def _room(self) -> int:
        used = int(self._live.context.projected_tokens * self._ratio)
        return self._budget.usable - used if self._budget.window else MAX_ROOM

    async def _run_tool(self, call: ToolCall, recalls: int) -> ToolResult:
        """Run a tool and record its times and status. ``recalls`` is the number of recall calls in this step."""
        started, tool = time.time(), self._tools.get(call.name)
        if tool is None and call.name == self._recall_tool:
            is_last = self._recall_rounds >= MAX_ROUNDS
            text = await recall_result(call, self._recall, room=self._room, calls=recalls, is_last=is_last)
            result = ToolResult(call.id, text, name=call.name)
        elif tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            result = failed(call, f"unknown tool {call.name!r}; available tools: {known}")
        else:
            result = await tool(call)
        status = "failed" if result.is_error else "completed"
        return msgspec.structs.replace(result, status=status, started_at=started, finished_at=time.time())


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Complete a write, however often the run is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("write failed while the run was cancelled: %s", error)
        raise

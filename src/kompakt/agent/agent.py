"""An agent: a client, tools and a store; runs that may take days.

    agent = Agent(OpenAIChat(model="gpt-5"), tools=[read_file], system="You fix bugs.", store="sqlite:///agent.db")
    result = await agent.run("Why does the build fail?", session="build")

What is said at the call counts before what was said to the agent, and that before what was said to the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from types import TracebackType
from typing import Self

from kompakt.agent.client import ChatClient
from kompakt.agent.config import CompactionConfig, budget_of, config_of, policy_of
from kompakt.agent.events import Result, RunEvent
from kompakt.agent.live_session import Live
from kompakt.agent.loop import Loop, surely
from kompakt.agent.provider_compaction import Native
from kompakt.agent.system_prompt import retold
from kompakt.agent.tools import Function, Tool, sendable, tools_of
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.pivot.summarizer import Summarizer
from kompakt.errors import UsageError
from kompakt.model.budget import Budget
from kompakt.model.messages import Json, Message, Text
from kompakt.model.tokens import Tokenizer
from kompakt.session.compaction import SessionCompaction
from kompakt.session.providers import ContextProvider, HistoryProvider, Run
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store
from kompakt.store.memory import MemoryRecords

_log = logging.getLogger("kompakt.agent")

MAX_STEPS = 10_000
"""Model calls of one run at most: a model that never ends is ended."""


class Agent:
    """A model with tools, whose history never outgrows its window."""

    def __init__(
        self,
        client: ChatClient,
        *,
        tools: Iterable[Function | Tool] = (),
        system: str | None = None,
        store: str | Store | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        summarizer: Summarizer | None = None,
        tokenizer: Tokenizer | None = None,
        compaction: CompactionConfig | None = None,
        providers: Sequence[ContextProvider] = (),
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.client = client
        self.system = system
        self.tools = tools_of(tools)
        self.providers = tuple(providers)
        self.max_steps = max_steps
        own = CompactionConfig(budget=budget, policy=policy, summarizer=summarizer, tokenizer=tokenizer)
        self._config = own.over(compaction) if compaction is not None else own
        loading = (one for one in self.providers if isinstance(one, HistoryProvider) and one.loads)
        self._history = next(loading, None) if store is None else None
        """The provider that has the history, where the agent has no store of its own."""
        self._store = self._history.store if self._history is not None else store
        self._opened: Store | None = self._store if isinstance(self._store, Store) else None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of what the agent opened: a store given by its address, the client's connections."""
        if self._opened is not None and not isinstance(self._store, Store):
            opened, self._opened = self._opened, None
            await opened.close()
        await self.client.close()

    async def session(self, id: str) -> Session:
        """Return a session of the agent's store, or of its history provider's when the agent has none."""
        async with self._opening:
            if self._opened is None:
                self._opened = await open_store(self._store if isinstance(self._store, str) else "memory:")
        return await self._opened.session(id)

    async def run(
        self,
        text: str | None,
        *,
        session: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        compaction: CompactionConfig | None = None,
    ) -> Result:
        """Say something and let the agent work until it is done; ``None`` takes up a run that was cut short.

        Raises:
            DoesNotFit: what must stay is larger than the budget.
            ProviderError: the provider refuses, or does not answer.
            Busy: another run of the session does not end.
        """
        work = self._started(text, session, _config(budget, policy, compaction), streams=False)
        result: Result | None = None
        async for event in work:
            result = event if isinstance(event, Result) else result
        assert result is not None
        return result

    def stream(
        self,
        text: str | None,
        *,
        session: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        compaction: CompactionConfig | None = None,
    ) -> AsyncGenerator[RunEvent]:
        """Do what ``run`` does and tell what happens as it happens; the last event is the ``Result``.

        Who stops listening stops the run; taken up again it goes on where it was.
        """
        return self._started(text, session, _config(budget, policy, compaction), streams=True)

    async def compact(
        self,
        session: str,
        *,
        instructions: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        summarizer: Summarizer | None = None,
    ) -> SessionCompaction:
        """Compact a session now, because somebody asks for it."""
        said = CompactionConfig(budget=budget, policy=policy, summarizer=summarizer)
        config = config_of(self.client, said, self._config)
        found = await self.session(session)
        await found.request_compaction(auto=False, instructions=instructions)
        done = await self._natively(found, config) if config.native == "demand" and summarizer is None else None
        return done or await found.compact(
            budget_of(self.client, config),
            policy=policy_of(config),
            summarizer=config.summarizer,
            instructions=config.instructions,
            model=self.client.model,
            tokenizer=config.tokenizer,
        )

    async def _natively(self, session: Session, config: CompactionConfig) -> SessionCompaction | None:
        """Have the provider compact a session, where it does and that helps."""
        live, budget = self._live(session, config), budget_of(self.client, config)
        await live.load()
        native = Native(self.client, live, how=config.native, budget=budget)
        fits = partial(_helps, before=live.context.projected_tokens, budget=budget)
        return await native.compacted(fits=fits, paid=lambda _: None, instructions=config.instructions)

    def _live(self, session: Session, config: CompactionConfig) -> Live:
        envelope = self.client.envelope(system=self.system, tools=[tool.spec for tool in self.tools.values()])
        format, model = self.client.format, self.client.model
        return Live(session, envelope, format=format, model=model, tokenizer=config.tokenizer)

    async def _started(
        self, text: str | None, session: str | None, config: CompactionConfig, *, streams: bool
    ) -> AsyncGenerator[RunEvent]:
        """Run in a task of its own and hand on what it tells."""
        told: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        work = asyncio.create_task(self._run(text, session or f"run-{token_hex(6)}", config, told, streams=streams))
        work.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (event := await told.get()) is not None:
                yield event
            yield await work
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work

    async def _run(
        self,
        text: str | None,
        id: str,
        config: CompactionConfig,
        told: asyncio.Queue[RunEvent | None],
        *,
        streams: bool,
    ) -> Result:
        home, config = await self.session(id), config_of(self.client, config, self._config)
        async with home.turn():
            run = await self._prepared(text, id)
            live = self._live(await self._workplace(home, run), config)
            await self._begun(text, run, live)
            loop = Loop(
                self.client,
                live,
                self.tools,
                config=config,
                emit=told.put_nowait,
                max_steps=self.max_steps,
                streams=streams,
            )
            if text is None and live.rests:  # the run ended after its last answer
                return loop.said_last()
            try:
                result = await loop.run()
            except BaseException:
                run.responses = loop.broken_off()
                await surely(self._end(run, [one for one in self.providers if isinstance(one, HistoryProvider)]))
                raise
            run.responses = loop.produced
            run.compacted = list(live.context.project()) if loop.compacted else None
            await self._end(run, self.providers)
            return result

    async def _prepared(self, text: str | None, id: str) -> Run:
        """Let the providers say what comes before a run; one that is taken up again has been prepared."""
        spoken = [] if text is None else [Message("user", (Text(sendable(text)),))]
        run = Run(id, spoken, format=self.client.format)
        for provider in self.providers:
            if text is not None or provider is self._history:
                await provider.before_run(run)
        return run

    async def _workplace(self, home: Session, run: Run) -> Session:
        """Return the session to work in: one of this run alone where a provider has the history."""
        provided = self._history is not None or (self._store is None and bool(run.history))
        return await Store(MemoryRecords()).session(home.id) if provided else home

    async def _begun(self, text: str | None, run: Run, live: Live) -> None:
        """Load the session, or begin it, and say what is new."""
        opening, history = list[Json](), list[Message]()
        if await live.session.exists():
            await live.load()
            if await retold(live.session, live, self.client.opening(self.system)):
                await live.load()
        elif text is None and not run.history:
            raise UsageError(f"there is no session {run.session!r} to take up; say something to begin it")
        else:
            live.begin()
            opening = self.client.opening(self.system)
            history = [one for one in run.history if one.role != "system" or not opening]
        await surely(live.add([*history, *run.added, *run.inputs], opening=opening))

    async def _end(self, run: Run, providers: Sequence[ContextProvider]) -> None:
        """Tell providers that a run is over; what goes wrong with them is logged."""
        for provider in providers:
            try:
                await provider.after_run(run)
            except Exception as error:  # noqa: BLE001 — a provider may be anybody's code; the run is over
                _log.warning("provider %r failed after the run: %r", provider.source_id, error)


def _helps(tokens: int, *, before: int, budget: Budget) -> bool:
    return tokens < before and not budget.due(tokens)


def _config(
    budget: int | Budget | None, policy: AnyPolicy | None, compaction: CompactionConfig | None
) -> CompactionConfig:
    own = CompactionConfig(budget=budget, policy=policy)
    return own if compaction is None else own.over(compaction)

"""An agent: a model with tools and a store, whose runs may take days.

    agent = Agent(OpenAIChat(model="gpt-5"), tools=[read_file], system="You fix bugs.", store="sqlite:///agent.db")
    result = await agent.run("Why does the build fail?", session="build")

Settings of a call take precedence over those of the agent, and these over those of the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from secrets import token_hex
from types import TracebackType
from typing import Literal, Self

from kompakt.agent.client import ChatClient, ToolSpec
from kompakt.agent.compaction import ProviderCompactor
from kompakt.agent.config import CompactionConfig, budget_of, config_of, instructions_of, policy_of, summarizer_of
from kompakt.agent.live_session import LiveSession
from kompakt.agent.loop import Loop, shielded
from kompakt.agent.recall.tool import can_offer, free_name
from kompakt.agent.tools import Function, Tool, sendable, tools_of
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_SCHEMA
from kompakt.errors import UsageError
from kompakt.events import Result, RunEvent
from kompakt.model.budget import Budget
from kompakt.model.messages import Json, JsonObject, Message, Text
from kompakt.model.tokens import Tokenizer
from kompakt.session.compaction import SessionCompaction
from kompakt.session.providers import ContextProvider, HistoryProvider, Run
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store
from kompakt.store.memory import MemoryRecords

_log = logging.getLogger("kompakt.agent")

MAX_STEPS = 10_000
"""Most model calls of one run."""


class Agent:
    """A model with tools whose history is compacted before it outgrows the context window.

    By default a model writes a part of each summary: the client's own, or ``CompactionConfig.summary_model``, asked in
    the background. ``summarizer="off"`` leaves summaries to code; an ``LLMSummarizer`` may ask another client.

    Once something has left the context, an agent with tools also offers the model the tool ``recall``, which searches
    and restores it. Its calls are in the session, but they are no events of a run. ``recall=False`` does not offer it.
    """

    def __init__(
        self,
        client: ChatClient,
        *,
        tools: Iterable[Function | Tool] = (),
        system: str | None = None,
        store: str | Store | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        summarizer: Summarizer | Literal["auto", "off"] | None = None,
        tokenizer: Tokenizer | None = None,
        compaction: CompactionConfig | None = None,
        providers: Sequence[ContextProvider] = (),
        max_steps: int = MAX_STEPS,
        recall: bool = True,
    ) -> None:
        self.client = client
        self.system = system
        self.tools = tools_of(tools)
        self.providers = tuple(providers)
        self.max_steps = max_steps
        self.recall = recall
        own = CompactionConfig(budget=budget, policy=policy, summarizer=summarizer, tokenizer=tokenizer)
        self._config = own.over(compaction) if compaction is not None else own
        loading = (one for one in self.providers if isinstance(one, HistoryProvider) and one.loads)
        self._history = next(loading, None) if store is None else None
        """The provider of the history, if the agent has no store of its own."""
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
        """Close the client, and the store if the agent opened it from a URL."""
        if self._opened is not None and not isinstance(self._store, Store):
            opened, self._opened = self._opened, None
            await opened.close()
        await self.client.close()

    async def session(self, id: str) -> Session:
        """Return a session of the agent's store, or of its history provider's store if the agent has none."""
        async with self._opening:
            if self._opened is None:
                self._opened = await open_store(self._store if isinstance(self._store, str) else "memory:")
        return await self._opened.session(id)

    async def run(
        self,
        text: str | None,
        *,
        session: str | None = None,
        parent: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        compaction: CompactionConfig | None = None,
    ) -> Result:
        """Send a user message and run until the model is done. ``None`` resumes an interrupted run.

        ``parent`` is the session of the agent that this one works for, in the same store. ``recall`` there then also
        finds what this run did.

        Raises:
            DoesNotFit: the messages that must be kept are larger than the budget.
            ProviderError: the provider rejects the request or is unavailable.
            Busy: another run of the session is active.
        """
        events = self._start(text, session, parent, _config(budget, policy, compaction), streams=False)
        result: Result | None = None
        async for event in events:
            result = event if isinstance(event, Result) else result
        assert result is not None
        return result

    def stream(
        self,
        text: str | None,
        *,
        session: str | None = None,
        parent: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        compaction: CompactionConfig | None = None,
    ) -> AsyncGenerator[RunEvent]:
        """Run like ``run`` and yield events as they happen; the last event is the ``Result``.

        Closing the generator stops the run. ``run(None)`` or ``stream(None)`` resumes it.
        """
        return self._start(text, session, parent, _config(budget, policy, compaction), streams=True)

    async def compact(
        self,
        session: str,
        *,
        instructions: str | None = None,
        budget: int | Budget | None = None,
        policy: AnyPolicy | None = None,
        summarizer: Summarizer | Literal["auto", "off"] | None = None,
    ) -> SessionCompaction:
        """Compact a session now, whether or not its budget is due."""
        given = CompactionConfig(budget=budget, policy=policy, summarizer=summarizer)
        config = config_of(self.client, given, self._config)
        found = await self.session(session)
        await found.request_compaction(auto=False, instructions=instructions)
        done = None
        if config.native == "demand" and summarizer is None:
            done = await self._compact_by_provider(found, config)
        return done or await found.compact(
            budget_of(self.client, config),
            policy=policy_of(config),
            summarizer=summarizer_of(self.client, config),
            instructions=await instructions_of(config, session),
            model=self.client.model,
            tokenizer=config.tokenizer,
        )

    async def _compact_by_provider(self, session: Session, config: CompactionConfig) -> SessionCompaction | None:
        """Let the provider compact a session; return ``None`` if it cannot, or if the result is not small enough."""
        live, budget = self._live(session, config), budget_of(self.client, config)
        await live.load()
        provider = ProviderCompactor(self.client, live, how=config.native, budget=budget)
        before = live.context.projected_tokens
        return await provider.compact(
            fits=lambda tokens: tokens < before and not budget.due(tokens),
            paid=lambda _: None,
            instructions=await instructions_of(config, session.id),
            resume=None,
        )

    def _live(self, session: Session, config: CompactionConfig) -> LiveSession:
        specs = [tool.spec for tool in self.tools.values()]
        envelope = self.client.envelope(system=self.system, tools=specs)
        name, with_recall = self._recall_name(envelope), None
        if name is not None:
            spec = ToolSpec(name, TOOL_DESCRIPTION, TOOL_SCHEMA)
            with_recall = self.client.envelope(system=self.system, tools=[*specs, spec])
        return LiveSession(
            session,
            envelope,
            format=self.client.format,
            model=self.client.model,
            tokenizer=config.tokenizer,
            with_recall=with_recall,
        )

    def _recall_name(self, envelope: JsonObject) -> str | None:
        """Return the name of the recall tool; ``None`` when it is not offered. The client stores no conversation."""
        fields = {**envelope, "store": False}
        if not self.recall or not self.tools or not can_offer(self.client.format, fields.get):
            return None
        return free_name(frozenset(self.tools))

    async def _start(
        self, text: str | None, session: str | None, parent: str | None, config: CompactionConfig, *, streams: bool
    ) -> AsyncGenerator[RunEvent]:
        """Run in a separate task and yield its events."""
        events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        work = asyncio.create_task(
            self._run(text, session or f"run-{token_hex(6)}", parent, config, events, streams=streams)
        )
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
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
        parent: str | None,
        config: CompactionConfig,
        events: asyncio.Queue[RunEvent | None],
        *,
        streams: bool,
    ) -> Result:
        home, config = await self.session(id), config_of(self.client, config, self._config)
        async with home.turn():
            run = await self._before_run(text, id)
            live = self._live(await self._working_session(home, run), config)
            await self._begin(text, run, live)
            if parent is not None and live.session is home:
                await home.link(parent)
            loop = Loop(
                self.client,
                live,
                self.tools,
                config=config,
                emit=events.put_nowait,
                max_steps=self.max_steps,
                streams=streams,
                recall=self._recall_name(live.envelope),
            )
            if text is None and live.is_finished:  # the run was interrupted after its last answer
                return loop.last_result()
            try:
                result = await loop.run()
            except BaseException:  # user code may raise anything, and a cancelled run counts, too: store what it did
                run.responses = loop.interrupted_messages()
                await shielded(
                    self._after_run(run, [one for one in self.providers if isinstance(one, HistoryProvider)])
                )
                raise
            run.responses = loop.produced
            run.compacted = list(live.context.project()) if loop.compacted else None
            await self._after_run(run, self.providers)
            return result

    async def _before_run(self, text: str | None, id: str) -> Run:
        """Call the providers before a run. For a resumed run only the history provider is called again."""
        inputs = [] if text is None else [Message("user", (Text(sendable(text)),))]
        run = Run(id, inputs, format=self.client.format)
        for provider in self.providers:
            if text is not None or provider is self._history:
                await provider.before_run(run)
        return run

    async def _working_session(self, home: Session, run: Run) -> Session:
        """Return the session to work in: a temporary one if a provider supplies the history."""
        provided = self._history is not None or (self._store is None and bool(run.history))
        return await Store(MemoryRecords()).session(home.id) if provided else home

    async def _begin(self, text: str | None, run: Run, live: LiveSession) -> None:
        """Load or create the session and append the new messages."""
        opening, history = list[Json](), list[Message]()
        if await live.session.exists():
            await live.load()
            await live.update_system_prompt(self.client.opening(self.system))
        elif text is None and not run.history:
            raise UsageError(f"there is no session {run.session!r} to resume; pass a text to start it")
        else:
            live.begin()
            opening = self.client.opening(self.system)
            history = [one for one in run.history if one.role != "system" or not opening]
        await shielded(live.append_messages([*history, *run.added, *run.inputs], opening=opening))

    async def _after_run(self, run: Run, providers: Sequence[ContextProvider]) -> None:
        """Call providers after a run and log their errors."""
        for provider in providers:
            try:
                await provider.after_run(run)
            except Exception as error:  # noqa: BLE001 — a provider is user code, and the run is complete
                _log.warning("provider %r failed after the run: %r", provider.source_id, error)


def _config(
    budget: int | Budget | None, policy: AnyPolicy | None, compaction: CompactionConfig | None
) -> CompactionConfig:
    own = CompactionConfig(budget=budget, policy=policy)
    return own if compaction is None else own.over(compaction)

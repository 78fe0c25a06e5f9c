"""Build the pivots that replace the start of requests: each one once, however many requests and replicas need it.

Clients retry and send requests in parallel, so several requests often need the same pivot at the same moment. The first
one builds it in a task, and the others wait for that task. The task is shielded: if the first client disconnects, the
others still get the pivot. Another replica is kept from building the same pivot by a short lease in the store. If both
build it anyway, the store keeps the one written first and both send that one.

The originals that a pivot hides are stored before it is used. A pivot that will be due soon is prepared in the
background but used only when it is due, so the bytes sent never depend on timing. While the store is unavailable,
pivots are built all the same and only cached.

With ``--summarize`` a model writes the narrative of a pivot. It is asked for at the provider of the request that needs
the pivot, with the credential of that request, so that the client pays for it and no tenant uses another's key. Pivots
are built in threads, but the connections belong to the event loop of the gateway, so a thread hands each request over
to that loop and waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from starlette.requests import Request

from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from kompakt.agent.clients.failures import AttemptFailed
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.engine.compaction import compact as engine
from kompakt.engine.compaction.compact import CompactionOrder, run_sync
from kompakt.engine.compaction.policies import Policy, with_summarizer
from kompakt.engine.compaction.report import Step, announce
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Summarizer, combined, pivot_text
from kompakt.engine.pivot.saved_state import SavedContext, SavedMessage, resume, save_context
from kompakt.errors import DoesNotFit, KompaktError, StoreError, StoreUnavailable, UsageError
from kompakt.gateway.concurrency import full_collections
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.budget import PREPARE_SHARE, LearnedLimits, window_for
from kompakt.gateway.pivots.lookup import (
    Pivot,
    PivotMatch,
    VisibleMessage,
    covered_items,
    pivot_name,
    prepared_name,
    recorded_name,
    without_cache_marks,
)
from kompakt.gateway.pivots.recorded import rendered_items, request_history, with_pruned
from kompakt.gateway.request.history import HashChain, decode_item, parse_items
from kompakt.gateway.storage.changes import ChangedSessions
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner, decode_note
from kompakt.gateway.upstream import Route, forwarded_headers
from kompakt.model.budget import Budget
from kompakt.model.json import encode
from kompakt.model.messages import History, JsonObject, Message
from kompakt.model.tokens import counter_for
from kompakt.store.codec import ValueCodec
from kompakt.wire.registry import WIRES

# --- Build one pivot in a worker thread. It is pure if there is no summarizer. ---

_log = logging.getLogger("kompakt.gateway")


class PivotTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot has to achieve, and why it is needed."""

    budget: Budget
    policy: Policy
    reason: str
    cause: str = "due"
    """Label of the metric: ``due``, ``overflow`` or ``media``."""
    learned: LearnedLimits = LearnedLimits()
    attempt: int = 0
    due: int = 0
    """Items of the request that needs the pivot."""
    added: tuple[int, int] = (0, 0)
    """Tokens of the request beside the pivot, before and after it is built: items after it, hidden rounds, recall."""
    summarizer: Summarizer | None = None
    """Writes the narrative of the first pivot of a prefix. After an overflow code writes the next one at once."""
    pins: tuple[str, ...] = ()
    """Texts that people pinned in the session."""
    changes: int = 0
    """Number of the newest change that people made in the session."""


class PivotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Input of ``build_pivot``."""

    chain: HashChain
    found: PivotMatch | None
    """The pivot that the request matches now."""
    terms: PivotTerms
    session: str
    names: tuple[str, ...] = ()
    """References in the store of the messages after that pivot; empty when the store is unavailable."""
    seal_key: bytes = b""
    """Seals the pivot; see ``Context.seal_key``."""
    codec: ValueCodec
    """Unpacks the pivot that the request matches."""


def build_pivot(request: PivotRequest) -> Pivot:
    """Build the pivot of a whole request, or the smallest possible one when the budget cannot be met.

    Raises:
        InputError: an item is not a message.
    """
    before = None if request.found is None else decode_note(request.found.rendered.packed, request.codec, Pivot)
    try:
        return _built(request, before)
    except DoesNotFit as error:
        _log.warning("session %s: the budget cannot be met, sending the smallest request: %s", request.session, error)
        terms = msgspec.structs.replace(request.terms, budget=Budget.of(error.floor))
        return _built(msgspec.structs.replace(request, terms=terms), before)


def _built(request: PivotRequest, before: Pivot | None) -> Pivot:
    history, view, tail = _parsed(request, before)
    terms = request.terms
    budget, policy, summarizer = terms.budget, terms.policy, terms.summarizer
    names = tuple(one.name for one in before.view) if before else ()
    if len(request.names) >= len(tail):
        names += request.names[: len(tail)]
    counter = counter_for(history.model).own()
    state = before.state if before else SavedContext()
    context = resume(history.with_messages(view), state, counter=counter, references=names, seal_key=request.seal_key)
    context.is_resumed = bool(state.ledger)
    context.extend(tail)
    # Build for the size at which pivots are prepared: later steps are sent after the pivot.
    trigger = budget.mark(PREPARE_SHARE, fixed=context.fixed_tokens)
    order = CompactionOrder(
        budget=budget.triggered_at(trigger),
        policy=policy if summarizer is None else with_summarizer(policy, summarizer),
        counter=counter,
        manual_thinking=WIRES[history.format].manual_thinking(history.body),
        pins=terms.pins,
        references=names,
        seal_key=request.seal_key,
    )
    tokens_before = context.projected_tokens
    work = engine.proceed(context, history.with_messages((*view, *tail)), order, forced=True)
    outcome = run_sync(work, may_wait=False) if summarizer is None else asyncio.run(work)
    used = tuple(dict.fromkeys(step.strategy for step in outcome.steps))
    return msgspec.structs.replace(_pivot(request, before, history, outcome.context, tokens_before), strategies=used)


def _parsed(request: PivotRequest, before: Pivot | None) -> tuple[History, list[Message], list[Message]]:
    """Parse the envelope, the messages that the matching pivot still shows, and the messages after it."""
    chain, body = request.chain, request.chain.request
    start = covered_items(chain, request.found)
    shown = before.view if before is not None else ()
    raw = body.items(start)[: chain.length - start]
    messages = parse_items([*(one.item for one in shown), *map(decode_item, raw)], body.format)
    history = request_history(chain)
    view = [with_pruned(message, one.pruned) for message, one in zip(messages, shown, strict=False)]
    return history, view, list(messages[len(shown) :])


def _pivot(
    request: PivotRequest, before: Pivot | None, history: History, context: Context, tokens_before: int
) -> Pivot:
    chain, terms = request.chain, request.terms
    state, kept = save_context(context)
    shown = history.with_messages(context.project())
    items = rendered_items(shown)
    return Pivot(
        id=pivot_id(chain.key, terms),
        session=request.session,
        covers=chain.length - chain.lead,
        items=[without_cache_marks(item) for item in items],
        tokens=sum(context.counter.message(message) for message in parse_items(items, shown.format)),
        state=state,
        view=tuple(_visible(one, request, before, context) for one in kept),
        policy=terms.policy.name,
        reason=terms.reason,
        tokens_before=tokens_before,
        tokens_after=context.projected_tokens,
        notes=pivot_text(context) if context.summary_text else "",
        scale=terms.learned.scale,
        limit=terms.learned.limit,
        output_counts=terms.learned.output_counts,
        attempt=terms.attempt,
        narrative=combined(context.narratives),
    )


def pivot_id(key: bytes, terms: PivotTerms) -> str:
    """Return the id of a pivot: of a prefix, an attempt, and what people changed before it."""
    changes = b"" if not terms.changes else b"%d" % terms.changes
    return f"c{hashlib.blake2b(key + bytes([terms.attempt]) + changes, digest_size=6).hexdigest()}"


def _visible(kept: SavedMessage, request: PivotRequest, before: Pivot | None, context: Context) -> VisibleMessage:
    found, chain = request.found, request.chain
    view = before.view if before is not None else ()
    earlier = view[kept.index] if kept.index < len(view) else None
    start = covered_items(chain, found) - chain.lead
    (item,) = WIRES[chain.request.format].render(kept.instead or context.messages[kept.index])
    return VisibleMessage(
        earlier.at if earlier else start + kept.index - len(view),
        without_cache_marks(item),
        context.reference(kept.index),
        kept.pruned,
        altered=kept.instead is not None or (earlier is not None and earlier.altered),
    )


# --- Build each pivot once ---

MAX_PREPARING = 4
"""Pivots prepared at the same time; they compete with pivots that requests wait for."""

SUMMARY_THREADS = 16
"""Threads for pivots with a narrative: they wait for a provider most of the time."""

THREADS = 2
"""Threads that build pivots. Because of the GIL more would not be faster, and each holds memory."""


class PivotMaker:
    """Builds, stores and announces pivots."""

    def __init__(self, storage: GatewayStorage, changed: ChangedSessions, metrics: Metrics) -> None:
        self._storage = storage
        self._changed = changed
        self._metrics = metrics
        self._making: dict[str, asyncio.Task[Match]] = {}
        self._preparing: dict[str, asyncio.Task[Pivot]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "kompakt-pivot")
        self._summary_threads = ThreadPoolExecutor(SUMMARY_THREADS, "kompakt-summary")

    async def compact(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        """Build the pivot of a request, or wait for the one that is being built.

        Raises:
            InputError: an item is not a message.
        """
        if match.changes is not None:
            terms = msgspec.structs.replace(terms, pins=match.changes.pins, changes=match.changes.number)
        name = f"{pivot_name(chain.key, terms.attempt)} {terms.changes}"
        task = self._making.get(name)
        if task is None:
            task = self._making[name] = asyncio.create_task(self._make(owner, chain, match, terms))
            task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(task)

    async def _make(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        degraded, branch, began = match.degraded, match.branch, time.perf_counter()
        if degraded is None and match.changes is not None and match.changes.session == branch.session:
            try:
                return await self._make_recorded(owner, chain, match, terms)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
            except UsageError:  # the session was deleted meanwhile: it is recorded again, without what people changed
                self._storage.forget(owner, [branch.session])
                own = match.found is not None and match.found.pivot.session == branch.session
                match = msgspec.structs.replace(match, changes=None, found=None if own else match.found)
                terms = msgspec.structs.replace(terms, pins=(), changes=0)
        if degraded is None:
            try:
                branch = await self._storage.record(owner, chain, branch, covers=_covered(chain, match))
                found = await self._storage.claim(owner, chain, terms.attempt)
                if found is not None:
                    return Match(found, branch)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        known = Match(match.found, branch, degraded)
        prepared = self._prepared if match.changes is None else self._build
        pivot = await prepared(owner, chain, known, terms)
        degraded = known.degraded
        pivot = _sized(pivot, terms)
        self._announce(pivot, chain, terms, seconds=time.perf_counter() - began)
        rendered = None
        if degraded is None:
            try:
                rendered = await self._storage.publish(owner, chain, branch, pivot)
            except StoreError as error:
                degraded = self._storage.store_failed(error)
        rendered = rendered or await self._storage.cache_pivot(chain, pivot)
        return Match(PivotMatch(chain.length, rendered), branch, degraded)

    async def _make_recorded(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Match:
        """Build a pivot of a session that people changed, under its lock, and record it before it is used.

        Raises:
            StoreError: the store is unavailable.
            UsageError: the session was deleted.
        """
        began = time.perf_counter()
        branch = await self._storage.record(owner, chain, match.branch, covers=_covered(chain, match))
        async with self._changed.lock(owner, branch) as fence:
            known = await self._changed.apply(owner, chain, msgspec.structs.replace(match, branch=branch))
            changes = known.changes
            if changes is not None:
                terms = msgspec.structs.replace(terms, pins=changes.pins, changes=changes.number)
            if known.found is not None and known.found.pivot.id == pivot_id(chain.key, terms):
                return known  # another replica built it
            pivot = await self._build(owner, chain, known, terms)
            if known.degraded is not None:
                raise StoreUnavailable("the store did not answer while a pivot was built")
            pivot = _sized(pivot, terms)
            rendered = await self._storage.publish_recorded(owner, recorded_name(pivot.id), pivot)
            await self._changed.record(owner, branch, rendered, fence)
        self._announce(pivot, chain, terms, seconds=time.perf_counter() - began)
        return msgspec.structs.replace(known, found=PivotMatch(chain.length, rendered))

    # --- In advance ---

    def prepare(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> None:
        """Start to build a pivot in the background, before it is due."""
        name = _prepared_name(chain, terms)
        is_usable = match.degraded is None and match.changes is None
        if name not in self._preparing and is_usable and len(self._preparing) < MAX_PREPARING:
            task = self._preparing[name] = asyncio.create_task(self._prepare(owner, chain, match, terms))
            task.add_done_callback(lambda done: self._on_prepared(name, match.branch.session, done))

    def _on_prepared(self, name: str, session: str, task: asyncio.Task[Pivot]) -> None:
        self._preparing.pop(name, None)  # the store has it now
        error = None if task.cancelled() else task.exception()
        if error is not None:
            reason = str(error) if isinstance(error, KompaktError) else type(error).__name__
            _log.info("session %s: background compaction failed, it is tried again when due: %s", session, reason)

    async def _prepare(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        branch = await self._storage.record(owner, chain, match.branch, covers=_covered(chain, match))
        name = _prepared_name(chain, terms)
        found = await self._storage.prepared(owner, name)
        if found is not None:
            return found
        known = Match(match.found, branch)
        pivot = await self._build(owner, chain, known, terms)
        if known.degraded is None:
            await self._storage.save_prepared(owner, name, pivot)
        return pivot

    async def _prepared(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        """Return a pivot that was prepared, or build it."""
        name = _prepared_name(chain, terms)
        task = self._preparing.get(name)
        found = None
        try:
            if task is not None:
                return await asyncio.shield(task)
            if match.degraded is None and not terms.attempt:
                found = await self._storage.prepared(owner, name)
        except StoreError as error:
            match.degraded = self._storage.store_failed(error)
        return found or await self._build(owner, chain, match, terms)

    async def _build(self, owner: Owner, chain: HashChain, match: Match, terms: PivotTerms) -> Pivot:
        """Build a pivot; if the store fails, without its references, and ``match`` says so."""
        names: tuple[str, ...] = ()
        if match.degraded is None:
            try:
                names = await self._storage.references(owner, match.branch, _covered(chain, match))
            except StoreError as error:
                match.degraded = self._storage.store_failed(error)
        request = PivotRequest(
            chain=chain,
            found=match.found,
            terms=msgspec.structs.replace(terms, summarizer=None) if terms.attempt else terms,
            session=match.branch.session,
            names=names,
            seal_key=self._storage.value_codec.seal_key(owner.tenant),
            codec=self._storage.value_codec,
        )
        loop = asyncio.get_running_loop()
        if request.terms.summarizer is None:
            return await loop.run_in_executor(self._threads, _build_pivot, request)
        pivot = await loop.run_in_executor(self._summary_threads, build_pivot, request)
        if (account := pivot.narrative) is not None:
            self._metrics.narratives.labels("used" if account.sentences else "failed").inc()
            self._metrics.narrative_tokens.labels("input").inc(account.usage.prompt)
            self._metrics.narrative_tokens.labels("output").inc(account.usage.output)
        return pivot

    def _announce(self, pivot: Pivot, chain: HashChain, terms: PivotTerms, *, seconds: float) -> None:
        """Log and count a compaction; ``seconds`` is how long the request waited for it."""
        sizes = (pivot.tokens_before, pivot.tokens_after, chain.length)
        self._metrics.compactions.labels(terms.cause).inc()
        announce(
            msgspec.structs.replace(
                pivot.report(chain.length - chain.lead),
                budget=terms.budget.trigger,
                steps=tuple(Step(name, *sizes) for name in pivot.strategies),
                narrative=pivot.narrative,
                seconds=seconds,
                session=pivot.session,
            )
        )


def _build_pivot(request: PivotRequest) -> Pivot:
    with full_collections.suspended():
        return build_pivot(request)


def _sized(pivot: Pivot, terms: PivotTerms) -> Pivot:
    """Return a pivot with the sizes of the request that needs it, as the access log states them."""
    before, after = pivot.tokens_before + terms.added[0], pivot.tokens_after + terms.added[1]
    return msgspec.structs.replace(pivot, due=terms.due, tokens_before=before, tokens_after=after)


def _covered(chain: HashChain, match: Match) -> int:
    return covered_items(chain, match.found) - chain.lead


def _prepared_name(chain: HashChain, terms: PivotTerms) -> str:
    return prepared_name(chain.key, terms.budget.trigger, terms.budget.target)


# --- Narratives ---

AUTO = "auto"
"""Value of ``--summarize`` for the model of the request."""

MAX_SECONDS = 60.0
"""Time for one narrative: a request may wait for it, and clients give up after some minutes."""

MAX_OUTPUT = 16_000
"""Output limit of a request for a narrative: several times its length, because some models reason first."""

_OPENAI = "https://api.openai.com"
_REPLACED = frozenset([b"content-type", b"content-encoding", b"accept", b"accept-encoding"])


class _OpenAIChat(OpenAIChat):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()  # the SDK, whose errors these would be, need not be installed


class _OpenAIResponses(OpenAIResponses):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


class _AnthropicMessages(AnthropicMessages):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


class _Gemini(Gemini):
    def _errors(self) -> tuple[type[Exception], ...]:
        return ()


_CLIENTS = {
    "openai-chat": _OpenAIChat,
    "openai-responses": _OpenAIResponses,
    "anthropic": _AnthropicMessages,
    "gemini": _Gemini,
}


def narrator_for(
    request: Request, route: Route, settings: GatewayConfig, client: httpx.AsyncClient, *, model: str | None
) -> Summarizer | None:
    """Return the summarizer for the pivots of a request; ``None`` if code writes summaries alone."""
    named = model if settings.summarize == AUTO else settings.summarize
    if not settings.summarize or not named or route.format not in _CLIENTS:
        return None
    sdk: Any = _UpstreamSDK(request, route, settings, client)
    limits = window_for(named, settings)
    window = limits.context or None
    output = min(limits.output or MAX_OUTPUT, MAX_OUTPUT, *([window // 4] if window else []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gateway itself warns of unknown models
        made = _CLIENTS[route.format](named, context_window=window, output_limit=output, max_retries=1, client=sdk)
    return LLMSummarizer(made, max_seconds=MAX_SECONDS)


class _UpstreamSDK:
    """What the chat clients use of an SDK, over the connections of the gateway."""

    api_key = ""
    vertexai = False

    def __init__(self, request: Request, route: Route, settings: GatewayConfig, client: httpx.AsyncClient) -> None:
        self._client, self._route = client, route
        self._loop = asyncio.get_running_loop()
        headers = forwarded_headers(request.headers.raw, settings)
        self._headers = [(name, value) for name, value in headers if name not in _REPLACED]
        self._query = {name: value for name, value in request.query_params.items() if name != "alt"}

    def with_options(self, **_: Any) -> _UpstreamSDK:
        return self

    @property
    def _api_client(self) -> _UpstreamSDK:
        return self

    async def post(self, path: str, *, body: JsonObject, **_: Any) -> object:
        """Post to the endpoint of the request."""
        del path
        if self._route.upstream.url != _OPENAI and "max_completion_tokens" in body:
            body = {**body, "max_tokens": body["max_completion_tokens"]}  # the name that compatible servers know
            del body["max_completion_tokens"]
        return await self._posted(self._route.url, body)

    async def async_request(self, method: str, path: str, body: JsonObject, options: object) -> SimpleNamespace:
        """Post to a model of Gemini."""
        del method, options
        base = self._route.url.rpartition("/models/")[0]
        return SimpleNamespace(body=await self._posted(f"{base}/{path}", body))

    async def _posted(self, url: str, body: JsonObject) -> object:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._send(url, body), self._loop))

    async def _send(self, url: str, body: JsonObject) -> object:
        headers = [*self._headers, (b"content-type", b"application/json")]
        try:
            answer = await self._client.post(url, content=encode(body), headers=headers, params=self._query or None)
        except httpx.HTTPError as error:
            raise AttemptFailed(f"no answer ({type(error).__name__})", retryable=True) from None
        if answer.status_code >= 400:
            retryable = answer.status_code == 429 or answer.status_code >= 500
            raise AttemptFailed(
                f"status {answer.status_code}", retryable=retryable, status=answer.status_code, body=answer.text
            )
        try:
            return json.loads(answer.content)
        except ValueError:
            raise AttemptFailed("the answer is not JSON", retryable=False) from None

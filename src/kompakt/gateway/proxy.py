"""Serve one provider request: read it, match it with stored pivots, compact it if due, send it, return the answer.

A request that holds no history, or needs no change, is sent with the bytes that the client sent.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import NamedTuple

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kompakt.agent.recall.rounds import MAX_ROOM
from kompakt.agent.recall.tool import PROTOCOLS
from kompakt.engine.compaction.policies import Policy
from kompakt.errors import InputError, UsageError
from kompakt.gateway import upstream as providers
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.access_log import request_log
from kompakt.gateway.http.encodings import read_body, uncompressed
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.outcomes import OUTCOME_HEADER, UNTOUCHED_HEADER, Disposition, Untouched
from kompakt.gateway.pivots import budget as budgets
from kompakt.gateway.pivots.budget import RequestSize, RequestSizes, cleared_tokens, tool_clearing
from kompakt.gateway.pivots.builder import PivotMaker, PivotTerms, narrator_for
from kompakt.gateway.pivots.lookup import TRIES, covered_items, move_cache_mark
from kompakt.gateway.recall.hidden_rounds import HiddenRounds
from kompakt.gateway.recall.offer import RecallOffers
from kompakt.gateway.recall.rounds import Exchange, without_compression
from kompakt.gateway.request.history import HashChain, HashChains, InvalidJson, TooManyMessages, media_bytes, root_of
from kompakt.gateway.request.labels import Labels, purpose_of
from kompakt.gateway.storage.changes import ChangedSessions
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.gateway.tenants import Tenant
from kompakt.gateway.upstream import Route, UpstreamResponse
from kompakt.model.budget import Budget
from kompakt.model.lru import Lru
from kompakt.wire.overflow import Overflow, failure_in, overflow

_log = logging.getLogger("kompakt.gateway")

VERSION = "1"
"""Part of every hash chain. A new version ignores the pivots of earlier ones."""

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")

MAX_LOGGED = 1_000
"""Models and sessions remembered as logged; clients can invent any number of names."""

_FAILURE_WORDS = (b"error", b"fail", b"base_resp", b"detail")
"""The start of a successful answer reports a failure only if it contains one of these words."""


class Job(NamedTuple):
    """A request that holds a history."""

    request: Request
    route: Route
    owner: Owner
    chain: HashChain
    policy: Policy
    hidden: HiddenRounds | None = None
    """The recall tool and its rounds, if the request allows it. They are sent once there is a pivot."""


class RequestPlan(msgspec.Struct):
    """What is sent to the provider for a request."""

    body: bytes
    size: RequestSize
    budget: Budget
    match: Match
    hidden: HiddenRounds | None = None
    """The recall tool and its rounds, if they are sent."""
    compaction: str | None = None
    """The pivot that this request needed first."""
    oversized: bool = False
    """Whether a compaction was due and could not be made."""

    def outcome(self, route: Route) -> Disposition:
        if route.name == "count_tokens":
            return "counted"
        if self.oversized:
            return "oversized"
        if self.compaction is not None:
            return "compacted"
        return "fits" if self.match.found is None else "substituted"

    def next_attempt(self, chain: HashChain) -> int:
        """Return the number of the next attempt to cover the whole request with a pivot."""
        found = self.match.found
        return found.pivot.attempt + 1 if found is not None and found.at == chain.length else 0


class Proxy:
    """Serves provider requests."""

    def __init__(
        self, settings: GatewayConfig, storage: GatewayStorage, client: httpx.AsyncClient, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._client = client
        self._metrics = metrics
        self._chains = HashChains(max_messages=settings.max_messages)
        self._logged_models = Lru[str, bool](MAX_LOGGED)
        """Models whose window is unknown."""
        self._logged_sessions = Lru[tuple[str, str], bool](MAX_LOGGED)
        """Sessions whose system prompt and tools leave room for few steps."""
        self._sizes = RequestSizes()
        self._changed = ChangedSessions(storage)
        self._pivots = PivotMaker(storage, self._changed, metrics)
        self._recall = RecallOffers(storage, metrics)
        self._labels = Labels(storage)

    async def __call__(self, request: Request, tenant: Tenant, route: Route) -> Response:
        if not route.compacts or request.method != "POST":
            return await self._pass_through(request, route, None, "not-a-conversation")
        body = await read_body(request, self._settings.max_body)
        job = await self._read(uncompressed(request), tenant, route, body)
        if not isinstance(job, Job):
            return await self._pass_through(request, route, await request.body(), job)
        await self._storage.wait_for_room()
        match = await self._match(job)
        job = await self._with_recall(job, match)
        plan = await self._limit_media(job, await self._plan(job, match))
        upstream, plan = await self._send(job, plan)
        self._account(job, plan)
        return await self._respond(job, plan, upstream)

    async def _pass_through(self, request: Request, route: Route, body: bytes | None, reason: Untouched) -> Response:
        """Send a request unchanged and report the reason."""
        log = request_log(request)
        log.outcome, log.untouched = "untouched", reason
        headers = [(OUTCOME_HEADER, "untouched"), (UNTOUCHED_HEADER, reason)]
        upstream = await providers.send(self._client, request, route, self._settings, body)
        return providers.client_response(await providers.peek(upstream), headers)

    async def _read(self, request: Request, tenant: Tenant, route: Route, body: bytes) -> Job | Untouched:
        """Read a request; return the reason when it holds no history that the gateway can compact."""
        assert route.format is not None
        policy = self._policy(request)
        root = root_of(f"{tenant.source} {tenant.id}", route.format, f"{VERSION} {policy.name}")
        try:
            chain = await self._chains.read_off_loop(body, route.format, root, named=route.model)
        except InvalidJson as error:
            raise GatewayError(400, str(error), code="invalid_json") from None
        except TooManyMessages as error:
            message = f"{error}; raise the gateway's --max-messages to allow more"
            raise GatewayError(413, message, code="too_many_messages") from None
        except InputError:
            return "unreadable-message"  # the provider describes the error better
        if chain is None:
            return "no-messages"
        log = request_log(request)
        log.model, log.purpose = chain.request.model, purpose_of(chain.request, request.headers)
        self._warn_of_unknown_window(chain.request.model or "")
        held = chain.request.provider_history
        if held is not None:
            return held
        if self._provider_compacts(chain):
            return "provider-compaction"
        if chain.length <= chain.lead:
            return "no-messages"
        return Job(request, route, Owner.of(tenant), chain, policy)

    def _warn_of_unknown_window(self, model: str) -> None:
        """Log once per model that its context window is assumed."""
        settings = self._settings
        if model in self._logged_models or model in settings.windows or settings.context_window is not None:
            return
        window = budgets.window_for(model, settings)
        if not window.known:
            self._logged_models.put(model, True)
            _log.warning(
                "the context window of model %r is unknown; assuming %d tokens. Set it with --window MODEL=N, "
                "or with --context-window N for all unknown models",
                model,
                window.context,
                extra={"kompakt": {"model": model, "window": window.context}},
            )

    def _provider_compacts(self, chain: HashChain) -> bool:
        """Return whether the client asked the provider to compact, at a size within the model's window."""
        at = chain.request.provider_compacts_at
        if at is None:
            return False
        window = budgets.window_for(chain.request.model or "", self._settings).context
        return not window or at <= window

    def _policy(self, request: Request) -> Policy:
        name = request.headers.get("x-kompakt-policy") or self._settings.policy
        try:
            return self._settings.policy_named(name)
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None

    # --- plan -----------------------------------------------------------------------------------------------------

    async def _match(self, job: Job) -> Match:
        """Find the session and the pivot of a request."""
        named = job.request.headers.get("x-kompakt-session", "")
        if named and not _SESSION.fullmatch(named):
            message = "x-kompakt-session is not a valid session name; use up to 128 letters, digits and . _ : @ / -"
            raise GatewayError(400, message, code="invalid_session")
        match = await self._storage.match(job.owner, job.chain, named=named or None)
        return await self._changed.apply(job.owner, job.chain, match)

    async def _with_recall(self, job: Job, match: Match) -> Job:
        """Prepare the recall tool and its hidden rounds."""
        is_json_stream = job.route.name == "stream" and job.request.query_params.get("alt") != "sse"
        if not self._settings.recall or is_json_stream:
            return job
        return job._replace(hidden=await self._recall.hidden_rounds(job.owner, job.chain, match))

    async def _plan(self, job: Job, match: Match) -> RequestPlan:
        """Decide what to send; compact if due."""
        plan = self._plan_with(job, match)
        if job.route.name == "count_tokens" or not budgets.is_due(plan.budget, plan.size):
            return plan
        changes = plan.match.changes
        if changes is not None and changes.undone and plan.size.sent <= plan.budget.usable:
            return plan  # the user undid the compaction, and the request fits the window without it
        if self._provider_clears(job, plan):
            return plan
        if changes is None:
            plan = self._plan_with(job, await self._storage.match_uncached(job.owner, job.chain, plan.match))
        while budgets.is_due(plan.budget, plan.size):
            at = self._pivot_end(job, plan)
            made = await self._compact(job, plan, self._terms(job, plan), at)
            if made is plan or at == job.chain.length:
                return made
            plan = made
        return plan

    def _provider_clears(self, job: Job, plan: RequestPlan) -> bool:
        """Return whether the client asked the provider to clear tool results, and the rest is not due."""
        clearing = tool_clearing(job.chain.request)
        if clearing is None:
            return False
        found = plan.match.found
        start = covered_items(job.chain, found)
        cleared = cleared_tokens(job.chain, start, plan.size.sent, clearing)
        return not budgets.is_due(plan.budget, plan.size._replace(sent=plan.size.sent - cleared))

    async def _limit_media(self, job: Job, plan: RequestPlan) -> RequestPlan:
        """Compact further while the request holds more bytes of media than ``max_media``.

        Raises:
            GatewayError: nothing more can be removed.
        """
        most = self._settings.max_media
        if most is None or len(plan.body) <= most:
            return plan
        while (found := await asyncio.to_thread(media_bytes, plan.body, job.chain.request.format)) > most:
            made = await self._with_less_media(job, plan, most / found)
            if made is None:
                message = (
                    f"the request holds {found:,} bytes of images, audio and documents; the gateway's --max-media "
                    f"allows {most:,}; send fewer or smaller ones, or send them by URL"
                )
                raise GatewayError(413, message, code="media_too_large")
            plan = made
        return plan

    async def _with_less_media(self, job: Job, plan: RequestPlan, share: float) -> RequestPlan | None:
        """Compact to a share of the tokens: media leaves together with its message."""
        attempt = plan.next_attempt(job.chain)
        if attempt >= TRIES:
            return None
        goal = max(2, int(plan.size.sent * share))
        terms = msgspec.structs.replace(
            self._terms(job, plan),
            budget=Budget(window=goal, trigger=goal, target=goal // 2),
            reason="more bytes of media than --max-media allows",
            cause="media",
            attempt=attempt,
        )
        made = await self._compact(job, plan, terms, job.chain.length)
        return None if made is plan or len(made.body) >= len(plan.body) else made

    def _pivot_end(self, job: Job, plan: RequestPlan) -> int:
        """Return how many items the next pivot covers: as few as may be enough."""
        found = plan.match.found
        start = covered_items(job.chain, found)
        ends = {budgets.pivot_end(job.chain, found, plan.size, plan.budget)}
        if job.hidden is not None:
            ends.add(job.hidden.pivot_end(start))
        return min((end for end in ends if end > start), default=job.chain.length)

    def _terms(self, job: Job, plan: RequestPlan) -> PivotTerms:
        return PivotTerms(
            budget=plan.budget,
            policy=job.policy,
            reason=f"over {plan.budget.trigger} tokens",
            learned=budgets.learned_limits(plan.match.found),
            due=job.chain.length - job.chain.lead,
            summarizer=narrator_for(
                job.request, job.route, self._settings, self._client, model=job.chain.request.model or job.route.model
            ),
        )

    def _plan_with(self, job: Job, match: Match) -> RequestPlan:
        """Build the plan for a match: its pivot, then the items after it with the hidden rounds.

        A request without a pivot hides nothing, so it has no recall tool and keeps its bytes.
        """
        chain, found = job.chain, match.found
        hidden = None if found is None else job.hidden
        size = self._sizes.of(chain, found)
        body = chain.request.body
        if found is not None:
            start = covered_items(chain, found)
            pivot = move_cache_mark(chain, found.at, found.rendered.sent)
            lead = [chain.request.item(index) for index in range(chain.lead)]
            after = chain.request.items(start) if hidden is None else hidden.items(start)
            body = (chain.request if hidden is None else hidden.body).with_items([*lead, *pivot, *after])
            size = size if hidden is None else size._replace(sent=size.sent + hidden.extra_tokens(start))
        plan = RequestPlan(
            body, size, budgets.budget_for(chain, self._settings, found, fixed=size.fixed), match, hidden
        )
        if found is not None and found.pivot.due == chain.length - chain.lead:
            plan.compaction = found.pivot.id
        return plan

    async def _compact(self, job: Job, plan: RequestPlan, terms: PivotTerms, at: int) -> RequestPlan:
        """Plan with a new pivot over the first ``at`` items; return the same plan if none can be made."""
        try:
            chain = job.chain if at == job.chain.length else job.chain.cut(at)
            tail = job.chain.cost(at, job.chain.length)
            is_last = tail + plan.budget.target < plan.budget.trigger  # else another pivot replaces this one at once
            before = 0 if plan.hidden is None else plan.hidden.extra_tokens(covered_items(job.chain, plan.match.found))
            after = 0 if job.hidden is None else job.hidden.extra_tokens(at)
            terms = msgspec.structs.replace(
                terms, added=(tail + before, tail + after), summarizer=terms.summarizer if is_last else None
            )
            match = await self._pivots.compact(job.owner, chain, plan.match, terms)
        except InputError as error:
            session = plan.match.branch.session
            _log.warning(
                "session %s: oversized: the history cannot be compacted and is sent unchanged: %s",
                session,
                error,
                extra={"kompakt": {"request": request_log(job.request).id, "session": session}},
            )
            plan.oversized = True
            return plan
        if match.changes is None:
            self._storage.cache_match(job.chain, match)
        made = self._plan_with(job, match)
        made.oversized = 0 < made.budget.window < made.size.sent
        self._warn_of_little_room(job, made)
        return made

    def _warn_of_little_room(self, job: Job, plan: RequestPlan) -> None:
        """Log once per session that system prompt and tools leave room for few steps."""
        session = (job.owner.tenant, plan.match.branch.session)
        if session in self._logged_sessions:
            return
        warning = budgets.room_warning(job.chain, plan.budget, plan.size)
        if warning is not None:
            self._logged_sessions.put(session, True)
            _log.warning("session %s: %s", session[1], warning, extra={"kompakt": {"session": session[1]}})

    # --- send -----------------------------------------------------------------------------------------------------

    async def _send(self, job: Job, plan: RequestPlan) -> tuple[UpstreamResponse, RequestPlan]:
        """Send the request. After an overflow, compact further and send it again, up to ``TRIES`` times."""
        tries = 0
        while True:
            tries += 1
            is_read = plan.hidden is not None or self._settings.report_client_size
            request = without_compression(job.request) if is_read else job.request
            upstream = await providers.send(self._client, request, job.route, self._settings, plan.body)
            upstream = await providers.peek(upstream, announced=job.route.name == "responses")
            found = self._overflow(job, upstream)
            smaller = await self._smaller(job, plan, found) if found is not None and tries < TRIES else None
            if smaller is None:
                plan.oversized = plan.oversized or found is not None
                if tries > 1 and found is None and upstream.status < 400:
                    self._metrics.overflows_recovered.inc()
                return upstream, plan
            await upstream.response.aclose()
            plan = smaller

    def _overflow(self, job: Job, upstream: UpstreamResponse) -> Overflow | None:
        """Return the overflow that the provider reports. Text of the model is never taken for one."""
        if job.route.name == "count_tokens":
            return None
        if upstream.status >= 400:
            return overflow(upstream.text(), status=upstream.status)
        encoded = "content-encoding" in upstream.response.headers
        if not encoded and not any(word in upstream.read for word in _FAILURE_WORDS):
            return None
        failure = failure_in(upstream.text())
        return None if failure is None else overflow(failure)

    async def _smaller(self, job: Job, plan: RequestPlan, found: Overflow) -> RequestPlan | None:
        """Compact after an overflow; return ``None`` when nothing more can be removed."""
        attempt = plan.next_attempt(job.chain)
        if attempt >= TRIES:
            return None
        known = budgets.learned_limits(plan.match.found)
        budget, learned = budgets.budget_after_overflow(plan.budget, found, plan.size.sent, known)
        terms = msgspec.structs.replace(
            self._terms(job, plan),
            budget=budget,
            reason="the provider reported an overflow",
            cause="overflow",
            learned=learned,
            attempt=attempt,
        )
        made = await self._compact(job, plan, terms, job.chain.length)
        return None if made is plan or made.size.sent >= plan.size.sent else made

    # --- respond --------------------------------------------------------------------------------------------------

    async def _respond(self, job: Job, plan: RequestPlan, upstream: UpstreamResponse) -> Response:
        """Pass an answer on. Read it first if the model may call recall, or if its reported usage changes."""
        extra_input = max(0, plan.size.given - plan.size.sent) if self._settings.report_client_size else 0
        if upstream.status >= 400 or (plan.hidden is None and not extra_input):
            return providers.client_response(upstream, self._headers(job, plan))
        assert job.route.format is not None

        async def send_again() -> UpstreamResponse:
            nonlocal plan
            again, plan = await self._send(job, self._plan_with(job, plan.match))
            return again

        def room() -> int:
            now = self._plan_with(job, plan.match)
            return now.budget.usable - now.size.sent if now.budget.window else MAX_ROOM

        exchange = Exchange(
            owner=job.owner,
            chain=job.chain,
            branch=plan.match.branch,
            protocol=PROTOCOLS[job.route.format],
            hidden=plan.hidden,
            send_again=send_again,
            room=room,
            extra_input=extra_input,
            headers=self._headers(job, plan),
        )
        return await self._recall.rounds.respond(exchange, upstream)

    def _account(self, job: Job, plan: RequestPlan) -> None:
        """Update the metrics, record the request in the background, and prepare a pivot that is nearly due."""
        self._metrics.tokens_before.inc(plan.size.given)
        self._metrics.tokens_after.inc(plan.size.sent)
        if plan.match.degraded is not None:
            self._metrics.degraded.inc()
            return
        self._storage.record_later(job.owner, job.chain, plan.match.branch)
        self._labels.put(job.owner, plan.match.branch, job.chain, job.request.headers)
        if plan.compaction is not None or job.route.name == "count_tokens":
            return
        is_nearly_due = budgets.is_nearly_due(plan.budget, plan.size)
        if is_nearly_due and budgets.pivot_end(job.chain, plan.match.found, plan.size, plan.budget) == job.chain.length:
            self._pivots.prepare(job.owner, job.chain, plan.match, self._terms(job, plan))

    def _headers(self, job: Job, plan: RequestPlan) -> list[tuple[str, str]]:
        outcome = request_log(job.request).outcome = plan.outcome(job.route)
        headers = [
            (OUTCOME_HEADER, outcome),
            ("x-kompakt-session", plan.match.branch.session),
            ("x-kompakt-tokens-before", str(plan.size.given)),
            ("x-kompakt-tokens-after", str(plan.size.sent)),
        ]
        if plan.compaction is not None:
            headers.append(("x-kompakt-compaction", plan.compaction))
            found = plan.match.found
            if found is not None and (account := found.pivot.narrative) is not None:
                headers.append(("x-kompakt-narrative-tokens", str(account.usage.total)))
        if plan.match.degraded is not None:
            headers.append(("x-kompakt-degraded", plan.match.degraded))
        return headers

"""One request through the gateway: read, found, compacted when due, sent, passed back.

Whatever is not a history, or needs nothing done, goes on as the bytes it came as.
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

from kompakt.engine.compaction.policies import Policy
from kompakt.errors import InputError, UsageError
from kompakt.gateway import upstream as forwarding
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http.access_log import request_log
from kompakt.gateway.http.encodings import read_body, uncompressed
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.http.outcomes import OUTCOME_HEADER, UNTOUCHED_HEADER, Disposition, Untouched
from kompakt.gateway.pivots import budget as planning
from kompakt.gateway.pivots.budget import RequestSize, RequestSizes
from kompakt.gateway.pivots.lookup import TRIES
from kompakt.gateway.pivots.single_flight import PivotMaker, PivotTerms
from kompakt.gateway.recall.hidden_rounds import HiddenRounds
from kompakt.gateway.recall.offer import PROTOCOLS, RecallOffers
from kompakt.gateway.recall.rounds import MAX_ROOM, Exchange, without_compression
from kompakt.gateway.request.anthropic import cleared_tokens, move_cache_mark, tool_clearing
from kompakt.gateway.request.body import InvalidJson, TooManyMessages, media_bytes
from kompakt.gateway.request.hash_chain import HashChain, HashChains, root_of
from kompakt.gateway.request.labels import Labels, purpose_of
from kompakt.gateway.routes import Route
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.gateway.tenancy.tenants import Tenant
from kompakt.gateway.upstream import UpstreamResponse
from kompakt.model.budget import Budget
from kompakt.wire.overflow import Overflow, failure_in, overflow

_log = logging.getLogger("kompakt.gateway")

VERSION = "1"
"""Changes when pivots of earlier versions cannot be gone on from: those are then left alone."""

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")


MAX_MODELS = 1_000
"""Models remembered as unknown; clients can invent any number."""

_FAILURES = (b"error", b"fail", b"base_resp", b"detail")
"""Words without which the start of an answer with a good status reports no failure."""


class Job(NamedTuple):
    """A request that holds a history."""

    request: Request
    route: Route
    owner: Owner
    trail: HashChain
    policy: Policy
    hidden: HiddenRounds | None = None
    """The recall tool and its rounds, if it is offered."""


class RequestPlan(msgspec.Struct):
    """What is sent for a request."""

    body: bytes
    size: RequestSize
    budget: Budget
    standing: Match
    compaction: str | None = None
    """The pivot that was first needed for this request."""
    oversized: bool = False
    """Whether a compaction was due and could not be made."""

    def outcome(self, route: Route) -> Disposition:
        """Say what was done."""
        if route.name == "count_tokens":
            return "counted"
        if self.oversized:
            return "oversized"
        if self.compaction is not None:
            return "compacted"
        return "fits" if self.standing.found is None else "substituted"


class Proxy:
    """Serves requests that are for a provider."""

    def __init__(
        self, settings: GatewayConfig, keeping: GatewayStorage, client: httpx.AsyncClient, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._keeping = keeping
        self._client = client
        self._metrics = metrics
        self._trails = HashChains(max_messages=settings.max_messages)
        self._models = set[str]()
        """Models whose window is assumed, and that were logged."""
        self._crowded = set[tuple[str, str]]()
        """Conversations whose system prompt and tools leave room for few steps, and that were logged."""
        self._sizes = RequestSizes()
        self._compacting = PivotMaker(keeping, metrics)
        self._recall = RecallOffers(keeping, metrics)
        self._labels = Labels(keeping)

    async def __call__(self, request: Request, tenant: Tenant, route: Route) -> Response:
        """Serve a request."""
        if not route.compacts or request.method != "POST":
            return await self._untouched(request, route, None, "not-a-conversation")
        body = await read_body(request, self._settings.max_body)
        job = await self._job(uncompressed(request), tenant, route, body)
        if not isinstance(job, Job):
            self._metrics.passes.inc()
            return await self._untouched(request, route, await request.body(), job)
        await self._keeping.wait_for_room()
        standing = await self._stand(job)
        job = await self._joined(job, standing)
        plan = await self._within_media(job, await self._plan(job, standing))
        upstream, plan = await self._sent(job, plan)
        self._account(job, plan)
        return await self._answer(job, plan, upstream)

    async def _ask(self, request: Request, route: Route, body: bytes | None) -> UpstreamResponse:
        return await forwarding.send(self._client, request, route, self._settings, body)

    async def _untouched(self, request: Request, route: Route, body: bytes | None, reason: Untouched) -> Response:
        """Pass a request on as it came, and say why."""
        told = request_log(request)
        told.outcome, told.untouched = "untouched", reason
        headers = [(OUTCOME_HEADER, "untouched"), (UNTOUCHED_HEADER, reason)]
        return forwarding.client_response(await forwarding.peek(await self._ask(request, route, body)), headers)

    async def _job(self, request: Request, tenant: Tenant, route: Route, body: bytes) -> Job | Untouched:
        """Read a request; return the reason when it holds no history that the gateway can compact."""
        assert route.format is not None
        policy = self._policy(request)
        root = root_of(f"{tenant.source} {tenant.id}", route.format, f"{VERSION} {policy.name}")
        try:
            trail = await self._trails.read_off_loop(body, route.format, root, named=route.model)
        except InvalidJson as error:
            raise GatewayError(400, str(error), code="invalid_json") from None
        except TooManyMessages as error:
            message = f"{error}; the gateway's --max-messages allows no more"
            raise GatewayError(413, message, code="too_many_messages") from None
        except InputError:
            return "unreadable-message"  # the provider says best what is wrong with it
        if trail is None:
            return "no-messages"
        told = request_log(request)
        told.model, told.purpose = trail.request.model, purpose_of(trail.request, request.headers)
        self._note_window(trail.request.model or "")
        held = trail.request.provider_history
        if held is not None:
            return held
        if self._provider_compacts(trail):
            return "provider-compaction"
        if trail.length <= trail.lead:
            return "no-messages"
        return Job(request, route, Owner.of(tenant), trail, policy)

    def _note_window(self, model: str) -> None:
        """Log once that the window of a model is assumed, and how to state it."""
        settings = self._settings
        if model in self._models or model in settings.windows or settings.context_window is not None:
            return
        window = planning.window_for(model, settings)
        if not window.known:
            if len(self._models) >= MAX_MODELS:
                self._models.clear()
            self._models.add(model)
            _log.warning(
                "the context window of model %r is not known; %d tokens are assumed. State it with "
                "--window MODEL=N, or with --context-window N for all models that are not known",
                model,
                window.context,
                extra={"kompakt": {"model": model, "window": window.context}},
            )

    def _provider_compacts(self, trail: HashChain) -> bool:
        """Tell whether the client asked the provider to compact, at a size that the model can still hold."""
        at = trail.request.provider_compacts_at
        if at is None:
            return False
        window = planning.window_for(trail.request.model or "", self._settings).context
        return not window or at <= window

    def _policy(self, request: Request) -> Policy:
        name = request.headers.get("x-kompakt-policy") or self._settings.policy
        try:
            return self._settings.policy_named(name)
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None

    # --- before ---------------------------------------------------------------------------------------------------

    async def _stand(self, job: Job) -> Match:
        """Find what a request stands on."""
        named = job.request.headers.get("x-kompakt-session", "")
        if named and not _SESSION.fullmatch(named):
            raise GatewayError(400, "x-kompakt-session is not the name of a session", code="invalid_session")
        standing = await self._keeping.match(job.owner, job.trail, named=named or None)
        return await self._keeping.without_undone(job.owner, job.trail, standing)

    async def _joined(self, job: Job, standing: Match) -> Job:
        """Put beside a request what no client sees; an answer that is read is asked for uncompressed."""
        settings, counts = self._settings, job.route.name == "count_tokens"
        pieces = job.route.name == "stream" and job.request.query_params.get("alt") != "sse"
        if settings.recall and not pieces:
            job = job._replace(hidden=await self._recall.hidden_rounds(job.owner, job.trail, standing, counts=counts))
        return (
            job._replace(request=without_compression(job.request)) if job.hidden or settings.report_client_size else job
        )

    async def _plan(self, job: Job, standing: Match) -> RequestPlan:
        """Decide what is sent."""
        plan = self._planned(job, standing)
        if job.route.name == "count_tokens" or not planning.is_due(plan.budget, plan.size):
            return plan
        if plan.standing.undone and plan.size.sent <= plan.budget.usable:
            return plan  # somebody undid the compaction: what fits the window is sent without it
        if self._provider_clears(job, plan):
            return plan
        plan = self._planned(job, await self._keeping.match_uncached(job.owner, job.trail, plan.standing))
        while planning.is_due(plan.budget, plan.size):
            at = self._end(job, plan)
            made = await self._compacted(job, plan, self._terms(job, plan), at)
            if made is plan or at == job.trail.length:
                return made
            plan = made
        return plan

    def _provider_clears(self, job: Job, plan: RequestPlan) -> bool:
        """Tell whether the client asked the provider to clear outputs of tools, and what that leaves is not due."""
        clearing = tool_clearing(job.trail.request)
        if clearing is None:
            return False
        found = plan.standing.found
        start = found.at if found is not None else job.trail.lead
        cleared = cleared_tokens(job.trail, start, plan.size.sent, clearing)
        return not planning.is_due(plan.budget, plan.size._replace(sent=plan.size.sent - cleared))

    async def _within_media(self, job: Job, plan: RequestPlan) -> RequestPlan:
        """Compact further while the request holds more bytes of media than the settings allow.

        Raises:
            GatewayError: there is nothing more to leave out.
        """
        most = self._settings.max_media
        if most is None or len(plan.body) <= most:
            return plan
        while (found := await asyncio.to_thread(media_bytes, plan.body, job.trail.request.format)) > most:
            made = await self._with_less_media(job, plan, most / found)
            if made is None:
                message = (
                    f"the request holds {found:,} bytes of images, audio and documents; the gateway's --max-media "
                    f"allows {most:,}; send fewer or smaller ones, or send them by address"
                )
                raise GatewayError(413, message, code="media_too_large")
            plan = made
        return plan

    async def _with_less_media(self, job: Job, plan: RequestPlan, share: float) -> RequestPlan | None:
        """Plan with a share of the tokens, as media counts in bytes and leaves with its message."""
        found = plan.standing.found
        before = found.pivot if found is not None else None
        attempt = before.attempt + 1 if before is not None and found is not None and found.at == job.trail.length else 0
        if attempt >= TRIES:
            return None
        goal = max(2, int(plan.size.sent * share))
        terms = msgspec.structs.replace(
            self._terms(job, plan),
            budget=Budget(window=goal, trigger=goal, target=goal // 2),
            reason="more bytes of media than --max-media allows",
            attempt=attempt,
        )
        made = await self._compacted(job, plan, terms, job.trail.length)
        return None if made is plan or len(made.body) >= len(plan.body) else made

    def _end(self, job: Job, plan: RequestPlan) -> int:
        """Say how many items the next pivot covers: as few as may be enough."""
        found = plan.standing.found
        start = found.at if found is not None else job.trail.lead
        ends = {planning.pivot_end(job.trail, found, plan.size, plan.budget)}
        if job.hidden is not None:
            ends.add(job.hidden.pivot_end(start))
        return min((end for end in ends if end > start), default=job.trail.length)

    def _terms(self, job: Job, plan: RequestPlan) -> PivotTerms:
        found = plan.standing.found
        return PivotTerms(
            budget=plan.budget,
            policy=job.policy,
            reason=f"over {plan.budget.trigger} tokens",
            learned=planning.learned_limits(found),
            due=job.trail.length - job.trail.lead,
        )

    def _planned(self, job: Job, standing: Match) -> RequestPlan:
        trail, found, hidden = job.trail, standing.found, job.hidden
        size = self._sizes.of(trail, found)
        body = trail.request.body
        if found is not None or hidden is not None:
            start = found.at if found is not None else trail.lead
            sent = move_cache_mark(trail, found.at, found.rendered.sent) if found is not None else ()
            lead = [trail.request.item(index) for index in range(trail.lead)]
            behind = trail.request.items(start) if hidden is None else hidden.items(start)
            body = (trail.request if hidden is None else hidden.body).with_items([*lead, *sent, *behind])
            size = size if hidden is None else size._replace(sent=size.sent + hidden.extra_tokens(start))
        plan = RequestPlan(body, size, planning.budget_for(trail, self._settings, found, fixed=size.fixed), standing)
        if found is not None and found.pivot.due == trail.length - trail.lead:
            plan.compaction = found.pivot.id
        return plan

    async def _compacted(self, job: Job, plan: RequestPlan, terms: PivotTerms, at: int) -> RequestPlan:
        """Plan with a new pivot over so many items; where none can be made the request goes as it stands."""
        try:
            trail = job.trail if at == job.trail.length else job.trail.cut(at)
            terms = msgspec.structs.replace(terms, tail_tokens=job.trail.cost(at, job.trail.length))
            standing = await self._compacting.compact(job.owner, trail, plan.standing, terms)
        except InputError as error:
            _log.warning("sent as it is: %s", error)
            plan.oversized = True
            return plan
        self._keeping.cache_match(job.trail, standing)
        made = self._planned(job, standing)
        made.oversized = 0 < made.budget.window < made.size.sent
        self._note_room(job, made)
        return made

    def _note_room(self, job: Job, plan: RequestPlan) -> None:
        """Log once for each conversation that system prompt and tools leave room for few steps."""
        session = (job.owner.tenant, plan.standing.branch.session)
        if session in self._crowded:
            return
        warning = planning.room_warning(job.trail, plan.budget, plan.size)
        if warning is not None:
            if len(self._crowded) >= MAX_MODELS:
                self._crowded.clear()
            self._crowded.add(session)
            _log.warning("session %s: %s", session[1], warning, extra={"kompakt": {"session": session[1]}})

    # --- to the provider ------------------------------------------------------------------------------------------

    async def _sent(self, job: Job, plan: RequestPlan) -> tuple[UpstreamResponse, RequestPlan]:
        """Send; after an overflow send less, as long as there is less to send."""
        tries = 0
        while True:
            tries += 1
            upstream = await forwarding.peek(
                await self._ask(job.request, job.route, plan.body), announced=job.route.name == "responses"
            )
            found = self._overflow(job, upstream)
            smaller = await self._smaller(job, plan, found) if found is not None and tries < TRIES else None
            if smaller is None:
                plan.oversized = plan.oversized or found is not None
                return upstream, plan
            await upstream.response.aclose()
            self._metrics.overflows_recovered.inc()
            plan = smaller

    def _overflow(self, job: Job, upstream: UpstreamResponse) -> Overflow | None:
        """Tell whether the provider says that the request was too long; what the model says is never read for it."""
        if job.route.name == "count_tokens":
            return None
        if upstream.status >= 400:
            return overflow(upstream.words(), status=upstream.status)
        encoded = "content-encoding" in upstream.response.headers
        if not encoded and not any(word in upstream.read for word in _FAILURES):
            return None
        failure = failure_in(upstream.words())
        return None if failure is None else overflow(failure)

    async def _smaller(self, job: Job, plan: RequestPlan, found: Overflow) -> RequestPlan | None:
        """Plan with less; ``None`` when there is nothing more to leave out."""
        standing = plan.standing
        before = standing.found.pivot if standing.found is not None else None
        covers_all = standing.found is not None and standing.found.at == job.trail.length
        attempt = before.attempt + 1 if before is not None and covers_all else 0
        if attempt >= TRIES:
            return None
        known = planning.learned_limits(standing.found)
        budget, learned = planning.budget_after_overflow(plan.budget, found, plan.size.sent, known)
        terms = PivotTerms(
            budget=budget,
            policy=job.policy,
            reason="the provider found it too long",
            learned=learned,
            attempt=attempt,
            due=job.trail.length - job.trail.lead,
        )
        made = await self._compacted(job, plan, terms, job.trail.length)
        return None if made is plan or made.size.sent >= plan.size.sent else made

    # --- back to the client ---------------------------------------------------------------------------------------

    async def _answer(self, job: Job, plan: RequestPlan, upstream: UpstreamResponse) -> Response:
        """Pass an answer on; where the model may recall, or the size is told otherwise, read it first."""
        extra_input = max(0, plan.size.given - plan.size.sent) if self._settings.report_client_size else 0
        if upstream.status >= 400 or (job.hidden is None and not extra_input):
            return forwarding.client_response(upstream, self._headers(job, plan))
        assert job.route.format is not None

        async def send_again() -> UpstreamResponse:
            nonlocal plan
            again, plan = await self._sent(job, self._planned(job, plan.standing))
            return again

        def room() -> int:
            now = self._planned(job, plan.standing)
            return now.budget.usable - now.size.sent if now.budget.window else MAX_ROOM

        exchange = Exchange(
            owner=job.owner,
            chain=job.trail,
            branch=plan.standing.branch,
            protocol=PROTOCOLS[job.route.format],
            hidden=job.hidden,
            send_again=send_again,
            room=room,
            extra_input=extra_input,
            headers=self._headers(job, plan),
            log=request_log(job.request),
        )
        return await self._recall.rounds.respond(exchange, upstream)

    # --- afterwards -----------------------------------------------------------------------------------------------

    def _account(self, job: Job, plan: RequestPlan) -> None:
        """Count, and record what was said behind the answer."""
        self._metrics.tokens_before.inc(plan.size.given)
        self._metrics.tokens_after.inc(plan.size.sent)
        if plan.standing.found is None:
            self._metrics.passes.inc()
        if plan.standing.degraded is not None:
            self._metrics.degraded.inc()
            return
        self._keeping.record_later(job.owner, job.trail, plan.standing.branch)
        self._labels.put(job.owner, plan.standing.branch, job.trail, job.request.headers)
        if (
            planning.is_nearly_due(plan.budget, plan.size)
            and plan.compaction is None
            and job.route.name != "count_tokens"
        ):
            found = plan.standing.found
            if planning.pivot_end(job.trail, found, plan.size, plan.budget) == job.trail.length:
                self._compacting.prepare(job.owner, job.trail, plan.standing, self._terms(job, plan))

    def _headers(self, job: Job, plan: RequestPlan) -> list[tuple[str, str]]:
        outcome = request_log(job.request).outcome = plan.outcome(job.route)
        headers = [
            (OUTCOME_HEADER, outcome),
            ("x-kompakt-session", plan.standing.branch.session),
            ("x-kompakt-tokens-before", str(plan.size.given)),
            ("x-kompakt-tokens-after", str(plan.size.sent)),
        ]
        if plan.compaction is not None:
            headers.append(("x-kompakt-compaction", plan.compaction))
        if plan.standing.degraded is not None:
            headers.append(("x-kompakt-degraded", plan.standing.degraded))
        return headers

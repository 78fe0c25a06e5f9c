"""Compactions of an agent other than at the limit of its budget: to save money, in the background, by the provider.

To save money: ``engine.compaction.cost`` has the rule. ``CostTrigger`` feeds it with what a run knows: the tokens that
are shown, those that would be shown without any compaction, and those that were sent. Saving money must not cost the
task: unless the user opts in, nothing is compacted below half of the window, and never further down than an ordinary
compaction goes.

In the background: an asynchronous summarizer runs while the agent works. At most one compaction is prepared at a time.
If the preparation fails it is dropped, the run continues, and the compaction is made in the foreground when it is due.
Nothing of it outlives the run.

By the provider, on demand or automatically above a threshold: the provider's item is opaque and is sent back unchanged.
The user's messages are shown next to it, as in any compaction. If the provider fails, or its result does not fit,
kompakt compacts instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Sequence

from kompakt.agent.client import ChatClient, CompactingClient, Reply
from kompakt.agent.live_session import LiveSession
from kompakt.engine.compaction.cost import Economy, Prices
from kompakt.engine.context.archive import speaks
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.errors import KompaktError, ProviderError, ProviderRefused, UsageError
from kompakt.model.budget import Budget, Usage
from kompakt.model.groups import is_request
from kompakt.model.limits import price_of
from kompakt.model.messages import JsonObject, Message, Opaque
from kompakt.model.phrases import UNREADABLE
from kompakt.session.compaction import CompactionOptions, CompactionPlan, SessionCompaction
from kompakt.session.replacement import ProviderView, publish
from kompakt.session.session import Session
from kompakt.session.timeline import PreparedCompaction
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

# --- to save money -------------------------------------------------------------------------------------------------

MIN_SHARE = 0.5
"""Share of the usable window below which nothing is compacted to save money, unless the user opts in."""


class CostTrigger:
    """Tracks what a run has sent and decides whether a compaction would make it cheaper."""

    def __init__(self, model: str, *, economic: bool | None) -> None:
        self._economy = Economy(Prices.of(price_of(model))) if economic is not False else None
        self._opted_in = economic is True
        self._hidden = 0
        self._rewritten = False
        self._sent = 0

    def begin(self, context: Context) -> None:
        """Start a run. The model may have seen the history, but no prompt cache holds it."""
        if self._economy is not None:
            shown = context.projected_tokens
            self._economy.take_up(shown, shown)

    def goal(self, context: Context, budget: Budget) -> int | None:
        """Return the tokens to compact to now, or ``None`` if continuing as is costs less."""
        shown = context.projected_tokens
        if self._economy is None:
            return None
        least = 0
        if not self._opted_in:
            if shown <= budget.limit * MIN_SHARE or not budget.limit:
                return None
            least = budget.goal(context.step_tokens, fixed=context.required_tokens)
        total, shared = shown + self._hidden, context.fixed_tokens
        if not self._economy.due(shown, total=total, now=time.monotonic(), after=least, shared=shared):
            return None
        return max(self._economy.goal(shown), least)

    def rewrote(self, before: int, after: int) -> None:
        """Record a compaction of the prompt."""
        self._hidden += max(0, before - after)
        self._rewritten = True

    def sending(self, context: Context) -> None:
        """Record the prompt of a request."""
        self._sent = context.projected_tokens

    def answered(self, output: int) -> None:
        """Record the output tokens of the answer to that request."""
        if self._economy is not None:
            record = self._economy.rewrote if self._rewritten else self._economy.sent
            record(self._sent, total=self._sent + self._hidden, now=time.monotonic(), output=output)
        self._rewritten = False


def reason_for(goal: int, shown: int) -> str:
    """Return the reason to report for compacting a prompt that fits."""
    return f"cheaper by {max(0, shown - goal) / max(1, shown):.0%} at each later step"


# --- in the background ---------------------------------------------------------------------------------------------

PREPARE_SHARE = 0.8
"""Share of the trigger at which preparation starts: late enough to cover most messages, early enough to finish."""


def is_async(summarizer: Summarizer | str | None) -> bool:
    """Return whether a summarizer is asynchronous; only such a summarizer can run in the background."""
    called = getattr(type(summarizer), "__call__", None)  # noqa: B004 — whether __call__ is async, not whether it exists
    return inspect.iscoroutinefunction(summarizer) or inspect.iscoroutinefunction(called)


class BackgroundCompaction:
    """The compaction that is being prepared for a run, if any."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan: CompactionPlan | None = None
        self._task: asyncio.Task[PreparedCompaction] | None = None
        self._failed = False

    @property
    def may_start(self) -> bool:
        """Whether no preparation is running, and none has failed since the last compaction."""
        return self._task is None and not self._failed

    @property
    def is_done(self) -> bool:
        """Whether a preparation has finished or failed."""
        return self._failed or (self._task is not None and self._task.done())

    async def start(self, options: CompactionOptions) -> None:
        """Read the session, then prepare its compaction in a task."""
        try:
            self._plan = await CompactionPlan.read(self._session, options)
        except KompaktError as error:
            self._fail(error)
            return
        self._task = asyncio.create_task(self._plan.prepare())

    async def publish(self, *, fits: Callable[[PreparedCompaction], bool]) -> SessionCompaction | None:
        """Wait for the preparation and write it to the store; return ``None`` if there is none that can be used."""
        if self._task is None or self._plan is None:
            return None
        pending = await self._session.pending()
        if any(not marker.auto for marker in pending.values()):  # a manual request may have its own instructions
            return None
        await asyncio.wait([self._task])
        error = "cancelled" if self._task.cancelled() else self._task.exception()
        if error is not None:
            self._fail(error)
            return None
        prepared = self._task.result()
        return await self._plan.publish(self._session, prepared) if fits(prepared) else None

    def _fail(self, error: object) -> None:
        self._failed = True
        _log.warning("background compaction failed: %s", error)

    async def drop(self) -> None:
        """Cancel the preparation, because the history has changed or the run is over."""
        task, self._task, self._plan, self._failed = self._task, None, None, False
        if task is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log "exception was never retrieved"


# --- by the provider -----------------------------------------------------------------------------------------------

PROVIDER_SHARE = 0.8
"""Share of kompakt's own trigger at which the provider acts, so that kompakt only acts if the provider does not."""

USER_SHARE = 0.2
"""Share of the trigger for the user's messages next to the provider's item; the first one is always shown."""

COMPACTION = "compaction"


class ProviderCompactor:
    """Compacts one session with the provider's own compaction."""

    def __init__(self, client: ChatClient, live: LiveSession, *, how: str | None, budget: Budget) -> None:
        if how == "off":
            how = None
        if how is not None and not isinstance(client, CompactingClient):
            name = type(client).__name__
            raise UsageError(f"native={how!r}: {name} has no provider compaction; omit native=… or use another client")
        self._client = client if isinstance(client, CompactingClient) else None
        self._live = live
        self.on_demand = how == "demand"
        """Whether to ask the provider when a compaction is due; false after it has rejected a request."""
        self._budget = budget
        self._model = client.model
        self.edits = how == "edits"
        """Whether the provider clears tool outputs, and so reads fewer tokens than were sent."""
        self.changes = self._managed(how)
        """Headers and parameters to send with every request."""
        self._compacted = False
        """Whether an answer contained a compaction that has not been applied yet."""

    def _managed(self, how: str | None) -> JsonObject | None:
        if self._client is None or (how != "threshold" and how != "edits"):
            return None
        parameters = self._client.managed(how, int(self._budget.trigger * PROVIDER_SHARE))
        if parameters is None:
            _log.warning("%s does not support native=%r for this budget; kompakt compacts instead", self._model, how)
            return None
        return {"parameters": parameters}

    # --- on demand ------------------------------------------------------------------------------------------------

    async def compact(
        self,
        *,
        fits: Callable[[int], bool],
        paid: Callable[[Usage], None],
        instructions: str | None = None,
        resume: str | None = None,
    ) -> SessionCompaction | None:
        """Let the provider compact; return ``None`` if it does not, or if the result does not fit."""
        if not self.on_demand or self._client is None:
            return None
        session = self._live.session
        reader = await session.reader()
        requested = [marker.instructions for marker in (await session.pending()).values() if marker.instructions]
        try:
            reply = await self._client.compact(
                self._live.body(), instructions="\n".join(filter(None, [*requested, instructions])) or None
            )
        except ProviderError as error:
            _log.warning("provider compaction failed: %s", error)
            self.on_demand = not isinstance(error, ProviderRefused)  # a rejected request would be rejected again
            return None
        paid(reply.billed)
        shown = self._shown(reply, resume)
        if shown is None:
            _log.warning("provider compaction failed: the answer contains no compaction item")
            return None
        return await publish(session, reader, shown, fits=fits, model=self._model, tokenizer=self._live.tokenizer)

    def _shown(self, reply: Reply, resume: str | None) -> ProviderView | None:
        """Combine the provider's item with the user's messages."""
        wire = WIRES[self._live.format]
        made = [*wire.parse(list(reply.items), None)]
        block = next((part for message in made for part in message.parts if _is_compaction(part)), None)
        if block is None:
            return None
        present = {message.text for message in made if message.role in ("user", "system")}
        said = [message for message in self._user_messages() if message.text not in present]
        if wire.contract.alternates and said:  # the block has to be first, in the first user message
            messages = [Message("user", (block, *said[0].parts)), *said[1:]]
        else:
            messages = [*said, *made]
        reason = "made by the provider"
        return ProviderView(messages=tuple(messages), summary=_summary(block), reason=reason, resume=resume)

    def _user_messages(self) -> list[Message]:
        """Return the system prompt, the first user message, and the newest user messages that there is room for."""
        context, room = self._live.context, int(self._budget.trigger * USER_SHARE)
        system = [message for message in context.messages if message.role == "system"]
        said = [_without_blocks(one) for one in context.messages if is_request(one) and speaks(one)]
        said = [message for message in said if message.parts]
        kept: list[Message] = []
        for message in reversed(said[1:]):
            room -= context.counter.message(message)
            if room < 0 and kept:
                break
            kept.append(message)
        return [*system, *said[:1], *reversed(kept)]

    # --- automatic ------------------------------------------------------------------------------------------------

    def observe(self, messages: Sequence[Message]) -> None:
        """Check whether an answer contains a compaction."""
        self._compacted = self._compacted or any(_is_compaction(part) for message in messages for part in message.parts)

    async def apply(self) -> SessionCompaction | None:
        """Hide what precedes the newest compaction in an answer, because the provider ignores it from now on."""
        if not self._compacted:
            return None
        self._compacted = False
        messages = self._live.context.messages
        at = max(n for n, one in enumerate(messages) if any(map(_is_compaction, one.parts)))
        first = next((message for message in messages[:at] if is_request(message)), None)
        kept = [*([first] if first is not None else []), *messages[at:]]
        block = next(part for part in messages[at].parts if _is_compaction(part))
        shown = ProviderView(messages=tuple(kept), summary=_summary(block), reason="made by the provider", resume=None)
        try:
            reader = await self._live.session.reader()
            return await publish(
                self._live.session,
                reader,
                shown,
                fits=lambda _: True,
                model=self._model,
                tokenizer=self._live.tokenizer,
            )
        except KompaktError as error:
            _log.warning("cannot hide what the provider has compacted: %s", error)
            return None


def _is_compaction(part: object) -> bool:
    """Return whether a part is a successful compaction of the provider."""
    if not isinstance(part, Opaque) or part.type != COMPACTION or not isinstance(part.raw, dict):
        return False
    return bool(part.raw.get("content") or part.raw.get("encrypted_content"))


def _summary(part: object) -> str:
    raw = part.raw if isinstance(part, Opaque) and isinstance(part.raw, dict) else {}
    content = raw.get("content")
    return content if isinstance(content, str) and content else UNREADABLE


def _without_blocks(message: Message) -> Message:
    """Return a message without the item of an earlier compaction: a request may contain only one."""
    parts = tuple(part for part in message.parts if not (type(part) is Opaque and part.type == COMPACTION))
    return message if len(parts) == len(message.parts) else Message(message.role, parts)

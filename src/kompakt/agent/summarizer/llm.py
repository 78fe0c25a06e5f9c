"""A summarizer that asks a model, without tools, and verifies the answer.

The messages that leave the context are shown as text (``transcript``), in one request where the window allows it. An
answer that is empty, truncated, much too long or not a summary raises a ``SummaryFault`` that names the reason, and the
caller decides whether to ask again. What an answer states is compared with the history (``verification``).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from kompakt import api
from kompakt.agent.client import ChatClient, Reply, limits_of
from kompakt.agent.summarizer.prompts import Prompts
from kompakt.agent.summarizer.quotations import Sayings, cited, without
from kompakt.agent.summarizer.transcript import Script, clean, cut, without_reasoning
from kompakt.agent.summarizer.verification import Evidence, shorten, verify
from kompakt.engine.ledger.items import narrated
from kompakt.engine.pivot.pivot import TRIES, Material, Summarizer
from kompakt.errors import KompaktError, Overflowed
from kompakt.model.budget import Usage, usable
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject, Message, Text, ToolResult
from kompakt.model.phrases import BRIDGE
from kompakt.model.tokens import counter_for
from kompakt.wire.overflow import Overflow
from kompakt.wire.registry import WIRES

Fault: TypeAlias = Literal[
    "empty", "truncated", "refused", "inflated", "invented", "unsupported", "called", "too much", "slow"
]
"""Why a summary cannot be used: nothing written, cut off, declined, much longer than allowed, references invented, most
sentences without support in the history, tools called; there is more to summarize than a model is asked for; or the
answer did not arrive in time."""

MAX_SECONDS = 180.0
"""Time for one summary, all requests included: several times what a long one takes. Then code writes the summary
alone."""

MAX_EXCESS = 2.5
"""How far an answer may exceed its limit: whole sentences are dropped until it fits. Models count words, and words full
of digits have many tokens. An answer that is longer still is no summary."""

MAX_DROPPED = 0.5
"""Share of the sentences that may lack support; a narrative with more of them is not used at all."""

MAX_CALLS = 16
"""Most requests for one summary."""

FILLED = 0.9
"""Share of the window that is filled: counts are estimates."""

SHRUNK = 0.5
"""Factor for the size of a request that was too long, if the provider does not say by how much."""

MAX_DIVISIONS = 3
"""Most divisions of the record into portions, including the first one."""

EARLIER_SHARE = 0.3
"""Largest share of a request that the summary so far may take."""

MIN_ROOM = 160
"""Least tokens of the record in a request."""

WORDS_PER_TOKEN = 0.45
"""Words per token in the requested length. Models follow a number of words better than one of tokens. Notes full of
values have fewer words per token than prose."""

MAX_KEPT = 6_000
"""Most tokens of messages that stay in the context: enough to show the task and the state of the work."""

KEPT_SHARE = 0.15
"""Largest share of a request for these messages."""

MIN_ECHO = 20
"""Least characters of a line that is dropped because it repeats the prompt."""

_WRAPPED = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)

HEADED = """\
The record{place}, oldest first. Each message begins with a line "=== {mark}", its name and who speaks; data is \
between <data {mark}> and </data {mark}>.
{portion}
=== {mark} end of the record"""

KEPT = """\
Messages that stay in the context and that the reader will see, so do not repeat them. They come from before or after \
the record; long ones are shortened here, and some in between are not shown here.
{kept}
=== {mark} end of the messages that stay"""

SUPPLIED = "Notes by code that are already in the context, so do not repeat them:"

LISTED = "The record is these messages of the conversation above, by name; call no tools:"


class SummaryFault(KompaktError):
    """A model's summary cannot be used; ``fault`` names what is wrong with it."""

    def __init__(self, fault: Fault, message: str) -> None:
        self.fault: Fault = fault
        self.is_final = fault in ("slow", "too much")
        """Whether asking again is pointless."""
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.fault, str(self)), vars(self)


class LLMSummarizer:
    """Ask a model for the narrative of what leaves the context.

    ``model`` is another model of the same provider, with the same window as the client's. ``context_lines`` are added
    to every request. With ``reuse_prefix`` the summary is requested after the agent's own messages, which the provider
    has cached, where ``with_prefix`` passes them and they leave enough room. A summary that takes longer than
    ``max_seconds`` is not waited for.
    """

    def __init__(
        self,
        client: ChatClient,
        model: str | None = None,
        *,
        prompts: Prompts | None = None,
        context_lines: Sequence[str] = (),
        reuse_prefix: bool = False,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self.client = client
        self.model = model
        self.prompts = prompts or Prompts()
        self.context_lines = tuple(context_lines)
        self.reuse_prefix = reuse_prefix
        self.max_seconds = max_seconds

    async def __call__(self, material: Material) -> str:
        """Write a narrative.

        Raises:
            SummaryFault: the answer cannot be used, or did not arrive in time.
            ProviderError: there is no answer.
        """
        return await _Task(self, material).run()

    def with_prefix(
        self,
        body: JsonObject | None,
        *,
        changes: JsonObject | None = None,
        paid: Callable[[Usage], None] | None = None,
    ) -> Summarizer:
        """Return a summarizer that may append its question to ``body``, the last request of the agent.

        It sends a separate request without ``reuse_prefix`` or for another model. ``paid`` is called with the usage of
        each answer.
        """
        other = self.model is not None and self.model != self.client.model
        prefix = None if other or not self.reuse_prefix else body

        async def ask(material: Material) -> str:
            return await _Task(self, material, paid).run(prefix, changes)

        return self if prefix is None and paid is None else ask


class _Task:
    """One summary."""

    def __init__(self, owner: LLMSummarizer, material: Material, paid: Callable[[Usage], None] | None = None) -> None:
        self.owner = owner
        self.paid = paid
        self.client = owner.client
        self.material = material
        self.wire = WIRES[owner.client.format]
        self.counter = counter_for(owner.model or owner.client.model)
        self.script = Script(material, self.counter)
        self.sayings = Sayings(material)
        self.account = material.account
        self.account.model = owner.model or owner.client.model
        self.window = usable(limits_of(self.client), output_cap=self.client.output_limit) or sys.maxsize
        self.limit = min(material.max_tokens, self.client.output_limit or material.max_tokens)
        self.sent = 0
        """Tokens of the newest request by kompakt's own count."""
        shown = (*material.references, *material.kept_references)
        self.known = {name.partition(".")[0] for name in shown} | cited(f"{material.earlier or ''}\n{material.facts}")
        """References that an answer may cite: every one that the request shows."""

    async def run(self, prefix: JsonObject | None = None, changes: JsonObject | None = None) -> str:
        """Ask, after the prefix if there is one, and complete the answer."""
        material = self.material
        if not material.messages and not material.instructions:
            earlier = material.earlier or ""
            if not earlier or material.count(earlier) <= material.max_tokens:
                return earlier
        try:
            async with asyncio.timeout(self.owner.max_seconds):
                text = await self._after_prefix(prefix, changes) if prefix is not None else None
                if text is None:
                    text = await self._alone()
        except TimeoutError:
            raise SummaryFault("slow", f"no summary after {self.owner.max_seconds:g} seconds") from None
        known = "\n".join([material.facts, *(message.text for message in material.kept)])
        return self.sayings.completed(text, material.max_tokens, material.count, known=known)

    async def _alone(self) -> str:
        """Ask in separate requests, with smaller portions if the provider says that a request is too long."""
        window = int(self.window * FILLED)
        for _ in range(MAX_DIVISIONS - 1):
            try:
                return await self._in_turn(window)
            except Overflowed as error:
                window = int(self.sent * _fitting(error))
        return await self._in_turn(window)

    async def _in_turn(self, window: int) -> str:
        """Ask for one portion after another, each with the summary so far."""
        portions, room = self._portions(window)
        summary = self.material.earlier or ""
        for number, portion in enumerate(portions, 1):
            place = f" (part {number} of {len(portions)})" if len(portions) > 1 else ""
            self.known |= cited(portion)
            text = self._text(self._cut(summary, room), self._record(portion, place), self._kept(window))
            self.sent = self._size(text)
            summary = self._checked(await self._sent(self._body(text)))
        return summary

    def _portions(self, window: int) -> tuple[list[str], int]:
        """Divide the record; return also the tokens that the summary so far may take next to a portion.

        Raises:
            SummaryFault: it takes too many requests, or the window has no room.
        """
        free = window - self._size(self._text("-", self._record("", " (part 10 of 10)"), self._kept(window)))
        most = int(window * EARLIER_SHARE)
        earlier = min(self.counter.tokens(self.material.earlier or ""), most)
        if free - earlier >= MIN_ROOM:
            portions = self.script.portions(free - earlier, MAX_CALLS) or [""]
            if len(portions) == 1:
                return portions, earlier
        earlier = min(max(earlier, self.limit), most)
        if free - earlier < MIN_ROOM:
            raise SummaryFault("too much", f"a window of {window} tokens leaves no room for a record to summarize")
        portions = self.script.portions(free - earlier, MAX_CALLS)
        if len(portions) > MAX_CALLS:
            detail = (
                f"{len(self.material.messages)} messages take {len(portions)} requests; {MAX_CALLS} are made at most"
            )
            raise SummaryFault("too much", detail)
        return portions, earlier

    # --- after a prefix -------------------------------------------------------------------------------------------

    async def _after_prefix(self, prefix: JsonObject, changes: JsonObject | None) -> str | None:
        """Ask after the agent's own request; ``None`` if there is no room, it is invalid, or the model calls tools."""
        body = self._continued(prefix)
        if api.count(body, self.owner.model, self.wire.format).total > int(self.window * FILLED):
            return None
        if api.check(body, self.wire.format):
            return None
        try:
            return self._checked(await self._sent(body, changes))
        except Overflowed:
            return None
        except SummaryFault as fault:
            if fault.fault != "called":
                raise
            return None

    def _continued(self, prefix: JsonObject) -> JsonObject:
        """Append the question for the summary to a request that is otherwise unchanged."""
        earlier = self._cut(self.material.earlier or "", int(self.window * EARLIER_SHARE))
        asked = Text(self._text(earlier, f"{self.owner.prompts.system}\n\n{LISTED}\n{self.script.listed()}"))
        history = api.parse(prefix, self.wire.format)
        contract, messages = self.wire.contract, list(history)
        last = messages[-1] if messages else None
        if last is not None and contract.alternates and last.role in ("user", "tool"):
            if contract.merges_results or not any(type(part) is ToolResult for part in last.parts):
                messages[-1] = last.with_parts((*last.parts, asked))
                return self._with_items(prefix, messages)
            messages.append(Message("assistant", (Text(BRIDGE),)))  # it may neither join the results nor follow
        return self._with_items(prefix, [*messages, Message("user", (asked,))])

    def _with_items(self, body: JsonObject, messages: Sequence[Message]) -> JsonObject:
        return {**body, self.wire.messages_key: [item for message in messages for item in self.wire.render(message)]}

    # --- the request ----------------------------------------------------------------------------------------------

    def _text(self, earlier: str, record: str, kept: str = "") -> str:
        """Write a request: the data first and the instruction last, so that the data cannot override it."""
        prompts, lines = self.owner.prompts, self.owner.context_lines
        wanted, facts = self.material.instructions, self.material.facts
        said = [
            f"Earlier notes:\n{self.script.fenced(clean(earlier))}" if earlier else "",
            record,
            kept,
            f"{SUPPLIED}\n{self.script.fenced(clean(facts))}" if facts else "",
            "\n".join(["To be taken into account:", *(f"- {clean(line)}" for line in lines)]) if lines else "",
            prompts.merge if earlier else "",
            prompts.instruction,
            f"Asked for in particular:\n{clean(wanted)}" if wanted else "",
            f"Write at most {self.limit} tokens, which is about {max(1, int(self.limit * WORDS_PER_TOKEN))} words.",
        ]
        return "\n\n".join(filter(None, said))

    def _kept(self, window: int) -> str:
        kept = self.script.kept(min(MAX_KEPT, int(window * KEPT_SHARE)))
        return KEPT.format(kept=kept, mark=self.script.mark) if kept else ""

    def _record(self, portion: str, place: str) -> str:
        return HEADED.format(mark=self.script.mark, place=place, portion=portion)

    def _body(self, text: str) -> JsonObject:
        system = self.owner.prompts.system
        body = self.client.envelope(system=system, tools=())
        if self.owner.model is not None:
            body = {**body, self.wire.model_key: self.owner.model}
        asked = self.wire.render(Message("user", (Text(text),)))
        return {**body, self.wire.messages_key: [*self.client.opening(system), *asked]}

    def _size(self, text: str) -> int:
        return api.count(self._body(text), self.owner.model or self.client.model, self.wire.format).total

    def _cut(self, summary: str, room: int) -> str:
        return cut(summary, room, self.counter, "the earlier summary") if summary else ""

    async def _sent(self, body: JsonObject, changes: JsonObject | None = None) -> Reply:
        self.account.requests += 1
        reply = await self.client.send(body, changes=changes)
        self.account.usage += reply.billed  # also if the answer cannot be used
        if self.paid is not None:
            self.paid(reply.billed)
        return reply

    # --- the answer -----------------------------------------------------------------------------------------------

    def _checked(self, reply: Reply) -> str:
        """Return the summary in an answer, without statements that the history does not support.

        Raises:
            SummaryFault: there is no usable summary.
            Overflowed: the window was full before it was written.
        """
        said = [message for message in self.wire.parse(list(reply.items), None) if message.role == "assistant"]
        text = _unwrapped(without_reasoning("\n".join(filter(None, (message.text for message in said)))).strip())
        if reply.stop == "refused":
            raise SummaryFault("refused", f"the model declined to summarize: {text[:200]!r}")
        if reply.stop == "tools" or any(message.calls for message in said):
            raise SummaryFault("called", "the model called tools instead of writing a summary")
        if reply.stop == "overflow":
            raise Overflowed("the window was full before the summary was written")
        if reply.stop == "length":
            raise SummaryFault("truncated", f"the summary breaks off after {self.material.count(text)} tokens")
        text = self._own(text)
        tokens, limit = self.material.count(text), self.material.max_tokens
        if tokens > limit * MAX_EXCESS:
            raise SummaryFault("inflated", f"the summary has {tokens} tokens and may have {limit}")
        text = narrated(self._verified(self._with_valid_references(text)))
        if self.material.count(text) > limit:
            text = shorten(text, limit, self.material.count)
        if not text:
            raise SummaryFault("empty", "the summary is empty")
        return text

    def _verified(self, text: str) -> str:
        """Drop or mark the sentences that the history does not support.

        Raises:
            SummaryFault: most sentences are unsupported, so the rest is not trusted either.
        """
        found = verify(text, self.evidence)
        sentences, dropped = found.kept + len(found.marked), len(found.dropped)
        self.account.marked, self.account.dropped = found.marked, found.dropped
        if dropped > (sentences + dropped) * MAX_DROPPED:
            some = " ".join(found.dropped)[:200]
            raise SummaryFault("unsupported", f"{dropped} of {sentences + dropped} sentences are unsupported: {some!r}")
        self.account.sentences = sentences
        return found.text

    @cached_property
    def evidence(self) -> Evidence:
        """The history in a form for looking up statements; built when there is an answer."""
        return Evidence(self.material, self.owner.context_lines)

    def _own(self, text: str) -> str:
        """Drop lines that only repeat the prompt."""
        prompt = set(f"{self.owner.prompts.instruction}\n{self.owner.prompts.merge}".split("\n"))
        return "\n".join(line for line in text.split("\n") if len(line) < MIN_ECHO or line.strip() not in prompt)

    def _with_valid_references(self, text: str) -> str:
        """Remove invented references, and correct quotations of the user.

        Raises:
            SummaryFault: most references are invented, so the rest is not trusted either.
        """
        names = cited(text)
        invented = names - self.known
        if len(invented) * 2 > len(names):
            some = ", ".join(sorted(invented)[:5])
            raise SummaryFault("invented", f"{len(invented)} of {len(names)} references name nothing: {some}")
        return without(self.sayings.corrected(text), invented).strip()


def _unwrapped(text: str) -> str:
    """Return an answer without the code block around the whole of it."""
    wrapped = _WRAPPED.fullmatch(text)
    return text if wrapped is None or "```" in wrapped[1] else wrapped[1].strip()


def _fitting(error: Overflowed) -> float:
    """Return the share of a request that would have fitted, estimated if the provider does not say."""
    said = error.overflow
    if isinstance(said, Overflow) and said.limit and said.actual and said.actual > said.limit and not said.by_bytes:
        return FILLED * said.limit / said.actual
    return SHRUNK


MAX_NARRATIVES = 256
"""Narratives in the cache: one for each conversation in progress, with room for a few passes of each."""


class NarrativeCache:
    """Caches narratives for callers that compact the same history again with each request.

    A stateless caller finds the same boundary each time until the next compaction is due. The narrative before that
    boundary is requested once, and the prefix of the requests stays the same. A narrative that failed ``TRIES`` times
    is not requested again.
    """

    def __init__(self, size: int = MAX_NARRATIVES) -> None:
        self._made: Lru[object, str] = Lru(size)
        self._failed: Lru[object, int] = Lru(size)

    def over(self, summarizer: Summarizer) -> Summarizer:
        """Return a summarizer that asks another one for what is not in the cache."""

        async def summarize(material: Material) -> str:
            key = (material.references, material.earlier, material.instructions, material.max_tokens)
            text = self._made.get(key) or ""
            failures = self._failed.get(key) or 0
            if text or failures >= TRIES:
                return text
            try:
                made = summarizer(material)
                text = (await made if isinstance(made, Awaitable) else made).strip()
            finally:
                if text:
                    self._made.put(key, text)
                else:
                    self._failed.put(key, failures + 1)
            return text

        return summarize

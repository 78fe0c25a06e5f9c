"""Compaction by the provider, on demand or automatically above a threshold.

The provider's item is opaque and is sent back unchanged. The user's messages are shown next to it, as in any
compaction. If the provider fails, or its result does not fit, kompakt compacts instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kompakt.agent.client import ChatClient, CompactingClient, Reply
from kompakt.agent.live_session import LiveSession
from kompakt.engine.context.archive import speaks
from kompakt.errors import KompaktError, ProviderError, ProviderRefused, UsageError
from kompakt.model.budget import Budget, Usage
from kompakt.model.groups import is_request
from kompakt.model.messages import JsonObject, Message, Opaque
from kompakt.model.phrases import UNREADABLE
from kompakt.session.compaction import SessionCompaction
from kompakt.session.replacement import ProviderView, publish
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

SHARE = 0.8
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
        parameters = self._client.managed(how, int(self._budget.trigger * SHARE))
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

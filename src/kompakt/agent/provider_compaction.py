"""The provider compacts instead of kompakt: asked when it is due, or by itself from a size on.

What comes back is the provider's own and stays as it is. The user's words are shown beside it, as kompakt always shows
them. Whatever goes wrong, and whatever does not fit, is left to kompakt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kompakt.agent.client import ChatClient, CompactingClient, Reply
from kompakt.agent.live_session import Live
from kompakt.engine.context.values import speaks
from kompakt.errors import KompaktError, ProviderError, ProviderRefused, UsageError
from kompakt.model.budget import Budget, Usage
from kompakt.model.groups import is_request
from kompakt.model.messages import JsonObject, Message, Opaque
from kompakt.model.phrases import UNREADABLE
from kompakt.session.compaction import SessionCompaction
from kompakt.session.provider_compaction import ProviderView, publish
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.agent")

SHARE = 0.8
"""Share of kompakt's own trigger from which a provider acts by itself: kompakt stays behind it."""

WORDS_SHARE = 0.2
"""Share of the trigger that the user's own words may take beside a provider's summary; the first are always there."""

COMPACTION = "compaction"


class Native:
    """The provider's part in the compactions of one session."""

    def __init__(self, client: ChatClient, live: Live, *, how: str | None, budget: Budget) -> None:
        if how == "off":
            how = None
        if how is not None and not isinstance(client, CompactingClient):
            name = type(client).__name__
            raise UsageError(f"{name} has no compaction of its provider's; leave native=… out, or use another client")
        self._client = client if isinstance(client, CompactingClient) else None
        self._live = live
        self._asks = how == "demand"
        self._budget = budget
        self._model = client.model
        self.edits = how == "edits"
        """Whether the provider reads less than it is sent, and is meant to."""
        self.changes = self._managed(how)
        """What is sent with every request."""
        self._cuts = False

    def _managed(self, how: str | None) -> JsonObject | None:
        if self._client is None or (how != "threshold" and how != "edits"):
            return None
        parameters = self._client.managed(how, int(self._budget.trigger * SHARE))
        if parameters is None:
            _log.warning("%s does not compact by itself at this size (%s); kompakt does", self._model, how)
            return None
        return {"parameters": parameters}

    # --- asked ----------------------------------------------------------------------------------------------------

    async def compacted(
        self, *, fits: Callable[[int], bool], paid: Callable[[Usage], None], instructions: str | None = None
    ) -> SessionCompaction | None:
        """Have the provider compact; ``None`` where it does not, or where that does not help."""
        if not self._asks or self._client is None:
            return None
        session = self._live.session
        reader = await session.reader()
        said = [marker.instructions for marker in (await session.pending()).values() if marker.instructions]
        try:
            reply = await self._client.compact(
                self._live.body(), instructions="\n".join(filter(None, [*said, instructions])) or None
            )
        except ProviderError as error:
            _log.warning("the provider did not compact: %s", error)
            self._asks = not isinstance(error, ProviderRefused)  # it would refuse again
            return None
        paid(reply.billed)
        shown = self._shown(reply)
        if shown is None:
            _log.warning("the provider did not compact: it gave nothing that stands for the history")
            return None
        return await publish(session, reader, shown, fits=fits, model=self._model, tokenizer=self._live.tokenizer)

    def _shown(self, reply: Reply) -> ProviderView | None:
        """Put what the provider made beside the user's own words."""
        wire = WIRES[self._live.format]
        made = [*wire.parse(list(reply.items), None)]
        block = next((part for message in made for part in message.parts if _is_compaction(part)), None)
        if block is None:
            return None
        there = {message.text for message in made if message.role in ("user", "system")}
        words = [message for message in self._words() if message.text not in there]
        if wire.contract.alternates and words:  # the block has to be first, and the first message the user's
            opened = Message("user", (block, *words[0].parts))
            messages = [opened, *words[1:]]
        else:
            messages = [*words, *made]
        reason = "made by the provider"
        return ProviderView(messages=tuple(messages), summary=_summary(block), reason=reason, asks=True)

    def _words(self) -> list[Message]:
        """Return what the user has said: the first request, and the newest that there is room for; and the system."""
        context, room = self._live.context, int(self._budget.trigger * WORDS_SHARE)
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

    # --- by itself ------------------------------------------------------------------------------------------------

    def heard(self, messages: Sequence[Message]) -> None:
        """Note whether an answer brings a compaction."""
        self._cuts = self._cuts or any(_is_compaction(part) for message in messages for part in message.parts)

    async def cut(self) -> SessionCompaction | None:
        """Leave out what stands before the newest compaction that an answer brought: the provider reads it no more."""
        if not self._cuts:
            return None
        self._cuts = False
        messages = self._live.context.messages
        at = max(n for n, one in enumerate(messages) if any(map(_is_compaction, one.parts)))
        first = next((message for message in messages[:at] if is_request(message)), None)
        kept = [*([first] if first is not None else []), *messages[at:]]
        block = next(part for part in messages[at].parts if _is_compaction(part))
        shown = ProviderView(messages=tuple(kept), summary=_summary(block), reason="made by the provider", asks=False)
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
            _log.warning("what the provider no longer reads is still sent: %s", error)
            return None


def _is_compaction(part: object) -> bool:
    """Tell whether a part stands for what came before; one that failed does not."""
    if not isinstance(part, Opaque) or part.type != COMPACTION or not isinstance(part.raw, dict):
        return False
    return bool(part.raw.get("content") or part.raw.get("encrypted_content"))


def _summary(part: object) -> str:
    raw = part.raw if isinstance(part, Opaque) and isinstance(part.raw, dict) else {}
    content = raw.get("content")
    return content if isinstance(content, str) and content else UNREADABLE


def _without_blocks(message: Message) -> Message:
    """Return a message without an earlier compaction of the provider's: there may be one only."""
    parts = tuple(part for part in message.parts if not (type(part) is Opaque and part.type == COMPACTION))
    return message if len(parts) == len(message.parts) else Message(message.role, parts)

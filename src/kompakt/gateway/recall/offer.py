"""Whether the tool is offered in a request, and what then stands beside it: decided by content, alike everywhere."""

from __future__ import annotations

from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.recall import offered_tool as offering
from kompakt.gateway.recall.injection import Aside
from kompakt.gateway.recall.protocols.anthropic import Anthropic
from kompakt.gateway.recall.protocols.gemini import Gemini
from kompakt.gateway.recall.protocols.openai_chat import Chat
from kompakt.gateway.recall.protocols.openai_responses import Responses
from kompakt.gateway.recall.rounds import Answering
from kompakt.gateway.recall.saved_rounds import Notes, places
from kompakt.gateway.recall.turn import Dialect
from kompakt.gateway.request.digests import DigestCache
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner

DIALECTS: dict[str, Dialect] = {made.format: made for made in (Chat(), Responses(), Anthropic(), Gemini())}


class Recalling:
    """Offers the tool, puts its rounds back, answers its calls."""

    def __init__(self, keeping: GatewayStorage, metrics: Metrics) -> None:
        self._notes = Notes(keeping)
        self._looks = DigestCache()
        self._sizes = RequestSizes()
        self.answering = Answering(keeping, self._notes, metrics)

    async def joined(self, owner: Owner, trail: HashChain, standing: Match, *, counts: bool) -> Aside | None:
        """Return what stands beside a request; ``None`` when the tool is not offered in it.

        ``counts``: the request asks for no answer, and begins no conversation.
        """
        asked = trail.request
        taken = offering.declared(asked)
        said = trail.answers
        if taken is None or not offering.fits(asked) or (said and said[-1] == trail.length - 1):
            return None
        key = trail.keys[said[0] if said else trail.length]
        found = places(trail, standing.found.at if standing.found is not None else trail.lead)
        known = await self._notes.find(owner, trail, key, found)
        if known is None and not said and not counts and not offering.forbids(asked) and standing.degraded is None:
            name = await self._notes.offer(owner, standing.branch.session, key, offering.chosen(taken))
            known = None if name is None else (name, {})
        if known is None or known[0] in taken:
            return None
        name, kept = known
        aside = Aside(trail, name, offering.offered(asked, name), DIALECTS[asked.format], self._looks)
        aside.put_back(found if kept else (), kept, self._sizes)
        return aside

"""The recall tool in gateway requests: added to the client's bytes, with the hidden rounds of earlier requests.

The tool is sent once a pivot hides a part of the conversation; see ``kompakt.agent.recall.tool`` for when and why. The
decision depends only on the content of the request and the store, so every replica decides alike, and a conversation
that reaches the gateway with a long history gets the tool with its first request.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from kompakt.agent.recall.tool import PROTOCOLS, can_offer, definition, free_name, tool_names, with_tool
from kompakt.agent.recall.turn import as_list
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.pivots.lookup import covered_items
from kompakt.gateway.recall.hidden_rounds import HiddenRounds, SavedRounds, answer_slots
from kompakt.gateway.recall.rounds import RecallRounds
from kompakt.gateway.request.history import DigestCache, HashChain, RequestBody
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.model.json import encode
from kompakt.model.messages import Json

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class RecallOffers:
    """Offers the recall tool and adds the hidden rounds to requests."""

    def __init__(self, storage: GatewayStorage, metrics: Metrics) -> None:
        self._saved = SavedRounds(storage)
        self._digests = DigestCache()
        self._sizes = RequestSizes()
        self.rounds = RecallRounds(storage, self._saved, metrics)

    async def hidden_rounds(self, owner: Owner, chain: HashChain, match: Match) -> HiddenRounds | None:
        """Return the tool and the hidden rounds of a request; ``None`` when the tool cannot be offered in it.

        A conversation without a pivot has no rounds yet. The tool is then only sent if a pivot is made for the request.
        """
        body, answers = chain.request, chain.answers
        raw = _raw_tools(body)
        taken = None if raw is None else _names(body.format, raw)
        if raw is None or taken is None or not can_offer(body.format, body.field):
            return None
        if answers and answers[-1] == chain.length - 1:  # the model continues its own answer
            return None
        name = free_name(taken)
        tools = _with_tool(body.format, raw, name)
        before = {key: tools if key == "tools" else value for key, value in body.before.items()}
        after = {key: tools if key == "tools" else value for key, value in body.after.items()}
        offered = msgspec.structs.replace(body, before=before, after=after)
        protocol = PROTOCOLS[body.format]
        hidden = HiddenRounds(chain, name, offered, protocol, digests=self._digests, sizes=self._sizes)
        if match.found is not None:
            slots = answer_slots(chain, covered_items(chain, match.found))
            hidden.restore(slots, await self._saved.find(owner, chain, slots))
        return hidden


def _raw_tools(body: RequestBody) -> bytes | None:
    return body.before.get("tools", body.after.get("tools"))


@lru_cache(maxsize=64)
def _names(format: str, raw: bytes) -> frozenset[str] | None:
    return tool_names(format, _decoded(raw))


def _decoded(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _with_tool(format: str, raw: bytes, name: str) -> bytes:
    """Append the recall tool; the client's own tools keep their bytes where the format allows it."""
    if format == "gemini":
        return encode(with_tool(format, as_list(_decoded(raw)), name))
    return b"[" + b",".join([*map(bytes, _ARRAY.decode(raw)), encode(definition(format, name))]) + b"]"

"""The recall tool in a request: whether it is offered, under which name, and what is added for it.

The decision depends only on the content of the request and the store, so every replica decides alike. The tool follows
the client's own tools, under a name that none of them has. An offered tool stays in every request of the
conversation, because a change before the messages would invalidate the provider's prompt cache. It is not offered where
the client declares no tools or forbids calls from the start.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

import msgspec

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.pivots.lookup import covered_items
from kompakt.gateway.recall.hidden_rounds import HiddenRounds, SavedRounds, answer_slots
from kompakt.gateway.recall.protocols.anthropic import AnthropicRecall
from kompakt.gateway.recall.protocols.gemini import GeminiRecall
from kompakt.gateway.recall.protocols.openai_chat import ChatRecall
from kompakt.gateway.recall.protocols.openai_responses import ResponsesRecall
from kompakt.gateway.recall.rounds import RecallRounds
from kompakt.gateway.recall.turn import RecallProtocol, as_list
from kompakt.gateway.request.history import DigestCache, HashChain, RequestBody
from kompakt.gateway.storage.storage import GatewayStorage, Match, Owner
from kompakt.model.json import as_object, encode
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.registry import WIRES

_IMPLEMENTED = (ChatRecall(), ResponsesRecall(), AnthropicRecall(), GeminiRecall())
PROTOCOLS: dict[str, RecallProtocol] = {protocol.format: protocol for protocol in _IMPLEMENTED}

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_DECLARED = ("functionDeclarations", "function_declarations")


class RecallOffers:
    """Offers the recall tool and adds the hidden rounds to requests."""

    def __init__(self, storage: GatewayStorage, metrics: Metrics) -> None:
        self._saved = SavedRounds(storage)
        self._digests = DigestCache()
        self._sizes = RequestSizes()
        self.rounds = RecallRounds(storage, self._saved, metrics)

    async def hidden_rounds(self, owner: Owner, chain: HashChain, match: Match, *, counts: bool) -> HiddenRounds | None:
        """Return the hidden rounds of a request; ``None`` when the tool is not offered in it.

        ``counts``: the request only counts tokens, so it does not start a conversation.
        """
        body = chain.request
        taken = tool_names(body)
        answers = chain.answers
        if taken is None or not can_offer(body) or (answers and answers[-1] == chain.length - 1):
            return None
        key = chain.keys[answers[0] if answers else chain.length]
        slots = answer_slots(chain, covered_items(chain, match.found))
        known = await self._saved.find(owner, chain, key, slots)
        if known is None and not answers and not counts and not forbids_calls(body) and match.degraded is None:
            name = await self._saved.offer(owner, match.branch.session, key, free_name(taken))
            known = None if name is None else (name, {})
        if known is None or known[0] in taken:
            return None
        name, rounds = known
        hidden = HiddenRounds(chain, name, with_tool(body, name), PROTOCOLS[body.format], self._digests)
        hidden.restore(slots if rounds else (), rounds, self._sizes)
        return hidden


def tool_names(body: RequestBody) -> frozenset[str] | None:
    """Return the names of the client's tools; ``None`` when it declares none."""
    raw = _raw_tools(body)
    return None if raw is None else _names(body.format, raw)


def can_offer(body: RequestBody) -> bool:
    """Return whether the request asks for one answer with whole calls that the provider does not store."""
    config = as_object(body.field("generationConfig"))
    is_stored = body.format == "openai-responses" and body.field("store") is not False
    # Gemini names a streamed call only in its first part.
    in_parts = _calling_config(body).get("streamFunctionCallArguments") is True
    return not is_stored and not in_parts and body.field("n") in (None, 1) and config.get("candidateCount") in (None, 1)


def forbids_calls(body: RequestBody) -> bool:
    choice = body.field("tool_choice")
    return choice == "none" or as_object(choice).get("type") == "none" or _calling_config(body).get("mode") == "NONE"


def _calling_config(body: RequestBody) -> JsonObject:
    """Return Gemini's ``functionCallingConfig``."""
    config = as_object(body.field("toolConfig") or body.field("tool_config"))
    return as_object(config.get("functionCallingConfig") or config.get("function_calling_config"))


def free_name(taken: frozenset[str]) -> str:
    """Choose a name that none of the client's tools has."""
    names = (TOOL_NAME, f"kompakt_{TOOL_NAME}")
    for name in names:
        if name not in taken:
            return name
    return next(name for number in count(2) if (name := f"{names[-1]}_{number}") not in taken)


def with_tool(body: RequestBody, name: str) -> RequestBody:
    """Append the recall tool to the client's tools."""
    raw = _raw_tools(body)
    assert raw is not None
    made = _appended(body.format, raw, name)
    before = {key: made if key == "tools" else value for key, value in body.before.items()}
    after = {key: made if key == "tools" else value for key, value in body.after.items()}
    return msgspec.structs.replace(body, before=before, after=after)


def _raw_tools(body: RequestBody) -> bytes | None:
    return body.before.get("tools", body.after.get("tools"))


@lru_cache(maxsize=64)
def _names(format: str, raw: bytes) -> frozenset[str] | None:
    listed = as_list(_decoded(raw))
    if format == "gemini":
        listed = [one for entry in listed for key in _DECLARED for one in as_list(as_object(entry).get(key))]
    named = [as_object(entry) for entry in listed]
    found = [entry.get("name") or as_object(entry.get("function")).get("name") for entry in named]
    return frozenset(str(name) for name in found) if listed else None


def _decoded(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _appended(format: str, raw: bytes, name: str) -> bytes:
    made: JsonObject = WIRES[format].define_tool(name=name, description=TOOL_DESCRIPTION, schema=TOOL_SCHEMA)
    if format != "gemini":
        return b"[" + b",".join([*map(bytes, _ARRAY.decode(raw)), encode(made)]) + b"]"
    entries = as_list(_decoded(raw))
    at, key = max((at, key) for at, entry in enumerate(entries) for key in _DECLARED if as_object(entry).get(key))
    own = [*entries[at][key], *made["functionDeclarations"]]
    return encode([*entries[:at], {**entries[at], key: own}, *entries[at + 1 :]])

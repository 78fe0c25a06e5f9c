"""Recall for a caller that sends whole histories and has no store: one request, and the rounds that follow it.

Hidden rounds are cached in memory under a hash of the history before them, and are part of the history when a later
request is compacted. So later requests extend earlier ones, and rounds leave the context like all other messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from kompakt.agent.recall.rounds import (
    MAX_ROOM,
    MAX_ROUNDS,
    AnsweredTurn,
    SlotRounds,
    answer_turn,
    replacement,
)
from kompakt.agent.recall.tool import PROTOCOLS, can_offer, free_name, tool_names, with_tool
from kompakt.agent.recall.turn import (
    ModelTurn,
    RecallProtocol,
    RecallRound,
    RoundStream,
    as_list,
    calls_in,
    identity_of,
)
from kompakt.engine.compaction.compact import run_sync
from kompakt.engine.recall import Memory
from kompakt.errors import InputError
from kompakt.model.budget import Budget
from kompakt.model.json import json_text
from kompakt.model.lru import Lru
from kompakt.model.messages import Json, JsonObject, Message, Reasoning
from kompakt.model.references import linked
from kompakt.model.tokens import counter_for
from kompakt.wire.registry import WIRES

MAX_CACHED = 4_000
"""Rounds that are cached. About 40 MB."""


class StoredAnswer(NamedTuple):
    """How an answer that the provider stores is continued by its id."""

    id: str
    """The id of the last round. The caller knows the id of the first."""
    results: list[Json]
    """Results of hidden calls in that round, which the next request has to contain."""


class RoundCache:
    """Hidden rounds of recent conversations. Threads may share it."""

    def __init__(self) -> None:
        self._stored = Lru[str, StoredAnswer](MAX_CACHED)
        self._rounds = Lru[tuple[bytes, int], RecallRound](MAX_CACHED)
        self._mixed = Lru[tuple[bytes, str], RecallRound](MAX_CACHED)

    def save(self, key: bytes, number: int, found: AnsweredTurn) -> None:
        """Cache a round that follows the history with this key."""
        if found.client_calls:
            self._mixed.put((key, identity_of(found.client_calls)), found.made)
        else:
            self._rounds.put((key, number), found.made)

    def end(self, key: bytes, number: int) -> None:
        """Forget the rounds from this one on: another attempt at the same answer may have had more."""
        self._rounds.remove((key, number))

    def save_stored(self, id: str, last: StoredAnswer) -> None:
        """Remember how the answer with this id is continued."""
        self._stored.put(id, last)

    def continued(self, body: JsonObject) -> JsonObject:
        """Return a request that continues a stored answer, after the hidden rounds of that answer."""
        found = self._stored.get(str(body.get("previous_response_id")))
        if found is None:
            return body
        items = body.get("input")
        sent = [{"role": "user", "content": items}] if isinstance(items, str) else as_list(items)
        return {**body, "previous_response_id": found.id, "input": [*found.results, *sent]}

    def restore(self, format: str, items: Sequence[Json]) -> list[Json]:
        """Return the items of a request with the hidden rounds before their answers."""
        messages = _messages(format, items) if len(self._rounds) or len(self._mixed) else ()
        if not messages:
            return list(items)
        keys, protocol = _keys(messages), PROTOCOLS[format]
        made: list[Json] = []
        at = 0
        for start, end in _answers(messages):
            if start < at:
                continue
            saved = self._saved(format, keys[start], items[start:end], is_last=end == len(items))
            if not saved.rounds and saved.mixed is None:
                continue
            has_reasoning = any(type(part) is Reasoning for one in messages[start:end] for part in one.parts)
            following = items[end] if end < len(items) else None
            found = replacement(protocol, items[start:end], following, saved, has_reasoning=has_reasoning)
            made += [*items[at:start], *found.items]
            at = start + found.taken
        return [*made, *items[at:]]

    def _saved(self, format: str, key: bytes, answer: Sequence[Json], *, is_last: bool) -> SlotRounds:
        rounds: list[RecallRound] = []
        while (found := self._rounds.get((key, len(rounds)))) is not None:
            rounds.append(found)
        calls = [] if is_last else calls_in(answer, format)
        return SlotRounds(tuple(rounds), self._mixed.get((key, identity_of(calls))) if calls else None)


def _messages(format: str, items: Sequence[Json]) -> tuple[Message, ...]:
    """Parse items as messages, one each; none when that is not possible."""
    try:
        messages = WIRES[format].parse(items, None).messages
    except InputError:
        return ()
    return messages if len(messages) == len(items) else ()


def _keys(messages: Sequence[Message]) -> list[bytes]:
    """Return the key of the history before each message, and of the whole; leading system messages do not count."""
    keys, is_lead = [b""], True
    for message in messages:
        is_lead = is_lead and message.role == "system"
        keys.append(keys[-1] if is_lead else linked(keys[-1], message))
    return keys


def _answers(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return start and end of each run of consecutive messages of the model."""
    sides = [False, *(message.role == "assistant" for message in messages), False]
    edges = [at for at, (before, after) in enumerate(pairwise(sides)) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


class RecallOffer(msgspec.Struct, kw_only=True):
    """A request that may offer the recall tool."""

    format: str
    name: str
    given: JsonObject
    """The caller's request."""
    body: JsonObject
    """The request with the tool and the hidden rounds of earlier answers, before its compaction."""
    cache: RoundCache

    @property
    def protocol(self) -> RecallProtocol:
        return PROTOCOLS[self.format]

    def exchange(self, sent: JsonObject, memory: Memory, *, budget: Budget, tokens: int) -> RecallExchange:
        """Start the exchange of a compacted request. ``memory`` has the history before its compaction."""
        return RecallExchange(offer=self, sent=sent, memory=memory, budget=budget, tokens=tokens)


def offer_for(format: str, body: JsonObject, cache: RoundCache) -> RecallOffer | None:
    """Return a request with the tool; ``None`` where the tool cannot be offered."""
    taken = tool_names(format, body.get("tools"))
    key = WIRES[format].messages_key
    items = body.get(key)
    if taken is None or not isinstance(items, list) or not items or not can_offer(format, body.get, may_store=True):
        return None
    messages = _messages(format, as_list(items)[-1:])
    if not messages or messages[-1].role == "assistant":  # the model continues its own answer
        return None
    name = free_name(taken)
    restored = cache.restore(format, as_list(items))
    made = {**body, key: restored, "tools": with_tool(format, as_list(body["tools"]), name)}
    return RecallOffer(format=format, name=name, given=body, body=made, cache=cache)


class RecallExchange(msgspec.Struct, kw_only=True):
    """A request and its hidden rounds. The caller sends requests; this class reads answers and writes one answer."""

    offer: RecallOffer
    sent: JsonObject
    """The compacted request."""
    memory: Memory
    budget: Budget
    tokens: int
    """Tokens of the request, with the rounds so far."""
    rounds: list[RecallRound] = []
    first_id: str = ""
    """The id of the first answer."""

    def next_body(self) -> JsonObject:
        """Return the request with all rounds so far; without the tool when the limit of rounds is reached."""
        key = WIRES[self.offer.format].messages_key
        items = [*self.sent[key], *(item for one in self.rounds for item in (*one.turn, *one.results))]
        tools = self.sent["tools"] if len(self.rounds) < MAX_ROUNDS else self.offer.given["tools"]
        return {**self.sent, key: items, "tools": tools}

    def answers(self, turn: ModelTurn) -> bool:
        """Answer the recall calls of a turn; return whether the request has to be sent again."""
        offer, number = self.offer, len(self.rounds)
        asked = answer_turn(offer.protocol, turn, offer.name, self._recall, room=self._room, number=number)
        found = run_sync(asked, may_wait=False)
        self._note_stored(turn, found)
        messages = _messages(offer.format, as_list(offer.given[WIRES[offer.format].messages_key]))
        if messages and (found is None or found.client_calls):
            offer.cache.end(_keys(messages)[-1], number)
        if found is None:
            return False
        if messages:
            offer.cache.save(_keys(messages)[-1], number, found)
        if found.client_calls:
            return False
        self.rounds.append(found.made)
        text = json_text([*found.made.turn, *found.made.results])
        self.tokens += counter_for(str(self.sent.get("model"))).text(text)
        return True

    def _note_stored(self, turn: ModelTurn, found: AnsweredTurn | None) -> None:
        """Remember how the caller can continue this answer by its id, if it has hidden rounds or hidden calls."""
        self.first_id = self.first_id or turn.id
        is_mixed = found is not None and bool(found.client_calls)
        if turn.id and self.sent.get("store") is not False and (is_mixed or (found is None and self.rounds)):
            results = found.made.results if found is not None else []
            self.offer.cache.save_stored(self.first_id, StoredAnswer(turn.id, results))

    async def _recall(self, query: str, tokens: int) -> str:
        return self.memory.recall(query, tokens=tokens).text

    def _room(self) -> int:
        return self.budget.usable - self.tokens if self.budget.window else MAX_ROOM

    # --- answers ------------------------------------------------------------------------------------------------------

    async def whole(self, send: Callable[[JsonObject], Awaitable[JsonObject]], first: JsonObject) -> JsonObject:
        """Return the answer of all rounds; ``send`` sends a further request and returns its answer."""
        responses = [first]
        while self.answers(self._turn(responses[-1])):
            responses.append(await send(self.next_body()))
        return self.offer.protocol.merge(responses, self.offer.name)

    def _turn(self, response: JsonObject) -> ModelTurn:
        return self.offer.protocol.turn(response, self.offer.name, self.sent)

    def stream(self) -> RoundStream:
        """Return the reader of the streamed answers of all rounds."""
        return self.offer.protocol.stream(self.offer.name, self.sent, 0)

    def continues(self, stream: RoundStream) -> bool:
        """Answer the calls of a streamed round; return whether another round follows."""
        if stream.has_failed or not stream.is_over or not self.answers(stream.turn()):
            return False
        stream.next_round()
        return True

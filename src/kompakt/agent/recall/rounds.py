"""Recall rounds: how calls of the recall tool are answered, limited, and put back into later requests.

A round is one turn of the model with calls of the recall tool, and their results. The caller sees only what the model
said besides. A turn that calls the caller's tools as well is *mixed*: the caller gets its own calls, and the results of
the others are added to those that it sends next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kompakt.agent.recall.turn import ModelTurn, RecallProtocol, RecallRound, as_list
from kompakt.model.json import as_object, decode
from kompakt.model.messages import Json, ToolCall
from kompakt.model.phrases import RECALL_NO_ROOM, RECALL_UNREADABLE, RECALL_USED_UP
from kompakt.wire.registry import WIRES

MAX_ROUNDS = 6
"""Rounds before one answer: five are answered, and the last one tells the model that the limit is reached. The request
after it does not offer the tool, so the model has to answer or to call another tool."""

MAX_TOKENS = 2_000
"""Tokens of one recall result, if the window has room for them."""

MAX_ROUND_TOKENS = 8_000
"""Tokens of all recall results of one turn."""

MAX_ROOM = 1_000_000
"""Tokens that may be added when the window of the model is unknown."""

_MIN_TOKENS = 100
"""Tokens below which a recall result is not worth sending."""

Recall = Callable[[str, int], Awaitable[str]]
"""Returns what a query finds, within a number of tokens."""


class AnsweredTurn(NamedTuple):
    """A turn whose recall calls are answered."""

    made: RecallRound
    client_calls: list[ToolCall]
    """The caller's own calls; none when the round is hidden as a whole, and the request is sent again."""


def query_of(call: ToolCall) -> str | None:
    """Return the query of a recall call; ``None`` when the input has none."""
    value = call.input
    if isinstance(value, str):
        try:
            value = decode(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None
    found = as_object(value).get("query")
    return found if isinstance(found, str) else None


async def recall_result(
    call: ToolCall, recall: Recall, *, room: Callable[[], int], calls: int = 1, is_last: bool = False
) -> str:
    """Answer one of several calls of the recall tool, with at most half of the room that is left."""
    if is_last:
        return RECALL_USED_UP
    query = query_of(call)
    if query is None:
        return RECALL_UNREADABLE
    tokens = min(MAX_TOKENS, MAX_ROUND_TOKENS // calls, room() // (2 * calls))
    return RECALL_NO_ROOM if tokens < _MIN_TOKENS else await recall(query, tokens)


async def answer_turn(
    protocol: RecallProtocol, turn: ModelTurn, name: str, recall: Recall, *, room: Callable[[], int], number: int
) -> AnsweredTurn | None:
    """Answer the recall calls of a turn; ``None`` when there is nothing to answer.

    ``number`` is the number of hidden rounds before this turn.
    """
    if not name or not turn.is_complete:  # a call that was cut off cannot be answered
        return None
    calls = [call for call in turn.calls if call.name == name]
    client_calls = [call for call in turn.calls if call.name != name]
    if not calls or (number >= MAX_ROUNDS and not client_calls):
        return None
    is_last = number >= MAX_ROUNDS - 1
    texts = [await recall_result(call, recall, room=room, calls=len(calls), is_last=is_last) for call in calls]
    made = RecallRound(turn=turn.items, results=protocol.results(calls, texts), shown=turn.shown)
    return AnsweredTurn(made, client_calls)


# --- later requests --------------------------------------------------------------------------------------------------


class SlotRounds(NamedTuple):
    """The rounds before an answer of the model, which a later request contains without them."""

    rounds: tuple[RecallRound, ...] = ()
    mixed: RecallRound | None = None
    """The answer itself, if it has calls of the recall tool and of the caller's tools."""


class Replacement(NamedTuple):
    """What replaces items of a request."""

    taken: int
    """How many items are replaced: the first ones of the answer, or the answer and the item after it."""
    items: list[Json]
    is_mixed: bool
    """Whether it contains recall results in a mixed turn, which the model sees only now."""


def replacement(
    protocol: RecallProtocol,
    answer: Sequence[Json],
    following: Json | None,
    saved: SlotRounds,
    *,
    has_reasoning: bool,
) -> Replacement:
    """Put the rounds before an answer back, with the answer as the model gave it.

    ``following`` is the item after the answer; ``None`` at the end of the request. ``has_reasoning`` says whether the
    caller kept the reasoning of this answer.
    """
    made: list[Json] = [item for one in saved.rounds for item in (*_turn(protocol, one, has_reasoning), *one.results)]
    shown = [item for one in saved.rounds for item in one.shown]
    mixed = saved.mixed
    results = protocol.with_results(mixed, following) if mixed is not None and following is not None else None
    if mixed is not None and results is not None:
        # The stored turn replaces the caller's answer, and the results of both replace the caller's next item.
        return Replacement(len(answer) + 1, [*made, *_turn(protocol, mixed, has_reasoning), *results], True)
    if not shown:
        return Replacement(0, made, False)
    # The caller sends the visible content of all rounds as one answer: keep only that of the last round.
    taken, instead = protocol.without_shown(answer, shown) or (0, [])
    return Replacement(taken, [*made, *instead], False)


def _turn(protocol: RecallProtocol, saved: RecallRound, has_reasoning: bool) -> list[Json]:
    """Return the model's turn, without thinking if the caller dropped its own thinking blocks of this answer.

    Anthropic signs thinking blocks for their position: after the caller removed some, the others are invalid.
    """
    if has_reasoning or WIRES[protocol.format].contract.prefix_rule != "strip-all":
        return saved.turn
    thinking = ("thinking", "redacted_thinking")
    return [
        {**item, "content": [one for one in as_list(item["content"]) if as_object(one).get("type") not in thinking]}
        for item in saved.turn
    ]

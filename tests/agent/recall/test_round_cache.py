"""The cache of hidden rounds that a wrapped client puts back into later requests."""

from __future__ import annotations

from typing import Any

from kompakt.agent.recall.exchange import RoundCache, _keys, _messages
from kompakt.agent.recall.rounds import AnsweredTurn
from kompakt.agent.recall.turn import RecallRound

ASKED: list[Any] = [{"role": "user", "content": "What was the port?"}]
ANSWER: list[Any] = [{"role": "assistant", "content": "8080."}, {"role": "user", "content": "Thanks."}]


def hidden_round(number: int) -> AnsweredTurn:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "recall", "arguments": '{"query": "port"}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": f"c{number}", "content": f"passage {number}"}
    return AnsweredTurn(RecallRound(turn=[turn], results=[result], shown=[]), [])


def test_an_answer_that_needed_fewer_rounds_replaces_those_of_an_earlier_attempt() -> None:
    cache, key = RoundCache(), _keys(_messages("openai-chat", ASKED))[-1]
    for number in range(2):
        cache.save(key, number, hidden_round(number))
    assert "passage 1" in str(cache.restore("openai-chat", [*ASKED, *ANSWER]))
    cache.end(key, 0)
    assert cache.restore("openai-chat", [*ASKED, *ANSWER]) == [*ASKED, *ANSWER]

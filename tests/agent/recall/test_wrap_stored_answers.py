"""Recall in answers that the provider stores: the caller may continue them by their id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.agent.recall.seeker import facts, history

import kompakt

ROUNDS = 60
BUDGET = kompakt.Budget(window=20_000, trigger=9_000, target=4_000)
TOOL = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}


class StoringProvider:
    """Stores every answer with the items before it, and rejects requests in which a call has no output."""

    def __init__(self, *turns: list[tuple[str, dict[str, Any]]]) -> None:
        self.turns = list(turns)
        self.stored: dict[str, list[Any]] = {}
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        items = [*self.stored.get(body.get("previous_response_id") or "", []), *given]
        answered = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
        called = [item["call_id"] for item in items if item.get("type") == "function_call"]
        missing = [id for id in called if id not in answered]
        if missing or not answered <= set(called):
            message = f"No tool output found for function call {missing}."
            return httpx.Response(400, json={"error": {"message": message, "type": "invalid_request_error"}})
        response = self._answer(body, len(self.bodies), items)
        if not body.get("stream"):
            return httpx.Response(200, json=response)
        data = "".join(f"event: {kind}\ndata: {json.dumps(event)}\n\n" for kind, event in _events(response))
        return httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})

    async def asynchronous(self, request: httpx.Request) -> httpx.Response:
        return self(request)

    def _answer(self, body: dict[str, Any], number: int, items: list[Any]) -> dict[str, Any]:
        calls = self.turns.pop(0) if self.turns else []
        output: list[Any] = [
            {"type": "function_call", "id": f"fc_{number}_{at}", "call_id": f"call_{number}_{at}", "name": name}
            | {"arguments": json.dumps(given), "status": "completed"}
            for at, (name, given) in enumerate(calls)
        ]
        text = {"type": "output_text", "text": f"Answer {number}.", "annotations": []}
        said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output = output or [{**said, "content": [text]}]
        id = f"resp_{number}"
        self.stored[id] = [*items, *output]
        fixed = {"object": "response", "created_at": 1, "model": body["model"], "tools": body.get("tools", [])}
        return {"id": id, "status": "completed", "output": output, "parallel_tool_calls": True, **fixed} | {
            "tool_choice": "auto"
        }


def _events(response: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {**response, "output": [], "status": "in_progress"}})
    ]
    for at, item in enumerate(response["output"]):
        events += [(f"response.output_item.{kind}", {"output_index": at, "item": item}) for kind in ("added", "done")]
    events.append(("response.completed", {"response": response}))
    for number, (kind, event) in enumerate(events):
        yield kind, {"type": kind, "sequence_number": number, **event}


def asked() -> list[Any]:
    """Return a long history with a question at its end."""
    return [*history("openai-responses", ROUNDS), {"role": "user", "content": "What is the first marker?"}]


RECALL = ("recall", {"query": "marker in old/00001_0.py"})
READ = ("read_file", {})


def create(provider: StoringProvider, way: str) -> Any:
    """Return a function that sends a request through a wrapped client and returns the whole response."""
    if way == "async":
        transport = httpx.MockTransport(provider.asynchronous)
        client = kompakt.wrap(
            openai.AsyncOpenAI(api_key="k", max_retries=0, http_client=httpx.AsyncClient(transport=transport)),
            budget=BUDGET,
        )
        return lambda **body: asyncio.run(client.responses.create(**body))
    sync = kompakt.wrap(
        openai.OpenAI(api_key="k", max_retries=0, http_client=httpx.Client(transport=httpx.MockTransport(provider))),
        budget=BUDGET,
    )
    if way == "sync":
        return sync.responses.create

    def streamed(**body: Any) -> Any:
        events = list(sync.responses.create(**body, stream=True))
        assert events[0].response.id == events[-1].response.id
        return events[-1].response

    return streamed


@pytest.mark.parametrize("way", ["sync", "async", "stream"])
class TestStoredAnswers:
    def test_an_answer_with_hidden_rounds_is_continued_by_its_id(self, way: str) -> None:
        provider = StoringProvider([RECALL], [], [])
        send = create(provider, way)
        first = send(model="gpt-5", input=asked(), tools=[TOOL])
        assert "recall" not in str(first.output) and len(provider.bodies) == 2
        marker = facts("openai-responses", ROUNDS)["old/00001_0.py"]
        assert marker in json.dumps(provider.bodies[1]["input"])
        second = send(model="gpt-5", input="Go on.", previous_response_id=first.id, tools=[TOOL])
        assert second.output_text == "Answer 3."
        assert provider.bodies[2]["previous_response_id"] == "resp_2"

    def test_results_of_hidden_calls_are_sent_with_those_of_the_caller(self, way: str) -> None:
        provider = StoringProvider([RECALL, READ], [])
        send = create(provider, way)
        first = send(model="gpt-5", input=asked(), tools=[TOOL])
        (call,) = first.output
        assert call.name == "read_file"
        done = {"type": "function_call_output", "call_id": call.call_id, "output": "text"}
        second = send(model="gpt-5", input=[done], previous_response_id=first.id, tools=[TOOL])
        assert second.output_text == "Answer 2."
        assert facts("openai-responses", ROUNDS)["old/00001_0.py"] in json.dumps(provider.bodies[1]["input"])

    def test_answers_without_recall_are_continued_as_they_are(self, way: str) -> None:
        provider = StoringProvider([READ], [])
        send = create(provider, way)
        first = send(model="gpt-5", input=asked(), tools=[TOOL])
        done = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "text"}
        body = {"model": "gpt-5", "input": [done], "previous_response_id": first.id, "tools": [TOOL]}
        send(**body)
        assert {**provider.bodies[1], "stream": None} == {**body, "stream": None}

"""Recall through ``wrap``: the model finds what left the context, and the caller never sees the tool."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from tests.agent.recall.seeker import Seeker, dropped, facts, history, questions
from tests.gateway.client_sessions import Talk, breaks
from tests.gateway.scripted_model import Model, output_of, prompt_of, read, recall, said, text_of, words
from tests.gateway.upstreams import Recorded
from tests.provider.sdk_agent import TRUST, Driver, each_way

import kompakt

WRAPPED = ("openai-chat", "openai-responses", "anthropic", "gemini")
each_wrapped = pytest.mark.parametrize("format", WRAPPED)
ROUNDS = 80
BUDGET = kompakt.Budget(window=20_000, trigger=9_000, target=4_000)


class WrappedTalk(Talk):
    """A conversation through wrapped SDK clients, directly with the provider."""

    wrapping: dict[str, Any]

    def step(self) -> bool:
        before = len(self.items)
        made = Driver.step(self)
        self.items[before:] = [self._filled(item) for item in self.items[before:]]
        return made

    @cached_property
    def openai(self) -> openai.OpenAI:
        return kompakt.wrap(super().openai, **self.wrapping)

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        return kompakt.wrap(super().anthropic, **self.wrapping)

    @cached_property
    def genai(self) -> genai.Client:
        return kompakt.wrap(super().genai, **self.wrapping)


@contextmanager
def wrapped(
    model: Any, format: str, *, stream: bool = False, joined: bool = True, **wrapping: Any
) -> Iterator[tuple[WrappedTalk, Recorded]]:
    with Recorded(model, window=40_000) as provider:
        talk = WrappedTalk(provider.url, format, stream=stream)
        talk.wrapping = {"budget": BUDGET, **wrapping}
        talk.items = history(format, ROUNDS) if joined else []
        try:
            yield talk, provider
        finally:
            talk.close()


def hidden(talk: Talk, provider: Recorded) -> None:
    """Assert that the caller saw nothing of recall, and that the provider accepted every request."""
    assert "recall" not in said(talk) and "recall" not in str(talk.last)
    assert [record.refusal for record in provider.refusals] == [] and provider.overflows == []


@each_wrapped
def test_thirty_dropped_facts_are_found(format: str) -> None:
    with wrapped(Seeker(thinking=format == "anthropic"), format) as (talk, provider):
        talk.say("Are you there?")
        talk.step()
        known = facts(format, ROUNDS)
        gone = dropped(provider.asked[0], format, known)[:30]
        assert len(gone) == 30
        found = 0
        for paths, question in questions(gone):
            talk.say(question)
            assert not talk.step()
            answer = text_of(talk.last, format)
            found += sum(f"in {path} is {known[path]}." in answer for path in paths)
        assert found == 30
        assert len(provider.asked) == 13
        hidden(talk, provider)


@each_wrapped
@each_way
def test_rounds_add_up_and_later_requests_extend_earlier_ones(format: str, stream: bool) -> None:
    with wrapped(Seeker(), format, stream=stream) as (talk, provider):
        known = facts(format, ROUNDS)
        for path in list(known)[:3]:
            talk.say(f"What is the marker in {path}?")
            assert not talk.step()
            assert known[path] in str(talk.items[-1])
            used = [record.usage for record in provider.requests[-2:]]
            assert prompt_of(talk.last, format) == sum(one.prompt for one in used)
            assert output_of(talk.last, format) == sum(one.output for one in used)
        hidden(talk, provider)
        assert len(breaks(provider.asked, format)) <= 1  # a scheduled compaction


@each_wrapped
@each_way
def test_a_mixed_turn_gives_the_caller_its_own_calls(format: str, stream: bool) -> None:
    model = Model(
        ("Both.", [recall("marker in old/00001_0.py"), read("src/a.py")]),
        ("Again.", [read("src/b.py"), recall("marker in old/00002_0.py")]),
        ("Done.", []),
        thinking=format == "anthropic",
    )
    with wrapped(model, format, stream=stream) as (talk, provider):
        assert talk.run("Read both files.") == 3
        assert len(talk.calls) == 2 and len(provider.asked) == 3
        hidden(talk, provider)
        assert len(breaks(provider.asked, format)) <= 1  # a scheduled compaction
        last = words(provider.asked[-1], format)
        assert all(marker in last for marker in list(facts(format, ROUNDS).values())[1:3])


@each_wrapped
@each_way
def test_a_model_that_always_recalls_ends_with_an_answer(format: str, stream: bool) -> None:
    with wrapped(Model(("Again.", [recall("marker")])), format, stream=stream) as (talk, provider):
        talk.say("Go.")
        assert not talk.step()
        assert len(provider.asked) == 7
        assert "Again." in str(talk.items[-1])
        assert b"Search or restore earlier" not in provider.asked[-1].body
        hidden(talk, provider)


@each_wrapped
def test_recall_false_leaves_no_mention(format: str) -> None:
    with wrapped(Seeker(), format, recall=False) as (talk, provider):
        talk.say("What is the marker in old/00001_0.py?")
        talk.step()
        assert "I cannot look that up." in text_of(talk.last, format)
        assert b"recall" not in b"".join(raw.body for raw in provider.asked).lower()


RESTRICTED: dict[str, Any] = {
    "openai-chat": {"tool_choice": {"type": "function", "function": {"name": "read_file"}}},
    "openai-responses": {"tool_choice": {"type": "function", "name": "read_file"}},
    "anthropic": {"tool_choice": {"type": "tool", "name": "read_file"}},
    "gemini": {"tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["read_file"]}}},
}


@each_wrapped
def test_a_request_that_forces_a_tool_or_has_none_is_left_alone(format: str) -> None:
    with wrapped(Model(("Yes.", [])), format) as (talk, provider):
        for changes in ({"extra": RESTRICTED[format]}, {"tools": False, "extra": {}}):
            vars(talk).update(changes)
            talk.say("And now?")
            talk.step()
        assert b"recall" not in b"".join(raw.body for raw in provider.asked)
        hidden(talk, provider)


def test_a_client_with_the_tool_of_the_mcp_server_gets_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.provider.sdk_agent.NAMES", ("read_file", "mcp__kompakt__recall"))
    for format in WRAPPED:
        with wrapped(Model(("Yes.", [])), format) as (talk, provider):
            talk.say("Are you there?")
            talk.step()
            assert b"Search or restore earlier" not in provider.asked[0].body


@each_wrapped
def test_a_request_that_fits_is_not_changed(format: str) -> None:
    bodies: list[list[bytes]] = []
    for recalls in (True, False):
        with wrapped(Model(("Look.", [read()]), ("Done.", [])), format, joined=False, recall=recalls) as (
            talk,
            provider,
        ):
            assert talk.run("Go.") == 2
            bodies.append([raw.body for raw in provider.asked])
    assert bodies[0] == bodies[1]


async def _asked_of_openai(url: str, stream: bool) -> str:
    client = kompakt.wrap(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0), budget=BUDGET)
    function = {"name": "read_file", "parameters": {"type": "object", "properties": {}}}
    body: Any = {"model": "gpt-5", "tools": [{"type": "function", "function": function}]}
    body |= {"messages": [*history("openai-chat", ROUNDS), {"role": "user", "content": ASKED}]}
    async with client:
        if not stream:
            return (await client.chat.completions.create(**body)).choices[0].message.content or ""
        async with client.chat.completions.stream(**body) as events:
            return (await events.get_final_completion()).choices[0].message.content or ""


async def _asked_of_anthropic(url: str, stream: bool) -> str:
    client = kompakt.wrap(anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0), budget=BUDGET)
    tool = {"name": "read_file", "input_schema": {"type": "object", "properties": {}}}
    body: Any = {"model": "claude-opus-5-5", "max_tokens": 500, "tools": [tool]}
    body |= {"messages": [*history("anthropic", ROUNDS), {"role": "user", "content": ASKED}]}
    async with client:
        if not stream:
            return str((await client.messages.create(**body)).content)
        async with client.messages.stream(**body) as events:
            return await events.get_final_text()


async def _asked_of_gemini(url: str, stream: bool) -> str:
    options: Any = {"base_url": url, "timeout": 10_000, "async_client_args": {"verify": TRUST}}
    client = kompakt.wrap(genai.Client(api_key="k", vertexai=False, http_options=options), budget=BUDGET)
    declared: Any = [{"function_declarations": [{"name": "read_file", "parameters_json_schema": {"type": "object"}}]}]
    body: Any = {"model": "gemini-3-pro", "config": {"tools": declared}}
    body |= {"contents": [*history("gemini", ROUNDS), {"role": "user", "parts": [{"text": ASKED}]}]}
    async with client.aio as asked:
        if not stream:
            return (await asked.models.generate_content(**body)).text or ""
        return "".join([chunk.text or "" async for chunk in await asked.models.generate_content_stream(**body)])


ASKED = "What is the marker in old/00003_0.py?"
CLIENTS = {"openai-chat": _asked_of_openai, "anthropic": _asked_of_anthropic, "gemini": _asked_of_gemini}


@pytest.mark.parametrize("format", CLIENTS)
@each_way
def test_asynchronous_clients_recall_too(format: str, stream: bool) -> None:
    with Recorded(Seeker(), window=40_000) as provider:
        text = asyncio.run(CLIENTS[format](provider.url, stream))
        assert facts(format, ROUNDS)["old/00003_0.py"] in text
        assert len(provider.asked) == 2 and provider.refusals == []


def test_a_wrapped_genai_client_and_its_original_share_connections() -> None:
    """Neither closes them for the other when it is collected."""
    with Recorded(Model(("Yes.", [])), window=40_000) as provider:
        options: Any = {"base_url": provider.url, "timeout": 10_000, "client_args": {"verify": TRUST}}
        original = genai.Client(api_key="k", vertexai=False, http_options=options)
        wrapped_client = kompakt.wrap(original)
        del original
        gc.collect()
        assert wrapped_client.models.generate_content(model="gemini-3-pro", contents="Hi.").text == "Yes."
        assert isinstance(wrapped_client, genai.Client)
        original = genai.Client(api_key="k", vertexai=False, http_options=options)
        wrapped_client = kompakt.wrap(original)
        del wrapped_client
        gc.collect()
        assert original.models.generate_content(model="gemini-3-pro", contents="Hi.").text == "Yes."


def test_a_genai_request_that_is_too_long_is_shortened() -> None:
    with Recorded(Seeker(), window=12_000) as provider:
        talk = WrappedTalk(provider.url, "gemini")
        talk.wrapping, talk.items = {"budget": 100_000}, history("gemini", ROUNDS)
        talk.say("Are you there?")
        assert not talk.step()
        assert text_of(talk.last, "gemini") == "Yes." and provider.overflows != []
        talk.close()


def test_raw_responses_are_answers_without_the_tool() -> None:
    with wrapped(Seeker(), "openai-chat") as (talk, provider):
        tools = talk._declared()
        messages = [*talk.items, {"role": "user", "content": "What is the marker in old/00003_0.py?"}]
        raw = talk.openai.chat.completions.with_raw_response.create(model="gpt-5", messages=messages, **tools)
        assert facts("openai-chat", ROUNDS)["old/00003_0.py"] in raw.text and "recall" not in raw.text
        with talk.openai.chat.completions.with_streaming_response.create(
            model="gpt-5", messages=messages, **tools
        ) as streamed:
            text = streamed.read().decode()
        assert facts("openai-chat", ROUNDS)["old/00003_0.py"] in text and "recall" not in text
        assert len(provider.asked) == 4

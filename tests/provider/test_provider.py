"""The fake provider is tested with the official SDKs: they must be able to read every answer.

Where it refuses or overflows, the library must understand it, so that the tests of the agent rest on something firm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.provider import Answer, Provider, Script
from tests.provider.sdk_agent import Driver, driving, each_format, each_way, refusal_of, running

import kompakt


def usage_of(format: str, last: Any) -> tuple[int, int, int]:
    """Return prompt, cached and output as the SDK read them, in sums that are the same for every format."""
    if format == "gemini":
        usage = last.usage_metadata
        output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        return usage.prompt_token_count, usage.cached_content_token_count or 0, output
    usage = last.usage
    if format == "openai-chat":
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens
    if format == "openai-responses":
        return usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens
    cached = usage.cache_read_input_tokens
    return usage.input_tokens + cached + usage.cache_creation_input_tokens, cached, usage.output_tokens


@each_format
def test_the_sdks_read_whole_and_streamed_answers(format: str) -> None:
    histories = []
    for stream in (False, True):
        script = Script(steps=8, seed=3, thinking=True, parallel=0.5, constraints=["Do it"])
        with running(format, script, stream=stream) as (provider, driver, _):
            task = script.task("Do it all.")
            assert driver.run(task) == 9 == script.step_of(task)
            assert not provider.refusals and not provider.violations and not provider.prefix_breaks
            usage = provider.requests[-1].usage
            assert usage_of(format, driver.last) == (usage.prompt, usage.cached, usage.output)
            assert (usage.cached > usage.prompt / 2) == (format != "anthropic")
            assert max(len(record.answer.calls) for record in provider.requests) > 1
            histories.append(driver.items)
    assert histories[0] == histories[1]


@each_format
@each_way
def test_a_request_that_is_too_long_is_refused_in_words_that_are_understood(format: str, stream: bool) -> None:
    with running(format, stream=stream, window=2_000) as (provider, driver, script):
        driver.say(script.task("word " * 3_000))
        if stream and format == "openai-responses":
            events = list(driver.openai.responses.create(model="m", input=driver.items, stream=True))
            error: Any = events[-1].model_dump()
            assert events[-1].type == "response.failed"
        else:
            error = refusal_of(driver)
        found = kompakt.overflow(error)
        assert found is not None and len(provider.overflows) == 1 and not provider.refusals
        if format != "openai-responses":
            assert (found.limit, found.actual) == (2_000, provider.overflows[0].prompt)


@pytest.mark.parametrize(
    ("format", "style"),
    [
        ("openai-chat", "openai"),
        ("openai-chat", "vllm"),
        ("openai-chat", "llama.cpp"),
        ("anthropic", ""),
        ("gemini", ""),
    ],
)
def test_the_output_asked_for_counts_against_the_window(format: str, style: str) -> None:
    with running(format, window=2_000, style=style) as (provider, driver, script):
        driver.say(script.task("word " * 1_600))
        found = kompakt.overflow(refusal_of(driver))
        assert found is not None and provider.overflows[0].prompt < 2_000
        assert found.actual == provider.overflows[0].prompt
        driver.limit = 50
        assert driver.step()


def test_it_can_count_more_than_the_client_expects() -> None:
    with running("openai-chat", window=2_000, estimate_factor=1.5) as (provider, driver, script):
        driver.say(script.task("word " * 1_200))
        assert kompakt.overflow(refusal_of(driver))
        assert provider.overflows[0].prompt > 1_800


@each_way
def test_it_can_stop_when_the_window_is_full(stream: bool) -> None:
    with running("anthropic", stream=stream, window=2_000, stop_at_window=True) as (provider, driver, script):
        driver.say(script.task("word " * 1_600))
        assert not driver.step()
        assert driver.last.stop_reason == "model_context_window_exceeded"
        driver.say("Go on."), driver.step()
        assert not provider.overflows and not provider.violations


def test_it_can_cut_the_prompt_without_a_word() -> None:
    with running("openai-chat", window=2_000, truncates=True) as (provider, driver, script):
        driver.say(script.task("word " * 900))
        driver.step()
        driver.say("word " * 900)
        driver.step()
        assert driver.last.usage.prompt_tokens < 0.7 * provider.requests[-1].prompt


def break_pairs(driver: Driver) -> None:
    """Take away the last result."""
    last = driver.items[-1]
    parts = last.get("content") if driver.format == "anthropic" else last.get("parts")
    driver.items[-1:] = [{**last, "parts" if "parts" in last else "content": parts[:-1]}] if parts and parts[1:] else []
    driver.say("And now?")


def name_a_tool_twice(driver: Driver) -> None:
    declared = driver._declared().get("tools", [])
    driver.extra = {"tools": [*declared, *declared]}


def answer_nothing(driver: Driver) -> None:
    driver.items = []


@pytest.mark.parametrize(
    ("format", "change", "rule"),
    [
        ("openai-chat", break_pairs, "OC-1"),
        ("openai-responses", break_pairs, "OR-1"),
        ("anthropic", break_pairs, "AN-"),
        ("gemini", break_pairs, "GE-"),
        ("openai-chat", name_a_tool_twice, "TOOL"),
        ("openai-responses", name_a_tool_twice, "TOOL"),
        ("anthropic", name_a_tool_twice, "TOOL"),
        ("openai-chat", answer_nothing, "OC-6"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_its_name(format: str, change: Callable[[Driver], None], rule: str) -> None:
    with running(format) as (provider, driver, script):
        driver.say(script.task("Do it."))
        driver.step()
        change(driver)
        error = refusal_of(driver)
        assert rule in str(error) and kompakt.overflow(error) is None
        assert [record.status for record in provider.refusals] == [400]


@pytest.mark.parametrize(
    ("format", "path", "key"),
    [
        ("anthropic", ("content", 0), "signature"),
        ("anthropic", ("content", 0), "thinking"),
        ("openai-responses", (), "encrypted_content"),
        ("gemini", ("parts", -1), "thoughtSignature"),
    ],
)
def test_a_changed_signature_is_refused(format: str, path: tuple[Any, ...], key: str) -> None:
    script = Script(steps=4, seed=1, thinking=True, parallel=0)
    with running(format, script) as (provider, driver, _):
        driver.say(script.task("Do it."))
        driver.step()
        kept = copy.deepcopy(driver.items)
        place: Any = driver.items[1]
        for part in path:
            place = place[part]
        place[key] = "AAAA" + place[key][4:]
        refusal_of(driver)
        driver.items = kept
        assert driver.step() and len(provider.refusals) == 1


def test_thinking_is_bound_to_everything_before_it() -> None:
    script = Script(steps=4, seed=1, thinking=True)
    with running("anthropic", script) as (provider, driver, _):
        driver.say(script.task("Do it."))
        driver.step(), driver.step()
        kept = copy.deepcopy(driver.items)
        driver.items[2]["content"][0]["content"] = "cleared"
        assert "bound to a different conversation" in str(refusal_of(driver))
        controls = "thinking-binding-controls-2026-08-01"
        binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        driver.extra = {"extra_body": {"thinking": binding}, "extra_headers": {"anthropic-beta": controls}}
        assert driver.step()
        driver.items, driver.extra = kept, {}
        driver.items[1]["content"] = [b for b in driver.items[1]["content"] if b["type"] != "thinking"]
        assert driver.step() and len(provider.refusals) == 1


def test_a_request_without_a_key_or_a_version_is_refused() -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
    with Provider() as provider, httpx.Client(base_url=provider.url) as client:
        assert client.post("/v1/messages", json=body).status_code == 401
        answer = client.post("/v1/messages", json=body, headers={"x-api-key": "k"})
        assert answer.status_code == 400 and "anthropic-version" in answer.text
        headers = {"authorization": "Bearer k"}
        assert client.post("/v1/chat/completions", content=b"{", headers=headers).status_code == 400
        wrong = client.post("/v1/chat/completions", json={**body, "num_ctx": 1}, headers=headers)
        assert wrong.status_code == 400 and "num_ctx" in wrong.text


def test_cache_marks_are_no_change_and_are_paid_for() -> None:
    with running("anthropic", Script(steps=9, seed=4, parallel=0)) as (provider, driver, script):
        driver.say(script.task("word " * 500))

        def mark(at: int) -> None:
            content = driver.items[at]["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            blocks = [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]
            driver.items[at] = {**driver.items[at], "content": blocks}

        mark(0)
        driver.step()
        assert driver.last.usage.cache_creation_input_tokens > 500 and not driver.last.usage.cache_read_input_tokens
        mark(-1)
        driver.step()
        assert driver.last.usage.cache_read_input_tokens > 500 and driver.last.usage.cache_creation_input_tokens < 100
        assert not provider.prefix_breaks
        driver.items[0] = {"role": "user", "content": script.task("word " * 500) + "!"}
        driver.step()
        assert [found.at for found in provider.prefix_breaks] == [0]


def test_models_are_listed_with_their_windows() -> None:
    with Provider(models=["a", "b"], window=9_000) as provider, driving(provider, "openai-chat") as driver:
        assert [model.id for model in driver.openai.models.list()] == ["a", "b"]
        assert [model.max_input_tokens for model in driver.anthropic.models.list()] == [9_000, 9_000]
        assert [model.input_token_limit for model in driver.genai.models.list()] == [9_000, 9_000]


def test_a_failure_of_its_own_is_not_hidden() -> None:
    def fail(seen: Any) -> Answer:
        raise KeyError("nothing")

    provider = Provider(fail)
    provider.__enter__()
    with driving(provider, "openai-chat") as driver:
        driver.say("Hello")
        refusal_of(driver)
    with pytest.raises(AssertionError, match="KeyError"):
        provider.__exit__(None, None, None)


def test_thinking_that_was_asked_for_is_there() -> None:
    with running("anthropic") as (provider, driver, script):
        driver.limit, driver.extra = 2_000, {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
        assert driver.run(script.task("Do it.")) == 5 and not provider.refusals
        driver.extra = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
        driver.say("More?")
        assert "budget_tokens" in str(refusal_of(driver))


def test_all_of_a_request_can_be_cached() -> None:
    with running("anthropic") as (provider, driver, script):
        driver.extra = {"cache_control": {"type": "ephemeral"}}
        driver.run(script.task("word " * 300))
        usage = driver.last.usage
        assert usage.input_tokens < 10 and usage.cache_read_input_tokens > 300
        assert usage_of("anthropic", driver.last)[0] == provider.requests[-1].prompt

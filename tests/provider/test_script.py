"""The scripted model and the injected faults: steps, turns, summaries, broken connections.

The one invariant: a step is given again until the client shows, by its results, that it has it.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from tests.provider import Answer, Provider, Script, empty, garbage, good, huge, refusing
from tests.provider.sdk_agent import driving, each_format, each_way, refusal_of, running

import kompakt


@each_format
def test_a_compacted_history_gets_the_next_step(format: str) -> None:
    script = Script(steps=6, seed=2)
    with running(format, script) as (provider, driver, _):
        task = script.task("Do it.")
        driver.say(task)
        for _ in range(3):
            driver.step()
        first, last = driver.items[0], max(i for i, item in enumerate(driver.items) if is_answer(item))
        while format == "openai-responses" and is_answer(driver.items[last - 1]):
            last -= 1
        driver.items = [first, *driver.items[last:]]
        while driver.step():
            pass
        assert script.step_of(task) == 7 and not provider.violations and not provider.refusals
        assert [(found.number, found.at) for found in provider.prefix_breaks] == [(4, 1)]


def is_answer(item: Any) -> bool:
    return item.get("role") in ("assistant", "model") or item.get("type") == "function_call"


def test_what_is_lost_is_noted() -> None:
    script = Script(steps=9, seed=2, constraints=["Never push."], parallel=0)
    with running("openai-chat", script) as (provider, driver, _):
        driver.say(script.task("Do it. Never push."))
        driver.step()
        assert not provider.violations
        kept = driver.items[0]
        driver.items[0] = {"role": "user", "content": kept["content"].replace("Never push.", "")}
        driver.step()
        assert [violation.split(": ")[1][:10] for violation in provider.violations] == ["the task i", "constraint"]
        driver.items = [kept]
        driver.say("Where are we?")
        driver.step()
        assert "never answered" in provider.violations[-1]
        driver.items[-2]["tool_calls"][0]["function"]["arguments"] = "{}"
        driver.step()
        assert "came back changed" in provider.violations[-1]
        driver.items = [{"role": "user", "content": "Something else."}]
        driver.step()
        assert "no conversation token" in provider.violations[-1]


def test_conversations_are_kept_apart_and_turns_end() -> None:
    script = Script(steps=6, seed=5, turn=3)
    with Provider(script) as provider, driving(provider, "openai-chat") as one, driving(provider, "anthropic") as two:
        tasks = [script.task("Do it.", number=number) for number in range(2)]
        assert (one.run(tasks[0]), two.run(tasks[1])) == (3, 3)
        assert (one.run("Go on."), two.run("Go on.")) == (3, 3)
        assert one.run("More?") == 1 and "done" in one.items[-1]["content"]
        assert [script.step_of(task) for task in tasks] == [7, 6] and not provider.violations


@each_format
@pytest.mark.parametrize("kind", ["429", "500", "503", "closed", "garbage"])
def test_a_fault_passes_and_the_step_is_given_again(format: str, kind: str) -> None:
    with running(format) as (provider, driver, script):
        task = script.task("Do it.")
        driver.say(task)
        driver.step()
        provider.fault_next(kind)
        with pytest.raises(Exception) as caught:
            driver.step()
        assert kompakt.overflow(caught.value) is None
        assert driver.step() and script.step_of(task) == 2
        assert not provider.refusals and not provider.violations


@pytest.mark.parametrize("kind", ["429", "500", "503", "closed"])
def test_the_sdks_try_again_after_a_fault(kind: str) -> None:
    with running("anthropic") as (provider, driver, script):
        driver.anthropic = driver.anthropic.with_options(max_retries=2)
        provider.fault(1, kind)
        driver.say(script.task("Do it."))
        assert driver.step() and len(provider.requests) == 2


@each_format
def test_a_stream_can_be_cut_anywhere(format: str) -> None:
    script = Script(steps=4, seed=1, parallel=0, make=lambda step, dice, tools: [("read_file", {"path": "a"})])
    with running(format, script, stream=True) as (provider, driver, _):
        task = script.task("Do it.")
        driver.say(task)
        start, cut = copy.deepcopy(driver.items), 0
        for at in (0, 1, 7, 150, 301, 452):
            provider.fault_next("cut", at=at)
            try:
                driver.step()
            except Exception:  # noqa: BLE001 (each SDK fails in its own way, and at each byte in another)
                cut += 1
            driver.items = copy.deepcopy(start)
        assert cut >= 4 and script.step_of(task) == 1
        assert driver.step() and script.step_of(task) == 1
        assert driver.step() and script.step_of(task) == 2 and not provider.violations


@each_way
def test_a_cut_sends_exactly_the_given_number_of_bytes(stream: bool) -> None:
    asked = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]}
    with Provider() as provider, httpx.Client(base_url=provider.url, headers={"authorization": "Bearer k"}) as client:

        def arrived() -> tuple[bytes, bool]:
            got, ended = b"", True
            with client.stream("POST", "/v1/chat/completions", json=asked) as response:
                try:
                    for piece in response.iter_raw():
                        got += piece
                except httpx.RemoteProtocolError:
                    ended = False
            return got, ended

        whole, ended = arrived()
        assert ended and len(whole) == provider.requests[0].size
        for at in range(0, len(whole), len(whole) // 12):
            provider.fault_next("cut", at=at)
            got, ended = arrived()
            assert len(got) == at and not ended


@each_format
@each_way
def test_an_answer_may_be_none(format: str, stream: bool) -> None:
    with running(format, stream=stream) as (provider, driver, script):
        provider.fault(1, "empty")
        provider.fault(2, "refusal")
        driver.say(script.task("Do it."))
        start = copy.deepcopy(driver.items)
        assert not driver.step()
        driver.items = copy.deepcopy(start)
        assert not driver.step()
        said = driver.last.model_dump_json()
        assert "I can't help" in said or "SAFETY" in said
        driver.items = start
        assert driver.step() and not provider.violations


def test_an_error_may_come_in_the_middle_of_a_stream() -> None:
    for format in ("openai-chat", "anthropic"):
        with running(format, stream=True) as (provider, driver, script):
            provider.fault(1, "stream-error")
            driver.say(script.task("Do it."))
            assert "Overloaded" in str(refusal_of(driver))
            assert driver.step()


def test_a_slow_answer_runs_into_the_time_limit() -> None:
    with running("openai-chat") as (provider, driver, script):
        driver.openai = driver.openai.with_options(timeout=0.1)
        provider.fault(1, "slow", seconds=3)
        driver.say(script.task("Do it."))
        with pytest.raises(openai.APITimeoutError):
            driver.step()


@each_format
def test_summaries_are_good_or_not(format: str) -> None:
    said: dict[str, Answer] = {}
    for summary in (good, empty, garbage, huge, refusing):
        with running(format, summary=summary) as (provider, driver, _):
            driver.tools, driver.limit = False, 100
            driver.say("Please write a summary of this: " + "The parser reads a file. " * 40)
            driver.step()
            (record,) = provider.requests
            assert record.kind == "summary" and not provider.violations
            said[summary.__name__] = replace(record.answer, signature="")
    assert "The parser reads" in said["good"].text and said["good"].stop == "end"
    assert said["empty"] == Answer() and said["refusing"].stop == "refusal"
    assert said["huge"].stop == "length" and len(said["huge"].text) > 100

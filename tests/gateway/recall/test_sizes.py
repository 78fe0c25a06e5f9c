"""Recall with compaction: the size of rounds, pivots over them, and the usage that clients see."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.client_sessions import TASK, breaks, needle, result_of, scripted
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import HEADERS, PATHS, history, request
from tests.gateway.scripted_model import (
    Model,
    Shared,
    each_case,
    held,
    prompt_of,
    read,
    recall,
    recalling,
    said,
    sharing,
    talking,
    words,
)
from tests.gateway.upstreams import Raw, Recorded, Reply, Upstream
from tests.gateway.upstreams import said as saying
from tests.judges import judge
from tests.provider.script import PREFIX
from tests.provider.sdk_agent import FORMATS, each_format, each_way


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with sharing(tmp_path_factory.mktemp("gateway"), window=16_000) as made:
        yield made


@each_case
def test_the_model_recalls_compacted_messages(format: str, stream: bool, shared: Shared) -> None:
    """A hidden result is restored byte for byte; prefixes change only when a pivot is built."""
    first = f"{PREFIX[format]}abcdef01_00001_0"
    steps = [("", [read(f"src/{number}.py")]) for number in range(14)]
    early, late = steps[:10], steps[10:]
    model = Model(
        *early,
        ("Was there not more?", [recall(needle(first))]),
        *late,
        ("", [recall(needle(first))]),
        ("Done.", []),
        thinking=format == "anthropic",
    )
    with held(shared, model, format, stream=stream, lines=75, joined=False) as (talk, provider, gate):
        assert talk.run(TASK) == 15
        assert [record.refusal for record in provider.refusals] == [] and provider.overflows == []
        assert talk.compacted and len(provider.asked) == 17
        assert "recall" not in said(talk)
        last = words(provider.asked[-1], format)
        assert needle(first) in last.partition("Was there not more?")[2]
        assert "result" in last and result_of(first, 75).splitlines()[40] in last
        made = len(breaks(provider.asked, format))
        assert 1 <= made <= gate.metric("kompakt_compactions_total")


@each_format
def test_the_log_of_a_compaction_has_the_sizes_of_its_request(
    format: str, shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    """With the hidden rounds and the recall tool: the size before is over the limit that the reason names."""
    caplog.set_level(logging.INFO, "kompakt")
    first = f"{PREFIX[format]}abcdef01_00001_0"
    steps = [("", [read(f"src/{number}.py")]) for number in range(26)]
    model = Model(*steps[:10], *[("", [recall(needle(first))]) for _ in range(3)], *steps[10:], ("Done.", []))
    with held(shared, model, format, lines=75, joined=False) as (talk, _, _):
        talk.run(TASK)
    facts: list[dict[str, Any]] = [vars(one)["kompakt"] for one in caplog.records if "kompakt" in vars(one)]
    made = [one for one in facts if str(one.get("reason")).startswith("over ")]
    sent = {one["compaction"]: one["tokens_after"] for one in facts if one.get("compaction")}
    assert len(made) > 1 and all(one["tokens_before"] > int(one["reason"].split()[1]) for one in made)
    assert [one["tokens_after"] for one in made] == list(sent.values())


@each_case
def test_a_long_session_with_occasional_recall(format: str, stream: bool, shared: Shared) -> None:
    """Steps with one call or several, including recall: each call gets its result, with any compactions."""
    script = scripted(16, parallel=0.4, recalls=True)
    with held(shared, script, format, stream=stream, lines=75, joined=False) as (talk, provider, _):
        task = script.task(TASK)
        talk.run(task)
        assert script.step_of(task) == 17 == len(provider.asked)
        assert len(talk.answers) < 17 and talk.compacted
        assert [record.refusal for record in provider.refusals] == []
        assert provider.violations == [] and provider.overflows == []
        assert len(breaks(provider.asked, format)) == len(talk.compacted)
        assert "recall" not in said(talk)


@each_case
def test_recall_results_are_seen_before_they_are_compacted(format: str, stream: bool, shared: Shared) -> None:
    """A mixed turn whose client result makes a compaction due: the model gets both results."""
    steps = [("", [read(f"src/{number}.py")]) for number in range(4)]
    mixed = ("", [recall("value compute total"), read("src/long.py")])
    with held(shared, Model(*steps, mixed, ("Done.", [])), format, stream=stream, lines=60, joined=False) as (
        talk,
        provider,
        _,
    ):
        talk.say(TASK)
        for _ in steps:
            assert talk.step()
        talk.lines = {"anthropic": 300, "gemini": 375}.get(format, 450)  # near the limit in each format's own count
        assert talk.step() and not talk.step()
        assert talk.compacted == [5] and provider.overflows == []
        assert [record.refusal for record in provider.refusals] == []
        last = words(provider.asked[-1], format)
        assert "abcdef01_00005_0" in last and "abcdef01_00005_1" in last


def test_rounds_count_towards_the_trigger(tmp_path: Path) -> None:
    """Hidden rounds are not part of the client's request, but they occupy the window."""
    model = Model(*[("", [recall("value compute total")])] * 4, ("Done.", []), ("Bye.", []))
    with recalling(model, tmp_path) as (provider, gate), talking(gate, "openai-chat") as talk:
        for text in (TASK, "Thanks."):
            talk.say(text)
            assert not talk.step()
        first, last = (int(one["x-kompakt-tokens-after"]) for one in talk.answers)
        assert last > first + 3_000
        assert abs(last - provider.requests[-1].prompt) < 0.1 * last
        assert provider.overflows == [] and breaks(provider.asked, "openai-chat") == []


@each_way
def test_usage_reports_the_clients_size_if_configured(stream: bool, tmp_path: Path) -> None:
    with (
        Recorded(Model()) as provider,
        gateway(provider.url, store=f"sqlite:///{tmp_path / 'k.db'}", report_client_size=True) as gate,
    ):
        for format in FORMATS:
            script = provider.script = scripted(4)
            with talking(gate, format, joined=False, stream=stream, lines=220) as talk:
                talk.say(script.task(TASK))
                while talk.step():
                    returned = talk.answers[-1]
                    saved = int(returned["x-kompakt-tokens-before"]) - int(returned["x-kompakt-tokens-after"])
                    assert prompt_of(talk.last, format) == provider.requests[-1].usage.prompt + saved
                assert saved > 0 and talk.compacted
        assert [record.refusal for record in provider.refusals] == []


@pytest.mark.parametrize("report", [False, True])
def test_count_tokens_reports_it_too(report: bool, tmp_path: Path) -> None:
    def plan(raw: Raw) -> Reply:
        if raw.path.endswith("count_tokens"):
            return saying({"input_tokens": 5_000})
        return saying({"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {}})

    body = request("anthropic", history("anthropic", 40, size=60))
    counted = {key: body[key] for key in ("model", "messages", "tools")}
    with (
        Upstream(plan) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", report_client_size=report) as gate,
    ):
        made = httpx.post(f"{gate.url}/v1/messages", json=body, headers=HEADERS["anthropic"], timeout=120)
        assert "x-kompakt-compaction" in made.headers
        answer = httpx.post(
            f"{gate.url}/v1/messages/count_tokens", json=counted, headers=HEADERS["anthropic"], timeout=120
        )
        returned = answer.headers
        saved = int(returned["x-kompakt-tokens-before"]) - int(returned["x-kompakt-tokens-after"])
        assert saved > 1_000
        assert answer.json() == {"input_tokens": 5_000 + saved * report}


def test_an_overflow_after_a_round_is_recovered(tmp_path: Path) -> None:
    """The provider accepts the request but not the recall result: the gateway sends less, and the round stays."""
    rows = history("openai-chat", 40, size=60)
    error = {
        "error": {
            "message": "This model's maximum context length is 9000 tokens. Your messages resulted in 9900 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    call = {"id": "c1", "type": "function", "function": {"name": "recall", "arguments": '{"query": "anything"}'}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    replies = [
        saying({"id": "2", "choices": [{"index": 0, "message": asks, "finish_reason": "tool_calls"}]}),
        saying(error, 400),
        saying({"id": "3", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}}]}),
    ]
    with (
        Upstream(lambda raw: replies.pop(0)) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        body = request("openai-chat", rows)
        answer = httpx.post(f"{gate.url}{PATHS['openai-chat']}", json=body, headers=HEADERS["openai-chat"], timeout=120)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"] == "Done." and answer.json()["id"] == "2"
        sent = [raw.json["messages"] for raw in upstream.raw]
        assert sent[2][-2:] == sent[1][-2:] and sent[2][-2]["tool_calls"] == [call]
        assert len(upstream.raw[2].body) < len(upstream.raw[1].body)
        assert judge("openai-chat", upstream.raw[2].json) == []

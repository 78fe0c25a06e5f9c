"""Long sessions of tool calls with the official clients: nothing is rejected, forgotten, or rewritten twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.client_sessions import TASK, Talk, all_recalled, breaks, holds, needle, result_of, scripted
from tests.gateway.gateway_server import KEYS, gateway, hashed
from tests.gateway.upstreams import Recorded
from tests.provider.sdk_agent import FORMATS

STEPS = int(os.environ.get("KOMPAKT_STEPS", "200"))
CASES = [(format, stream, False) for format in FORMATS for stream in (False, True)] + [("anthropic", True, True)]
KEY, TENANT = next(iter(KEYS.items()))
SOME = CASES[1:3] + CASES[7:]


def named(cases: list[tuple[str, bool, bool]]) -> pytest.MarkDecorator:
    names = [f"{f}-{'streamed' if s else 'whole'}{'-thinking' if t else ''}" for f, s, t in cases]
    return pytest.mark.parametrize(("format", "stream", "thinking"), cases, ids=names)


def hold(
    store: str, steps: int, format: str, *, stream: bool, thinking: bool, lines: int = 8, turn: int = 0
) -> tuple[Talk, Recorded]:
    """Run one session through a gateway and check its invariants."""
    script = scripted(steps, thinking=thinking, turn=turn)
    with (
        Recorded(script, window=16_000) as provider,
        gateway(provider.url, store=store, keys=hashed(KEYS)) as gate,
    ):
        talk = Talk(gate.url, format, stream=stream, headers={"x-kompakt-key": KEY}, lines=lines)
        try:
            task = script.task(TASK)
            talk.run(task)
            while turn and script.step_of(task) <= steps:
                talk.run("Go on.")
            assert script.step_of(task) == steps + 1
            assert len(provider.asked) == len(talk.answers) >= steps + 1
            holds(provider, talk)
            assert all("x-kompakt-tokens-before" in one for one in talk.answers)
            all_recalled(store, TENANT, talk)
            _recalled_over_http(gate.url, talk)
        finally:
            talk.close()
        return talk, provider


def _recalled_over_http(url: str, talk: Talk) -> None:
    for id in (talk.calls[0], talk.calls[len(talk.calls) // 2], talk.calls[-1]):
        found = _asked(url, talk, needle(id))
        assert found["found"] and needle(id) in found["text"]
        wholes = [_asked(url, talk, reference.partition(":")[0]) for reference in found["references"]]
        assert any(result_of(id, talk.lines) in whole["text"] for whole in wholes)


def _asked(url: str, talk: Talk, words: str) -> Any:
    answer = httpx.get(
        f"{url}/kompakt/sessions/{talk.session}/recall",
        params={"q": words, "tokens": "20000"},
        headers={"x-kompakt-key": KEY},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


@named(SOME)
def test_a_short_session(format: str, stream: bool, thinking: bool, tmp_path: Path) -> None:
    """Some steps with long results: compacted at least once, and the client does not notice."""
    talk, provider = hold(f"sqlite:///{tmp_path / 'k.db'}", 12, format, stream=stream, thinking=thinking, lines=75)
    assert talk.compacted and len(talk.compacted) <= 6
    assert sum(len(raw.body) for raw in provider.asked) > 0
    assert len(breaks(provider.asked, format)) <= len(talk.compacted)


@pytest.mark.slow
@named(CASES)
def test_many_steps_under_a_small_window(format: str, stream: bool, thinking: bool, tmp_path: Path) -> None:
    talk, _ = hold(f"sqlite:///{tmp_path / 'k.db'}", STEPS, format, stream=stream, thinking=thinking, lines=12)
    assert len(talk.compacted) >= STEPS // 100
    assert len(talk.compacted) <= max(4, STEPS // 5)


@pytest.mark.parametrize("format", ["anthropic"])
def test_a_session_of_several_turns(format: str, tmp_path: Path) -> None:
    """The user sends several messages; all of them stay."""
    talk, _ = hold(f"sqlite:///{tmp_path / 'k.db'}", 16, format, stream=False, thinking=False, lines=75, turn=4)
    assert talk.compacted


@pytest.mark.slow
def test_a_session_on_postgres(tmp_path: Path) -> None:
    from tests.contract.postgres import database

    talk, _ = hold(database(), min(STEPS, 60), "openai-chat", stream=True, thinking=False, lines=40)
    assert talk.compacted

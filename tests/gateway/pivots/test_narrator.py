"""The gateway with ``--summarize``: the provider's model writes a part of each pivot, at the client's cost."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import ANSWERS, CREDENTIAL, FORMATS, HEADERS, PATHS, STREAMED, format_of, history, request
from tests.gateway.upstreams import Raw, Reply, Upstream, said
from typer.testing import CliRunner

from kompakt.agent.summarizer.prompts import SYSTEM
from kompakt.cli import app
from kompakt.gateway.config import load

NARRATIVE = "The queue stalls because the writer and the index wait for each other."


def is_summary(raw: Raw) -> bool:
    return SYSTEM[:60] in raw.body.decode()


def narrating(raw: Raw) -> Reply:
    """Answer a request for a narrative with one, any other with a few words."""
    answer = copy.deepcopy(ANSWERS[format_of(raw)])
    return said(json.loads(json.dumps(answer).replace("Done.", NARRATIVE)) if is_summary(raw) else answer)


def failing(raw: Raw) -> Reply:
    return said({"error": {"message": "no"}}, status=400) if is_summary(raw) else said(ANSWERS[format_of(raw)])


def sent(url: str, format: str, rounds: int, *, path: str | None = None) -> httpx.Response:
    body = request(format, history(format, rounds))
    return httpx.post(url + (path or PATHS[format]), json=body, headers=HEADERS[format], timeout=60)


def split(upstream: Upstream) -> tuple[list[Raw], list[Raw]]:
    """Return the requests for narratives, and the others."""
    return [raw for raw in upstream.raw if is_summary(raw)], [raw for raw in upstream.raw if not is_summary(raw)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_writes_the_narrative_once(format: str, tmp_path: Path) -> None:
    """It is asked at the same provider with the client's credential, without tools, and its cost is shown."""
    store = f"sqlite:///{tmp_path / 'k.db'}"
    settings: dict[str, Any] = {"store": store, "summarize": "auto", "context_window": 32_000}
    with Upstream(narrating) as upstream, gateway(upstream.url, **settings) as gate:
        first, second = (sent(gate.url, format, rounds) for rounds in (80, 81))
        shown = gate.get("/metrics").text
    asked, others = split(upstream)
    assert first.status_code == second.status_code == 200
    assert len(asked) == 1 and asked[0].path == PATHS[format] and "tools" not in asked[0].json
    assert CREDENTIAL in str(asked[0].headers)
    assert all(NARRATIVE in raw.body.decode() for raw in others)
    assert first.headers["x-kompakt-narrative-tokens"] == "325" and "x-kompakt-narrative-tokens" not in second.headers
    assert 'kompakt_narratives_total{outcome="used"} 1.0' in shown
    assert 'kompakt_narrative_tokens_total{kind="input"} 321.0' in shown
    assert 'kompakt_narrative_tokens_total{kind="output"} 4.0' in shown


def test_another_model_can_be_named_and_streams_are_not_streamed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with Upstream(narrating) as upstream, gateway(upstream.url, store=store, summarize="gemini-2.5-flash") as gate:
        sent(gate.url, "gemini", 60, path=STREAMED["gemini"] + "&key=k1")
    (asked,), _ = split(upstream)
    assert asked.target == "/v1beta/models/gemini-2.5-flash:generateContent?key=k1"


@pytest.mark.parametrize("format", FORMATS)
def test_code_writes_the_pivot_when_the_model_fails(format: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with Upstream(failing) as upstream, gateway(upstream.url, store=store, summarize="auto") as gate:
        answers = [sent(gate.url, format, rounds) for rounds in (60, 61)]
        failed = gate.metric('kompakt_narratives_total{outcome="failed"}')
    asked, others = split(upstream)
    assert [answer.status_code for answer in answers] == [200, 200] and failed == 1
    assert 1 <= len(asked) <= 3 and "Notes on the earlier part" in others[0].body.decode()


def test_without_the_option_no_model_is_asked(tmp_path: Path) -> None:
    with Upstream(narrating) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        answer = sent(gate.url, "anthropic", 60)
    asked, _ = split(upstream)
    assert asked == [] and "x-kompakt-narrative-tokens" not in answer.headers


class TestOption:
    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (["--summarize"], "auto"),
            (["--summarize", "--port", "0"], "auto"),
            (["--summarize", "gpt-5-mini"], "gpt-5-mini"),
            (["--summarize=auto"], "auto"),
            ([], None),
        ],
    )
    def test_the_model_is_optional(
        self, flags: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Any] = []
        monkeypatch.setattr("kompakt.cli.serve._run", seen.append)
        assert CliRunner().invoke(app, ["serve", *flags]).exit_code == 0
        assert seen[0]["summarize"] == expected

    def test_a_variable_sets_it_too(self) -> None:
        assert load(environ={"KOMPAKT_SUMMARIZE": "auto"}).summarize == "auto"
        assert load(environ={}).summarize is None

"""Every response states the outcome of the request, in headers, log fields and metrics."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import WINDOW, Gate, gateway
from tests.gateway.payloads import ANSWERS, FORMATS, HEADERS, PATHS, answering, history, odd, request
from tests.gateway.upstreams import Raw, Reply, Upstream, said, wait_for

from kompakt.gateway.outcomes import OUTCOMES, UNTOUCHED

CLEAR_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
CLEAR_TOOL_USES = {"type": "clear_tool_uses_20250919"}
COMPACT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 9_000}}


class Stage:
    """An upstream with a gateway in front of it."""

    def __init__(self, upstream: Upstream, gate: Gate) -> None:
        self.upstream, self.gate = upstream, gate

    def post(self, format: str, body: bytes | dict[str, Any], path: str | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = self.gate.url + (path or PATHS[format])
        return httpx.post(url, content=content, headers=HEADERS[format], timeout=120)

    def outcomes(self) -> dict[tuple[str, str], float]:
        pattern = re.compile(r'kompakt_outcomes_total\{outcome="([^"]*)",reason="([^"]*)"\} (.*)')
        return {(o, r): float(n) for o, r, n in pattern.findall(self.gate.get("/metrics").text)}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        yield Stage(upstream, gate)


def logged(caplog: pytest.LogCaptureFixture, number: int) -> list[dict[str, Any]]:
    """Return the log fields of ``count`` requests; wait for them, since they are logged after the response."""

    def facts() -> list[dict[str, Any]]:
        found = [getattr(record, "kompakt", {}) for record in list(caplog.records)]
        return [one for one in found if "route" in one]

    wait_for(lambda: len(facts()) >= number, f"{number} requests are logged")
    return facts()


class TestClaudeCode:
    """Claude Code sends ``context_management`` with every request, which removes no history."""

    @pytest.mark.parametrize("edits", [[CLEAR_THINKING], [CLEAR_THINKING, CLEAR_TOOL_USES], []])
    def test_a_long_history_is_compacted_and_recorded(self, stage: Stage, edits: list[Any]) -> None:
        more = {"context_management": {"edits": edits}, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        answer = stage.post("anthropic", request("anthropic", history("anthropic", 60), **more))
        assert answer.headers["x-kompakt-outcome"] == "compacted" and "x-kompakt-session" in answer.headers
        assert len(stage.upstream.raw[-1].json["messages"]) < 121
        assert stage.upstream.raw[-1].json["context_management"] == more["context_management"]

    def test_an_overflow_error_is_retried(self, stage: Stage) -> None:
        refused: list[Raw] = []

        def plan(raw: Raw) -> Reply:
            if refused:
                return said(ANSWERS["anthropic"])
            refused.append(raw)
            error = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8000 maximum"}
            return said({"type": "error", "error": error}, 400)

        stage.upstream.plan = plan
        more = {"context_management": {"edits": [CLEAR_THINKING]}}
        answer = stage.post("anthropic", request("anthropic", history("anthropic", 10), **more))
        assert answer.status_code == 200 and len(stage.upstream.raw) == 2


def clearing(**more: Any) -> dict[str, Any]:
    return {"context_management": {"edits": [CLEAR_THINKING, {**CLEAR_TOOL_USES, **more}]}}


class TestToolUsesThatTheProviderClears:
    def test_do_not_count(self, stage: Stage) -> None:
        """What the provider leaves is far below the window."""
        more = clearing(trigger={"type": "input_tokens", "value": 9_000})
        body = odd(request("anthropic", history("anthropic", 60), **more))
        answer = stage.post("anthropic", body)
        assert answer.headers["x-kompakt-outcome"] == "fits" and stage.upstream.raw[-1].body == body

    @pytest.mark.parametrize(
        "more",
        [
            {"trigger": {"type": "input_tokens", "value": 90_000}},
            {"trigger": {"type": "tool_uses", "value": 500}},
            {"trigger": {"type": "tool_uses", "value": 5}, "keep": {"type": "tool_uses", "value": 50}},
            {"trigger": {"type": "tool_uses", "value": 5}, "exclude_tools": ["read"]},
            {},
        ],
    )
    def test_count_when_the_edit_does_not_clear_them(self, stage: Stage, more: dict[str, Any]) -> None:
        """The edit starts too late or keeps too many."""
        answer = stage.post("anthropic", request("anthropic", history("anthropic", 60), **clearing(**more)))
        assert answer.headers["x-kompakt-outcome"] == "compacted"


class TestProviderCompaction:
    @pytest.mark.parametrize(
        ("format", "more"),
        [
            ("anthropic", {"context_management": {"edits": [COMPACT]}}),
            ("anthropic", {"context_management": {"edits": [CLEAR_THINKING, COMPACT]}}),
            ("anthropic", {"compaction": {"type": "summarize"}}),
            ("openai-responses", {"context_management": [{"type": "compaction", "compact_threshold": 9_000}]}),
            ("openai-responses", {"context_management": [{"type": "compaction"}]}),
        ],
    )
    def test_is_left_to_the_provider(self, stage: Stage, format: str, more: dict[str, Any]) -> None:
        body = odd(request(format, history(format, 60), **more))
        answer = stage.post(format, body)
        assert stage.upstream.raw[-1].body == body
        assert answer.headers["x-kompakt-outcome"] == "untouched"
        assert answer.headers["x-kompakt-untouched"] == "provider-compaction"

    @pytest.mark.parametrize(
        ("format", "more"),
        [
            ("anthropic", {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
            ("openai-responses", {"context_management": [{"type": "compaction", "compact_threshold": WINDOW + 1}]}),
        ],
    )
    def test_that_starts_beyond_the_window_is_ignored(self, stage: Stage, format: str, more: dict[str, Any]) -> None:
        """The edit starts at 150,000 tokens by default; a model with a smaller window never reaches that."""
        answer = stage.post(format, request(format, history(format, 60), **more))
        assert answer.headers["x-kompakt-outcome"] == "compacted"


class TestEveryAnswer:
    @pytest.mark.parametrize(
        ("format", "body", "reason"),
        [
            ("openai-responses", {"previous_response_id": "resp_0"}, "provider-history"),
            ("openai-responses", {"conversation": {"id": "conv_1"}}, "provider-history"),
            ("gemini", {"cachedContent": "cachedContents/1"}, "provider-cache"),
            ("openai-responses", {"input": "Only a text."}, "no-messages"),
            ("anthropic", {"messages": []}, "no-messages"),
            ("openai-chat", {"messages": [{"role": "system", "content": "Only this."}]}, "no-messages"),
            ("openai-chat", {"messages": [5]}, "unreadable-message"),
        ],
    )
    def test_of_an_untouched_request_has_the_reason(
        self, stage: Stage, caplog: pytest.LogCaptureFixture, format: str, body: dict[str, Any], reason: str
    ) -> None:
        caplog.set_level(logging.INFO, "kompakt.gateway")
        answer = stage.post(format, request(format, history(format, 2)) | body)
        assert answer.headers["x-kompakt-outcome"] == "untouched" and answer.headers["x-kompakt-untouched"] == reason
        (facts,) = logged(caplog, 1)
        assert (facts["outcome"], facts["untouched"]) == ("untouched", reason)
        assert stage.outcomes() == {("untouched", reason): 1}
        assert reason in UNTOUCHED

    def test_of_an_endpoint_without_a_conversation_has_the_reason(self, stage: Stage) -> None:
        stage.upstream.plan = said({"data": []})
        answer = stage.gate.get("/v1/models", headers=HEADERS["openai-chat"])
        assert answer.headers["x-kompakt-untouched"] == "not-a-conversation"

    @pytest.mark.parametrize("format", FORMATS)
    def test_of_a_handled_request_has_its_outcome(
        self, stage: Stage, caplog: pytest.LogCaptureFixture, format: str
    ) -> None:
        items = history(format, 60)
        caplog.set_level(logging.INFO, "kompakt.gateway")
        returned = [stage.post(format, request(format, sent)).headers for sent in (items[:3], items, items)]
        longer = [*items, *history(format, 1, size=1, tag="later")[1:]]
        returned.append(stage.post(format, request(format, longer)).headers)
        expected = ["fits", "compacted", "compacted", "substituted"]
        assert [headers["x-kompakt-outcome"] for headers in returned] == expected
        assert not [headers for headers in returned if "x-kompakt-untouched" in headers]
        assert [one["outcome"] for one in logged(caplog, 4)] == expected
        assert stage.outcomes() == {("fits", ""): 1, ("compacted", ""): 2, ("substituted", ""): 1}
        assert set(expected) <= set(OUTCOMES)

    def test_of_a_token_count_is_counted(self, stage: Stage) -> None:
        stage.upstream.plan = said({"input_tokens": 5})
        body = request("anthropic", history("anthropic", 60))
        answer = stage.post("anthropic", body, "/v1/messages/count_tokens")
        assert answer.headers["x-kompakt-outcome"] == "counted"

    def test_of_a_request_that_cannot_shrink_is_oversized(self, stage: Stage) -> None:
        """The provider rejects it at any size."""
        error = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 10 maximum"}
        stage.upstream.plan = said({"type": "error", "error": error}, 400)
        answer = stage.post("anthropic", request("anthropic", [{"role": "user", "content": "One word."}]))
        assert (answer.status_code, answer.headers["x-kompakt-outcome"]) == (400, "oversized")

    @pytest.mark.parametrize("format", FORMATS)
    def test_of_a_rejected_request_is_refused(
        self, stage: Stage, caplog: pytest.LogCaptureFixture, format: str
    ) -> None:
        caplog.set_level(logging.INFO, "kompakt.gateway")
        answer = stage.post(format, b"{")
        assert (answer.status_code, answer.headers["x-kompakt-outcome"]) == (400, "refused")
        assert [one["outcome"] for one in logged(caplog, 1)] == ["refused"]
        assert stage.outcomes() == {("refused", ""): 1}

    @pytest.mark.parametrize("format", FORMATS)
    def test_of_a_request_to_an_unreachable_provider_is_failed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, format: str
    ) -> None:
        """Also where the request would have been passed through."""
        caplog.set_level(logging.INFO, "kompakt.gateway")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            with gateway(url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
                sent = request(format, history(format, 2))
                answer = httpx.post(gate.url + PATHS[format], json=sent, headers=HEADERS[format], timeout=120)
                assert (answer.status_code, answer.headers["x-kompakt-outcome"]) == (502, "failed")
                assert answer.headers["x-kompakt-refusal"] == "upstream_unreachable"
                assert gate.get("/v1/models", headers=HEADERS["openai-chat"]).status_code == 502
                assert [(one["outcome"], "untouched" in one) for one in logged(caplog, 2)] == [("failed", False)] * 2
                assert Stage(None, gate).outcomes() == {("failed", ""): 2}  # type: ignore[arg-type]

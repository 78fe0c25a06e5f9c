"""Failures: retried if a retry may help, never otherwise, and reported without API keys."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from email.utils import formatdate
from typing import Any

import pytest
from tests.agent.clients.client_servers import HANG_UP, KEY, SILENCE, Plan, asked_of, client_of, serving, stream, whole
from tests.agent.clients.test_clients import (
    FORMATS,
    ITEMS,
    MESSAGE,
    RESPONSE,
    STREAMED,
    WHOLE,
    candidate,
    chunk,
    each_format,
)

from kompakt.agent.client import Delta
from kompakt.agent.clients import base as calling
from kompakt.agent.clients.failures import failure_in_body
from kompakt.errors import Overflowed, ProviderRefused, ProviderUnavailable


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "FIRST_PAUSE", 0.001)


def ask(format: str, *plans: Plan, **options: Any) -> tuple[Any, Any]:
    return asyncio.run(asked_of(format, *plans, **options))


def said(format: str, message: str, status: int = 400, **fields: Any) -> Plan:
    """Return an error body in a provider's format."""
    if format == "anthropic":
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message, **fields}}
    elif format == "gemini":
        error = {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT", **fields}}
    else:
        error = {"error": {"message": message, "type": "invalid_request_error", **fields}}
    return whole(error, status)


def cut(plan: Plan, share: float) -> Plan:
    """Break off a stream."""
    return plan._replace(body=plan.body[: int(len(plan.body) * share)], cut=True)


@pytest.mark.parametrize("code", ["\u00b2", "9" * 5_000, "\u0665\u0660\u0660"])
def test_a_code_that_is_no_status_is_a_name(code: str) -> None:
    """Some digits are no numbers, and Python refuses to read integers of more than 4,300 digits."""
    assert failure_in_body({"error": {"code": code, "message": "no"}}).status is None


@each_format
class TestRetries:
    def test_temporary_failures_are_retried(self, format: str) -> None:
        busy = [said(format, "busy", status) for status in (408, 409, 429, 500, 502, 503, 529)]
        reply, server = ask(format, *busy, WHOLE[format], max_retries=len(busy))
        assert list(reply.items) == ITEMS[format]
        assert len(server.asked) == len(busy) + 1
        assert len({asked.body for asked in server.asked}) == 1

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_rejected_requests_are_not_retried(self, format: str, status: int) -> None:
        error, server = ask(format, said(format, "No such tool: look.", status))
        assert type(error) is ProviderRefused
        assert error.status == status
        assert "No such tool: look." in str(error) and "some-model" in str(error)
        assert len(server.asked) == 1

    def test_max_retries_limits_the_attempts(self, format: str) -> None:
        error, server = ask(format, said(format, "down for repairs", 503), max_retries=2)
        assert type(error) is ProviderUnavailable
        assert (error.status, len(server.asked)) == (503, 3)
        assert "3 attempts" in str(error) and "down for repairs" in str(error)

    def test_max_retries_zero_means_one_attempt(self, format: str) -> None:
        error, server = ask(format, said(format, "down", 500), max_retries=0)
        assert type(error) is ProviderUnavailable and len(server.asked) == 1

    @pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
    def test_lost_connections_are_retried(self, format: str, streams: bool) -> None:
        options = {"on_delta": lambda delta: None} if streams else {}
        plan = STREAMED[format] if streams else WHOLE[format]
        reply, server = ask(format, HANG_UP, cut(plan, 0.3), plan, **options)
        assert list(reply.items) == ITEMS[format]
        assert len(server.asked) == 3

    def test_an_unreachable_server(self, format: str) -> None:
        async def run() -> None:
            client = client_of(format, "http://127.0.0.1:1", max_retries=1)
            try:
                with pytest.raises(ProviderUnavailable, match="2 attempts"):
                    await client.send({"model": "m"})
            finally:
                await client.close()

        asyncio.run(run())

    @pytest.mark.parametrize("share", [0.05, 0.7])
    def test_a_broken_stream_is_retried_from_the_beginning(self, format: str, share: float) -> None:
        """The reply is complete, even if deltas were delivered before."""
        deltas: list[Delta] = []
        plan = STREAMED[format]
        events = plan.body.split(b"\n\n")
        short = plan._replace(body=b"".join(event + b"\n\n" for event in events[: int(len(events) * share)]))
        reply, server = ask(format, cut(plan, share), short, plan, on_delta=deltas.append)
        assert list(reply.items) == ITEMS[format]
        assert len(server.asked) == 3
        assert "".join(delta.text for delta in deltas if delta.kind == "text").endswith("Let me look.")

    def test_a_silent_server_times_out(self, format: str) -> None:
        """A server that accepts the request and does not answer causes a timeout."""
        error, _ = ask(format, SILENCE, max_retries=0, timeout=0.3)
        assert type(error) is ProviderUnavailable


def test_the_sdk_client_of_the_caller_does_not_retry() -> None:
    """Attempts are counted in one place."""
    from anthropic import AsyncAnthropic
    from google.genai import Client
    from google.genai.types import HttpOptions, HttpRetryOptions
    from openai import AsyncOpenAI

    async def run(format: str) -> int:
        async with serving(said(format, "down", 503)) as server:
            retries = HttpRetryOptions(attempts=3, initial_delay=0.01, max_delay=0.02)
            given: Any = {
                "openai-chat": lambda: AsyncOpenAI(base_url=server.address, api_key=KEY, max_retries=2),
                "openai-responses": lambda: AsyncOpenAI(base_url=server.address, api_key=KEY, max_retries=2),
                "anthropic": lambda: AsyncAnthropic(base_url=server.address, api_key=KEY, max_retries=2),
                "gemini": lambda: Client(
                    api_key=KEY, http_options=HttpOptions(base_url=server.address, retry_options=retries)
                ),
            }[format]()
            client = client_of(format, "", base_url=None, api_key=None, client=given, max_retries=0)
            with pytest.raises(ProviderUnavailable):
                await client.send({"model": "m"})
            await (given.aio.aclose() if format == "gemini" else given.close())
            return len(server.asked)

    assert [asyncio.run(run(format)) for format in FORMATS] == [1, 1, 1, 1]


class TestPauses:
    @pytest.mark.parametrize(
        "asked",
        [{"retry_after": "7"}, {"retry_after_ms": "7000"}, {"retry_after": "date"}],
        ids=["seconds", "milliseconds", "date"],
    )
    def test_retry_after_is_respected(self, asked: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        waits = self.waits(monkeypatch)
        if asked.get("retry_after") == "date":
            asked = {"retry_after": formatdate(time.time() + 30, usegmt=True)}
        for format in FORMATS:
            ask(format, whole({"error": {"message": "slow down"}}, 429, **asked), WHOLE[format])
        assert len(waits) == len(FORMATS)
        assert all(5 <= wait <= 30 for wait in waits)

    def test_retry_after_is_limited_to_a_minute(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits = self.waits(monkeypatch)
        ask("anthropic", whole({}, 429, retry_after="86400"), whole({}, 429, retry_after="soon"), WHOLE["anthropic"])
        assert waits[0] == calling.LONGEST_PAUSE
        assert waits[1] < 1

    def test_pauses_double_with_jitter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calling, "FIRST_PAUSE", 1.0)
        waits = self.waits(monkeypatch)
        ask("openai-chat", said("openai-chat", "busy", 500), max_retries=8)
        for n, wait in enumerate(waits):
            assert 0.75 * min(60, 2**n) <= wait <= 1.25 * min(60, 2**n)
        assert len({round(wait / 2**n, 6) for n, wait in enumerate(waits[:5])}) > 1

    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        slept: list[float] = []
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            if seconds:
                slept.append(seconds)
            await real(0)

        monkeypatch.setattr(calling.asyncio, "sleep", sleep)
        return slept


OVERFLOWS = {
    **dict.fromkeys(
        ("openai-chat", "openai-responses"),
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens.",
    ),
    "anthropic": "prompt is too long: 8202 tokens > 8192 maximum",
    "gemini": "The input token count (8202) exceeds the maximum number of tokens allowed (8192).",
}


class TestOverflow:
    @each_format
    def test_the_error_has_the_stated_numbers(self, format: str) -> None:
        error, server = ask(format, said(format, OVERFLOWS[format]))
        assert type(error) is Overflowed
        assert (error.overflow.limit, error.overflow.actual, error.status) == (8192, 8202, 400)
        assert len(server.asked) == 1

    @each_format
    def test_the_status_alone_is_enough(self, format: str) -> None:
        error, _ = ask(format, Plan(b"", 413))
        assert type(error) is Overflowed and error.status == 413

    @each_format
    def test_an_overflow_with_status_500_is_not_retried(self, format: str) -> None:
        error, server = ask(format, said(format, OVERFLOWS[format], 500))
        assert type(error) is Overflowed and len(server.asked) == 1

    @each_format
    def test_a_rate_limit_is_no_overflow(self, format: str) -> None:
        error, server = ask(
            format, said(format, "Too many tokens, please wait before trying again.", 429), max_retries=1
        )
        assert type(error) is ProviderUnavailable and len(server.asked) == 2

    def test_llama_cpp_states_its_numbers_in_fields(self) -> None:
        error, _ = ask(
            "openai-chat",
            said("openai-chat", "too long", type="exceed_context_size_error", n_prompt_tokens=900, n_ctx=512),
        )
        assert (error.overflow.actual, error.overflow.limit) == (900, 512)

    @pytest.mark.parametrize(
        "format, plan",
        [
            ("openai-chat", stream({"error": {"message": "long", "code": "context_length_exceeded"}})),
            (
                "openai-responses",
                stream(
                    {"type": "response.created", "response": {"status": "in_progress"}},
                    {
                        "type": "response.failed",
                        "response": {
                            "status": "failed",
                            "error": {
                                "code": "context_length_exceeded",
                                "message": "Your input exceeds the context window of this model.",
                            },
                        },
                    },
                ),
            ),
            ("openai-responses", stream({"type": "error", "code": "context_length_exceeded", "message": "long"})),
            (
                "anthropic",
                stream(
                    {"type": "error", "error": {"type": "invalid_request_error", "message": OVERFLOWS["anthropic"]}}
                ),
            ),
            ("gemini", stream({"error": {"code": 400, "message": OVERFLOWS["gemini"]}}, done=False)),
        ],
        ids=["chat", "failed", "error", "anthropic", "gemini"],
    )
    def test_an_overflow_inside_a_stream(self, format: str, plan: Plan) -> None:
        error, server = ask(format, plan, on_delta=lambda delta: None)
        assert type(error) is Overflowed and len(server.asked) == 1

    def test_a_window_that_fills_while_answering_is_a_stop(self) -> None:
        reply, _ = ask("anthropic", whole({**MESSAGE, "stop_reason": "model_context_window_exceeded"}))
        assert reply.stop == "overflow" and list(reply.items) == ITEMS["anthropic"]


class TestErrorsInStreams:
    @pytest.mark.parametrize(
        "format, event",
        [
            ("openai-chat", {"error": {"message": "upstream", "code": 502}}),
            ("openai-chat", {"error": {"message": "x", "type": "server_error"}}),
            ("openai-responses", {"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
            ("openai-responses", {"type": "error", "code": "rate_limit_exceeded", "message": "x"}),
            ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
            ("gemini", {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}),
        ],
    )
    def test_temporary_errors_in_a_stream_are_retried(self, format: str, event: Any) -> None:
        reply, server = ask(format, stream(event, done=False), STREAMED[format], on_delta=lambda delta: None)
        assert list(reply.items) == ITEMS[format] and len(server.asked) == 2

    @pytest.mark.parametrize(
        "format, event",
        [
            ("openai-chat", {"error": {"message": "no", "code": 403}}),
            ("openai-responses", {"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}),
            ("anthropic", {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}),
        ],
    )
    def test_other_errors_in_a_stream_are_not_retried(self, format: str, event: Any) -> None:
        error, server = ask(format, stream(event, done=False), STREAMED[format], on_delta=lambda delta: None)
        assert type(error) is ProviderRefused and len(server.asked) == 1

    def test_an_error_in_on_delta_is_raised_unchanged(self) -> None:
        def burst(delta: Delta) -> None:
            raise BrokenPipeError("the pipe has no reader")

        for format in FORMATS:
            error, server = ask(format, STREAMED[format], on_delta=burst)
            assert type(error) is BrokenPipeError and len(server.asked) == 1

    @each_format
    def test_a_request_can_be_cancelled(self, format: str) -> None:
        async def run() -> None:
            async with serving(STREAMED[format]) as server:
                client = client_of(format, server.address)
                heard = asyncio.Event()
                task = asyncio.create_task(client.send({"model": "m"}, on_delta=lambda delta: heard.set()))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await client.send({"model": "m"}, on_delta=lambda delta: None)).stop == "tools"
                await client.close()

        asyncio.run(run())


class TestKeys:
    @each_format
    @pytest.mark.parametrize("status", [401, 500])
    def test_keys_appear_in_no_error_and_no_log(
        self, format: str, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Not even if the provider quotes the key, and not in chained exceptions."""
        caplog.set_level(logging.INFO, "kompakt")
        headers = {"authorization": "Bearer abcdef-another-one"}
        words = f"Incorrect API key provided: {KEY} or abcdef-another-one or sk-proj-****1234."
        error, _ = ask(format, said(format, words, status), max_retries=1, changes={"headers": headers})
        shown = "".join(traceback.format_exception(error)) + caplog.text + repr(error)
        assert "Incorrect API key provided: [key]" in shown
        for secret in (KEY, "another-one", "1234"):
            assert secret not in shown
        assert error.__cause__ is None and error.__context__ is None
        assert (status == 500) == ("retry in" in caplog.text)


class TestStrangeAnswers:
    def test_an_answer_that_is_not_json(self) -> None:
        for format in FORMATS:
            page = Plan(b"<html>gateway</html>", 200, {"content-type": "text/html"})
            reply, server = ask(format, page, WHOLE[format])
            assert list(reply.items) == ITEMS[format] and len(server.asked) == 2

    def test_an_answer_with_an_error_in_it(self) -> None:
        error, _ = ask("openai-chat", whole({"error": {"message": "no credit", "code": 402}}))
        assert type(error) is ProviderRefused
        error, _ = ask("openai-responses", whole({**RESPONSE, "status": "failed", "error": {"code": "server_error"}}))
        assert type(error) is ProviderUnavailable

    def test_stream_options_are_omitted_after_a_rejection(self) -> None:
        """Once refused, stream_options are left out of later requests, too."""
        refusal = said("openai-chat", "Unrecognized request argument supplied: stream_options")
        plan = stream(chunk({"content": "Hi."}), chunk({}, "stop"))

        async def run() -> None:
            async with serving(refusal, plan) as server:
                client = client_of("openai-chat", server.address)
                for _ in range(2):
                    reply = await client.send({"model": "m"}, on_delta=lambda delta: None)
                    assert reply.items == ({"role": "assistant", "content": "Hi."},)
                await client.close()
                assert ["stream_options" in asked.json for asked in server.asked] == [True, False, False]

        asyncio.run(run())

    def test_a_prompt_blocked_by_gemini_is_refused(self) -> None:
        blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 5}}
        for plan, on_delta in ((whole(blocked), None), (stream(blocked, done=False), lambda delta: None)):
            reply, _ = ask("gemini", plan, on_delta=on_delta)
            assert (reply.items, reply.stop, reply.usage.prompt) == ((), "refused", 5)

    def test_a_malformed_call_of_gemini_is_retried(self) -> None:
        reply, server = ask("gemini", whole(candidate([], "MALFORMED_FUNCTION_CALL")), WHOLE["gemini"])
        assert reply.stop == "tools" and len(server.asked) == 2

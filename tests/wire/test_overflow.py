"""Overflow: fields, exceptions, truncated prompts, and similar texts. The texts are in test_overflow_texts."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompakt.model.budget import Usage
from kompakt.wire.overflow import Overflow, failure_in, overflow, truncated

OPENAI = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens. "
    "Please reduce the length of the messages."
)

Numbers = tuple[int | None, int | None, int | None]
"""limit, actual, output"""


def numbers(found: Overflow | None) -> Numbers:
    assert found is not None
    return found.limit, found.actual, found.output


class TestOver:
    @pytest.mark.parametrize(
        ("message", "over"),
        [
            ("prompt is too long: 213462 tokens > 200000 maximum", 13462),
            ("input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease", 7951),
            ("prompt too long; exceeded max context length by 412 tokens", 412),
            ("max_tokens must be at least 1, got -186.", 186),
            ("Prompt is too long", None),
        ],
    )
    def test_how_much_has_to_go(self, message: str, over: int | None) -> None:
        """The excess is stated, or follows from the numbers, or is unknown."""
        found = overflow(message)
        assert found is not None and found.over == over


class TestMachineFields:
    def test_openai_code(self) -> None:
        """The code decides; the text adds the numbers."""
        body = {"error": {"message": OPENAI, "code": "context_length_exceeded", "param": "messages"}}
        found = overflow(body, status=400)
        assert found is not None and found.source == "context_length_exceeded"
        assert numbers(found) == (8192, 8202, None)

    def test_the_code_suffices(self) -> None:
        """A code is enough; the text may be unknown."""
        assert overflow({"error": {"message": "Zu lang.", "code": "context_length_exceeded"}}) is not None

    def test_response_failed_event(self) -> None:
        """Streams of the Responses API fail with status 200."""
        event = {
            "type": "response.failed",
            "sequence_number": 3,
            "response": {
                "status": "failed",
                "error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window …"},
            },
        }
        found = overflow(event, status=200)
        assert found is not None and found.source == "context_length_exceeded"
        assert overflow(f"event: response.failed\ndata: {json.dumps(event)}\n\n") is not None

    def test_llama_cpp_fields(self) -> None:
        """n_prompt_tokens and n_ctx are taken from the body."""
        body = {
            "error": {
                "code": 400,
                "message": "request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1359,
                "n_ctx": 512,
            }
        }
        found = overflow(body)
        assert numbers(found) == (512, 1359, None)
        assert found is not None and found.over == 847

    def test_anthropic_request_too_large(self) -> None:
        """413 with its type is about bytes."""
        body = {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
        found = overflow(body, status=413)
        assert found is not None and found.by_bytes and found.source == "request_too_large"

    @pytest.mark.parametrize(
        "answer",
        [
            {"type": "message", "content": [], "stop_reason": "model_context_window_exceeded"},
            {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
            {"choices": [{"message": {"content": ""}, "finish_reason": "model_context_window_exceeded"}]},
            {"output": {}, "stopReason": "model_context_window_exceeded"},
            {"messageStop": {"stopReason": "model_context_window_exceeded"}},
        ],
    )
    def test_stop_reasons(self, answer: dict[str, Any]) -> None:
        """A finished answer may report it too."""
        found = overflow(answer)
        assert found is not None and found.source == "model_context_window_exceeded"

    def test_bare_413(self) -> None:
        """Without a body it may be tokens; with an unknown body it is the size."""
        assert overflow(b"", status=413) == Overflow(
            source="cerebras without body", message="413 status code (no body)"
        )
        found = overflow("no way", status=413)
        assert found is not None and found.by_bytes and found.source == "status 413"


class SdkError(Exception):
    """An error as the OpenAI and Anthropic SDKs raise it."""

    def __init__(self, status: int, body: object, message: str = "Error") -> None:
        super().__init__(message)
        self.status_code, self.body, self.message, self.code = status, body, message, None


class Unread:
    """The body of a streamed response was not read."""

    status_code = 400

    @property
    def text(self) -> str:
        raise RuntimeError("read() has not been called")


class TestExceptions:
    def test_sdk_error_with_body(self) -> None:
        """The body counts, also where the SDK has taken the `error` off it."""
        inner = {"message": "prompt is too long: 213462 tokens > 200000 maximum", "type": "invalid_request_error"}
        for body in (inner, {"type": "error", "error": inner}, json.dumps({"error": inner})):
            assert numbers(overflow(SdkError(400, body))) == (200000, 213462, None)

    def test_the_text_of_the_exception_is_enough(self) -> None:
        """Wrapped errors keep only their text."""
        assert overflow(ValueError("litellm.BadRequestError: " + OPENAI)) is not None

    def test_botocore_error(self) -> None:
        """The AWS SDK keeps a mapping as its response."""
        error = RuntimeError("An error occurred")
        error.response = {  # pyright: ignore[reportAttributeAccessIssue]
            "Error": {"Code": "ValidationException", "Message": "Input is too long for requested model."},
            "ResponseMetadata": {"HTTPStatusCode": 400},
        }
        assert overflow(error) is not None

    def test_response_text_and_unread_streams(self) -> None:
        """The response's text is read when there is one and left alone when there is none."""
        error = RuntimeError("Client error '400 Bad Request'")
        error.response = Unread()  # pyright: ignore[reportAttributeAccessIssue]
        assert overflow(error) is None
        error.response = type("R", (), {"status_code": 400, "text": "Prompt is too long"})()  # pyright: ignore[reportAttributeAccessIssue]
        assert overflow(error) is not None

    def test_real_sdk_errors(self) -> None:
        """The SDKs' own classes."""
        request = httpx.Request("POST", "https://api.test/v1")
        body = {"message": OPENAI, "code": "context_length_exceeded", "type": "invalid_request_error"}
        response = httpx.Response(400, json={"error": body}, request=request)
        assert numbers(overflow(openai.BadRequestError("e", response=response, body=body))) == (8192, 8202, None)
        body = {
            "type": "error",
            "error": {"type": "rate_limit_error", "message": "prompt is too long for your rate limit"},
        }
        response = httpx.Response(429, json=body, request=request)
        assert overflow(anthropic.RateLimitError("e", response=response, body=body)) is None


class TestRateLimitingReadAsOverflow:
    """failures.md: rate limiting read as overflow, and one overlong string too."""

    @pytest.mark.parametrize(
        "message",
        [
            "429 status code (no body)",
            "ThrottlingException: Too many tokens, please wait before trying again.",
            "Too many tokens, please wait before trying again.",
            "Throttling error: Too many tokens, please wait before trying again.",
            "Service unavailable: prompt is too long",
            "Too many tokens per day, please wait before trying again.",
            "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29000, Requested 5000.",
            "Request too large for gpt-5 in organization org-1 on tokens per min (TPM): Limit 30000, Requested 40000.",
            "Too many requests: Please reduce the length of the messages or completion",
            "This request would exceed your organization's rate limit of 400,000 input tokens per minute",
            "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, "
            "but got a string with length 52 instead.",
            "Invalid 'user': string too long. Expected a string with maximum length 64",
            "Invalid 'id': string too long. Please reduce the length of the messages.",
            "expected maxLength: 64, actual: 70, please reformat your input and try again.",
            "context deadline exceeded",
            "Request timed out.",
            "You exceeded your current quota, please check your plan and billing details.",
            "Overloaded",
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
            "max_tokens must be at least 1, got 0.",
            "image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
            "tools.0.name: String should have at most 64 characters, the name is too long",
            "The file exceeds the limit of 20 files",
            "401 status code (no body)",
            "500 status code (no body)",
            "messages: roles must alternate between user and assistant",
            "",
        ],
    )
    def test_not_an_overflow(self, message: str) -> None:
        """None of these is cured by sending less."""
        assert overflow(message) is None
        assert overflow({"error": {"message": message}}, status=400) is None
        assert overflow(SdkError(400, {"error": {"message": message}}, message)) is None

    @pytest.mark.parametrize("status", [401, 403, 408, 429, 504, 529])
    def test_statuses_that_exclude(self, status: int) -> None:
        """A status of rate limiting wins over any text, wherever it is written."""
        message = "prompt is too long: 213462 tokens > 200000 maximum"
        assert overflow(message, status=status) is None
        assert overflow({"error": {"code": status, "message": message}}) is None
        assert overflow(SdkError(status, {"error": {"message": message}})) is None

    @pytest.mark.parametrize(
        "body",
        [
            {"throttlingException": {"message": "Too many input tokens"}},
            {"Error": {"Code": "ThrottlingException", "Message": "Too many input tokens"}},
            {"error": {"code": "rate_limit_exceeded", "type": "tokens", "message": "Request too large"}},
            {"error": {"code": "string_above_max_length", "message": "prompt is too long"}},
            {"error": {"status": "RESOURCE_EXHAUSTED", "message": "Too many input tokens"}},
        ],
    )  # fmt: skip
    def test_codes_that_exclude(self, body: dict[str, Any]) -> None:
        """Rate limit fields take precedence over the text."""
        assert overflow(body) is None

    def test_the_name_of_an_exception_excludes(self) -> None:
        """The name of the class is enough."""
        assert overflow(type("RateLimitError", (Exception,), {})("prompt is too long")) is None

    def test_groq_413_is_a_rate_limit(self) -> None:
        """Groq answers 413 when one request exceeds the tokens per minute."""
        message = "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7001"
        assert overflow({"error": {"message": message, "code": "rate_limit_exceeded"}}, status=413) is None

    @pytest.mark.parametrize(
        "answer",
        [
            {"choices": [{"message": {"role": "assistant", "content": "prompt is too long"}, "finish_reason": "stop"}]},
            {"content": [{"type": "text", "text": "context_length_exceeded"}], "stop_reason": "end_turn"},
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "error": None},
            {"candidates": [{"content": {"parts": [{"text": "Prompt is too long"}]}, "finishReason": "MAX_TOKENS"}]},
            {"message": {"role": "assistant", "content": "prompt is too long"}, "done_reason": "length"},
        ],
    )  # fmt: skip
    def test_what_a_model_writes_is_not_an_error(self, answer: dict[str, Any]) -> None:
        """An agent that talks about overflow has none."""
        assert overflow(answer) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "response", "n_ctx", "choices"]), inner)
    ),
    max_leaves=12,
)


class TestJunk:
    @given(json_values)
    def test_nothing_raises(self, body: object) -> None:
        """Any input gives a result."""
        overflow(body)
        overflow(str(body))

    @given(st.binary(max_size=80) | st.text(max_size=80))
    def test_no_text_raises(self, body: object) -> None:
        """Broken encodings and half JSON included."""
        overflow(body)

    def test_hostile_bodies(self) -> None:
        """Depth, size, endless digits and lone surrogates do no harm."""
        overflow("[" * 100_000)
        overflow("{\ud800")
        overflow("prompt is too long: " + "9" * 100_000 + " tokens > 1 maximum")
        overflow("prompt contains 1 tokens" * 200_000)
        overflow(object())


class TestProviderTruncatesSilently:
    """failures.md: provider truncates silently and answers 200."""

    @given(st.integers(0, 10**6), st.integers(0, 10**6))
    def test_truncated_needs_a_clear_gap(self, sent: int, prompt: int) -> None:
        """No report is no proof; an estimate may be a third off."""
        assert truncated(sent, Usage(input=prompt)) == (0 < prompt < 0.7 * sent)

    def test_a_prompt_that_fills_the_window_needs_less_of_a_gap(self) -> None:
        """8,192 counted in a window of 8,192 with 10,000 sent is no accident."""
        assert truncated(10_000, Usage(input=8_192), window=8_192)
        assert not truncated(10_000, Usage(input=8_192), window=32_768)


QUOTED = f'The log says: {{"error": {{"message": "{OPENAI}", "code": "context_length_exceeded"}}}}'


def sse(*bodies: object, name: str = "") -> str:
    return "".join((f"event: {name}\n" if name else "") + f"data: {json.dumps(body)}\n\n" for body in bodies)


class TestFailureIn:
    @pytest.mark.parametrize(
        "text",
        [
            sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": QUOTED}}),
            sse({"choices": [{"index": 0, "delta": {"content": QUOTED}, "finish_reason": None}]}),
            sse({"type": "response.output_text.delta", "delta": QUOTED}),
            sse({"type": "response.created", "response": {"error": None, "instructions": QUOTED}}),
            sse({"candidates": [{"content": {"parts": [{"text": QUOTED}]}}]}),
            json.dumps([{"candidates": [{"content": {"parts": [{"text": QUOTED}]}}]}]),
            json.dumps({"choices": [{"message": {"content": QUOTED, "error": QUOTED}}], "error": None}),
            json.dumps({"type": "message", "content": [{"type": "text", "text": QUOTED}]}),
            json.dumps({"status": "completed", "error": None, "output": [{"content": [{"text": QUOTED}]}]}),
            json.dumps({"choices": [{"message": {"content": QUOTED}}]})[:-3],
            QUOTED,
            ": keep-alive\n\n",
            "data: [DONE]\n\n",
            "",
        ],
    )
    def test_what_a_model_writes_is_no_failure(self, text: str) -> None:
        """For any quotation: whole, streamed or truncated."""
        assert failure_in(text) is None

    @pytest.mark.parametrize(
        "text",
        [
            sse({"type": "error", "error": {"type": "invalid_request_error", "message": OPENAI}}, name="error"),
            sse({"type": "error", "code": "context_length_exceeded", "message": "Too long."}),
            sse({"error": {"message": OPENAI, "code": 400}}),
            sse({"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": {"message": OPENAI}}]}),
            sse({"type": "response.created"}, {"type": "response.failed", "response": {"error": {"message": OPENAI}}}),
            json.dumps([{"error": {"code": 400, "message": OPENAI, "status": "INVALID_ARGUMENT"}}]),
            json.dumps({"error": {"message": OPENAI}}),
            json.dumps({"detail": OPENAI}),
            json.dumps({"choices": None, "base_resp": {"status_code": 1039, "status_msg": OPENAI}}),
            f"event: error\ndata: {OPENAI}\n\n",
        ],
    )
    def test_what_a_provider_reports_is_one(self, text: str) -> None:
        """In every place where providers put it."""
        assert overflow(failure_in(text)) is not None

    @given(st.text())
    def test_nothing_raises(self, text: str) -> None:
        """Any input gives a result."""
        failure_in(text)
        failure_in("data: " + text + "\n\n")
        failure_in("{" + text)

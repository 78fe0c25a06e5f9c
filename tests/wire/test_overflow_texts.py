"""Overflow texts: every provider's way of saying it, with its numbers, in every wrapping."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kompakt.wire.overflow import PATTERNS, Overflow, overflow

Numbers = tuple[int | None, int | None, int | None]
"""limit, actual, output"""

MESSAGES: list[tuple[str, Numbers]] = [
    # OpenAI and Azure
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens. "
        "Please reduce the length of the messages.",
        (8192, 8202, None),
    ),
    (
        "This model's maximum context length is 16385 tokens. However, your messages resulted in 17000 tokens "
        "(16500 in the messages, 500 in the functions). Please reduce the length of the messages or functions.",
        (16385, 17000, None),
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 4197 tokens (197 in your prompt; "
        "4000 for the completion). Please reduce your prompt; or completion length.",
        (4097, 197, 4000),
    ),
    (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        (None, None, None),
    ),
    ("This model's maximum context length is 128000 tokens.", (128000, None, None)),
    # Anthropic
    ("prompt is too long: 213462 tokens > 200000 maximum", (200000, 213462, None)),
    (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or "
        "`max_tokens` and try again",
        (200000, 199759, 8192),
    ),
    ("Prompt is too long", (None, None, None)),
    # Gemini
    (
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        (1048576, 1200293, None),
    ),
    ("The input token count (1200293) exceeds the maximum number of tokens allowed 1048576.", (1048576, 1200293, None)),
    ("The input token count exceeds the maximum number of tokens allowed 131072.", (131072, None, None)),
    (
        "Unable to submit request because the input token count is 32769 but model only supports up to 32768. "
        "Reduce the input token count and try again.",
        (32768, 32769, None),
    ),
    # Bedrock
    ("Input is too long for requested model.", (None, None, None)),
    (
        "The model returned the following errors: prompt is too long: 200049 tokens > 200000 maximum",
        (200000, 200049, None),
    ),
    ("Too many input tokens", (None, None, None)),
    (
        "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        (8192, 9000, None),
    ),
    # vLLM
    (
        "This model's maximum context length is 131072 tokens. However, you requested 8192 output tokens and your "
        "prompt contains 130000 input tokens, for a total of 138192 tokens. Please reduce the length of the input "
        "prompt or the number of requested output tokens.",
        (131072, 130000, 8192),
    ),
    (
        "This model's maximum context length is 4096 tokens. However, you requested 0 output tokens and your prompt "
        "contains at least 4097 input tokens, for a total of at least 4097 tokens. Please reduce the length of the "
        "input prompt or the number of requested output tokens.",
        (4096, 4097, 0),
    ),
    (
        "This model's maximum context length is 120000 tokens. However, you requested 122946 tokens (112946 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        (120000, 112946, 10000),
    ),
    ("max_tokens must be at least 1, got -186.", (None, None, None)),
    (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        (4096, 5000, None),
    ),
    # llama.cpp, Ollama, LM Studio
    (
        "request (9216 tokens) exceeds the available context size (8192 tokens), try increasing it",
        (8192, 9216, None),
    ),
    ("the request exceeds the available context size. try increasing it", (None, None, None)),
    ("prompt too long; exceeded max context length by 412 tokens", (None, None, None)),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length "
        "(n_keep: 30000>= n_ctx: 4096). Try to load the model with a larger context length.",
        (4096, 30000, None),
    ),
    (
        "Trying to keep the first 30000 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens, which is not enough.",
        (4096, 30000, None),
    ),
    # The rest of the table
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        (32768, 40000, None),
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        (131072, 537812, None),
    ),
    ("Please reduce the length of the messages or completion.", (None, None, None)),
    (
        "This endpoint's maximum context length is 163840 tokens. However, you requested about 210562 tokens "
        "(198562 of text input, 12000 in the output). Please reduce the length of either one.",
        (163840, 198562, 12000),
    ),
    (
        "This endpoint's maximum context length is 163840 tokens. However, you requested about 210562 tokens",
        (163840, 210562, None),
    ),
    ("prompt token count of 140211 exceeds the limit of 128000", (128000, 140211, None)),
    ("invalid params, context window exceeds limit (2013)", (None, None, None)),
    ("Your request exceeded model token limit: 262144 (requested: 291351)", (262144, 291351, None)),
    (
        "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
        (32768, 40000, None),
    ),
    ("Range of input length should be [1, 98304]", (98304, None, None)),
    ("Range of input length should be", (None, None, None)),
    ("Prompt has 70000 tokens, but the configured context size is 65536 tokens", (65536, 70000, None)),
    ("Prompt exceeds max length", (None, None, None)),
    ("Please reduce the length of the messages. Current length is 9000 while limit is 8192", (8192, 9000, None)),
    ("400 status code (no body)", (None, None, None)),
    ("413 status code (no body)", (None, None, None)),
    (
        "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of "
        "40000 tokens: 38000 tokens from the input messages and 2000 tokens for the completion.",
        (32768, 38000, 2000),
    ),
    (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
        (4081, 4292, None),
    ),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`",
        (4096, 4000, 500),
    ),
    ("The prompt is too long: 140000, model maximum context length: 131071", (131071, 140000, None)),
    ("prompt is too long: 1,213,462 tokens > 1,000,000 maximum", (1000000, 1213462, None)),
]

BY_BYTES: list[tuple[str, Numbers]] = [
    ("Request exceeds the maximum size", (None, None, None)),
    ("Request exceeds the maximum allowed number of bytes.", (None, None, None)),
    ("<html><head><title>413 Request Entity Too Large</title></head></html>", (None, None, None)),
    (
        "Malformed input request: expected maxLength: 2097152, actual: 2300000, please reformat",
        (2097152, 2300000, None),
    ),
    ("expected maxLength:", (None, None, None)),
]


def numbers(found: Overflow | None) -> Numbers:
    assert found is not None
    return found.limit, found.actual, found.output


class TestMessages:
    @pytest.mark.parametrize(("message", "expected"), MESSAGES)
    def test_text(self, message: str, expected: Numbers) -> None:
        """Each known text is an overflow, with the numbers it states."""
        found = overflow(message)
        assert numbers(found) == expected
        assert found is not None
        assert (found.by_bytes, found.message) == (False, message)

    @pytest.mark.parametrize(("message", "expected"), BY_BYTES)
    def test_bytes(self, message: str, expected: Numbers) -> None:
        """A body that is too large is distinguished from too many tokens."""
        found = overflow(message)
        assert numbers(found) == expected
        assert found is not None and found.by_bytes

    @pytest.mark.parametrize(("message", "expected"), MESSAGES + BY_BYTES)
    def test_every_wrapping(self, message: str, expected: Numbers) -> None:
        """The text is found wherever SDKs, servers and gateways put it."""
        bodies: list[Any] = [
            {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}},
            {"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "r"},
            [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}],
            {"object": "error", "message": message, "type": "BadRequestError", "code": 400},
            {"Error": {"Code": "ValidationException", "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}},
            {"validationException": {"message": message}},
            {"detail": message},
            {"error": message},
            {"error": {"message": "Provider error", "metadata": {"raw": json.dumps({"error": {"message": message}})}}},
            {"base_resp": {"status_code": 2013, "status_msg": message}},
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x", "message": message}}},
        ]  # fmt: skip
        for body in bodies:
            for form in (body, json.dumps(body), json.dumps(body).encode()):
                assert numbers(overflow(form, status=400)) == expected, body

    def test_every_row_of_the_table_is_used(self) -> None:
        """A pattern without a known text would be dead."""
        texts = [message for message, _ in MESSAGES + BY_BYTES] + ["event: x code=context_length_exceeded"]
        sources = {found.source for text in texts if (found := overflow(text))}
        assert sources == {row.source for row in PATTERNS}

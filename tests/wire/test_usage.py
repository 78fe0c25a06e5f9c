"""Usage: the convention of each provider, compared with genai-prices as an independent implementation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from genai_prices import extract_usage  # pyright: ignore[reportPrivateImportUsage]
from hypothesis import given
from hypothesis import strategies as st

from kompakt.model.budget import Usage
from kompakt.wire.registry import WIRES

FORMATS = tuple(WIRES)


def read(usage: Mapping[str, object] | None, format: str) -> Usage:
    """Read a usage object as the size of the context."""
    return WIRES[format].usage(usage)


count = st.integers(0, 2_000_000)


@st.composite
def inclusive(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """Prompt with its cached and written parts, output with its reasoning part."""
    cached, written, rest, reasoning, answer = (draw(count) for _ in range(5))
    return cached + written + rest, cached, written, reasoning + answer, reasoning


def judge(response: dict[str, Any], provider: str, flavor: str) -> Usage:
    """Read a response with genai-prices and put it into our terms."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = extract_usage(response, provider_id=provider, api_flavor=flavor).usage
    read = int(found.cache_read_tokens or 0)
    return Usage(
        input=int(found.input_tokens or 0) - read,
        cache_read=read,
        cache_write=int(found.cache_write_tokens or 0),
        output=int(found.output_tokens or 0),
        reasoning=int(found.output_reasoning_tokens or 0),
    )


class TestAgainstGenaiPrices:
    @given(inclusive(), st.sampled_from([("openai", "chat"), ("azure", "chat"), ("openrouter", "chat")]))
    def test_openai_chat(self, numbers: tuple[int, int, int, int, int], provider: tuple[str, str]) -> None:
        """Cache reads are inside the prompt, reasoning inside the completion."""
        prompt, cached, written, output, reasoning = numbers
        usage = {
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "completion_tokens": output,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + output,
        }
        assert read(usage, "openai-chat") == judge({"usage": usage}, *provider)

    @given(inclusive(), st.sampled_from([("deepseek", "chat"), ("mistral", "default"), ("groq", "default")]))
    def test_chat_kin(self, numbers: tuple[int, int, int, int, int], provider: tuple[str, str]) -> None:
        """DeepSeek, Mistral and Groq follow OpenAI."""
        prompt, cached, _, output, reasoning = numbers
        usage = {
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": output,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        assert read(usage, "openai-chat") == judge({"usage": usage}, *provider)

    @given(inclusive())
    def test_xai_reports_reasoning_beside_the_completion(self, numbers: tuple[int, int, int, int, int]) -> None:
        """The total gives it away."""
        prompt, cached, _, answer, reasoning = numbers
        usage = {
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": answer,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + answer + reasoning,
        }
        assert read(usage, "openai-chat") == judge({"usage": usage}, "x-ai", "chat")

    @given(inclusive())
    def test_openai_responses(self, numbers: tuple[int, int, int, int, int]) -> None:
        """The same with other names."""
        prompt, cached, written, output, reasoning = numbers
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
        }
        found = judge({"usage": usage}, "openai", "responses")
        assert read(usage, "openai-responses") == found

    @given(count, count, count, count, count)
    def test_anthropic(self, fresh: int, cached: int, written: int, thinking: int, answer: int) -> None:
        """Cache reads and writes are not part of the input."""
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "output_tokens": thinking + answer,
            "output_tokens_details": {"thinking_tokens": thinking},
        }
        found = judge({"usage": usage}, "anthropic", "default")
        assert read(usage, "anthropic") == found == WIRES["anthropic"].billed_usage(usage)

    @given(inclusive(), count)
    def test_gemini(self, numbers: tuple[int, int, int, int, int], tools: int) -> None:
        """The cache is part of the prompt; thoughts and tool prompts are separate."""
        prompt, cached, _, candidates, thoughts = numbers
        usage = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": cached,
            "candidatesTokenCount": candidates,
            "thoughtsTokenCount": thoughts,
            "toolUsePromptTokenCount": tools,
        }
        found = judge({"usageMetadata": usage}, "google", "default")
        assert read(usage, "gemini") == found

    @given(count, count, count, count)
    def test_bedrock(self, fresh: int, cached: int, written: int, output: int) -> None:
        """Converse counts the cache separately from the input."""
        usage = {
            "inputTokens": fresh,
            "cacheReadInputTokens": cached,
            "cacheWriteInputTokens": written,
            "outputTokens": output,
        }
        assert read(usage, "bedrock") == judge({"usage": usage}, "aws", "default")


class TestCacheReadTokensCountedTwice:
    """failures.md: cache-read tokens counted twice or not at all."""

    def test_one_step_in_every_convention(self) -> None:
        """The same step has the same size with every provider."""
        expected = Usage(input=300, cache_read=700, cache_write=100, output=50, reasoning=20)
        chat = {
            "prompt_tokens": 1000,
            "prompt_tokens_details": {"cached_tokens": 700, "cache_write_tokens": 100},
            "completion_tokens": 50,
            "completion_tokens_details": {"reasoning_tokens": 20},
        }
        claude = {
            "input_tokens": 200,
            "cache_read_input_tokens": 700,
            "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
            "output_tokens": 50,
            "output_tokens_details": {"thinking_tokens": 20},
        }
        assert read(chat, "openai-chat") == read(claude, "anthropic") == expected
        assert expected.total == 1050

    def test_deepseek_and_moonshot_keys(self) -> None:
        """Hits have names of their own and are inside the prompt."""
        deepseek = {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}
        assert read({**deepseek, "completion_tokens": 5}, "openai-chat") == Usage(36, 64, 0, 5)
        assert read({"prompt_tokens": 100, "cached_tokens": 64}, "openai-chat") == Usage(36, 64)

    def test_ollama_keys(self) -> None:
        """Ollama's own API counts evaluations."""
        assert read({"prompt_eval_count": 26, "eval_count": 298}, "openai-chat") == Usage(26, output=298)

    def test_gemini_as_the_sdk_spells_it(self) -> None:
        """A dumped SDK object has snake case."""
        usage = {"prompt_token_count": 10, "cached_content_token_count": 4, "candidates_token_count": 3}
        assert read({**usage, "thoughts_token_count": 2}, "gemini") == Usage(6, 4, 0, 5, 2)


class TestIterations:
    entries = (
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 20_000, "cache_read_input_tokens": 1_000, "output_tokens": 400},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    )

    def test_the_last_message_is_the_context(self) -> None:
        """Neither the compaction nor the sum of a tool loop is the size of the context."""
        usage = {"input_tokens": 43_000, "output_tokens": 1_400, "iterations": list(self.entries)}
        assert read(usage, "anthropic") == Usage(input=23_000, output=1_000)
        assert read({**usage, "iterations": [*self.entries, self.entries[0]]}, "anthropic").total == 24_000

    def test_all_iterations_are_billed(self) -> None:
        """The compaction is paid for though the top level leaves it out."""
        usage = {"input_tokens": 43_000, "output_tokens": 1_400, "iterations": list(self.entries)}
        assert WIRES["anthropic"].billed_usage(usage) == Usage(input=223_000, cache_read=1_000, output=4_900)

    def test_a_compaction_entry_is_not_the_size_of_the_context(self) -> None:
        """An on-demand compaction shows 0 and 0."""
        usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [self.entries[0]]}
        assert read(usage, "anthropic") == Usage()
        assert WIRES["anthropic"].billed_usage(usage).total == 183_500


KEYS = [
    "prompt_tokens",
    "prompt_tokens_details",
    "completion_tokens",
    "completion_tokens_details",
    "total_tokens",
    "input_tokens",
    "iterations",
    "input_tokens_details",
    "output_tokens",
    "output_tokens_details",
    "cache_read_input_tokens",
    "cache_creation",
    "inputTokens",
    "cache_creation_input_tokens",
    "promptTokenCount",
    "cachedContentTokenCount",
    "thoughtsTokenCount",
    "outputTokens",
]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens", "type", "input_tokens"]), inner)
    ),
    max_leaves=8,
)


class TestJunk:
    @given(st.dictionaries(st.sampled_from(KEYS), junk), st.sampled_from(FORMATS))
    def test_junk_counts_as_nothing(self, usage: dict[str, object], format: str) -> None:
        """Nothing raises; counts are never negative; parts stay within their wholes."""
        for found in (read(usage, format), WIRES[format].billed_usage(usage)):
            assert min(found.input, found.cache_read, found.cache_write, found.output, found.reasoning) >= 0
            assert found.cache_write <= found.input and found.reasoning <= found.output

    @pytest.mark.parametrize("format", FORMATS)
    def test_nothing_is_zero(self, format: str) -> None:
        """No usage at all is a usage of nothing."""
        assert read(None, format) == read({}, format) == WIRES[format].billed_usage(None) == Usage()

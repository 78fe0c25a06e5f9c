"""What a step used, in one convention, from the usage object of any provider.

Providers disagree on whether cache reads are part of the input and reasoning part of the output; here, and nowhere
else, each convention is undone. Invariant: a token is counted once, and junk counts as nothing rather than raising.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from kompakt.model.budget import Usage


def normalize(usage: Mapping[str, object] | None, format: str) -> Usage:
    """Read a provider's usage object as the size of the context after the step."""
    reader = _reader(format)
    return Usage() if usage is None else reader(usage)


def billed(usage: Mapping[str, object] | None, format: str) -> Usage:
    """Read a provider's usage object as what is paid for, server-side compactions included."""
    reader = _reader(format)
    if usage is None:
        return Usage()
    iterations = _iterations(usage) if format == "anthropic" else []
    if not iterations:
        return reader(usage)
    parts = [_anthropic_counts(entry) for entry in iterations]
    return Usage(
        input=sum(part.input for part in parts),
        cache_read=sum(part.cache_read for part in parts),
        cache_write=sum(part.cache_write for part in parts),
        output=sum(part.output for part in parts),
        reasoning=sum(part.reasoning for part in parts),
    )


def _reader(format: str) -> Callable[[Mapping[str, object]], Usage]:
    try:
        return _READERS[format]
    except KeyError:
        raise ValueError(f"format={format!r} is not known; use one of {', '.join(_READERS)}") from None


def _openai_chat(usage: Mapping[str, object]) -> Usage:
    # DeepSeek: prompt_cache_hit_tokens; Moonshot: cached_tokens at the top; Ollama's own API: *eval_count.
    prompt = _first(usage, "prompt_tokens", "prompt_eval_count")
    cached = _first(usage, "prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens", "cached_tokens")
    written = _first(usage, "prompt_tokens_details.cache_write_tokens")
    output = _first(usage, "completion_tokens", "eval_count")
    reasoning = _first(usage, "completion_tokens_details.reasoning_tokens")
    # xAI reports reasoning beside the completion; its total gives that away.
    if reasoning and _first(usage, "total_tokens") == prompt + output + reasoning:
        output += reasoning
    return _inclusive(prompt, cached=cached, written=written, output=output, reasoning=reasoning)


def _openai_responses(usage: Mapping[str, object]) -> Usage:
    return _inclusive(
        _first(usage, "input_tokens"),
        cached=_first(usage, "input_tokens_details.cached_tokens"),
        written=_first(usage, "input_tokens_details.cache_write_tokens"),
        output=_first(usage, "output_tokens"),
        reasoning=_first(usage, "output_tokens_details.reasoning_tokens"),
    )


def _anthropic(usage: Mapping[str, object]) -> Usage:
    # The last `message` iteration is the size of the context; a `compaction` entry says nothing about it, and the top
    # level sums the turns of a server-side tool loop (BetaUsage.iterations).
    messages = [entry for entry in _iterations(usage) if entry.get("type") == "message"]
    return _anthropic_counts(messages[-1] if messages else usage)


def _anthropic_counts(usage: Mapping[str, object]) -> Usage:
    by_life = ("cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens")
    written = _first(usage, "cache_creation_input_tokens") or sum(_first(usage, path) for path in by_life)
    return _exclusive(
        _first(usage, "input_tokens"),
        cached=_first(usage, "cache_read_input_tokens"),
        written=written,
        output=_first(usage, "output_tokens"),
        reasoning=_first(usage, "output_tokens_details.thinking_tokens"),
    )


def _gemini(usage: Mapping[str, object]) -> Usage:
    thoughts = _first(usage, "thoughtsTokenCount", "thoughts_token_count")
    prompt = _first(usage, "promptTokenCount", "prompt_token_count")
    return _inclusive(
        prompt + _first(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        cached=_first(usage, "cachedContentTokenCount", "cached_content_token_count"),
        written=0,
        output=_first(usage, "candidatesTokenCount", "candidates_token_count") + thoughts,
        reasoning=thoughts,
    )


def _bedrock(usage: Mapping[str, object]) -> Usage:
    return _exclusive(
        _first(usage, "inputTokens"),
        cached=_first(usage, "cacheReadInputTokens"),
        written=_first(usage, "cacheWriteInputTokens"),
        output=_first(usage, "outputTokens"),
        reasoning=0,
    )


_READERS: dict[str, Callable[[Mapping[str, object]], Usage]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}


def _inclusive(prompt: int, *, cached: int, written: int, output: int, reasoning: int) -> Usage:
    """Take the cache reads out of a prompt that contains them."""
    cached = min(cached, prompt)
    return Usage(
        input=prompt - cached,
        cache_read=cached,
        cache_write=min(written, prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def _exclusive(fresh: int, *, cached: int, written: int, output: int, reasoning: int) -> Usage:
    """Put the cache writes into an input that leaves them out."""
    return Usage(
        input=fresh + written,
        cache_read=cached,
        cache_write=written,
        output=output,
        reasoning=min(reasoning, output),
    )


def _iterations(usage: Mapping[str, object]) -> list[Mapping[str, object]]:
    entries = usage.get("iterations")
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        return []
    items = cast("Sequence[object]", entries)
    return [cast("Mapping[str, object]", entry) for entry in items if isinstance(entry, Mapping)]


def _first(usage: Mapping[str, object], *paths: str) -> int:
    """Return the first count above zero among paths of one or two keys."""
    for path in paths:
        holder, _, key = path.rpartition(".")
        details = usage.get(holder) if holder else usage
        if isinstance(details, Mapping) and (count := _count(cast("Mapping[str, object]", details).get(key))):
            return count
    return 0


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    # Written so that NaN fails it; an infinite count is junk as well.
    return int(value) if 0 < value < float("inf") else 0

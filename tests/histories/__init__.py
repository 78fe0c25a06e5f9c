"""Valid histories to test with, as Hypothesis strategies and as plain builders.

They exist so that every test draws from one idea of what users send; the one invariant is that each body is
accepted by the judge of its format.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from hypothesis.strategies import SearchStrategy

Body: TypeAlias = dict[str, Any]

FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


def bodies(format: str, *, max_turns: int = 3, max_steps: int = 3, max_batch: int = 5) -> SearchStrategy[Body]:
    """Return a strategy of whole request bodies; a turn has up to ``max_steps`` model calls."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    module = import_module(f"tests.histories.{format.replace('-', '_')}")
    strategy: SearchStrategy[Body] = module.bodies(max_turns=max_turns, max_steps=max_steps, max_batch=max_batch)
    return strategy

"""The built-in strategies under the name that users import them by."""

from kompakt.engine.strategies import (
    OutputCollapsing,
    OutputPruning,
    OverflowByRounds,
    Shortening,
    SlidingWindow,
    SourceAttribution,
    Strategy,
    Summarization,
    TokenBudget,
    ToolCallRemoval,
    Truncation,
)
from kompakt.engine.summary import Material, Summarizer

__all__ = [
    "Material",
    "OutputCollapsing",
    "OutputPruning",
    "OverflowByRounds",
    "Shortening",
    "SlidingWindow",
    "SourceAttribution",
    "Strategy",
    "Summarization",
    "Summarizer",
    "TokenBudget",
    "ToolCallRemoval",
    "Truncation",
]

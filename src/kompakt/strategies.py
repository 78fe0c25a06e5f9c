"""The built-in strategies under the name that users import them by."""

from kompakt.engine.pivot.pivot import Material, Summarizer
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

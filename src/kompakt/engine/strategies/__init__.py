"""The built-in strategies, one module each. Any async callable on a context serves beside them."""

from kompakt.engine.strategies.exclusion import SlidingWindow, SourceAttribution, ToolCallRemoval, Truncation
from kompakt.engine.strategies.outputs import OutputCollapsing, OutputPruning
from kompakt.engine.strategies.overflow_by_rounds import OverflowByRounds
from kompakt.engine.strategies.shortened_results import Shortening
from kompakt.engine.strategies.strategy import Strategy, TokenBudget
from kompakt.engine.strategies.summarization import Summarization

__all__ = [
    "OutputCollapsing",
    "OutputPruning",
    "OverflowByRounds",
    "Shortening",
    "SlidingWindow",
    "SourceAttribution",
    "Strategy",
    "Summarization",
    "TokenBudget",
    "ToolCallRemoval",
    "Truncation",
]

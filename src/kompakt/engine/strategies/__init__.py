"""The built-in strategies, one module each. Any async callable on a context serves beside them."""

from kompakt.engine.strategies.collapsed_outputs import OutputCollapsing
from kompakt.engine.strategies.overflow_by_rounds import OverflowByRounds
from kompakt.engine.strategies.pruned_outputs import OutputPruning
from kompakt.engine.strategies.shortened_results import Shortening
from kompakt.engine.strategies.sliding_window import SlidingWindow
from kompakt.engine.strategies.source_attribution import SourceAttribution
from kompakt.engine.strategies.strategy import Strategy
from kompakt.engine.strategies.summarization import Summarization
from kompakt.engine.strategies.token_budget import TokenBudget
from kompakt.engine.strategies.tool_call_removal import ToolCallRemoval
from kompakt.engine.strategies.truncation import Truncation

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

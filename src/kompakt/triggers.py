"""Triggers and targets under the name that users import them by: when a strategy is due, and the size it aims for."""

from kompakt.engine.strategies.strategy import (
    Target,
    Trigger,
    always,
    every,
    over_bytes,
    over_groups,
    over_messages,
    over_tokens,
)

__all__ = ["Target", "Trigger", "always", "every", "over_bytes", "over_groups", "over_messages", "over_tokens"]

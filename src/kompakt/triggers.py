"""Triggers and targets under the name that users import them by: when a strategy is due, and how far it comes down."""

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

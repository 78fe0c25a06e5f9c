"""Conditions under which a strategy runs."""

from kompakt.engine.triggers import Trigger, always, every, over_bytes, over_messages, over_tokens

__all__ = ["Trigger", "always", "every", "over_bytes", "over_messages", "over_tokens"]

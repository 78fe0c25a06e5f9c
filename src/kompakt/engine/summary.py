"""What a summariser is given and gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from kompakt.model.messages import Message


class Material(msgspec.Struct, frozen=True):
    """What is to be left out, for a summariser to put into words."""

    messages: tuple[Message, ...]
    """The messages, oldest first, as they were."""
    references: tuple[str, ...]
    """Their references, in the same order."""
    earlier: str | None
    """The summary that an earlier pass made, to be folded in."""
    max_tokens: int
    count: Callable[[str], int]
    instructions: str | None = None


Summarizer: TypeAlias = Callable[[Material], str | Awaitable[str]]
"""Turns what is to be left out into text; may await. An empty answer means: leave things as they are."""

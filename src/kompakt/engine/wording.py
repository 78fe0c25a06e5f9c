"""The sentences the engine puts into a projection.

Each is fixed and marked, so that the same history gives the same bytes and nobody takes it for the user's words.
"""

from __future__ import annotations

import re

PIVOT_QUESTION = "[kompakt] What was done so far?"
"""The user's side of a pivot."""

RUNTIME_LINE = "[kompakt] Earlier steps were left out; go on from here."
"""Stands on the user's side before a tail that begins with the assistant, where roles must alternate."""

ASSISTANT_LINE = "[kompakt] Earlier steps were left out."
"""Stands on the assistant's side between results and a request, where the two may not share a message."""

PINNED_NOTE = "[kompakt] Pinned, to be honoured as it stands:"
"""Begins the message that carries pinned texts which no kept message contains."""

OPEN_ROUND_NOTE = "[kompakt] The newest tool calls and what they answered:"
"""Begins the text that stands for an open tool round where its signed reasoning can no longer be sent."""

OWN_LINES = (PIVOT_QUESTION, RUNTIME_LINE)
"""What kompakt says on the user's side, word for word: never a request. Pinned texts are known by their seal."""


def pruned_placeholder(reference: str, tokens: int) -> str:
    """Stand in for a tool output that was hidden."""
    return f"[kompakt] Output of about {tokens} tokens hidden; recall {reference} restores it."


def collapsed_placeholder(reference: str, first_line: str, lines: int) -> str:
    """Stand in for a tool output of which one line is kept."""
    return f"{first_line}\n[kompakt] {lines} lines in all; recall {reference} restores them."


def hidden_media_note(reference: str) -> str:
    """Stand behind a text whose picture or file is not shown."""
    return f"\n[kompakt] A picture or file is hidden here; recall {reference} restores it."


def cut_note(reference: str, tokens: int) -> str:
    """Stand between head and tail of a shortened text."""
    return f"\n[kompakt] … about {tokens} tokens left out here; recall {reference} restores them …\n"


FOLD = "⋯ "
"""Begins what stands, in an output compressed at admission, for lines that are not shown: their first and last."""

_ADMITTED = re.compile(
    r"\[kompakt\] [^\n]{1,80}; recall \S{1,80} (?:restores them|is the same|gives it as it came)\.\Z"
)


def folded_note(reference: str, folded: int, lines: int) -> str:
    """End an output of which lines were folded at admission."""
    if not folded:
        return f"[kompakt] Written shorter, nothing left out; recall {reference} gives it as it came."
    return f"[kompakt] {folded} of {lines} lines folded; recall {reference} restores them."


def repeated_note(reference: str, lines: int) -> str:
    """Stand for an output that was shown before, word for word."""
    return f"[kompakt] The same {lines} lines as before; recall {reference} is the same."


def seen_mark(reference: str, lines: str) -> str:
    """Stand, inside an output, for lines that were shown before."""
    return f"{FOLD}{lines} as in {reference}"


def is_admitted(text: str) -> bool:
    """Tell whether a text ends in a note of admission."""
    return _ADMITTED.search(text, max(0, len(text) - 260)) is not None

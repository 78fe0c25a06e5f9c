"""What a context knows of each message, as values that can be stored beside it.

A count is valid for one content and one counter only; both are in the annotation, so a stale one is noticed and
counted anew instead of trusted.
"""

from __future__ import annotations

import msgspec


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one message in a context; serialisable as JSON."""

    group: int
    tokens: int
    counter: str
    """The name of the counter that counted."""
    content: str
    """A hash of the content that was counted."""
    excluded: str | None = None
    """Why the message is not shown to the model."""
    pruned: tuple[int, ...] = ()
    """Parts whose output is hidden."""
    pinned: bool = False
    summarized_by: str | None = None
    """The name of the summary that stands for this message."""
    summary: str | None = None
    """What that summary says; at the last message it stands for, so that the links can be followed both ways."""
    source_id: str | None = None


class Action(msgspec.Struct, frozen=True):
    """One thing done to one message or part, for the report."""

    reference: str
    what: str
    """excluded, included, pruned, restored, shortened, summarized, stripped, pinned."""
    why: str
    tokens: int
    """Tokens it saved; negative when it brought some back."""

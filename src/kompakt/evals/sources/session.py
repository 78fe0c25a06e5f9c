"""What an evaluation runs on: one recorded session as a request body, with what is known about it.

One invariant: every text, call and result of the recording is in the body; whatever the provider would object to,
and whatever was left out because it said nothing, is named in ``notes``.
"""

from __future__ import annotations

import msgspec

from kompakt.model.messages import JsonObject


class Question(msgspec.Struct, frozen=True):
    """A question that the session answers, and where."""

    text: str
    answer: str | None
    """``None`` when the session does not say: the right answer is to say so."""
    evidence: tuple[str, ...] = ()
    """The recording's own names of the turns that hold the answer."""
    messages: tuple[int, ...] = ()
    """The same turns as positions in the body."""
    category: str = ""
    trap: str | None = None
    """An answer that sounds right and is not."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded session."""

    name: str
    source: str
    format: str
    body: JsonObject
    ids: tuple[str | None, ...] = ()
    """Assistant ids by wire message, where the recording has them."""
    usages: tuple[tuple[int, JsonObject], ...] = ()
    times: tuple[tuple[int, float], ...] = ()
    """Assistant wire message to the second at which it began, where the recording says."""
    summaries: frozenset[int] = frozenset()
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()

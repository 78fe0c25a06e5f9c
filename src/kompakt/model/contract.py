"""The shape that a provider requires of a history, as a value.

Each wire package supplies one ``Contract``. The engine follows it and never imports a wire module. A contract has only
what decides how a history may be *shaped*; all rules are in ``Wire.problems``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

ResultLayout: TypeAlias = Literal["own-message", "after-run", "next-user-message"]
"""The place of results.

- ``own-message``: each in its own message, directly after the message with the calls.
- ``after-run``: each as its own item, after the model's run of items.
- ``next-user-message``: all results of one answer in the next user message, before any text.
"""

PrefixRule: TypeAlias = Literal["strip-all", "with-its-item", "keep-current-turn", "keep-with-calls"]
"""What happens to signed reasoning after a changed prefix.

- ``strip-all``: it is rejected, so all of it is removed from the kept turns at once.
- ``with-its-item``: it is ignored; it is kept or dropped with the item that it led to.
- ``keep-current-turn``: it is bound to its part, not to the prefix; the newest turn needs it unchanged.
- ``keep-with-calls``: plain text that turns with calls must have.
"""


class IdRule(msgspec.Struct, frozen=True):
    """The rule for ids of calls."""

    pattern: str
    """A regular expression that the whole id matches."""
    max_length: int
    scope: Literal["message", "request", "none"]
    """Where an id must be unique; ``none``: ids are optional, may repeat and are never renamed."""


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """The shape that one provider accepts."""

    format: str
    results: ResultLayout
    alternates: bool
    """Whether user and assistant alternate; adjacent messages of one role are merged."""
    prefix_rule: PrefixRule
    ids: IdRule
    system_in_messages: bool = True
    """Whether the system prompt is a message; otherwise it is in the body."""
    merges_results: bool = True
    """Whether a message with results may also contain the next user text."""
    separate_output: bool = False
    """Whether prompt and answer have separate limits, so that nothing of the window is reserved for the answer."""
    max_messages: int | None = None

"""What a provider demands of a history, as a value.

Each wire module supplies one ``Contract``; the engine obeys it and so never imports a wire module. A contract
holds only what decides how a history may be *shaped*; the full list of rules is the wire module's ``problems``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

ResultLayout: TypeAlias = Literal["own-message", "after-run", "next-user-message"]
"""Where results stand.

``own-message``: each in a message of its own, directly behind the message that made the calls.
``after-run``: each an item of its own, behind the model's run of items.
``next-user-message``: all of one answer in the user message that follows it, before any text.
"""

PrefixRule: TypeAlias = Literal["strip-all", "with-its-item", "keep-current-turn", "keep-with-calls"]
"""What becomes of signed reasoning behind a changed prefix.

``strip-all``: it is refused, so all of it leaves the kept turns in one go.
``with-its-item``: it is ignored; it stays or goes with the item it led to.
``keep-current-turn``: it is bound to its part, not to the prefix; the newest turn needs it unchanged.
``keep-with-calls``: plain text that turns with calls must carry.
"""


class IdRule(msgspec.Struct, frozen=True):
    """What the id of a call may look like."""

    pattern: str
    """A regular expression that the whole id matches."""
    max_length: int
    scope: Literal["message", "request", "none"]
    """Where an id may name one call only; ``none``: ids are optional, may repeat and are never renamed."""


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """The shape one provider accepts."""

    format: str
    results: ResultLayout
    alternates: bool
    """User and assistant must take turns; adjacent messages of one role are merged."""
    starts_with_user: bool
    ends_with_assistant: bool
    """Whether the newest message may be the assistant's own (a prefill)."""
    prefix_rule: PrefixRule
    ids: IdRule
    max_cache_breakpoints: int | None = None
    needs_tools: bool = False
    """Tool definitions must be sent while any call or result is in the history."""
    empty_text: bool = True
    """Whether a text may be empty."""
    system_in_messages: bool = True
    """Whether system text is a message; otherwise it travels in the envelope."""
    merges_results: bool = True
    """Whether a message with results may also carry what the user says next."""
    separate_output: bool = False
    """Whether prompt and answer have limits of their own, so that nothing of the window is kept free for the answer."""
    max_messages: int | None = None
    max_request_bytes: int | None = None

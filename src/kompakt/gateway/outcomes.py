"""Outcomes of a request: the values used in headers, log fields and metric labels.

Every response to a provider request has one outcome. A request that is passed through unchanged also has a reason, so
that users and operators can see which clients are not protected.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

OUTCOME_HEADER = "x-kompakt-outcome"
UNTOUCHED_HEADER = "x-kompakt-untouched"

Disposition: TypeAlias = Literal[
    "fits", "substituted", "compacted", "oversized", "counted", "untouched", "refused", "failed"
]

Untouched: TypeAlias = Literal[
    "provider-history",
    "provider-cache",
    "provider-compaction",
    "no-messages",
    "unreadable-message",
    "not-a-conversation",
]

OUTCOMES: dict[str, str] = {
    "fits": "no compaction was needed; the messages were sent unchanged",
    "substituted": "an earlier compaction replaced the start of the history",
    "compacted": "a compaction was made for this request",
    "oversized": "a compaction was due but not possible; the messages were sent unchanged",
    "counted": "the request counts tokens and is not compacted",
    "untouched": "the request was passed through unchanged; x-kompakt-untouched has the reason",
    "refused": "the gateway rejected the request; x-kompakt-refusal has the reason",
    "failed": "the provider could not be reached or broke off; x-kompakt-refusal has the reason",
}

UNTOUCHED: dict[str, str] = {
    "provider-history": "the provider stores the history (previous_response_id or conversation)",
    "provider-cache": "the history starts in content that the provider caches (cachedContent)",
    "provider-compaction": "the client asked the provider to compact the history (context_management or compaction)",
    "no-messages": "the body has no list of messages",
    "unreadable-message": "a message has an unknown form",
    "not-a-conversation": "the endpoint is not for conversations",
}

PROTECTED = frozenset[str](["fits", "substituted", "compacted"])
"""Outcomes after which the client's history is recorded and kept within the window."""


def outcome_of_error(code: str) -> Disposition:
    """Return the outcome of a request that the gateway answers with an error of its own."""
    return "failed" if code.startswith("upstream_") else "refused"

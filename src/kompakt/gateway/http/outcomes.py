"""What happened to a request: the words used in headers, log fields and metric labels.

Every answer to a provider request carries one outcome. A request that the gateway does not look into carries the reason
too, so that an unprotected client is visible to its user and its operator.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

OUTCOME_HEADER = "x-kompakt-outcome"
UNTOUCHED_HEADER = "x-kompakt-untouched"

Disposition: TypeAlias = Literal["fits", "substituted", "compacted", "oversized", "counted", "untouched", "refused"]

Untouched: TypeAlias = Literal[
    "provider-history",
    "provider-cache",
    "provider-compaction",
    "no-messages",
    "unreadable-message",
    "not-a-conversation",
]

OUTCOMES: dict[str, str] = {
    "fits": "nothing had to leave the context; the messages went to the provider as they came",
    "substituted": "an earlier compaction replaced the start of the history",
    "compacted": "a compaction was made for this request",
    "oversized": "a compaction was due but could not be made; the messages went to the provider as they came",
    "counted": "the request counts tokens; nothing is compacted for it",
    "untouched": "the gateway left the request alone; x-kompakt-untouched has the reason",
    "refused": "the gateway answered itself; x-kompakt-refusal has the reason",
}

UNTOUCHED: dict[str, str] = {
    "provider-history": "the provider keeps the history (previous_response_id or conversation)",
    "provider-cache": "the history starts in content that the provider caches (cachedContent)",
    "provider-compaction": "the client asked the provider to compact the history (context_management or compaction)",
    "no-messages": "the body holds no list of messages",
    "unreadable-message": "a message has a form that the gateway does not know",
    "not-a-conversation": "the endpoint holds no conversation",
}

PROTECTED = frozenset[str](["fits", "substituted", "compacted"])
"""Outcomes after which the client's history is recorded and kept within the window."""

"""Answers of a summarizer: good and bad ones."""

from __future__ import annotations

import re

from tests.provider.answer import Answer, Seen

ASKS = re.compile(r"summar|compact(?:ed|ion|ing)?\b|condens", re.IGNORECASE)
NOTE = re.compile(r"[^.\n]{10,160}[.\n]")
NOTES = 12


def asks_for_summary(seen: Seen) -> bool:
    """Say whether a request without tools wants a summary, from its system text or its last message."""
    first = seen.items[0] if isinstance(seen.items[0], dict) else {}
    instructions = str(first.get("content")) if first.get("role") in ("system", "developer") else ""
    return not seen.tools and any(ASKS.search(text) for text in (str(seen.system or ""), seen.closing, instructions))


def good(seen: Seen) -> Answer:
    """Summarize: sentences taken evenly from all that was sent."""
    notes = NOTE.findall(max(seen.leaves, key=len, default=""))
    kept = notes[:: max(1, len(notes) // NOTES)][:NOTES]
    return Answer(text="Summary of the work so far.\n" + "\n".join(f"- {note.strip()}" for note in kept))


def empty(seen: Seen) -> Answer:
    """Say nothing."""
    return Answer()


def garbage(seen: Seen) -> Answer:
    """Say something that is no summary."""
    return Answer(text='\x00\ufffd{"]]> <|im_end|> ' + "�" * 40)


def huge(seen: Seen) -> Answer:
    """Say more than was sent."""
    sent = sum(len(leaf) for leaf in seen.leaves)
    return Answer(text="All of it matters, word for word. " * (sent // 16 + 100))


def refusing(seen: Seen) -> Answer:
    """Decline."""
    return Answer(text="I can't help with that.", stop="refusal")

"""Codex: what its hooks answer, and which entries ``kompakt install codex`` writes.

Contracts as found by running the version ``TESTED``:

- Hooks run only after the user has trusted them in Codex, or with ``--dangerously-bypass-hook-trust``.
- SessionStart with source ``compact``: ``additionalContext`` becomes a developer message after the summary.
- PreCompact cannot add to the instructions of the summarizer, and PostCompact has no summary.
- PostToolUse cannot replace an output without being reported as blocked, and gets it already truncated. So kompakt does
  not hook it.
- Output with unknown keys is refused.
"""

from __future__ import annotations

from kompakt.hosts import events
from kompakt.hosts.response import HookResponse

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from typing import Any

AGENT = "codex"

TESTED = "0.166.0"
"""The version that the contracts are of."""


def answer(event: str, given: dict[str, Any], *, recall: bool = True) -> HookResponse:
    """Answer an event."""
    if event == "SessionStart":
        return events.session_start(AGENT, given, recall=recall)
    # Codex has no event for the end of a session; at the end of a turn its last answer is in the file.
    is_over = event == "Stop"
    work = events.recording(AGENT, given["session_id"], given.get("transcript_path") or "", is_over=is_over)
    if event == "PostCompact":
        return HookResponse(events.compared(AGENT, given, None), work)
    return HookResponse(after=work if event in ("PreCompact", "Stop") else None)

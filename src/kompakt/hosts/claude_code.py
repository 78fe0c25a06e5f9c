"""Claude Code: what its hooks answer, and which entries ``kompakt install claude-code`` writes.

Contracts as found by running the version ``TESTED``:

- PreCompact: plain text is appended to the summarizer's instructions. JSON with ``hookSpecificOutput`` is discarded.
  The event may fire several times for one compaction.
- SessionStart with source ``compact``: ``additionalContext`` reaches the model whole up to 10,000 characters; a longer
  one is replaced by a preview of 2 KB.
- PostToolUse: ``updatedToolOutput`` must have the shape of the tool's own output, else it is dropped. The transcript
  then has only the new text. A clipped output has its full text in ``persistedOutputPath``; both keys about it must go
  from the replacement.
"""

from __future__ import annotations

import json
import os

from kompakt.hosts import events, places
from kompakt.hosts.response import HookResponse

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

AGENT, PROGRAM = "claude-code", "claude"

TESTED = "2.1.325"
"""The version that the contracts are of."""

MIN_OUTPUT = 12_000
"""Characters of an output that is worth shortening: about 3,000 tokens."""

MAX_OUTPUT = 20_000_000
"""Characters of the largest output that is read while the agent waits."""

MAX_SHORT = 16_000
"""Characters of the largest short form of an output that the host already clipped to a preview."""

TEXT_FIELDS = {"Bash": "stdout", "Grep": "content"}
"""Built-in tools whose output is shortened, and the field with its text; tools of MCP servers, too. Not file reads: an
agent edits what it has read."""

OWN_TOOLS = "kompakt__"
"""Part of the names of our own tools. What was recalled is wanted whole."""

MATCHER = f"{'|'.join(TEXT_FIELDS)}|mcp__(?!{OWN_TOOLS}).*"
"""Tools whose outputs are read."""

RECORDED = ("Stop", "SubagentStop", "SessionEnd")
"""Events after which the session is recorded and that need no answer."""


def answer(event: str, given: dict[str, Any], *, recall: bool = True) -> HookResponse:
    """Answer an event."""
    if event == "PostToolUse":
        return HookResponse(_shortened(given))
    if event == "SessionStart":
        return events.session_start(AGENT, given, recall=recall)
    if event == "PreCompact":
        from kompakt.hosts import notes  # late: takes 0.2 s

        return HookResponse(notes.before_compaction(notes.read_transcript(given["transcript_path"])), _recording(given))
    if event == "PostCompact":
        return HookResponse(events.compared(AGENT, given, given.get("compact_summary") or ""))
    if event == "statusline":
        return HookResponse(status_line(given))
    if event in RECORDED:
        return HookResponse(after=_recording(given, is_over=event in ("SubagentStop", "SessionEnd")))
    return HookResponse()


def _recording(given: dict[str, Any], *, is_over: bool = False) -> Callable[[], object] | None:
    """Return the work that records the session of an event; sub-agents have sessions and transcripts of their own."""
    session: str = given["session_id"]
    transcript: str = given.get("transcript_path") or ""
    agent = given.get("agent_id")
    if given.get("hook_event_name") == "SubagentStop" and agent:
        session, transcript = f"{session}/agent-{agent}", given.get("agent_transcript_path") or ""
    return events.recording(AGENT, session, transcript, is_over=is_over)


def _shortened(given: dict[str, Any]) -> str:
    """Return the replacement of a very large output, as JSON; empty if it stays."""
    found = _text_of(given["tool_name"], given.get("tool_response"))
    if found is None or not MIN_OUTPUT <= len(found.text) <= MAX_OUTPUT:
        return ""
    from kompakt.hosts import recorder  # late: takes 0.5 s

    short = recorder.shorten(
        AGENT,
        given["session_id"],
        call_id=given["tool_use_id"],
        tool=given["tool_name"],
        call_input=given.get("tool_input"),
        output=found.text,
    )
    if short is None or (found.is_clipped and len(short) > MAX_SHORT):
        return ""
    changed = {"hookEventName": "PostToolUse", "updatedToolOutput": found.replaced(short)}
    return json.dumps({"hookSpecificOutput": changed})


class _LargeOutput:
    """The text in the output of a tool, and the same output with another text."""

    def __init__(self, text: str, replaced: Callable[[str], object], *, is_clipped: bool = False) -> None:
        self.text = text
        self.replaced = replaced
        self.is_clipped = is_clipped
        """Whether the host shows only the beginning of the text."""


def _text_of(tool: str, response: Any) -> _LargeOutput | None:
    """Find the text of an output that may be shortened."""
    if tool.startswith("mcp__"):
        return None if OWN_TOOLS in tool or "read" in tool or "file" in tool else _mcp_text(response)
    field = TEXT_FIELDS.get(tool)
    if field is None or not isinstance(response, dict) or not isinstance(response.get(field), str):
        return None
    if response.get("isImage"):
        return None
    output: dict[str, Any] = {key: value for key, value in response.items() if not key.startswith("persistedOutput")}
    path = response.get("persistedOutputPath")
    text = _read(path) if isinstance(path, str) else response[field]
    return _LargeOutput(text, lambda short: {**output, field: short}, is_clipped=isinstance(path, str))


def _mcp_text(response: Any) -> _LargeOutput | None:
    """Find the text of an output of an MCP tool: a string, or a list with one block, which is text."""
    if isinstance(response, str):
        return _LargeOutput(response, lambda short: short)
    block = response[0] if isinstance(response, list) and len(response) == 1 else None
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        return None
    return _LargeOutput(block["text"], lambda short: [{**block, "text": short}])


def _read(path: str) -> str:
    if os.path.getsize(path) > MAX_OUTPUT:
        return ""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def status_line(given: dict[str, Any]) -> str:
    """Return a line for the status bar: how full the context is, how much of it is cached, what can be recalled."""
    window: dict[str, Any] = given.get("context_window") or {}
    usage: dict[str, Any] = window.get("current_usage") or {}
    parts: list[str] = []
    if isinstance(window.get("used_percentage"), int | float):
        parts.append(f"context {window['used_percentage']:.0f}%")
    read, written, fresh = (
        int(usage.get(key) or 0) for key in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
    )
    if read + written + fresh:
        parts.append(f"cached {100 * read / (read + written + fresh):.0f}%")
    try:
        with open(places.session_file(AGENT, given.get("session_id") or "", "size"), encoding="utf-8") as file:
            parts.append(f"{int(file.read()):,} messages recallable")
    except (OSError, ValueError):
        pass
    return " · ".join(parts)

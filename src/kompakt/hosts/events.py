"""Events that Claude Code and Codex have in common: start of a session, before and after a compaction, end of a turn.

Hooks import this module at events other than small tool outputs. What takes long to import is imported where it is
needed.
"""

from __future__ import annotations

import json
import os

from kompakt.hosts import places
from kompakt.hosts.response import HookResponse

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_CONTEXT = 9_500
"""Characters of additional context: Claude Code shows 10,000 whole and only a preview of more."""


def session_start(agent: str, given: dict[str, Any], *, recall: bool) -> HookResponse:
    """Note which session is current; after a compaction, return rules, refusals, tasks and the ledger."""
    transcript: str = given.get("transcript_path") or ""
    try:
        places.note_session(agent, given["session_id"], folder=given.get("cwd") or os.getcwd(), transcript=transcript)
    except OSError as error:
        places.log(f"{agent}: the current session cannot be noted: {error}")
    if not os.path.exists(transcript):
        return HookResponse()
    work = recording(agent, given["session_id"], transcript)
    if given.get("source") != "compact":
        return HookResponse(after=work)
    from kompakt.hosts import notes  # late: takes 0.2 s

    text = notes.after_compaction(notes.read_transcript(transcript), max_chars=MAX_CONTEXT, recall=recall)
    if not text:
        return HookResponse(after=work)
    output = {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}
    return HookResponse(json.dumps(output), work)


def recording(agent: str, session: str, transcript: str, *, is_over: bool = False) -> Callable[[], object] | None:
    """Return the work that records a session; ``None`` if there is no transcript."""
    if not transcript or not os.path.exists(transcript):
        return None

    def work() -> None:
        from kompakt.hosts import recorder  # late: takes 0.5 s

        recorder.record(agent, session, transcript, is_over=is_over)

    return work


def compared(agent: str, given: dict[str, Any], summary: str | None) -> str:
    """Compare the agent's summary with the ledger, write a report and return a line for the user, as JSON.

    Without a summary in the event, the newest one of the transcript is taken.
    """
    import msgspec  # late: takes 0.2 s

    from kompakt.hosts import notes

    history = notes.read_transcript(given["transcript_path"])
    if summary is None:
        summary = next((message.text for message in reversed(list(history)) if message.is_summary), None)
        if summary is None:
            return ""
    found = notes.compare(summary, notes.ledger_text(history, MAX_CONTEXT))
    report = {"trigger": given.get("trigger"), **msgspec.structs.asdict(found)}
    path = places.session_file(agent, given["session_id"], "compactions.jsonl")
    places.make_folder_of(path)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")
    if not found.statements:
        return ""
    if found.user_statements:
        text = f"kompakt: the summary kept {found.user_kept} of the {found.user_statements} requests and rules"
        text += f" that kompakt notes, and {found.kept} of {found.statements} facts in all"
    else:
        text = f"kompakt: the summary kept {found.kept} of {found.statements} facts; you stated no requests or rules"
    return json.dumps({"systemMessage": f"{text}; the model got the others after it"})

"""opencode and pi: what ``kompakt-hook`` answers to the plugins that ``kompakt install`` writes for them.

The plugins are small JavaScript files that pass events on. An answer is plain text: the short form of an output,
instructions for the agent's summarizer, or the notes that follow its summary.

Contracts as found by running opencode:

- ``experimental.session.compacting``: texts in ``output.context`` are appended to the summarizer's prompt.
- ``experimental.chat.messages.transform`` runs before every request. Its changes reach the model and are not stored.
- ``tool.execute.after``: the model gets ``output.output`` as the plugin leaves it; the database then has only that.
- Sessions are in SQLite. The session of an event is exported to a file, which the MCP server reads, too.

Contracts as found by running pi; those of 1.5.0 are documented as the same:

- ``context`` runs before every request with a copy of the messages; the summary of a compaction is one of them.
- ``tool_result``: the returned content reaches the model and the session file.
- An extension can replace the summary or cancel the compaction, but not add to the instructions for the summary.
"""

from __future__ import annotations

import os

from kompakt.hosts import events, places
from kompakt.hosts.response import HookResponse

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from typing import Any

OPENCODE, PI = "opencode", "pi"

TESTED = {OPENCODE: "1.18.33", PI: "0.73.1"}
"""The versions that the contracts are of."""

RECALL_LINE = (
    "To see anything from before the compaction in full, call the tool `recall` with words or with a reference such as "
    "m3f21."
)
"""pi has the tool without an MCP server."""


def answer(agent: str, event: str, given: dict[str, Any], *, recall: bool = True) -> HookResponse:
    """Answer an event of a plugin."""
    session: str = given["session_id"]
    if event == "PostToolUse":
        return HookResponse(_shortened(agent, given))
    transcript: str = places.session_file(OPENCODE, session, "json") if agent == OPENCODE else given["transcript_path"]
    if event == "SessionStart":
        places.note_session(agent, session, folder=given.get("cwd") or os.getcwd(), transcript=transcript)
    if agent == OPENCODE:
        opencode_export(session, may_be_new=event == "SessionStart")
    work = events.recording(agent, session, transcript, is_over=event == "Stop")
    if event in ("SessionStart", "Stop"):
        return HookResponse(after=work)
    if event == "Recall":
        from kompakt.hosts import recorder  # late: takes 0.5 s

        recorder.record(agent, session, transcript, is_over=True)
        return HookResponse(recorder.recall(agent, session, given["query"]))
    from kompakt.hosts import notes  # late: takes 0.2 s

    if event == "PreCompact":
        return HookResponse(notes.before_compaction(notes.read_transcript(transcript)), work)
    if event == "Notes":
        return HookResponse(_notes(agent, session, given["summary"], transcript, recall=recall), work)
    return HookResponse()


def _shortened(agent: str, given: dict[str, Any]) -> str:
    from kompakt.hosts import recorder  # late: takes 0.5 s

    short = recorder.shorten(
        agent,
        given["session_id"],
        call_id=given["tool_use_id"],
        tool=given["tool_name"],
        call_input=given.get("tool_input"),
        output=given["output"],
    )
    return short or ""


def _notes(agent: str, session: str, summary: str, transcript: str, *, recall: bool) -> str:
    """Return the notes that follow a summary. They are written once, because they are part of a cached prefix."""
    from kompakt.hosts import notes  # late: takes 0.2 s

    path = places.session_file(agent, f"{session}-{summary}", "notes")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return file.read()
    own = f"\n{RECALL_LINE}" if recall and agent == PI else ""
    room = events.MAX_CONTEXT - len(own)
    history = notes.read_transcript(transcript)
    text = notes.after_compaction(history, max_chars=room, recall=recall and agent != PI) + own
    places.write(path, text.encode("utf-8", "replace"))
    return text


# --- opencode --------------------------------------------------------------------------------------------------------


def opencode_export(session: str, *, may_be_new: bool = False) -> str:
    """Write a session of opencode to a file, in the shape of ``opencode export``, and return its path.

    One that ``may_be_new`` may be in no database yet: opencode writes it after the event about its first message.

    Raises:
        UnreadableFile: no database has the session.
    """
    import msgspec  # late: takes 0.1 s

    from kompakt import files
    from kompakt.errors import UnreadableFile

    databases = _databases()
    found = next((value for path in databases if (value := files.opencode_session(path, session))), None)
    path = places.session_file(OPENCODE, session, "json")
    if found is None and may_be_new:
        return path
    if found is None:
        where = f"session {session!r} is not in {' or '.join(databases)}" if databases else "opencode has no database"
        raise UnreadableFile(f"{where}; set OPENCODE_DB if its database is another file")
    places.write(path, msgspec.json.encode(found))
    return path


def _databases() -> list[str]:
    """List the databases of opencode; versions other than releases have names of their own."""
    named = os.environ.get("OPENCODE_DB")
    folder = os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share"), "opencode"
    )
    if named:
        return [os.path.join(folder, named)]  # an absolute path stays as it is
    if not os.path.isdir(folder):
        return []
    names = [name for name in os.listdir(folder) if name.startswith("opencode") and name.endswith(".db")]
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: (name != "opencode.db", name))]

"""The notes that an agent gets before and after its own compaction, taken from the transcript by code.

The notes need no store and no model: the transcript of the agent is read, and the engine's ledger is written into the
characters that the host allows. References are those of the recorded session, so that recall restores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from kompakt import files
from kompakt.engine.ledger.items import BULLET, STATE, USER, section_of
from kompakt.engine.ledger.ledger import Ledger, LedgerRequest
from kompakt.errors import UnreadableFile
from kompakt.model.messages import History, Message, ToolResult
from kompakt.model.phrases import AGENT_NOTES
from kompakt.model.references import References

if TYPE_CHECKING:
    from kompakt.session.session import Session

MAX_INSTRUCTIONS = 4_000
"""Characters added to the instructions of an agent's summarizer."""

RECALL_LINE = (
    "To see anything from before the compaction in full, call the tool `recall` of the MCP server kompakt with words "
    "or with a reference such as m3f21."
)

SUMMARY_RULES = (
    "Rules for this summary: repeat the user's requests, rules and refusals below word for word. Keep the state of "
    "each task, exact file paths, identifiers, commands and error messages. Do not report as done what was not done. "
    "Keep references in brackets such as [m3f21]."
)


def read_transcript(path: str, originals: Mapping[str, str] | None = None) -> History:
    """Read the session of a transcript file; ``originals`` are outputs, by call id, that were shortened in it.

    Raises:
        UnreadableFile: the file is no transcript.
    """
    transcript = files.load(path).transcript
    if transcript is None:
        raise UnreadableFile(f"{path}: not a transcript of a coding agent")
    if originals:
        transcript = msgspec.structs.replace(transcript, body=with_originals(transcript.body, originals))
    return files.history(transcript)


def with_originals(value: object, originals: Mapping[str, str]) -> object:
    """Put the originals of shortened outputs into a request body of any provider."""
    if isinstance(value, list):
        return [with_originals(item, originals) for item in value]
    if not isinstance(value, dict):
        return value
    call = value.get("tool_use_id") or value.get("call_id") or value.get("tool_call_id")
    original = originals.get(call) if isinstance(call, str) else None
    if original is not None:
        key = "output" if "output" in value else "content"
        return {**value, key: original}
    return {key: with_originals(item, originals) for key, item in value.items()}


async def originals_in(session: Session) -> dict[str, str]:
    """Return the tool outputs of a stored session by call id."""
    return {
        part.call_id: part.output
        async for page in session.pages()
        for message in page
        for part in message.parts
        if type(part) is ToolResult
    }


def ledger_text(history: History, max_chars: int) -> str:
    """Write the ledger of a whole history in at most ``max_chars`` characters."""
    return whole_ledger(list(history), References(history).names, room=max_chars, count=len, may_be_talk=False)


def whole_ledger(
    messages: Sequence[Message],
    references: Sequence[str],
    *,
    room: int,
    count: Callable[[str], int],
    sections: frozenset[str] | None = None,
    may_be_talk: bool = True,
) -> str:
    """Write the ledger of all messages, as if none were shown, within ``room`` as measured by ``count``."""
    spoken = [_unspoken(message) if message.is_summary else message for message in messages]
    ledger = Ledger()
    ledger.read(spoken, len(spoken))
    request = LedgerRequest(
        room=room,
        count=count,
        is_hidden=lambda _: True,
        reference=references.__getitem__,
        upto=len(spoken),
        sections=sections,
        may_be_talk=may_be_talk,
    )
    return ledger.write(request)


def _unspoken(message: Message) -> Message:
    """Mark a summary of the agent as the words of a program, because its role is that of the user."""
    return msgspec.structs.replace(message, source_id="summary")


def before_compaction(history: History) -> str:
    """Return instructions for the summarizer of an agent; empty when there is nothing to keep."""
    sections = dict(_sections(ledger_text(history, 2 * MAX_INSTRUCTIONS)))
    kept = [text for name in (USER, STATE) if (text := sections.get(name))]
    if not kept:
        return ""
    text = "\n".join([SUMMARY_RULES, *kept])
    return text if len(text) <= MAX_INSTRUCTIONS else text[:MAX_INSTRUCTIONS].rpartition("\n")[0]


def after_compaction(history: History, *, max_chars: int, recall: bool) -> str:
    """Return the note for an agent after its compaction; empty when there is nothing to note."""
    last = f"\n{RECALL_LINE}" if recall else ""
    text = ledger_text(history, max_chars - len(AGENT_NOTES) - len(last) - 1)
    return f"{AGENT_NOTES}\n{text}{last}" if text else ""


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield each section of a ledger with its text, heading included."""
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        if section := section_of(part.partition("\n")[0]):
            yield section, part.strip()


# --- what a summary kept --------------------------------------------------------------------------------------------

MIN_SHARE = 0.6
"""Share of the distinctive words of a statement that a summary must contain to count as having kept it."""

_WORD = re.compile(r"[\w./:@-]{4,}")
_REFERENCE = re.compile(r" ?\[m[0-9a-f]{4,40}(?:\.\d+)?\]")


class SummaryComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary of an agent contains of the ledger."""

    statements: int
    kept: int
    lost: tuple[str, ...]
    """Statements of the ledger that the summary does not contain; those of the user come first."""
    user_statements: int
    user_kept: int


def compare(summary: str, ledger: str) -> SummaryComparison:
    """Compare the summary of an agent with a ledger, statement by statement, by the words they share."""
    words = {word.strip(".:-").lower() for word in _WORD.findall(summary)}
    plain = " ".join(summary.split())
    counts, lost = {True: [0, 0], False: [0, 0]}, list[str]()
    for section, text in _sections(ledger):
        for line in text.split("\n")[1:]:
            if not line.startswith(BULLET):
                continue
            statement = _REFERENCE.sub("", line.removeprefix(BULLET))
            own = {word.strip(".:-").lower() for word in _WORD.findall(statement)}
            is_kept = " ".join(statement.split()) in plain or len(own & words) >= MIN_SHARE * max(1, len(own))
            counts[section == USER][0] += 1
            counts[section == USER][1] += is_kept
            if not is_kept:
                lost.append(statement)
    return SummaryComparison(
        statements=counts[True][0] + counts[False][0],
        kept=counts[True][1] + counts[False][1],
        lost=tuple(lost),
        user_statements=counts[True][0],
        user_kept=counts[True][1],
    )

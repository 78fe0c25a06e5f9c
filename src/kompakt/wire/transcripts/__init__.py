"""Recorded sessions of agents and benchmarks, read as the request bodies that would continue them.

Each format has a function that recognises its documents by their shape and one that yields the conversations in a
document. Invariant: no content is lost. Every part of every message record is in exactly one body: the main one, or
that of its sub-agent or branch. ``check`` and ``repair`` handle what a provider would reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kompakt.errors import UnreadableFile
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts import claude_code, codex, gemini_cli, opencode, pi, trajectories
from kompakt.wire.transcripts.transcript import (
    ACTIONS,
    RULES,
    Document,
    Kind,
    Skipped,
    Transcript,
    TranscriptLine,
    decode,
)

__all__ = [
    "ACTIONS",
    "KNOWN",
    "RULES",
    "WRITERS",
    "Document",
    "Kind",
    "Skipped",
    "Transcript",
    "TranscriptLine",
    "decode",
    "kind_of",
    "read",
    "read_lines",
]


class TranscriptFormat(NamedTuple):
    """How the files of one agent are recognised and read."""

    label: str
    matches: Callable[[Document], bool]
    read: Callable[[Document], Iterator[Transcript]]


READERS: dict[Kind, TranscriptFormat] = {
    "codex": TranscriptFormat("Codex", codex.matches, codex.read),
    "claude-code": TranscriptFormat("Claude Code", claude_code.matches, claude_code.read),
    "pi": TranscriptFormat("pi", pi.matches, pi.read),
    "gemini-cli": TranscriptFormat("Gemini CLI", gemini_cli.matches, gemini_cli.read),
    "opencode": TranscriptFormat("opencode", opencode.matches, opencode.read),
    "openhands": TranscriptFormat("OpenHands", trajectories.is_openhands, trajectories.read_openhands),
    "swe-agent": TranscriptFormat("SWE-agent", trajectories.is_swe_agent, trajectories.read_swe_agent),
    "tau-bench": TranscriptFormat("tau-bench", trajectories.is_tau_bench, trajectories.read_tau_bench),
}

WRITERS: dict[Kind, Callable[[Sequence[bytes], Document, Transcript, JsonObject], bytes]] = {
    "claude-code": claude_code.write,
    "codex": codex.write,
}
"""Formats that can be written back, so that the agent opens the result."""

KNOWN = ", ".join(reader.label for reader in READERS.values())


def kind_of(document: Document) -> Kind | None:
    """Return which agent wrote a document, by its shape."""
    return next((kind for kind, reader in READERS.items() if reader.matches(document)), None)


def read(document: Document) -> list[Transcript]:
    """Read the conversations of a document; there is at least one.

    Raises:
        UnreadableFile: no known agent writes such documents, or it contains no conversation.
    """
    kind = kind_of(document)
    if kind is None:
        found = (
            f"{len(document.lines)} JSON records, {len(document.skipped)} other lines"
            if document.is_lines
            else f"a JSON {type(document.value).__name__}"
        )
        raise UnreadableFile(f"no recording of {KNOWN}: {found}; give a transcript or a request body")
    transcripts = list(READERS[kind].read(document))
    if not transcripts:
        raise UnreadableFile(f"a file of {READERS[kind].label} without a conversation")
    return transcripts


def read_lines(lines: Iterable[bytes | str]) -> Transcript:
    """Read the lines of a file that contains one conversation.

    Raises:
        UnreadableFile: no record looks like one of a known agent.
    """
    return read(decode(lines))[0]

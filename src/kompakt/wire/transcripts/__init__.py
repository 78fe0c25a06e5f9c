"""Recorded sessions of agents and benchmarks, read as the request bodies that would continue them.

Each format is a module: ``matches`` recognises its documents by their shape, ``read`` yields the conversations of a
document, and where the agent can resume a written file ``write`` and ``write_compacted`` make one.

Invariant: no content is lost. Every part of every message record is in exactly one body: the main one, or that of its
sub-agent or branch. ``check`` and ``repair`` handle what a provider would reject.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kompakt.errors import UnreadableFile
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts import (
    claude_code,
    codex,
    gemini_cli,
    opencode,
    openhands,
    pi,
    swe_agent,
    tau_bench,
)
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


class TranscriptReader(Protocol):
    """A module that reads the files of one agent."""

    @property
    def LABEL(self) -> str:  # noqa: N802
        """The name of the agent."""
        ...

    def matches(self, document: Document, /) -> bool:
        """Return whether the agent wrote a document."""
        ...

    def read(self, document: Document, /) -> Iterator[Transcript]:
        """Yield the conversations of a document."""
        ...


class TranscriptWriter(Protocol):
    """A module that also writes files which the agent resumes, from the lines and the records of a file."""

    def write(self, raw: Sequence[bytes], document: Document, transcript: Transcript, repaired: JsonObject, /) -> bytes:
        """Edit a file to match the repair of its conversation."""
        ...

    def write_compacted(
        self, raw: Sequence[bytes], document: Document, transcript: Transcript, compacted: JsonObject, /
    ) -> bytes:
        """Write a file with the messages of a compacted body."""
        ...


READERS: dict[Kind, TranscriptReader] = {
    "codex": codex,
    "claude-code": claude_code,
    "pi": pi,
    "gemini-cli": gemini_cli,
    "opencode": opencode,
    "openhands": openhands,
    "swe-agent": swe_agent,
    "tau-bench": tau_bench,
}
"""By kind, in the order in which they are tried."""

WRITERS: dict[Kind, TranscriptWriter] = {"claude-code": claude_code, "codex": codex}

KNOWN = ", ".join(reader.LABEL for reader in READERS.values())


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
        raise UnreadableFile(f"a file of {READERS[kind].LABEL} without a conversation")
    return transcripts


def read_lines(lines: Iterable[bytes | str]) -> Transcript:
    """Read the lines of a file that contains one conversation.

    Raises:
        UnreadableFile: no record looks like one of a known agent.
    """
    return read(decode(lines))[0]

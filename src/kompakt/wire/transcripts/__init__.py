"""Recorded sessions of agents and benchmarks, read as the request bodies that would continue them.

One module a file format: ``matches`` tells its documents by their shape, ``read`` yields the conversations in one. One
invariant: no content is lost. Every part of every message record is in a body exactly once, in the main one or in that
of the sub-agent or branch it belongs to; what is wrong with it for the provider is left to check and repair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kompakt.errors import UnreadableFile
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts import claude_code, codex, gemini_cli, opencode, openhands, pi, swe_agent, tau_bench
from kompakt.wire.transcripts.transcript import ACTIONS, RULES, Document, Kind, Line, Skipped, Transcript, decode

__all__ = [
    "ACTIONS",
    "KNOWN",
    "RULES",
    "WRITERS",
    "Document",
    "Kind",
    "Line",
    "Skipped",
    "Transcript",
    "decode",
    "kind_of",
    "read",
    "read_lines",
]


class Reader(NamedTuple):
    """How the files of one agent are told and read."""

    label: str
    matches: Callable[[Document], bool]
    read: Callable[[Document], Iterator[Transcript]]


READERS: dict[Kind, Reader] = {
    "codex": Reader("Codex", codex.matches, codex.read),
    "claude-code": Reader("Claude Code", claude_code.matches, claude_code.read),
    "pi": Reader("pi", pi.matches, pi.read),
    "gemini-cli": Reader("Gemini CLI", gemini_cli.matches, gemini_cli.read),
    "opencode": Reader("opencode", opencode.matches, opencode.read),
    "openhands": Reader("OpenHands", openhands.matches, openhands.read),
    "swe-agent": Reader("SWE-agent", swe_agent.matches, swe_agent.read),
    "tau-bench": Reader("tau-bench", tau_bench.matches, tau_bench.read),
}

WRITERS: dict[Kind, Callable[[Sequence[bytes], Document, Transcript, JsonObject], bytes]] = {
    "claude-code": claude_code.write,
    "codex": codex.write,
}
"""Formats that can be written back: the agent opens what comes out."""

KNOWN = ", ".join(reader.label for reader in READERS.values())


def kind_of(document: Document) -> Kind | None:
    """Tell by its shape which agent wrote a document."""
    return next((kind for kind, reader in READERS.items() if reader.matches(document)), None)


def read(document: Document) -> list[Transcript]:
    """Read the conversations of a document; there is at least one.

    Raises:
        UnreadableFile: no agent writes such documents, or it holds no conversation.
    """
    kind = kind_of(document)
    if kind is None:
        read_as = (
            f"{len(document.lines)} JSON records, {len(document.skipped)} other lines"
            if document.is_lines
            else (f"a JSON {type(document.value).__name__}")
        )
        raise UnreadableFile(f"no recording of {KNOWN}: {read_as}; give a transcript or a request body")
    found = list(READERS[kind].read(document))
    if not found:
        raise UnreadableFile(f"a file of {READERS[kind].label} that holds no conversation")
    return found


def read_lines(lines: Iterable[bytes | str]) -> Transcript:
    """Read the lines of a file that holds one conversation.

    Raises:
        UnreadableFile: no record looks like one of a known agent.
    """
    return read(decode(lines))[0]

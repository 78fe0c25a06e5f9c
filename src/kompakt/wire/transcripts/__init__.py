"""Transcript files of coding agents, read as the request bodies that would continue them.

One invariant: no content is lost. Every block of every message record stands in a body exactly once, in the main one
or in that of the sub-agent it belongs to; what is wrong with it for the provider is left to check and repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from kompakt.errors import UnreadableFile
from kompakt.wire.transcripts import claude_code, codex
from kompakt.wire.transcripts.transcript import Kind, Skipped, Transcript, decode

__all__ = ["Skipped", "Transcript", "is_transcript", "read"]

MAX_LOOKED_AT = 50
"""Records looked at to tell what a file is: past the headers that any known version writes."""


def is_transcript(first_records: Sequence[object]) -> Kind | None:
    """Tell by the shapes of its first records which agent wrote a file."""
    for record in first_records:
        if not isinstance(record, dict):
            continue
        shape = cast("dict[str, Any]", record)
        if codex.wrote(shape):
            return "codex"
        if claude_code.wrote(shape):
            return "claude-code"
    return None


def read(lines: Iterable[bytes | str]) -> Transcript:
    """Read the lines of a transcript file.

    Raises:
        UnreadableFile: no record looks like one of a known agent.
    """
    decoded = decode(lines)
    match is_transcript([line.record for line in decoded.lines[:MAX_LOOKED_AT]]):
        case "claude-code":
            return claude_code.read(decoded)
        case "codex":
            return codex.read(decoded)
        case None:
            read_as = f"{len(decoded.lines)} JSON records, {len(decoded.skipped)} other lines"
            raise UnreadableFile(
                f"no transcript of Claude Code or Codex: {read_as}; give a transcript or a request body"
            )

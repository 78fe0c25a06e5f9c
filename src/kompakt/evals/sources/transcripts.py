"""Sessions of coding agents, through the transcript readers of the wire layer."""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.evals.session import Document, Session
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts import Transcript, is_transcript
from kompakt.wire.transcripts import read as read_transcript
from kompakt.wire.transcripts.transcript import objects


def matches(document: Document) -> bool:
    """Tell whether a file is a Claude Code or Codex transcript."""
    return bool(document.lines) and is_transcript(document.records[:50]) is not None


def read(document: Document) -> Iterator[Session]:
    """Yield the session of a transcript, then one for each sub-agent in it."""
    transcript = read_transcript(document.lines)
    notes = [f"line {one.line} was skipped: {one.reason}" for one in transcript.skipped]
    notes += [f"line {number} had characters that were replaced" for number in transcript.mended]
    yield _session(transcript, document.name, notes)
    for number, sidechain in enumerate(transcript.sidechains, start=1):
        yield _session(sidechain, f"{document.name}#agent-{number}", [])


def _session(transcript: Transcript, name: str, notes: list[str]) -> Session:
    if transcript.format == "anthropic":
        notes += _open_calls(transcript.body["messages"])
    return Session(
        name=name,
        source=transcript.kind,
        format=transcript.format,
        body=transcript.body,
        ids=transcript.ids,
        usages=transcript.usages,
        summaries=transcript.summaries,
        notes=tuple(notes),
    )


def _open_calls(messages: list[JsonObject]) -> list[str]:
    blocks = [(i, block) for i, message in enumerate(messages) for block in objects(message["content"])]
    answered = {block.get("tool_use_id") for _, block in blocks if block.get("type") == "tool_result"}
    calls = [(i, block.get("id")) for i, block in blocks if block.get("type") == "tool_use"]
    return [f"call {call_id} in message {i} has no result" for i, call_id in calls if call_id not in answered]

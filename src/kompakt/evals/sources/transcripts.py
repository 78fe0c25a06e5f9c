"""Sessions of coding agents, through the transcript readers of the wire layer."""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.evals.session import Document, Session, seconds
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
    began = _began(document)
    yield _session(transcript, document.name, notes, began)
    for number, sidechain in enumerate(transcript.sidechains, start=1):
        yield _session(sidechain, f"{document.name}#agent-{number}", [], began)


def _began(document: Document) -> dict[str, float]:
    """Find when each assistant message began: the first record that has its id."""
    found: dict[str, float] = {}
    for record in objects(list(document.records)):
        message, moment = record.get("message"), seconds(record.get("timestamp"))
        name = message.get("id") if isinstance(message, dict) else None
        if isinstance(name, str) and moment is not None:
            found.setdefault(name, moment)
    return found


def _session(transcript: Transcript, name: str, notes: list[str], began: dict[str, float]) -> Session:
    if transcript.format == "anthropic":
        notes += _open_calls(transcript.body["messages"])
    return Session(
        name=name,
        source=transcript.kind,
        format=transcript.format,
        body=transcript.body,
        ids=transcript.ids,
        usages=transcript.usages,
        times=tuple((index, began[name]) for index, name in enumerate(transcript.ids) if name in began),
        summaries=transcript.summaries,
        notes=tuple(notes),
    )


def _open_calls(messages: list[JsonObject]) -> list[str]:
    blocks = [(i, block) for i, message in enumerate(messages) for block in objects(message["content"])]
    answered = {block.get("tool_use_id") for _, block in blocks if block.get("type") == "tool_result"}
    calls = [(i, block.get("id")) for i, block in blocks if block.get("type") == "tool_use"]
    return [f"call {call_id} in message {i} has no result" for i, call_id in calls if call_id not in answered]

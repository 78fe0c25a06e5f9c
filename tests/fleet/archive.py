"""An archive of sessions in many formats, with hostile files among them. Equal arguments give equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.histories.plain import build
from tests.wire.transcripts.transcript_files import META, TURN, Writer, item

FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")
KINDS = (*FORMATS, "claude-code", "codex", "lines")

HOSTILE = (
    b"",
    b"{not json",
    b"\x00\x01\x02" * 50,
    b"[" * 100_000,
    b'{"messages": 3}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}], "model": 7}',
    b'{"messages": [{"role": 5}, null, [], "x"]}',
    b'{"type": "user", "message": null}\n{"type": "assistant", "message": {"content": [1, {"type": "tool_use"}]}}\n',
    b"\xff\xfe" + "{}".encode("utf-16"),
)
"""Content of files that are no sessions, or broken ones."""


def write_archive(folder: Path, *, sessions: int, hostile: int, messages: int = 42) -> None:
    """Write sessions of all kinds into a folder, two of each kind beside each other, and hostile files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(sessions):
        kind = KINDS[number % len(KINDS)]
        path = folder / f"project-{number % 3}" / f"{kind}-{number:04}"
        path.parent.mkdir(exist_ok=True)
        size = messages + 6 * (number % 5)
        suffix = ".jsonl" if kind in ("claude-code", "codex", "lines") else ".json"
        path.with_name(path.name + suffix).write_bytes(session(kind, messages=size, seed=number))
    for number in range(hostile):
        suffix = ".jsonl" if number % 2 else ".json"
        (folder / f"hostile-{number:04}{suffix}").write_bytes(HOSTILE[number % len(HOSTILE)])


def session(kind: str, *, messages: int = 36, seed: int = 0) -> bytes:
    """Return the content of a file of one kind."""
    if kind == "claude-code":
        return _lines(claude_code(messages, seed))
    if kind == "codex":
        return _lines(codex(messages, seed))
    if kind == "lines":
        bodies = [
            build(FORMATS[(seed + place) % len(FORMATS)], messages=messages, seed=seed + place) for place in range(2)
        ]
        return _lines([bodies[0], {"custom_id": "a", "method": "POST", "body": bodies[1]}])
    return json.dumps(build(kind, messages=messages, seed=seed)).encode()


def claude_code(messages: int, seed: int) -> list[dict[str, Any]]:
    writer = Writer(cwd="/r", version="2.0.1")
    for number, message in enumerate(build("anthropic", messages=messages, seed=seed)["messages"]):
        if message["role"] == "user":
            writer.user(message["content"])
        else:
            writer.assistant(f"msg_{number}", *message["content"])
    return writer.records


def codex(messages: int, seed: int) -> list[dict[str, Any]]:
    items = build("openai-responses", messages=messages, seed=seed)["input"]
    return [META, TURN, *(item(**one) for one in items)]


def _lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)

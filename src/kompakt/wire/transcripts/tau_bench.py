"""tau-bench results: the Chat messages of many sessions in one file."""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.model.json import as_objects
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts.transcript import Document, Transcript, open_calls

LABEL = "tau-bench"


def matches(document: Document) -> bool:
    """Return whether a document is a list of trajectories, or one."""
    return not document.is_lines and any(isinstance(entry.get("traj"), list) for entry in _entries(document))


def _entries(document: Document) -> list[JsonObject]:
    return as_objects(document.value if isinstance(document.value, list) else [document.value])


def read(document: Document) -> Iterator[Transcript]:
    """Yield one session per trajectory; its messages are used unchanged."""
    for number, entry in enumerate(_entries(document)):
        messages = as_objects(entry.get("traj"))
        if not messages:
            continue
        yield Transcript(
            kind="tau-bench",
            format="openai-chat",
            name=f"task-{entry.get('task_id', number)}.trial-{entry.get('trial', 0)}",
            body={"messages": messages},
            ids=(None,) * len(messages),
            notes=tuple(open_calls(messages)),
            records=len(messages),
        )

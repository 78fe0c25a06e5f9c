"""tau-bench trajectories: customer service with tools, recorded as Chat messages."""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.evals.session import Document, Session
from kompakt.evals.sources.chat import open_calls


def matches(document: Document) -> bool:
    """Tell whether a file is a list of trajectories."""
    return isinstance(document.first.get("traj"), list)


def read(document: Document) -> Iterator[Session]:
    """Yield one session a trajectory; its messages are used as they are."""
    for entry in document.records[0]:
        messages = entry["traj"]
        yield Session(
            name=f"{document.name}#task-{entry.get('task_id')}.trial-{entry.get('trial')}",
            source="tau-bench",
            format="openai-chat",
            body={"messages": messages},
            notes=tuple(open_calls(messages)),
        )

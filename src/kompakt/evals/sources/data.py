"""Recorded sessions from a directory, whatever agent or benchmark they come from.

One invariant: a data file is never ignored in silence. One that cannot be read, or that no reader knows, is reported
with its name, and the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kompakt.errors import KompaktError, UnreadableFile
from kompakt.evals.sources import locomo
from kompakt.evals.sources.session import Question, Session
from kompakt.files import load_all
from kompakt.wire.transcripts import KNOWN, Transcript

__all__ = ["Question", "Session", "read", "sessions"]

SUFFIXES = frozenset([".db", ".json", ".jsonl", ".traj"])


def sessions(directory: Path, report: Callable[[str], None] | None = None) -> Iterator[Session]:
    """Yield every session of every data file below a directory, in the order of their names.

    ``report`` is called with a line for each file that cannot be read; without it such a file is an error.

    Raises:
        UnreadableFile: a file cannot be read, and nobody wants to know.
    """
    for path in sorted(directory.rglob("*")):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        try:
            found = list(read(path, name=path.relative_to(directory).as_posix()))
        except KompaktError as error:
            if report is None:
                raise
            report(str(error))
            continue
        yield from found


def read(path: Path, *, name: str) -> Iterator[Session]:
    """Yield the sessions of one data file, sub-agents included.

    Raises:
        UnreadableFile: it is not JSON, or of a shape that no reader knows.
    """
    dialogues = locomo.read(path, name)
    if dialogues is not None:
        yield from dialogues
        return
    found = load_all(path)
    if not found:
        raise UnreadableFile(f"{path}: not a recording of {KNOWN} or LoCoMo; take it out of the data directory")
    for transcript in found:
        own = f"{name}#{transcript.name}" if transcript.name else name
        yield _session(transcript, own)
        for number, side in enumerate(transcript.sidechains, start=1):
            yield _session(side, f"{own}#agent-{number}")


def _session(transcript: Transcript, name: str) -> Session:
    skipped = [f"line {one.line} was skipped: {one.reason}" for one in transcript.skipped]
    replaced = [f"line {number} had characters that were replaced" for number in transcript.replaced]
    return Session(
        name=name,
        source=transcript.kind,
        format=transcript.format,
        body=transcript.body,
        ids=transcript.ids,
        usages=transcript.usages,
        times=transcript.times,
        summaries=transcript.summaries,
        notes=(*skipped, *replaced, *transcript.notes),
    )

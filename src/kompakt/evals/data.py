"""Recorded sessions from a directory, whatever agent or benchmark they come from.

One invariant: a data file is never passed over in silence; one that no source knows is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kompakt.errors import UnreadableFile
from kompakt.evals.session import Document, Question, Session
from kompakt.evals.sources import locomo, openhands, pi, swe_agent, tau_bench, transcripts
from kompakt.model.messages import Json

__all__ = ["Document", "Question", "Session", "load", "read", "sessions"]

SUFFIXES = frozenset([".json", ".jsonl", ".traj"])

_SOURCES: tuple[tuple[Callable[[Document], bool], Callable[[Document], Iterator[Session]]], ...] = (
    (transcripts.matches, transcripts.read),
    (pi.matches, pi.read),
    (openhands.matches, openhands.read),
    (swe_agent.matches, swe_agent.read),
    (tau_bench.matches, tau_bench.read),
    (locomo.matches, locomo.read),
)


def sessions(directory: Path) -> Iterator[Session]:
    """Yield every session of every data file below a directory, in the order of their names.

    Raises:
        UnreadableFile: a data file is not JSON, or of a shape that no source has.
    """
    for path in sorted(directory.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield from read(load(path, name=path.relative_to(directory).as_posix()))


def load(path: Path, *, name: str) -> Document:
    """Decode a data file.

    Raises:
        UnreadableFile: it is not JSON.
    """
    data = path.read_bytes()
    if path.suffix != ".jsonl":
        try:
            return Document(name, (), (msgspec.json.decode(data),))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableFile(f"{path}: not JSON: {error}") from error
    lines = tuple(data.splitlines())
    records: list[Json] = []
    notes: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(msgspec.json.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            notes.append(f"line {number} is not JSON and was skipped: {error}")
    return Document(name, lines, tuple(records), tuple(notes))


def read(document: Document) -> Iterator[Session]:
    """Yield the sessions of one data file.

    Raises:
        UnreadableFile: no source has such files.
    """
    for matches, reader in _SOURCES:
        if matches(document):
            yield from reader(document)
            return
    known = "Claude Code, Codex, pi, OpenHands, SWE-agent, tau-bench and LoCoMo"
    raise UnreadableFile(f"{document.name}: not a recording of {known}; take it out of the data directory")

"""Check the readers on real recordings: nothing lost, rounds as recorded, valid after repair.

Usage: python scripts/check_transcripts.py DIR. Prints one row per session and exits with 1 if any fails. The expected
counts come from the raw JSON, independent of the readers.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from rich.console import Console
from rich.table import Table

import kompakt
from kompakt.errors import KompaktError
from kompakt.evals.session_files import RecordedSession, sessions
from kompakt.model.groups import rounds
from kompakt.model.messages import Message

RUN_SEPARATOR = "\0"


class Document(msgspec.Struct, frozen=True):
    """A decoded data file: one record per line for JSON Lines, else one record."""

    lines: list[bytes]
    records: list[Any]

    @property
    def first(self) -> dict[str, Any]:
        """Return the first record."""
        return self.records[0]


def load(path: Path) -> Document:
    """Decode a data file; lines that are not JSON are skipped."""
    data = path.read_bytes()
    if path.suffix != ".jsonl":
        return Document([], [json.loads(data)])
    records: list[Any] = []
    for line in data.splitlines():
        with suppress(ValueError):
            records.append(json.loads(line))
    return Document(data.splitlines(), records)


class Row(msgspec.Struct, frozen=True):
    """The result for one session."""

    session: RecordedSession
    rounds: int
    expected_rounds: int | None
    problems: int
    remaining: tuple[str, ...]
    lost: int

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return bool(self.lost or self.remaining) or self.expected_rounds not in (None, self.rounds)


def main(arguments: list[str]) -> int:
    """Check every session below a directory."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: check_transcripts.py DIR", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    rows = [_examine(directory, session) for session in sessions(directory)]
    Console().print(_table(rows))
    failed = [row for row in rows if row.failed]
    for row in failed:
        for line in row.remaining:
            print(f"{row.session.name}: {line}", file=sys.stderr)
    print(f"{len(rows)} sessions, {len(failed)} failed", file=sys.stderr)
    return 1 if failed or not rows else 0


def _examine(directory: Path, session: RecordedSession) -> Row:
    name, _, entry = session.name.partition("#")
    document = load(directory / name)
    items = _items(session)
    ids = session.ids or (None,) * len(items)
    roles: list[Any] = ["assistant" if _by_model(item) else "user" for item in items]
    walked = rounds([Message(role, (), id) for role, id in zip(roles, ids, strict=True)])
    problems, remaining = _judged(session)
    claude = session.source == "claude-code" and not entry
    return Row(
        session=session,
        rounds=len(walked),
        expected_rounds=_recorded_rounds(document) if claude else None,
        problems=problems,
        remaining=remaining,
        lost=_lost_blocks(document, session) if claude else _lost_words(document, session, entry),
    )


def _judged(session: RecordedSession) -> tuple[int, tuple[str, ...]]:
    """Count the problems of a body, and list those that remain after repair."""
    try:
        problems = kompakt.check(session.body, format=session.format)
        repaired = kompakt.repair(session.body, format=session.format)
        remaining = kompakt.check(repaired.payload, format=session.format)
    except KompaktError as error:
        return 1, (f"{type(error).__name__}: {error}",)
    return len(problems), tuple(f"{one.code} {one.path}: {one.message}" for one in remaining)


def _table(rows: list[Row]) -> Table:
    table = Table(
        "session", "format", "messages", "rounds", "recorded", "problems", "after repair", "lost", "notes", ""
    )
    for row in rows:
        expected = "" if row.expected_rounds is None else str(row.expected_rounds)
        table.add_row(
            row.session.name,
            row.session.format,
            *(str(len(_items(row.session))), str(row.rounds), expected),
            *(str(row.problems), str(len(row.remaining)), str(row.lost), str(len(row.session.notes))),
            "failed" if row.failed else "",
        )
    return table


def _items(session: RecordedSession) -> list[Any]:
    return session.body["input"] if session.format == "openai-responses" else session.body["messages"]


def _by_model(item: dict[str, Any]) -> bool:
    kind = str(item.get("type", "message"))
    return item.get("role") == "assistant" or kind == "reasoning" or kind.endswith("_call")


# --- Claude Code, block by block ---------------------------------------------------------------------------------


def _recorded(document: Document) -> Iterator[dict[str, Any]]:
    for line in document.lines:
        record = json.loads(line)
        if record.get("type") in ("user", "assistant") and not record.get("isSidechain"):
            yield record


def _recorded_rounds(document: Document) -> int:
    """Count the changes of the assistant id, plus one round before the first."""
    kinds = [record["message"].get("id") if record["type"] == "assistant" else None for record in _recorded(document)]
    ids = [id for id in kinds if id is not None]
    changes = sum(index == 0 or id != ids[index - 1] for index, id in enumerate(ids))
    return changes + bool(kinds and kinds[0] is None)


def _lost_blocks(document: Document, session: RecordedSession) -> int:
    """Count blocks that are not in the body exactly as often as in the file."""
    records = {record["uuid"]: record for record in _recorded(document)}
    wanted = Counter(block for record in records.values() for block in _blocks(record["message"]["content"]))
    found = Counter(block for message in session.body["messages"] for block in _blocks(message["content"]))
    return (wanted - found).total() + (found - wanted).total()


def _blocks(content: Any) -> list[str]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [json.dumps(block, sort_keys=True) for block in blocks]


# --- every other source, text by text ----------------------------------------------------------------------------

WORDS = frozenset(["arguments", "content", "input", "output", "text", "thinking"])
"""Fields with texts, calls and results, in any of the sources."""


def _lost_words(document: Document, session: RecordedSession, entry: str) -> int:
    """Count texts of the recording that do not occur in the body."""
    hay = RUN_SEPARATOR.join(_strings(session.body))
    return sum(piece not in hay for piece in _pieces(document, session.source, entry))


def _pieces(document: Document, source: str, entry: str) -> Iterator[str]:
    match source:
        case "tau-bench":
            named = {f"task-{one['task_id']}.trial-{one['trial']}": one["traj"] for one in document.records[0]}
            yield from _said(named[entry])
        case "locomo":
            names = {str(one.get("sample_id") or n): one for n, one in enumerate(document.records[0], start=1)}
            yield from _said(names[entry]["conversation"])
        case "swe-agent":
            yield from _said(document.first["history"])
        case "openhands":
            run = next(one for one in document.records if one["instance_id"] == entry)
            yield from _said([_told(event) for event in run["history"]])
        case "pi":
            yield from _said([one["message"]["content"] for one in document.records if one["type"] == "message"])
        case "codex":
            items = [one["payload"] for one in document.records if one["type"] == "response_item"]
            yield from _said([item for item in items if item["type"] != "ghost_snapshot"])
        case _:
            return


def _told(event: dict[str, Any]) -> dict[str, Any]:
    """Reduce an event to its texts, calls and results, without file contents around an edit."""
    call: dict[str, Any] = event.get("tool_call_metadata") or {"model_response": {"choices": []}}
    arguments: dict[str, Any] = event.get("args") or {}
    words = arguments.get("content") if event.get("action") in ("message", "system") else None
    answers = [choice["message"] for choice in call["model_response"]["choices"]]
    return {"content": [event.get("content"), words, answers]}


def _said(value: Any, *, inside: bool = False) -> Iterator[str]:
    """Yield the texts of text fields."""
    if isinstance(value, str):
        if inside and value:
            yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _said(item, inside=inside)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            if key not in ("type", "detail"):
                yield from _said(item, inside=key in WORDS or (inside and key not in ("id", "role", "name")))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _strings(item)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

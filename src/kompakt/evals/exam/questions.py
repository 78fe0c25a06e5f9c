"""An exam as data files: one folder per case, with a session, its questions, and the summary to compare with.

``DIR/NAME/session.json`` is a request body or any recording that kompakt reads, ``questions.json`` a list of questions
with gold points, and ``summary.txt`` the summary that the recorded agent or a model wrote. The summary is optional.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kompakt import api, files
from kompakt.errors import InputError, UsageError
from kompakt.model.messages import History

QUESTIONS = "questions.json"
SUMMARY = "summary.txt"

_NUMBER = re.compile(r"\d+")


class ExamQuestion(msgspec.Struct, frozen=True):
    """A question with the points that a complete answer makes."""

    q: str
    """Its id, unique in the exam."""
    question: str
    gold: tuple[str, ...]
    """What a complete answer states. The reader never sees it."""
    type: str = "other"
    """The kind of question, for the score table."""


class ExamCase(msgspec.Struct, frozen=True):
    """A session with its questions."""

    name: str
    session: Path
    history: History
    questions: tuple[ExamQuestion, ...]
    summary: str | None = None


_DECODER = msgspec.json.Decoder(list[ExamQuestion])


def read_exam(folder: Path, cases: Sequence[str] = ()) -> list[ExamCase]:
    """Read the cases of an exam; ``cases`` selects some of them by name or by number.

    Raises:
        UsageError: there is no case, or none of a selected name.
        InputError: a file of a case is missing or cannot be read. The message names it.
    """
    found = sorted((path.parent for path in folder.glob(f"*/{QUESTIONS}")), key=_order)
    if not found:
        raise UsageError(f"{str(folder)!r} has no exam: it needs folders with {QUESTIONS} and a session file")
    known = {name: path for path in found for name in (path.name, path.name.removeprefix("case"))}
    for name in cases:
        if name not in known:
            raise UsageError(f"the exam has no case {name!r}; it has {', '.join(path.name for path in found)}")
    chosen = [path for path in found if not cases or any(known[name] == path for name in cases)]
    read = [_read_case(path) for path in chosen]
    _check_ids(read)
    return read


def _order(path: Path) -> tuple[int, str]:
    number = _NUMBER.search(path.name)
    return (int(number[0]) if number else 0, path.name)


def _read_case(folder: Path) -> ExamCase:
    sessions = sorted(path for path in folder.glob("session.*") if path.is_file())
    if len(sessions) != 1:
        count = "no" if not sessions else "more than one"
        raise InputError(f"{folder}: {count} session file; a case needs one, named session.json or session.jsonl")
    source = folder / QUESTIONS
    try:
        questions = _DECODER.decode(source.read_bytes())
    except msgspec.DecodeError as error:
        raise InputError(f"{source}: {error}") from None
    for one in questions:
        if not one.gold:
            raise InputError(f"{source}: question {one.q!r} has no gold points")
    payload = files.load(sessions[0]).payload
    history = payload if isinstance(payload, History) else api.parse(payload)
    summary = folder / SUMMARY
    text = summary.read_text() if summary.exists() else None
    return ExamCase(folder.name, sessions[0], history, tuple(questions), text)


def _check_ids(cases: Sequence[ExamCase]) -> None:
    seen: dict[str, str] = {}
    for case in cases:
        for one in case.questions:
            if one.q in seen:
                raise InputError(
                    f"question id {one.q!r} exists in {seen[one.q]} and in {case.name}; ids must be unique"
                )
            seen[one.q] = case.name

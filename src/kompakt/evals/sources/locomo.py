"""LoCoMo dialogues: two people over months, as Chat messages, with questions and where their answers are.

One invariant: the position of a turn in the body is the position of the turn in the recording, so evidence can be
pointed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kompakt.errors import UnreadableFile
from kompakt.evals.sources.session import Question, Session
from kompakt.model.messages import JsonObject

_SESSION = re.compile(r"session_(\d+)")
_SEPARATORS = re.compile(r"[;,\s]+")
_MARK = b'"conversation"'


class _Turn(msgspec.Struct, frozen=True):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _Asked(msgspec.Struct, frozen=True):
    question: str
    answer: str | int | float | None = None
    adversarial_answer: str | int | float | None = None
    evidence: list[str] | None = None
    category: str | int | None = None


class _Entry(msgspec.Struct, frozen=True):
    conversation: JsonObject
    qa: list[_Asked]
    sample_id: str | int | None = None


def read(path: Path, name: str) -> list[Session] | None:
    """Read the dialogues of a file, the first speaker as the user; ``None`` when it is no file of dialogues.

    Raises:
        UnreadableFile: it is one, and a dialogue in it has another shape.
    """
    if path.suffix != ".json":
        return None
    data = path.read_bytes()
    if _MARK not in data[:100_000] or not data.lstrip().startswith(b"["):
        return None
    try:
        entries = msgspec.json.decode(data, type=list[_Entry], strict=False)
        return [_session(entry, number, name) for number, entry in enumerate(entries, start=1)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path}: not LoCoMo dialogues: {error}") from None


def _session(entry: _Entry, number: int, name: str) -> Session:
    messages: list[JsonObject] = []
    places: dict[str, int] = {}
    for turn, date in _turns(entry.conversation):
        places[turn.dia_id] = len(messages)
        role = "user" if turn.speaker == entry.conversation.get("speaker_a") else "assistant"
        messages.append({"role": role, "content": _words(turn, date)})
    questions = tuple(_question(asked, places) for asked in entry.qa)
    return Session(
        name=f"{name}#{entry.sample_id or number}",
        source="locomo",
        format="openai-chat",
        body={"messages": messages},
        questions=questions,
        notes=tuple(_unknown(questions, places)),
    )


def _turns(conversation: JsonObject) -> Iterator[tuple[_Turn, str | None]]:
    """Yield the turns of all sessions in order; the first of each comes with the session's date."""
    numbers = sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(key)))
    for number in numbers:
        date = conversation.get(f"session_{number}_date_time")
        turns = msgspec.convert(conversation[f"session_{number}"], list[_Turn])
        for position, turn in enumerate(turns):
            yield turn, date if position == 0 else None


def _words(turn: _Turn, date: str | None) -> str:
    """Write a turn with its speaker, the date where a session begins, and what a shared picture shows."""
    words = f"{turn.speaker}: {turn.text}"
    if turn.blip_caption:
        words += f"\n[shares a picture: {turn.blip_caption}]"
    return f"[{date}]\n{words}" if date else words


def _question(asked: _Asked, places: dict[str, int]) -> Question:
    evidence = [name for entry in asked.evidence or () for name in _SEPARATORS.split(entry) if name]
    return Question(
        text=asked.question,
        answer=None if asked.answer is None else str(asked.answer),
        evidence=tuple(evidence),
        messages=tuple(sorted({places[name] for name in evidence if name in places})),
        category="" if asked.category is None else str(asked.category),
        trap=None if asked.adversarial_answer is None else str(asked.adversarial_answer),
    )


def _unknown(questions: tuple[Question, ...], places: dict[str, int]) -> Iterator[str]:
    """Note evidence that names no turn of the dialogue."""
    for number, question in enumerate(questions):
        for name in question.evidence:
            if name not in places:
                yield f"question {number} names the turn {name!r}, which the dialogue does not have"

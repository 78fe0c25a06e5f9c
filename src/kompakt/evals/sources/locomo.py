"""LoCoMo dialogues: two people over months, as Chat messages, with questions and where their answers stand.

One invariant: the position of a turn in the body is the position of the turn in the recording, so evidence can be
pointed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt.evals.session import Document, Question, Session
from kompakt.model.messages import JsonObject

_SESSION = re.compile(r"session_(\d+)")
_SEPARATORS = re.compile(r"[;,\s]+")


def matches(document: Document) -> bool:
    """Tell whether a file is a list of dialogues with questions."""
    return isinstance(document.first.get("conversation"), dict) and isinstance(document.first.get("qa"), list)


def read(document: Document) -> Iterator[Session]:
    """Yield one session a dialogue; the first speaker is the user."""
    for number, entry in enumerate(document.records[0], start=1):
        conversation: JsonObject = entry["conversation"]
        messages: list[JsonObject] = []
        places: dict[str, int] = {}
        for turn, date in _turns(conversation):
            places[turn["dia_id"]] = len(messages)
            role = "user" if turn["speaker"] == conversation.get("speaker_a") else "assistant"
            messages.append({"role": role, "content": _words(turn, date)})
        questions = tuple(_question(raw, places) for raw in entry["qa"])
        yield Session(
            name=f"{document.name}#{entry.get('sample_id') or number}",
            source="locomo",
            format="openai-chat",
            body={"messages": messages},
            questions=questions,
            notes=tuple(_unknown(questions, places)),
        )


def _turns(conversation: JsonObject) -> Iterator[tuple[JsonObject, str | None]]:
    """Yield the turns of all sessions in order; the first of each comes with the session's date."""
    numbers = sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(key)))
    for number in numbers:
        date = conversation.get(f"session_{number}_date_time")
        for position, turn in enumerate(conversation[f"session_{number}"]):
            yield turn, date if position == 0 else None


def _words(turn: JsonObject, date: str | None) -> str:
    """Write a turn with its speaker, the date where a session begins, and what a shared picture shows."""
    words = f"{turn['speaker']}: {turn['text']}"
    if turn.get("blip_caption"):
        words += f"\n[shares a picture: {turn['blip_caption']}]"
    return f"[{date}]\n{words}" if date else words


def _question(raw: JsonObject, places: dict[str, int]) -> Question:
    evidence = [name for entry in raw.get("evidence") or () for name in _SEPARATORS.split(entry) if name]
    answer, trap = raw.get("answer"), raw.get("adversarial_answer")
    return Question(
        text=raw["question"],
        answer=None if answer is None else str(answer),
        evidence=tuple(evidence),
        messages=tuple(sorted({places[name] for name in evidence if name in places})),
        category=str(raw.get("category", "")),
        trap=None if trap is None else str(trap),
    )


def _unknown(questions: tuple[Question, ...], places: dict[str, int]) -> Iterator[str]:
    """Note evidence that names no turn of the dialogue."""
    for number, question in enumerate(questions):
        for name in question.evidence:
            if name not in places:
                yield f"question {number} names the turn {name!r}, which the dialogue does not have"

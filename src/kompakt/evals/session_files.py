"""Recorded sessions, read from the data files in a directory.

Files may be transcripts of any supported agent or LoCoMo dialogues. A file that cannot be read is reported by name;
the others are still read. Every text, call and result of a recording is in the body; what was left out or what the
provider would reject is listed in ``notes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kompakt.errors import KompaktError, UnreadableFile
from kompakt.files import load_all
from kompakt.model.messages import JsonObject
from kompakt.wire.transcripts import KNOWN, Transcript

SUFFIXES = frozenset([".db", ".json", ".jsonl", ".traj"])


class Question(msgspec.Struct, frozen=True):
    """A question about a dialogue, with the messages that hold the answer."""

    text: str
    answer: str | None
    """``None`` when the dialogue does not contain the answer."""
    evidence: tuple[str, ...] = ()
    """Turn ids of the dataset."""
    messages: tuple[int, ...] = ()
    """The same turns as message indexes in the body."""
    category: str = ""


class RecordedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded session as a request body."""

    name: str
    source: str
    format: str
    body: JsonObject
    ids: tuple[str | None, ...] = ()
    """Assistant message ids, where the recording has them."""
    usages: tuple[tuple[int, JsonObject], ...] = ()
    times: tuple[tuple[int, float], ...] = ()
    """Message index and start time in seconds of each assistant message, where the recording has timestamps."""
    summaries: frozenset[int] = frozenset()
    """Messages that are summaries written by the agent's own compaction."""
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()


def sessions(directory: Path, report: Callable[[str], None] | None = None) -> Iterator[RecordedSession]:
    """Yield every session of every data file below a directory, sorted by file name.

    ``report`` is called with one line for each file that cannot be read. Without it, such a file raises.

    Raises:
        UnreadableFile: a file cannot be read and ``report`` is not given.
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


def read(path: Path, *, name: str) -> Iterator[RecordedSession]:
    """Yield the sessions of one data file, including sub-agents.

    Raises:
        UnreadableFile: the file is not JSON or has an unknown shape.
    """
    dialogues = _read_locomo(path, name)
    if dialogues is not None:
        yield from dialogues
        return
    found = load_all(path)
    if not found:
        raise UnreadableFile(f"{path}: not a recording of {KNOWN} or LoCoMo; take it out of the data directory")
    for transcript in found:
        own = f"{name}#{transcript.name}" if transcript.name else name
        yield _from_transcript(transcript, own)
        for number, side in enumerate(transcript.sidechains, start=1):
            yield _from_transcript(side, f"{own}#agent-{number}")


def _from_transcript(transcript: Transcript, name: str) -> RecordedSession:
    skipped = [f"line {one.line} was skipped: {one.reason}" for one in transcript.skipped]
    replaced = [f"line {number} had characters that were replaced" for number in transcript.replaced]
    return RecordedSession(
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


# --- LoCoMo --------------------------------------------------------------------------------------------------------
#
# A dialogue between two people over several sessions, with questions. Each turn becomes one Chat message, so the
# index of a message is the index of the turn and evidence can be resolved to messages.

_SESSION = re.compile(r"session_(\d{1,9})")
_SEPARATORS = re.compile(r"[;,\s]+")
_MARK = b'"conversation"'


class _Turn(msgspec.Struct, frozen=True):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _QuestionRecord(msgspec.Struct, frozen=True):
    question: str
    answer: str | int | float | None = None
    evidence: list[str] | None = None
    category: str | int | None = None


class _Dialogue(msgspec.Struct, frozen=True):
    conversation: JsonObject
    qa: list[_QuestionRecord]
    sample_id: str | int | None = None


def _read_locomo(path: Path, name: str) -> list[RecordedSession] | None:
    """Read LoCoMo dialogues with the first speaker as the user; return ``None`` for any other file.

    Raises:
        UnreadableFile: the file looks like LoCoMo but a dialogue has an unexpected shape.
    """
    if path.suffix != ".json":
        return None
    data = path.read_bytes()
    if _MARK not in data[:100_000] or not data.lstrip().startswith(b"["):
        return None
    try:
        entries = msgspec.json.decode(data, type=list[_Dialogue], strict=False)
        return [_from_dialogue(entry, number, name) for number, entry in enumerate(entries, start=1)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path}: not LoCoMo dialogues: {error}") from None


def _from_dialogue(entry: _Dialogue, number: int, name: str) -> RecordedSession:
    messages: list[JsonObject] = []
    places: dict[str, int] = {}
    for turn, date in _turns(entry.conversation):
        places[turn.dia_id] = len(messages)
        role = "user" if turn.speaker == entry.conversation.get("speaker_a") else "assistant"
        messages.append({"role": role, "content": _turn_text(turn, date)})
    questions = tuple(_question(one, places) for one in entry.qa)
    return RecordedSession(
        name=f"{name}#{entry.sample_id or number}",
        source="locomo",
        format="openai-chat",
        body={"messages": messages},
        questions=questions,
        notes=tuple(_unknown_evidence(questions, places)),
    )


def _turns(conversation: JsonObject) -> Iterator[tuple[_Turn, str | None]]:
    """Yield all turns in order; the first turn of each session comes with the date of the session."""
    numbers = sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(key)))
    for number in numbers:
        date = conversation.get(f"session_{number}_date_time")
        turns = msgspec.convert(conversation[f"session_{number}"], list[_Turn])
        for position, turn in enumerate(turns):
            yield turn, date if position == 0 else None


def _turn_text(turn: _Turn, date: str | None) -> str:
    text = f"{turn.speaker}: {turn.text}"
    if turn.blip_caption:
        text += f"\n[shares a picture: {turn.blip_caption}]"
    return f"[{date}]\n{text}" if date else text


def _question(record: _QuestionRecord, places: dict[str, int]) -> Question:
    evidence = [name for entry in record.evidence or () for name in _SEPARATORS.split(entry) if name]
    return Question(
        text=record.question,
        answer=None if record.answer is None else str(record.answer),
        evidence=tuple(evidence),
        messages=tuple(sorted({places[name] for name in evidence if name in places})),
        category="" if record.category is None else str(record.category),
    )


def _unknown_evidence(questions: tuple[Question, ...], places: dict[str, int]) -> Iterator[str]:
    for number, question in enumerate(questions):
        for name in question.evidence:
            if name not in places:
                yield f"question {number} names the turn {name!r}, which the dialogue does not have"

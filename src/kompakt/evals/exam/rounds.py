"""One round of an exam: a folder in which everything is stored as it arrives, so that nothing is done twice.

::

    OUT/exam.json                   settings, questions with gold points, sizes of the contexts
    OUT/reader/CONDITION/CASE.txt   contexts, with questions.json and instructions.md: all that a reader may see
    OUT/answers/CONDITION.json      {"1.1": "answer", …}
    OUT/recalls.json                queries of the readers that may recall
    OUT/grader/sheet.json           shuffled answers, with instructions.md: all that a grader may see
    OUT/key.json                    which letter is which condition, per question
    OUT/grades.json                 {"1.1": {"A": {"points": [1, 0.5], "false": 0}, …}, …}
    OUT/usage.json                  requests and tokens by role

A folder is one round: conditions are compared within it, graded together. Another policy, reader or grader needs
another folder.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kompakt.agent.client import ChatClient
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.errors import InputError, UsageError
from kompakt.evals.exam import models
from kompakt.evals.exam.contexts import CONDITIONS, context, description, possible
from kompakt.evals.exam.models import ExamModel, Grade, check_grades
from kompakt.evals.exam.questions import ExamCase, ExamQuestion, read_exam
from kompakt.evals.exam.scores import ExamScores, ModelUsage, false_statements, score_rows
from kompakt.model.budget import Usage
from kompakt.version import __version__

T = TypeVar("T")

DEFAULT_CONDITIONS = ("summary", "same", "tenth", "recall")

LETTERS = "ABCDEFGH"

JOBS = 4
"""Requests at the same time."""

MANIFEST, KEY, GRADES, RECALLS, USAGE = "exam.json", "key.json", "grades.json", "recalls.json", "usage.json"

Progress = Callable[[int, int, str], None]


class ExamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a round."""

    exam: Path
    out: Path
    conditions: tuple[str, ...] = ()
    """Default: those of ``DEFAULT_CONDITIONS`` that the cases allow."""
    cases: tuple[str, ...] = ()
    policy: str = "default"


class Manifest(msgspec.Struct, kw_only=True):
    """What a round is about."""

    version: str
    policy: str
    conditions: list[str] = []
    questions: dict[str, tuple[ExamQuestion, ...]] = {}
    """By case."""
    tokens: dict[str, dict[str, int]] = {}
    """Tokens of the contexts, by condition and case."""
    models: dict[str, str] = {}
    """By role: reader, grader, writer."""


class ExamRound:
    """A round in a folder."""

    def __init__(
        self, out: Path, manifest: Manifest, *, cases: Sequence[ExamCase] = (), conditions: Sequence[str] = ()
    ) -> None:
        self.out = out
        self.manifest = manifest
        self.cases = cases
        """The cases to answer now; the folder may have more."""
        self.conditions = conditions
        """The conditions to answer now; the folder may have more."""
        self.usage = _read(out / USAGE, dict[str, ModelUsage], {})
        self._by_id = {one.q: one for listed in manifest.questions.values() for one in listed}

    @classmethod
    def open(cls, out: Path, exam: Path | None = None) -> ExamRound:
        """Open the folder of a round, to score it. A folder without exam.json needs the exam it belongs to.

        Raises:
            UsageError: the folder has no round.
        """
        if (out / MANIFEST).exists():
            return cls(out, _read(out / MANIFEST, Manifest, Manifest(version="", policy="")))
        if exam is None:
            raise UsageError(f"{str(out)!r} has no {MANIFEST}; write a round with --exam DIR --write-only --out {out}")
        questions = {case.name: case.questions for case in read_exam(exam)}
        conditions = _answered(out) or sorted({name for one in _read_key(out).values() for name in one.values()})
        return cls(out, Manifest(version="", policy="", conditions=conditions, questions=questions))

    @classmethod
    async def write(
        cls, settings: ExamSettings, *, writer: ChatClient | None = None, progress: Progress | None = None
    ) -> ExamRound:
        """Write the contexts, questions and instructions of a round, as far as they do not exist.

        Raises:
            UsageError: the folder has a round with other settings; a condition is not known or not possible; there are
                too many.
        """
        cases = read_exam(settings.exam, settings.cases)
        conditions = _chosen(settings.conditions, cases)
        manifest = _read(settings.out / MANIFEST, Manifest, Manifest(version=__version__, policy=settings.policy))
        for name, old, new in (
            ("policy", manifest.policy, settings.policy),
            ("version", manifest.version, __version__),
        ):
            if old != new:
                raise UsageError(
                    f"{str(settings.out)!r} has a round with {name} {old!r}, not {new!r}; use another --out"
                )
        manifest.conditions = list(dict.fromkeys([*manifest.conditions, *conditions]))
        _check_number(manifest.conditions)
        manifest.questions |= {case.name: case.questions for case in cases}
        this = cls(settings.out, manifest, cases=cases, conditions=conditions)
        summarizer = None
        if writer is not None:
            summarizer = LLMSummarizer(writer).with_prefix(None, paid=this._paid("writer", writer.model))
        total, done = len(cases) * len(conditions), 0
        for case in cases:
            for condition in conditions:
                path = this._context_path(condition, case.name)
                if not path.exists():
                    made = await context(case, condition, policy=settings.policy, summarizer=summarizer)
                    manifest.tokens.setdefault(condition, {})[case.name] = made.tokens
                    _write_text(path, made.text)
                    _write(settings.out / MANIFEST, manifest)
                done += 1
                if progress is not None:
                    progress(done, total, f"context {condition} {case.name}")
        _write(settings.out / MANIFEST, manifest)
        this._write_reader()
        return this

    def _write_reader(self) -> None:
        listed = [
            {"q": one.q, "case": name, "question": one.question}
            for name, questions in self.manifest.questions.items()
            for one in questions
        ]
        _write(self.out / "reader" / "questions.json", listed)
        lines = [models.READER, "", _READER_FILES]
        if "recall" in self.manifest.conditions:
            lines += ["", _READER_RECALLS, ""]
            for case in self.cases:  # copied, because the gold points are beside the original
                copy = self.out / "reader" / "sessions" / f"{case.name}{case.session.suffix}"
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(case.session, copy)
                lines.append(f"- {case.name}: `kompakt recall {copy} QUERY`")
        _write_text(self.out / "reader" / "instructions.md", "\n".join(lines) + "\n")

    def _context_path(self, condition: str, case: str) -> Path:
        return self.out / "reader" / condition / f"{case}.txt"

    def _paid(self, role: str, model: str) -> Callable[[Usage], None]:
        """Return a function that adds the usage of a request and stores it."""
        usage = self.usage.setdefault(role, ModelUsage(model))

        def add(one: Usage) -> None:
            usage.add(one)
            _write(self.out / USAGE, self.usage)

        return add

    # --- answers --------------------------------------------------------------------------------------------------

    def unanswered(self) -> tuple[int, int]:
        """Return the number of answers that are missing, and the tokens of the contexts to read for them."""
        tokens = self.manifest.tokens
        left = [
            tokens.get(name, {}).get(case.name, 0)
            for name in self.conditions
            for case in self.cases
            for one in case.questions
            if one.q not in _answers(self.out, name)
        ]
        return len(left), sum(left)

    async def answer(self, reader: ChatClient, progress: Progress, *, jobs: int = JOBS) -> None:
        """Let a model answer every question that has no answer yet.

        Raises:
            UsageError: the answers of the folder are by another reader.
            ProviderError: the model gives no answer. What was answered before is stored.
        """
        found = {condition: _answers(self.out, condition) for condition in self.conditions}
        self._claim("reader", reader.model, any(found.values()))
        recalls = _read(self.out / RECALLS, dict[str, list[str]], {})
        all = [(name, case, one) for name in self.conditions for case in self.cases for one in case.questions]
        left = [(name, case, one) for name, case, one in all if one.q not in found[name]]
        done = len(all) - len(left)
        model = ExamModel(reader, self._paid("reader", reader.model))

        async def one(condition: str, case: ExamCase, question: ExamQuestion) -> None:
            nonlocal done
            text = self._context_path(condition, case.name).read_text()
            session = case.history if condition == "recall" else None
            said, queries = await model.answer(text, question.question, session)
            found[condition][question.q] = said
            _write(self.out / "answers" / f"{condition}.json", found[condition])
            if session is not None:
                recalls[question.q] = queries
                _write(self.out / RECALLS, recalls)
            done += 1
            progress(done, len(all), f"answer {condition} {question.q}")

        progress(done, len(all), "answers")
        await _each([partial(one, *what) for what in left], jobs)

    def _claim(self, role: str, model: str, started: bool) -> None:
        """Note which model has a role.

        Raises:
            UsageError: another model has it, and has begun.
        """
        before = self.manifest.models.get(role)
        if before not in (None, model) and started:
            raise UsageError(f"{str(self.out)!r} has a round with {role} {before!r}, not {model!r}; use another --out")
        self.manifest.models[role] = model
        _write(self.out / MANIFEST, self.manifest)

    # --- grades ---------------------------------------------------------------------------------------------------

    def write_sheet(self) -> dict[str, dict[str, str]]:
        """Shuffle the answers and write them for a grader; return the answers of each question by letter.

        Letters stay while the conditions of a question stay, so grades remain valid.

        Raises:
            UsageError: there are no answers, or those of too many conditions.
        """
        answers = {name: _answers(self.out, name) for name in self.manifest.conditions}
        answers = {name: found for name, found in answers.items() if found}
        if not answers:
            raise UsageError(f"{str(self.out)!r} has no answers; put them into {self.out / 'answers'}/CONDITION.json")
        _check_number(list(answers))
        key = _read_key(self.out)
        for q in self._by_id:
            names = sorted(name for name, found in answers.items() if q in found)
            if sorted(key.get(q, {}).values()) != names:
                random.Random(f"{q} {names}").shuffle(names)
                key[q] = dict(zip(LETTERS, names, strict=False))
        _write(self.out / KEY, key)
        labelled = {q: {label: answers[name][q] for label, name in key[q].items()} for q in self._by_id if key.get(q)}
        sheet = [
            {"q": q, "question": self._by_id[q].question, "gold": self._by_id[q].gold, "answers": by_label}
            for q, by_label in labelled.items()
        ]
        _write(self.out / "grader" / "sheet.json", sheet)
        _write_text(self.out / "grader" / "instructions.md", f"{models.GRADER}\n\n{_GRADER_FILES}\n")
        return labelled

    async def grade(self, grader: ChatClient, progress: Progress, *, jobs: int = JOBS) -> None:
        """Let a model grade every question that has no valid grade yet.

        Raises:
            UsageError: the grades of the folder are by another grader.
            ProviderError: the model gives no grade. What was graded before is stored.
        """
        labelled = self.write_sheet()
        grades = self._grades(labelled)
        self._claim("grader", grader.model, bool(grades))
        model = ExamModel(grader, self._paid("grader", grader.model))
        progress(len(grades), len(labelled), "grades")

        async def one(q: str) -> None:
            grades[q] = await model.grade(self._by_id[q], labelled[q])
            _write(self.out / GRADES, grades)
            progress(len(grades), len(labelled), f"grade {q}")

        await _each([partial(one, q) for q in labelled if q not in grades], jobs)

    def _grades(self, labelled: dict[str, dict[str, str]] | None = None) -> dict[str, dict[str, Grade]]:
        """Read the grades that belong to the present letters.

        Raises:
            InputError: a grade has another shape.
        """
        key = _read_key(self.out)
        found: dict[str, dict[str, Grade]] = {}
        for q, by_label in _read(self.out / GRADES, dict[str, dict[str, Grade]], {}).items():
            if q not in self._by_id or (labelled is not None and set(by_label) != set(labelled.get(q, {}))):
                continue
            wrong = check_grades(by_label, self._by_id[q], list(key.get(q, {})))
            if wrong is not None:
                raise InputError(f"{self.out / GRADES}: question {q}: {wrong}")
            found[q] = by_label
        return found

    @property
    def has_answers(self) -> bool:
        return any(_answers(self.out, name) for name in self.manifest.conditions)

    @property
    def has_grades(self) -> bool:
        return (self.out / GRADES).exists()

    # --- scores ---------------------------------------------------------------------------------------------------

    def score(self) -> ExamScores:
        """Score the grades of the folder.

        Raises:
            UsageError: there are none.
            InputError: a grade has another shape.
        """
        grades, key = self._grades(), _read_key(self.out)
        if not grades:
            sheet = self.out / "grader" / "sheet.json"
            raise UsageError(f"{str(self.out)!r} has no grades; grade {sheet} into {self.out / GRADES}")
        names = sorted({name for q in grades for name in key[q].values()}, key=_order)
        return ExamScores(
            conditions={name: description(name) or name for name in names},
            rows=score_rows(self.manifest.questions, key, grades),
            false=false_statements(key, grades),
            tokens={name: sum(self.manifest.tokens.get(name, {}).values()) for name in names},
            graded=len(grades),
            questions=len(self._by_id),
            usage=self.usage,
        )


_READER_FILES = """\
Each folder has the contexts of one condition: CASE.txt. A reader answers under one condition only, every question of \
questions.json, and has seen neither the sessions nor another condition. Answers go into answers/CONDITION.json, one \
object: {"1.1": "answer", ...}."""

_READER_RECALLS = f"""\
Under the condition recall, a reader may also search the session, at most {models.MAX_RECALLS} times per question:"""

_GRADER_FILES = """\
sheet.json has all questions. Grades go into grades.json beside this folder, one object: \
{"1.1": {"A": {"points": [1, 0.5], "false": 0}, "B": ...}, ...}. Open no other file of the round."""


def _chosen(conditions: Sequence[str], cases: list[ExamCase]) -> list[str]:
    for name in conditions:
        if description(name) is None:
            raise UsageError(f"condition {name!r} is not known; use some of {', '.join(CONDITIONS)}, or N%")
    return list(dict.fromkeys(conditions)) or [name for name in DEFAULT_CONDITIONS if possible(cases, name)]


def _check_number(conditions: Sequence[str]) -> None:
    """Check that every condition gets a letter.

    Raises:
        UsageError: there are too many.
    """
    if len(conditions) > len(LETTERS):
        raise UsageError(
            f"a round has at most {len(LETTERS)} conditions, not {len(conditions)}: {', '.join(conditions)}; use "
            "another --out for some of them"
        )


def _order(name: str) -> tuple[int, str]:
    known = list(CONDITIONS)
    return (known.index(name) if name in known else len(known), name)


def _answered(out: Path) -> list[str]:
    return sorted((path.stem for path in (out / "answers").glob("*.json")), key=_order)


def _answers(out: Path, condition: str) -> dict[str, str]:
    return _read(out / "answers" / f"{condition}.json", dict[str, str], {})


def _read_key(out: Path) -> dict[str, dict[str, str]]:
    return _read(out / KEY, dict[str, dict[str, str]], {})


def _read(path: Path, type: type[T], default: T) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except FileNotFoundError:
        return default
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}") from None


def _write(path: Path, value: object) -> None:
    _write_text(path, msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")


def _write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that an interruption leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, errors="backslashreplace")
    os.replace(new, path)


async def _each(work: Sequence[Callable[[], Coroutine[Any, Any, None]]], jobs: int) -> None:
    """Do some of the work at a time; the first error cancels the rest."""
    free = asyncio.Semaphore(jobs)

    async def limited(one: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with free:
            await one()

    tasks = [asyncio.ensure_future(limited(one)) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Scores of a round: the share of gold points by condition, over all questions, by kind and by case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kompakt.evals.exam.models import Grade
from kompakt.evals.exam.questions import ExamQuestion
from kompakt.model.budget import Usage
from kompakt.model.limits import lookup

ALL = "all"


class ScoreRow(msgspec.Struct, frozen=True):
    """The scores of some questions, 0 to 100, by condition."""

    part: str
    """``all``, a kind of question, or a case."""
    questions: int
    scores: dict[str, float]


class ModelUsage(msgspec.Struct):
    """What a model was used for in a round, and the price."""

    model: str
    requests: int = 0
    input: int = 0
    """Prompt tokens that were not read from a cache."""
    cache_read: int = 0
    output: int = 0

    def add(self, usage: Usage) -> None:
        """Add one request."""
        self.requests += 1
        self.input += usage.input
        self.cache_read += usage.cache_read
        self.output += usage.output

    @property
    def dollars(self) -> float | None:
        """The price in US dollars, or ``None`` if the prices of the model are not known."""
        price = lookup(self.model).price
        if price is None:
            return None
        read = price.input if price.cache_read is None else price.cache_read
        return self.input * price.input + self.cache_read * read + self.output * price.output

    def __str__(self) -> str:
        cost = "price unknown" if self.dollars is None else f"${self.dollars:.2f}"
        prompt = self.input + self.cache_read
        cached = f" ({self.cache_read / prompt:.0%} from the cache)" if prompt and self.cache_read else ""
        return f"{self.model}: {self.requests:,} requests, {prompt:,} tokens in{cached}, {self.output:,} out, {cost}"


class ExamScores(msgspec.Struct, frozen=True):
    """The result of a round."""

    conditions: dict[str, str]
    """The conditions and their descriptions."""
    rows: list[ScoreRow]
    false: dict[str, int]
    """False statements by condition."""
    tokens: dict[str, int]
    """Tokens of all contexts by condition."""
    graded: int
    """Questions that have grades."""
    questions: int
    usage: dict[str, ModelUsage] = {}


def score_rows(
    questions: Mapping[str, Sequence[ExamQuestion]],
    key: Mapping[str, Mapping[str, str]],
    grades: Mapping[str, Mapping[str, Grade]],
) -> list[ScoreRow]:
    """Average the share of gold points over the graded questions; ``questions`` are given by case."""
    shares: dict[str, dict[str, list[float]]] = {ALL: {}}
    kinds = dict.fromkeys(one.type for case in questions.values() for one in case)
    for part in (*kinds, *questions):
        shares.setdefault(part, {})
    for case, listed in questions.items():
        for one in listed:
            for label, grade in grades.get(one.q, {}).items():
                share = sum(grade.points) / len(one.gold)
                for part in dict.fromkeys((ALL, one.type, case)):
                    shares[part].setdefault(key[one.q][label], []).append(share)
    return [
        ScoreRow(part, max(map(len, found.values())), {name: _mean(found[name]) for name in sorted(found)})
        for part, found in shares.items()
        if found
    ]


def false_statements(key: Mapping[str, Mapping[str, str]], grades: Mapping[str, Mapping[str, Grade]]) -> dict[str, int]:
    """Count false statements by condition."""
    found: dict[str, int] = {}
    for q, by_label in grades.items():
        for label, grade in by_label.items():
            name = key[q][label]
            found[name] = found.get(name, 0) + grade.false
    return found


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(100 * sum(listed) / len(listed), 1)

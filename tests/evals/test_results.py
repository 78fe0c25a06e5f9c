"""Shortfalls of missed goals."""

from __future__ import annotations

from kompakt.evals.measures.score import Miss, ResultRow
from kompakt.evals.report import gather, markdown
from kompakt.evals.results import shortfalls


def row(passed: int, total: int, *missed: Miss, at: int = 1, note: str = "", mode: str = "kompakt, 10 %") -> ResultRow:
    return ResultRow(
        measure="retention",
        mode=mode,
        session="s",
        source="x",
        at=at,
        passed={"need": passed},
        total={"need": total},
        missed=missed,
        budget=500,
        note=note,
    )


KEY_ONLY, ABSENT = Miss("need", "a_name", "call +1; key without context"), Miss("need", "b_name", "call +2; absent")


def test_each_miss_is_counted_once_and_by_its_cause() -> None:
    rows = [
        row(14, 17, KEY_ONLY, ABSENT, ABSENT),
        row(0, 3, note="does not fit: the floor is larger", at=2),
        row(0, 5, ABSENT, mode="tail, 10 %"),
    ]
    (one,) = shortfalls(rows)
    assert (one.name, one.passed, one.total, one.more) == ("forward need, 10 %", 14, 20, 4)
    assert (one.unfit, one.key_only, one.absent) == (3, 1, 2)
    assert one.unfit + one.key_only + one.absent == one.total - one.passed
    assert one.worst == ("s@1: 3 in 500 tokens",)


def test_a_reached_goal_is_not_a_shortfall() -> None:
    rows = [row(9, 10, ABSENT)]
    assert list(shortfalls(rows)) == []
    assert "Every retention goal is reached." in markdown(gather(rows, version="1", policy="p"), rows)


def test_the_report_lists_shortfalls() -> None:
    rows = [row(0, 4, KEY_ONLY, ABSENT, ABSENT, ABSENT)]
    page = markdown(gather(rows, version="1", policy="p"), rows)
    assert "| forward need, 10 % | 0/4 | 4 | 0 | 3 | 1 | s@1: 4 in 500 tokens |" in page

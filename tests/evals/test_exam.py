"""The exam: contexts, blind reading and grading, resuming, scores, and the command."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.scripted_client import Answer, Scripted, calls
from tests.cli.store_helpers import Run, put, refused, runner
from tests.evals.sample_sessions import long

from kompakt.cli import eval as eval_command
from kompakt.errors import InputError, ProviderError, ProviderUnavailable, UsageError
from kompakt.evals.exam import CONDITIONS, ExamRound, ExamSettings, read_exam
from kompakt.evals.exam.models import MAX_GRADINGS, MAX_RECALLS
from kompakt.model.messages import JsonObject

GOLD = ("zebra point", "walrus point")
"""Words that are in no session."""

ALL = ("summary", "same", "tenth", "recall")


def make_exam(folder: Path, cases: int = 2) -> Path:
    for number in range(1, cases + 1):
        case = folder / f"case{number}"
        case.mkdir(parents=True)
        put(case / "session.json", long(30).session().body)
        (case / "summary.txt").write_text("Modules 0 to 29 were ported to the new reader. " * 10)
        kinds = ("decision", "errors")
        questions = [
            {"case": number, "q": f"{number}.{n}", "type": kinds[n % 2], "question": f"What about {n}?", "gold": GOLD}
            for n in range(1, 4)
        ]
        put(case / "questions.json", questions)
    return folder


@pytest.fixture
def exam(tmp_path: Path) -> Path:
    return make_exam(tmp_path / "exam")


class Model(Scripted):
    """Answers each request with what a function makes of it."""

    def __init__(self, reply: Callable[[str, JsonObject], Answer], **options: Any) -> None:
        super().__init__(**options)
        self.reply = reply

    async def send(self, body: JsonObject, *, on_delta: Any = None, changes: Any = None) -> Any:
        self.answers = [self.reply(text_of(body), body)]
        return await super().send(body, on_delta=on_delta, changes=changes)


def text_of(body: JsonObject) -> str:
    return json.dumps(body, ensure_ascii=False)


def known(text: str, body: JsonObject) -> Answer:
    del body
    return "It is known." if "summary so far" in text else "not known"


def fair(text: str, body: JsonObject) -> Answer:
    """Give full points to answers that say that it is known, and none to others."""
    del text
    sheet = json.loads(body["messages"][-1]["content"])
    points = {
        label: {"points": [float(said == "It is known.")] * len(sheet["gold"]), "false": 0}
        for label, said in sheet["answers"].items()
    }
    return f"Here it is:\n```json\n{json.dumps(points)}\n```"


def ignore(done: int, total: int, what: str) -> None:
    assert done <= total, what


def settings(exam: Path, conditions: tuple[str, ...] = ALL, cases: tuple[str, ...] = ()) -> ExamSettings:
    return ExamSettings(exam=exam, out=exam.parent / "out", conditions=conditions, cases=cases)


async def run_round(chosen: ExamSettings, reader: Scripted, grader: Scripted) -> ExamRound:
    found = await ExamRound.write(chosen)
    await found.answer(reader, ignore)
    await found.grade(grader, ignore)
    return found


class TestContexts:
    def test_each_condition_gets_its_room(self, exam: Path) -> None:
        found = asyncio.run(ExamRound.write(settings(exam)))
        sizes = {name: by_case["case1"] for name, by_case in found.manifest.tokens.items()}
        assert sizes["tenth"] == sizes["recall"]
        assert sizes["same"] < sizes["tenth"]
        assert abs(sizes["same"] - sizes["summary"]) < 200

    def test_a_condition_can_be_any_share_of_the_session(self, exam: Path) -> None:
        found = asyncio.run(ExamRound.write(settings(exam, ("5%", "tenth", "40%"))))
        sizes = [by_case["case1"] for by_case in found.manifest.tokens.values()]
        assert sizes == sorted(sizes) and sizes[0] * 4 < sizes[2]

    def test_contexts_are_written_once(self, exam: Path) -> None:
        """A round keeps its contexts, because its answers belong to them."""
        out = asyncio.run(ExamRound.write(settings(exam))).out
        path = out / "reader" / "tenth" / "case1.txt"
        path.write_text("as it was")
        asyncio.run(ExamRound.write(settings(exam)))
        assert path.read_text() == "as it was"

    def test_without_a_summary_two_conditions_are_left(self, exam: Path) -> None:
        (exam / "case1" / "summary.txt").unlink()
        assert asyncio.run(ExamRound.write(settings(exam, ()))).conditions == ["tenth", "recall"]
        with pytest.raises(UsageError, match=r"'same' needs summary.txt in case1"):
            asyncio.run(ExamRound.write(settings(exam, ("same",))))

    def test_a_model_writes_the_narrative(self, exam: Path) -> None:
        writer = Model(lambda *_: "The reader was ported because the old one is slow.", model="gpt-5")
        chosen = settings(exam, ("narrative",), ("1",))
        found = asyncio.run(ExamRound.write(chosen, writer=writer))
        assert "because the old one is slow" in (found.out / "reader" / "narrative" / "case1.txt").read_text()
        assert found.usage["writer"].requests == len(writer.bodies) > 0
        with pytest.raises(UsageError, match="--writer"):
            asyncio.run(ExamRound.write(ExamSettings(exam=exam, out=exam.parent / "o", conditions=("narrative",))))


class TestBlindness:
    def test_no_reader_sees_gold_points_or_other_contexts(self, exam: Path) -> None:
        reader = Model(known)
        found = asyncio.run(run_round(settings(exam), reader, Model(fair)))
        assert len(reader.bodies) == len(ALL) * 6
        for body in reader.bodies:
            text = text_of(body)
            assert not any(point in text for point in GOLD)
            assert sum(f"What about {n}?" in text for n in range(1, 4)) == 1
        for path in (found.out / "reader").rglob("*"):
            assert path.is_dir() or not any(point in path.read_text() for point in GOLD)

    def test_no_grader_sees_which_condition_an_answer_belongs_to(self, exam: Path) -> None:
        reader, grader = (
            Model(lambda text, _: f"answer {len(text)}"),
            Model(
                lambda _, body: json.dumps(
                    {name: {"points": [1, 1]} for name in json.loads(body["messages"][-1]["content"])["answers"]}
                )
            ),
        )
        found = asyncio.run(run_round(settings(exam), reader, grader))
        sheet = (found.out / "grader" / "sheet.json").read_text()
        for text in (*map(text_of, grader.bodies), sheet):
            assert not any(f'"{name}"' in text for name in CONDITIONS)
            assert not any(description in text for description in CONDITIONS.values())
            assert "reader/" not in text and "context>" not in text

    def test_letters_are_shuffled_for_each_question(self, exam: Path) -> None:
        found = asyncio.run(run_round(settings(exam), Model(known), Model(fair)))
        key = json.loads((found.out / "key.json").read_text())
        assert len({tuple(letters.items()) for letters in key.values()}) > 1
        assert all(sorted(letters.values()) == sorted(ALL) for letters in key.values())


class TestReader:
    def test_recalls_are_limited_for_each_question(self, exam: Path) -> None:
        def reply(text: str, body: JsonObject) -> Answer:
            results = [one for one in body["messages"] if one["role"] == "tool"]
            if len(results) <= MAX_RECALLS:
                return calls("recall", id=f"c{len(results)}", query="module_3.py")
            assert "module_3.py" in results[0]["content"]
            assert "No recalls are left" in results[-1]["content"]
            return "found"

        reader = Model(reply)
        found = asyncio.run(ExamRound.write(settings(exam, ("recall",), ("case1",))))
        asyncio.run(found.answer(reader, ignore))
        assert json.loads((found.out / "answers" / "recall.json").read_text()) == dict.fromkeys(
            ["1.1", "1.2", "1.3"], "found"
        )
        recalls = json.loads((found.out / "recalls.json").read_text())
        assert recalls == dict.fromkeys(["1.1", "1.2", "1.3"], ["module_3.py"] * MAX_RECALLS)

    @pytest.mark.parametrize("format", ["openai-chat", "openai-responses", "anthropic", "gemini"])
    def test_every_client_can_recall(self, exam: Path, format: str) -> None:
        """The scripted client checks each request against the rules of its format."""
        reader = Scripted(calls("recall", query="tests"), "done", format=format)
        found = asyncio.run(ExamRound.write(settings(exam, ("recall",), ("1",))))
        asyncio.run(found.answer(reader, ignore, jobs=1))
        assert "done" in (found.out / "answers" / "recall.json").read_text()

    def test_only_the_recall_condition_has_the_tool(self, exam: Path) -> None:
        reader = Model(known)
        found = asyncio.run(ExamRound.write(settings(exam, ("tenth", "recall"), ("1",))))
        asyncio.run(found.answer(reader, ignore))
        assert sum("tools" in body for body in reader.bodies) == 3


class TestResuming:
    def test_answers_and_grades_are_kept_when_a_model_fails(self, exam: Path) -> None:
        left = 7

        def failing(text: str, body: JsonObject) -> Answer:
            nonlocal left
            left -= 1
            return known(text, body) if left >= 0 else ProviderUnavailable("down")

        found = asyncio.run(ExamRound.write(settings(exam)))
        with pytest.raises(ProviderUnavailable):
            asyncio.run(found.answer(Model(failing), ignore, jobs=1))
        stored = [json.loads(path.read_text()) for path in (found.out / "answers").glob("*.json")]
        assert sum(map(len, stored)) == 7
        again = Model(known)
        asyncio.run(run_round(settings(exam), again, Model(fair)))
        assert len(again.bodies) == len(ALL) * 6 - 7
        third = Model(known), Model(fair)
        asyncio.run(run_round(settings(exam), *third))
        assert [len(model.bodies) for model in third] == [0, 0]

    def test_another_condition_is_graded_together_with_the_first_ones(self, exam: Path) -> None:
        asyncio.run(run_round(settings(exam, ("tenth",)), Model(known), Model(fair)))
        reader, grader = Model(known), Model(fair)
        found = asyncio.run(run_round(settings(exam, ("summary",)), reader, grader))
        assert (len(reader.bodies), len(grader.bodies)) == (6, 6)
        assert found.score().rows[0].scores == {"summary": 100.0, "tenth": 0.0}

    def test_another_reader_needs_another_folder(self, exam: Path) -> None:
        asyncio.run(run_round(settings(exam, ("tenth",)), Model(known), Model(fair)))
        with pytest.raises(UsageError, match=r"reader 'gpt-5', not 'gpt-4.1'; use another --out"):
            asyncio.run(run_round(settings(exam, ("tenth",)), Model(known, model="gpt-4.1"), Model(fair)))

    def test_a_sheet_has_the_questions_that_were_answered(self, exam: Path) -> None:
        found = asyncio.run(ExamRound.write(settings(exam, ("tenth",))))
        (found.out / "answers").mkdir()
        put(found.out / "answers" / "tenth.json", {"1.2": "It is known."})
        assert found.write_sheet() == {"1.2": {"A": "It is known."}}

    def test_more_conditions_than_letters_are_refused(self, exam: Path) -> None:
        """Before anything is written, and also in a folder whose answers come from elsewhere."""
        many = tuple(f"{share}%" for share in range(10, 19))
        with pytest.raises(UsageError, match=r"at most 8 conditions, not 9: 10%.*another --out"):
            asyncio.run(ExamRound.write(settings(exam, many)))
        assert not (exam.parent / "out").exists()
        answers = exam.parent / "other" / "answers"
        answers.mkdir(parents=True)
        for name in many:
            put(answers / f"{name}.json", {"1.2": "It is known."})
        with pytest.raises(UsageError, match="at most 8 conditions"):
            ExamRound.open(answers.parent, exam).write_sheet()


class TestGrades:
    def test_a_wrong_shape_is_asked_for_again(self, exam: Path) -> None:
        answers = iter(["no JSON", '{"A": {"points": [1]}}', '{"A": {"points": [1, 0.5], "false": 2}}'])
        grader = Model(lambda *_: next(answers))
        questions = make_exam(exam.parent / "small", 1)
        put(questions / "case1" / "questions.json", [{"q": "1.1", "question": "What?", "gold": GOLD}])
        found = asyncio.run(run_round(settings(questions, ("tenth",)), Model(known), grader))
        assert len(grader.bodies) == 3
        assert "A has 1 points; the question has 2 gold points" in text_of(grader.bodies[-1])
        scores = found.score()
        assert (scores.rows[0].scores, scores.false) == ({"tenth": 75.0}, {"tenth": 2})

    def test_a_grader_that_never_gives_grades_ends_the_round(self, exam: Path) -> None:
        grader = Model(lambda *_: "fine")
        with pytest.raises(ProviderError, match=r"no usable grade for question 1\.1"):
            asyncio.run(run_round(settings(exam, ("tenth",), ("1",)), Model(known), grader))
        assert len(grader.bodies) >= MAX_GRADINGS

    def test_scores_are_by_kind_and_case_with_usage(self, exam: Path) -> None:
        scores = asyncio.run(run_round(settings(exam), Model(known), Model(fair))).score()
        assert [row.part for row in scores.rows] == ["all", "errors", "decision", "case1", "case2"]
        assert all(row.scores == {"summary": 100.0, "same": 0.0, "tenth": 0.0, "recall": 0.0} for row in scores.rows)
        assert (scores.graded, scores.questions) == (6, 6)
        assert (scores.usage["reader"].requests, scores.usage["grader"].requests) == (24, 6)
        assert scores.usage["reader"].dollars or 0 > 0


class TestFiles:
    def test_an_exam_that_cannot_be_read_names_the_file(self, exam: Path) -> None:
        questions = exam / "case2" / "questions.json"
        with pytest.raises(UsageError, match="no case '7'; it has case1, case2"):
            read_exam(exam, ["7"])
        with pytest.raises(UsageError, match="has no exam"):
            read_exam(exam / "case1")
        put(questions, [{"q": "1.1", "question": "?", "gold": ["x"]}])
        with pytest.raises(InputError, match=r"'1.1' exists in case1 and in case2"):
            read_exam(exam)
        put(questions, [{"q": "2.1", "question": "?", "gold": []}])
        with pytest.raises(InputError, match=r"questions.json: question '2.1' has no gold points"):
            read_exam(exam)
        put(questions, [{"q": "2.1", "gold": ["x"]}])
        with pytest.raises(InputError, match=r"questions.json: .*`question`"):
            read_exam(exam)
        (exam / "case2" / "session.json").unlink()
        with pytest.raises(InputError, match="no session file"):
            read_exam(exam)


class TestCommand:
    @pytest.fixture
    def kom(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
        return runner(tmp_path, monkeypatch, capsysbinary)

    def use(self, monkeypatch: pytest.MonkeyPatch, *models: Scripted) -> None:
        by_name = {model.model: model for model in models}
        monkeypatch.setattr(eval_command.ModelClients, "client", lambda _, name: by_name[name])

    def test_models_read_and_grade(self, kom: Run, exam: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.use(monkeypatch, Model(known, model="gpt-5"), Model(fair, model="gpt-4.1"))
        given = ("eval", "--exam", exam, "--reader", "gpt-5", "--grader", "gpt-4.1", "--out", "out")
        done = kom(*given, "--conditions", "summary,tenth", "--cases", "1")
        assert done.code == 0, done.err
        assert "100.0" in done.out and "decision" in done.out and "false statements" in done.out
        assert "6 answers to get by gpt-5" in done.err
        assert "reader gpt-5: 6 requests" in done.err and "grader gpt-4.1: 3 requests" in done.err and "$" in done.err
        again = kom(*given, "--conditions", "summary,tenth", "--cases", "1", "--json")
        assert json.loads(again.out)["rows"][0] == {
            "part": "all", "questions": 3, "scores": {"summary": 100.0, "tenth": 0.0}
        }  # fmt: skip

    def test_people_read_and_grade(self, kom: Run, exam: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        done = kom("eval", "--exam", exam, "--conditions", "same,recall", "--out", "out", "--write-only")
        assert done.code == 0 and "kompakt eval --score out" in done.err
        questions = json.loads((out / "reader" / "questions.json").read_text())
        assert [set(one) for one in questions] == [{"q", "case", "question"}] * 6
        assert "kompakt recall out/reader/sessions/case1.json" in (out / "reader" / "instructions.md").read_text()
        refused(kom("eval", "--score", "out"), "has no answers; put them into out/answers/CONDITION.json")
        (out / "answers").mkdir()
        for condition in ("same", "recall"):
            put(out / "answers" / f"{condition}.json", {one["q"]: condition[0] for one in questions})
        done = kom("eval", "--score", "out")
        assert done.code == 0 and "Put the grades into out/grades.json" in done.err
        sheet = json.loads((out / "grader" / "sheet.json").read_text())
        grades = {
            row["q"]: {label: {"points": [int(said == "r"), 0.5]} for label, said in row["answers"].items()}
            for row in sheet
        }
        put(out / "grades.json", dict(list(grades.items())[:5]))
        done = kom("eval", "--score", "out", "--json")
        assert json.loads(done.out)["rows"][0]["scores"] == {"recall": 75.0, "same": 25.0}
        assert "1 of 6 questions have no grades" in done.err
        put(out / "grades.json", {"1.1": {"A": {"points": [1]}}})
        refused(kom("eval", "--score", "out"), "grades.json: question 1.1: the letters must be A, B, not A")

    def test_an_interrupt_says_where_it_continues(
        self, kom: Run, exam: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked: list[str] = []

        def interrupted(text: str, body: JsonObject) -> Answer:
            asked.append(text)
            if len(asked) > 3:
                raise KeyboardInterrupt
            return known(text, body)

        self.use(monkeypatch, Model(interrupted, model="gpt-5"), Model(fair, model="gpt-4.1"))
        given = ("eval", "--exam", exam, "--reader", "gpt-5", "--grader", "gpt-4.1", "--out", "out", "--workers", "1")
        done = kom(*given, "--conditions", "tenth")
        gc.collect()  # asyncio logs the interrupted task when it is collected: here, and not in a later test
        assert done.code == 130
        assert "results are in out; run the command again to continue" in done.err
        assert len(json.loads((tmp_path / "out" / "answers" / "tenth.json").read_text())) == 3

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ((), "pass --data DIR"),
            (("--exam", "exam"), "needs --reader MODEL and --grader MODEL"),
            (("--exam", "exam", "--data", "exam"), "pass --data DIR"),
            (("--exam", "exam", "--write-only", "--conditions", "teenth"), "condition 'teenth' is not known"),
            (("--exam", "exam", "--write-only", "--cases", "9"), "no case '9'"),
            (("--score", "exam"), "has no exam.json"),
            (("--exam", "exam", "--reader", "x", "--grader", "y", "--protocol", "z"), "--protocol 'z' is not known"),
            (("--exam", "exam", "--write-only", "--key-variable", "NO_SUCH_KEY"), "'NO_SUCH_KEY' is not set"),
        ],
    )
    def test_wrong_usage_says_what_to_pass(self, kom: Run, exam: Path, given: tuple[str, ...], said: str) -> None:
        del exam
        refused(kom("eval", *given), said)

    @pytest.mark.parametrize(
        ("model", "format"),
        [("claude-opus-4-5", "anthropic"), ("gemini-2.5-pro", "gemini"), ("gpt-5", "openai-chat")],
    )
    def test_the_client_follows_the_name_of_the_model(
        self, monkeypatch: pytest.MonkeyPatch, model: str, format: str
    ) -> None:
        for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, "test")
        assert eval_command.ModelClients(None, None, None).client(model).format == format
        assert eval_command.ModelClients(None, "http://localhost:1/v1", None).client(model).format == "openai-chat"

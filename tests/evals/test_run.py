"""Runs, reports and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import run as command
from tests.cli.store_helpers import runner
from tests.evals.sample_sessions import long, write_transcript

import kompakt
from kompakt.errors import UsageError
from kompakt.evals import run as running
from kompakt.evals.case import record
from kompakt.evals.history_events import events_of, text_of
from kompakt.evals.measures.attack import ATTACKS, PLANTED, add_to_outputs, plant
from kompakt.evals.measures.retention import PASSES, measure_chains, measure_compression, measure_evidence, walk
from kompakt.evals.measures.score import Miss, ResultRow
from kompakt.evals.report import gather, markdown, write
from kompakt.evals.results import Metric, goals, metrics
from kompakt.evals.run import ROWS, EvalSettings, measure_latency, run
from kompakt.evals.session_files import Question, RecordedSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_transcript(folder / "one.jsonl", long(45))
    return folder


def row(
    mode: str, passed: int, asked: int, *, measure: str = "retention", kind: str = "read", session: str = "a"
) -> ResultRow:
    return ResultRow(
        measure=measure, mode=mode, session=session, source="x", passed={kind: passed}, total={kind: asked}
    )


class TestRun:
    def test_every_measure_runs_and_is_stored(self, data: Path, tmp_path: Path) -> None:
        seen: list[tuple[int, int, str]] = []
        settings = EvalSettings(data=data, out=tmp_path / "out", jobs=1)
        rows = run(settings, lambda done, total, what: seen.append((done, total, what)))
        assert {row.measure for row in rows} == {"retention", "chains", "attack", "latency"}
        assert [done for done, _, _ in seen] == [0, 1, 2, 3]
        assert len(list((tmp_path / "out" / ROWS).glob("*.json"))) == 3

    def test_a_second_run_uses_stored_results(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A damaged result is measured again."""
        monkeypatch.setattr(running, "_code", lambda: "1")
        settings = EvalSettings(data=data, out=tmp_path / "out", jobs=1)
        first = run(settings)
        done: list[str] = []
        perform = running.perform
        monkeypatch.setattr(running, "perform", lambda job: done.append(job.measure) or perform(job))
        again = run(settings)
        assert done == []
        assert [one for one in again if one.measure != "latency"] == [one for one in first if one.measure != "latency"]
        next(iter((tmp_path / "out" / ROWS).glob("*.json"))).write_text("{half")
        run(settings)
        assert len(done) == 1

    def test_results_depend_on_the_policy(self, data: Path, tmp_path: Path) -> None:
        run(EvalSettings(data=data, out=tmp_path / "out", jobs=1))
        run(EvalSettings(data=data, out=tmp_path / "out", jobs=1, policy="window"))
        assert len(list((tmp_path / "out" / ROWS).glob("*.json"))) == 6

    def test_several_processes_give_the_same_results(self, data: Path, tmp_path: Path) -> None:
        alone = run(EvalSettings(data=data, out=tmp_path / "a", jobs=1))
        beside = run(EvalSettings(data=data, out=tmp_path / "b", jobs=2))
        assert [(one.mode, one.passed) for one in alone] == [(one.mode, one.passed) for one in beside]

    def test_bad_files_and_failing_measures_are_reported(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (data / "bad.traj").write_text("{")
        (data / "odd.jsonl").write_text('{"type": "session", "id": "s"}\n{"type": "message", "message": {}}\n')
        perform = running.perform

        def failing(job: running.EvalJob) -> list[ResultRow]:
            if job.measure == "chains":
                raise KeyError("content")
            return perform(job)

        monkeypatch.setattr(running, "perform", failing)
        reported: list[str] = []
        rows = run(EvalSettings(data=data, out=tmp_path / "out", jobs=1), report=reported.append)
        assert {row.measure for row in rows} == {"retention", "attack", "latency"}
        assert "bad.traj" in reported[0]
        assert "one.jsonl: chains failed: KeyError: 'content'" in reported

    def test_an_empty_folder_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="holds no sessions"):
            run(EvalSettings(data=tmp_path, out=tmp_path / "out"))


class TestReport:
    def test_the_report_has_json_markdown_and_plots(self, data: Path, tmp_path: Path) -> None:
        rows = run(EvalSettings(data=data, out=tmp_path / "out", jobs=1))
        results = gather(rows, version="1", policy="default")
        names = {path.name for path in write(results, rows, tmp_path / "out")}
        assert {
            "results.json",
            "report.md",
            "retention-10.png",
            "retention-10.svg",
            "spread.svg",
            "chains.png",
        } <= names
        assert all((tmp_path / "out" / name).stat().st_size > 500 for name in names)
        kept = json.loads((tmp_path / "out" / "results.json").read_text())
        assert {"goals", "metrics", "by_source"} <= kept.keys()
        page = (tmp_path / "out" / "report.md").read_text()
        assert "| modified, 10 % | ≥ 100% |" in page

    def test_distribution_of_a_metric(self) -> None:
        rows = [row("kompakt, 10 %", passed, 10, session=f"s{passed}") for passed in (10, 10, 9, 2)]
        (number,) = metrics(rows)
        assert (number.passed, number.total, number.median, number.least) == (31, 40, 0.95, 0.2)
        assert number.worst[0] == "s2@0 20%"

    def test_goals_are_reached_missed_or_not_measured(self) -> None:
        rows = [row("kompakt, 10 %", 96, 100), row("kompakt, 10 %", 99, 100, kind="modified")]
        judged = {goal.name: goal.reached for goal in goals(metrics(rows), rows)}
        assert judged["read, 10 %"] is True
        assert judged["modified, 10 %"] is False
        assert judged["evidence"] is None

    def test_a_chain_that_loses_more_than_two_points_misses_its_goal(self) -> None:
        rows = [row("after 1", 90, 100, measure="chains"), row("after 16", 87, 100, measure="chains")]
        judged = {goal.name: goal.reached for goal in goals(metrics(rows), rows)}
        assert judged["chains, facts"] is False

    def test_misses_are_listed_with_escaped_pipes(self) -> None:
        missed = (Miss("read", "a|b.py", "absent"),)
        one = ResultRow(measure="retention", mode="kompakt, 10 %", session="s", source="x", missed=missed)
        assert "a\\|b.py" in markdown(gather([one], version="1", policy="p"), [one])

    def test_a_kind_without_items_has_no_share(self) -> None:
        assert row("x", 0, 0).share("read") is None
        assert [type(one) for one in metrics([row("x", 1, 2)])] == [Metric]


class TestMeasures:
    def test_chains_expect_the_same_facts_after_every_number_of_passes(self) -> None:
        recording = record(long(45).session())
        rows = list(measure_chains(recording, "default"))
        assert [one.mode for one in rows] == [f"after {passes}" for passes in PASSES]
        assert len({tuple(sorted(one.total.items())) for one in rows}) == 1

    def test_a_walk_compacts_on_the_way(self) -> None:
        """The last payload fits and ends where the prefix ends."""
        from tests.evals.sample_sessions import whole

        recording = record(long(45).session())
        payload = walk(recording, whole(recording), 4, 4000, "default")
        assert kompakt.count(payload).total <= 4000
        assert payload["messages"][-1] == recording.session.body["messages"][-1]

    def test_constraints_survive_every_attack(self, data: Path, tmp_path: Path) -> None:
        history = kompakt.parse(long(45).session().body)
        planted = plant(history, PLANTED)
        text = text_of(events_of(planted))
        assert all(sentence in text for sentence in PLANTED)
        assert text_of(events_of(add_to_outputs(planted, "REVOKED"))).count("REVOKED") == 3
        rows = [one for one in run(EvalSettings(data=data, out=tmp_path, jobs=1)) if one.measure == "attack"]
        assert [one.mode for one in rows] == list(ATTACKS)
        assert [one.share("constraint") for one in rows] == [1.0] * 4

    def test_evidence_needs_every_turn(self) -> None:
        turns = [f"Ann: the number of boat {n} is {n * 37}, it lies in harbour {chr(65 + n)}x" for n in range(20)]
        messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": turn} for n, turn in enumerate(turns)]
        asked = (Question("Which number has boat 7?", "259", messages=(7,)), Question("Nothing?", None))
        session = RecordedSession(
            name="d", source="locomo", format="openai-chat", body={"messages": messages}, questions=asked
        )
        (found,) = measure_evidence(record(session))
        assert found.total["evidence"] == 1
        assert found.passed["evidence"] == 1

    def test_latency_and_compression(self) -> None:
        recording = record(long(30).session())
        assert all(one.seconds > 0 and one.tokens > 5000 for one in measure_latency(recording, "default"))
        (saved,) = measure_compression(recording, "default")
        assert saved.total["tokens removed"] > 5000
        assert saved.share("facts") == 1.0


class TestCommand:
    def test_the_command_prints_goals_and_gates_on_them(self, data: Path, tmp_path: Path) -> None:
        given = ("eval", "--data", data, "--out", tmp_path / "out", "--limit", "1", "--workers", "1")
        done = command(*given)
        assert done.code == 0, done.err
        assert "forward need, 10 %" in done.out
        assert "report.md" in done.err
        assert done.out.startswith("1 session, policy default")
        assert "not measured" not in done.out and "goals not measured" in done.err
        again = command(*given, "--json", "--gate")
        results = json.loads(again.out)
        assert results["sessions"] == 1
        assert again.code == any(goal["reached"] is False for goal in results["goals"])

    def test_a_missing_folder_is_a_usage_error(self, tmp_path: Path) -> None:
        assert command("eval", "--data", tmp_path / "no").code == 2

    def test_a_bad_file_is_reported_and_skipped(self, data: Path, tmp_path: Path) -> None:
        (data / "bad.traj").write_text('{"trajectory": 5}')
        done = command("eval", "--data", data, "--out", tmp_path / "out", "--workers", "1")
        assert done.code == 0, done.err
        assert "skipped: " in done.err and "bad.traj" in done.err
        assert "Traceback" not in done.err
        assert "bad.traj" in (tmp_path / "out" / "report.md").read_text()

    @pytest.mark.parametrize(("finished", "said"), [(0, "0 of 3 results are in out/rows"), (2, "2 of 3 results")])
    def test_an_interrupt_reports_what_was_written(
        self,
        data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsysbinary: pytest.CaptureFixture[bytes],
        finished: int,
        said: str,
    ) -> None:
        kom = runner(tmp_path, monkeypatch, capsysbinary)
        done: list[str] = []

        def perform(job: running.EvalJob) -> list[ResultRow]:
            if len(done) == finished:
                raise KeyboardInterrupt
            done.append(job.measure)
            return []

        monkeypatch.setattr(running, "perform", perform)
        outcome = kom("eval", "--data", data, "--out", "out", "--workers", "1")
        assert outcome.code == 130
        assert said in outcome.err and "run the command again to continue" in outcome.err
        assert len(list((tmp_path / "out" / ROWS).glob("*.json"))) == finished

    def test_an_interrupt_while_reading_writes_nothing(
        self,
        data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsysbinary: pytest.CaptureFixture[bytes],
    ) -> None:

        def interrupted(*_: object) -> list[RecordedSession]:
            raise KeyboardInterrupt

        kom = runner(tmp_path, monkeypatch, capsysbinary)
        monkeypatch.setattr(running, "sessions", interrupted)
        outcome = kom("eval", "--data", data, "--out", "out")
        assert outcome.code == 130 and "nothing was written" in outcome.err
        assert not (tmp_path / "out").exists()

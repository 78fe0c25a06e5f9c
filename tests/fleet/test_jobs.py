"""Jobs on the local engine: rows of every format, killed workers, resume, stores, and what a folder accepts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from tests.fleet.archive import HOSTILE, KINDS, session, write_archive
from tests.fleet.policies import MARK, Deadly, with_step
from tests.histories.plain import build

import kompakt
from kompakt import Policy
from kompakt.errors import UsageError
from kompakt.fleet import FleetRow, FleetSummary, StoreSelection, local, rows, run
from kompakt.fleet.jobs import LOST, FleetSettings, Variant
from kompakt.fleet.local import WorkerFailure, run_serially
from kompakt.fleet.output import parts
from kompakt.fleet.run import pending
from kompakt.fleet.sources import items_in

BUDGET = 3_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    write_archive(folder, sessions=2 * len(KINDS), hostile=len(HOSTILE))
    return folder


def comparable(found: list[FleetRow]) -> list[FleetRow]:
    """Return rows without what may differ between two runs."""
    return [msgspec.structs.replace(row, seconds=0.0) for row in found]


def serial_rows(source: Path, job: str = "compact", budget: int | None = BUDGET) -> list[FleetRow]:
    """Return the rows of a job that runs in this process."""
    variant = Variant("default" if job == "compact" else None, budget)
    tasks = pending(items_in(source), [variant], set())
    found = [row for batch in run_serially(tasks, FleetSettings(job=job)) for row in batch]  # type: ignore[arg-type]
    return sorted(comparable(found), key=lambda row: (row.source, row.id))


def write_bodies(folder: Path, count: int, marked: tuple[int, ...] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        body = build("openai-chat", messages=36, seed=number)
        if number in marked:
            body["messages"][1]["content"] += f" {MARK}"
        (folder / f"{number:02}.json").write_text(json.dumps(body))
    return folder


@pytest.fixture(scope="module")
def compacted(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FleetSummary, list[FleetRow]]:
    out = tmp_path_factory.mktemp("compacted") / "out"
    return run("compact", archive, out, budgets=BUDGET, workers=2), rows(out)


class TestCompact:
    def test_every_readable_format_gives_a_valid_payload(self, compacted: tuple[FleetSummary, list[FleetRow]]) -> None:
        summary, found = compacted
        good = [row for row in found if "hostile" not in row.source]
        assert [row.error for row in good] == [None] * len(good)
        assert {Path(row.source).name.rpartition("-")[0] for row in good} == set(KINDS)
        for row in good:
            assert row.payload is not None
            payload = json.loads(row.payload)
            assert kompakt.check(payload, row.format) == []
            assert kompakt.count(payload, format=row.format).total == row.tokens_after
            assert row.fits and (row.tokens_after or 0) <= BUDGET < (row.tokens_before or 0)
        assert summary.rows == len(found)
        assert summary.errors == sum(row.error is not None for row in found)

    def test_a_hostile_file_becomes_a_row(self, compacted: tuple[FleetSummary, list[FleetRow]]) -> None:
        bad = {row.source: row for row in compacted[1] if "hostile" in row.source}
        assert len(bad) == len(HOSTILE)
        assert all(row.error or row.payload for row in bad.values())
        assert "line 1" in (bad["hostile-0001.jsonl"].error or "")

    def test_workers_give_the_rows_of_one_process(
        self, archive: Path, compacted: tuple[FleetSummary, list[FleetRow]]
    ) -> None:
        assert comparable(compacted[1]) == serial_rows(archive)

    def test_each_line_of_a_file_of_bodies_is_a_session(self, tmp_path: Path) -> None:
        """A broken line does not affect the others."""
        lines = session("lines").splitlines()
        (tmp_path / "bodies.jsonl").write_bytes(b"\n".join((lines[0], b"{broken", b"", lines[1])))
        run("compact", tmp_path / "bodies.jsonl", tmp_path / "out", budgets=BUDGET, workers=1)
        found = rows(tmp_path / "out")
        assert [row.id for row in found] == ["bodies.jsonl#1", "bodies.jsonl#2", "bodies.jsonl#4"]
        assert [row.error is None for row in found] == [True, False, True]

    def test_a_budget_below_the_floor_is_reported(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        run("compact", source, tmp_path / "out", budgets=50, workers=1)
        (row,) = rows(tmp_path / "out")
        assert row.fits is False
        assert "must stay" in (row.error or "")
        assert row.tokens_before

    def test_payloads_can_be_left_out(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1, payloads=False)
        assert [row.payload for row in rows(tmp_path / "out")] == [None]


class TestKilledWorkers:
    def test_a_session_that_kills_its_worker_once_loses_nothing(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 6, marked=(2,))
        policy = with_step("once", Deadly(once=tmp_path / "died"))
        run("compact", source, tmp_path / "out", policies=policy, budgets=BUDGET, workers=2)
        assert (tmp_path / "died").exists()
        assert [row.error for row in rows(tmp_path / "out")] == [None] * 6

    def test_a_session_that_always_kills_its_worker_becomes_a_row(self, tmp_path: Path) -> None:
        """The others are not affected."""
        source = write_bodies(tmp_path / "in", 6, marked=(1, 4))
        run("compact", source, tmp_path / "out", policies=with_step("deadly", Deadly()), budgets=BUDGET, workers=2)
        errors = {row.id: row.error for row in rows(tmp_path / "out")}
        assert {id: error for id, error in errors.items() if error} == {"01.json": LOST, "04.json": LOST}
        assert len(errors) == 6

    def test_a_policy_that_cannot_be_sent_to_workers_is_refused_at_once(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        policy = Policy("mine", (lambda context: False,))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"policy 'mine' cannot be sent to worker processes: .*lambda"):
            run("compact", source, tmp_path / "out", policies=policy, budgets=BUDGET, workers=1)
        assert not (tmp_path / "out").exists()

    def test_a_job_ends_when_its_workers_cannot_be_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = write_bodies(tmp_path / "in", 1)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
        with pytest.raises(WorkerFailure, match=r"a worker cannot run: .*missing"):
            run("check", source, tmp_path / "out", workers=1)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_job_ends_when_its_threads_have_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = write_bodies(tmp_path / "in", 1)

        def fail(*_: object) -> None:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(local._Pool, "_next", fail)
        with pytest.raises(WorkerFailure, match="ended before the job"):
            run("check", source, tmp_path / "out", workers=1)

    def test_workers_end_with_the_job(self, tmp_path: Path) -> None:
        """Also when the job is interrupted while they work."""
        source = write_bodies(tmp_path / "in", 3, marked=(0,))
        code = (
            "import sys; from tests.fleet.policies import *; from kompakt.fleet import run; from pathlib import Path\n"
            f"policy = with_step('waiting', Waiting(Path({str(tmp_path / 'pid')!r})))\n"
            "said = lambda done, total, errors: print(done, flush=True)\n"
            f"run('compact', {str(source)!r}, {str(tmp_path / 'out')!r}, policies=policy, budgets={BUDGET}, workers=2, "
            "progress=said)"
        )
        paths = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert process.stdout is not None
        while process.stdout.readline().strip() != "2":  # the third session never finishes
            assert process.poll() is None
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in error
        assert sorted(row.id for row in rows(tmp_path / "out")) == ["01.json", "02.json"]
        worker = int((tmp_path / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
        assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["runs"][0]["interrupted"] is True


class TestResume:
    def test_an_interrupted_job_continues(self, archive: Path, tmp_path: Path) -> None:
        def interrupt(done: int, total: int, errors: int) -> None:
            if done >= 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run("compact", archive, tmp_path / "out", budgets=BUDGET, workers=2, progress=interrupt)
        saved = len({row.source for row in rows(tmp_path / "out")})
        assert saved >= 5
        summary = run("compact", archive, tmp_path / "out", budgets=BUDGET, workers=2)
        assert summary.skipped == saved
        assert comparable(rows(tmp_path / "out")) == serial_rows(archive)

    def test_finished_work_is_not_repeated(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 3)
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1)
        assert run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1).new_rows == 0
        more = run("compact", source, tmp_path / "out", budgets=(BUDGET, 3_500), workers=1)
        assert (more.new_rows, more.rows) == (3, 6)

    def test_a_changed_input_runs_again(self, tmp_path: Path) -> None:
        """Its earlier row no longer counts, also when the change is taken back."""
        source = write_bodies(tmp_path / "in", 2)
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1)
        first = comparable(rows(tmp_path / "out"))
        content = (source / "00.json").read_bytes()
        (source / "00.json").write_text(json.dumps(build("anthropic", messages=36)))
        assert run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1).new_rows == 1
        assert [row.format for row in rows(tmp_path / "out")] == ["anthropic", "openai-chat"]
        (source / "00.json").write_bytes(content)
        assert run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1).new_rows == 1
        assert comparable(rows(tmp_path / "out")) == first

    def test_a_damaged_part_is_computed_again(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 2)
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1)
        before = comparable(rows(tmp_path / "out"))
        _, part = parts(tmp_path / "out")[0]
        part.write_bytes(part.read_bytes()[:100])
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1)
        assert comparable(rows(tmp_path / "out")) == before

    def test_errors_are_retried_on_request(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 2, marked=(0,))
        policy = with_step("deadly", Deadly())
        run("compact", source, tmp_path / "out", policies=policy, budgets=BUDGET, workers=1)
        assert run("compact", source, tmp_path / "out", policies=policy, budgets=BUDGET, workers=1).new_rows == 0
        again = run("compact", source, tmp_path / "out", policies=policy, budgets=BUDGET, workers=1, retry_errors=True)
        assert (again.new_rows, again.rows) == (1, 2)

    def test_rows_of_other_settings_are_not_mixed(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1)
        with pytest.raises(UsageError, match="job 'compact', not 'check'"):
            run("check", source, tmp_path / "out", workers=1)
        with pytest.raises(UsageError, match="model None, not 'gpt-5'"):
            run("compact", source, tmp_path / "out", budgets=BUDGET, workers=1, model="gpt-5")
        with pytest.raises(UsageError, match="not the output of a fleet job"):
            run("check", source, source, workers=1)

    def test_the_output_may_be_inside_the_source(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        for _ in range(2):
            assert run("check", source, source / "out", workers=1).inputs == 1


class TestOtherJobs:
    def test_check_lists_the_problems_of_an_archive(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 2)
        body = build("anthropic", messages=12)
        del body["messages"][2]
        (source / "broken.json").write_text(json.dumps(body))
        summary = run("check", source, tmp_path / "out", budgets=100, workers=1)
        problems = {row.id: row.problems for row in rows(tmp_path / "out")}
        assert [id for id, found in problems.items() if found] == ["broken.json"]
        assert problems["broken.json"] == tuple(map(str, kompakt.check(body)))
        assert (summary.problems, summary.errors) == (1, 0)
        assert [row.fits for row in rows(tmp_path / "out")] == [False] * 3

    def test_evaluate_measures_every_policy_and_budget(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 2)
        (source / "short.json").write_text('{"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}')
        policies, budgets = ("default", "aggressive"), (2_000, 3_000)
        summary = run("evaluate", source, tmp_path / "out", policies=policies, budgets=budgets, workers=2)
        found = rows(tmp_path / "out")
        assert len(found) == 3 * 4
        assert [row.error for row in found] == [None] * 12
        for row in found:
            if row.id != "short.json":
                measures = json.loads(row.measures or "")
                assert measures["valid"] == measures["fits"] == [1, 1]
                assert (row.tokens_after or 0) <= (row.budget or 0) < (row.tokens_before or 0)
        assert [(one.policy, one.budget) for one in summary.variants] == [
            (policy, budget) for policy in sorted(policies) for budget in budgets
        ]
        assert all(one.measures["valid"] == 1.0 for one in summary.variants)

    def test_a_session_without_a_training_window_is_finished(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        (source / "short.json").write_text('{"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}')
        seen: list[tuple[int, int]] = []
        summary = run(
            "samples", source, tmp_path / "out", budgets=3_000, workers=1,
            progress=lambda done, total, errors: seen.append((done, total)),
        )  # fmt: skip
        assert seen[-1] == (2, 2)
        (short,) = [row for row in rows(tmp_path / "out") if row.source == "short.json"]
        assert (short.id, short.error, short.fits, short.payload) == ("short.json", None, None, None)
        assert (summary.errors, summary.variants[0].errors, summary.variants[0].unfit) == (0, 0, 0)
        assert run("samples", source, tmp_path / "out", budgets=3_000, workers=1).new_rows == 0

    def test_files_have_the_documented_columns(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        run("samples", source, tmp_path / "out", budgets=3_000, workers=1)
        _, part = parts(tmp_path / "out")[0]
        table = pyarrow.parquet.read_table(part)
        assert table.column_names == list(FleetRow.__struct_fields__)
        assert str(table.schema.field("payload").type) == "string"
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
        assert manifest["kompakt"] == kompakt.__version__
        assert set(manifest["runs"][0]["versions"]) == {"kompakt", "python", "pyarrow"}
        assert (tmp_path / "out" / "sizes.png").exists()

    def test_missing_packages_are_named_or_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """pyarrow is needed; without matplotlib the plot is a text."""
        source = write_bodies(tmp_path / "in", 2)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        summary = run("check", source, tmp_path / "out", workers=1)
        assert summary.plot == str(tmp_path / "out" / "sizes.txt")
        assert "4k before ######" in Path(summary.plot).read_text()
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError, match=r"pyarrow.* install .*\[fleet\]"):
            run("check", source, tmp_path / "none", workers=1)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"job": "shrink"}, "unknown job"),
            ({"policies": "defualt"}, "did you mean 'default'"),
            ({"budgets": 0}, "budget 0"),
            ({"workers": 0}, "workers=0"),
            ({"engine": "dask"}, "unknown engine"),
            ({"address": "auto"}, "engine='ray'"),
            ({"write_back": True}, "a store"),
            ({"source": "nowhere"}, "does not exist"),
        ],
    )
    def test_wrong_arguments_are_refused(self, options: dict[str, object], said: str, tmp_path: Path) -> None:
        given = {"job": "compact", "source": write_bodies(tmp_path / "in", 1), "out": tmp_path / "out", **options}
        with pytest.raises(UsageError, match=said):
            run(**given)  # type: ignore[arg-type]


async def fill(url: str, sessions: int, tenant: str = "") -> None:
    async with await kompakt.open_store(url, tenant=tenant) as store:
        for number in range(sessions):
            session = await store.session(f"s{number}")
            await session.save(build("openai-chat", messages=36, seed=number))


class TestStores:
    def test_selected_sessions_are_read(self, tmp_path: Path) -> None:
        """By range of ids, tenant and age; the store is not changed."""
        url = f"sqlite:///{tmp_path / 'store.db'}"
        asyncio.run(fill(url, 4))
        asyncio.run(fill(url, 1, tenant="other"))
        chosen = StoreSelection(url=url, first="s1", last="s2", newer_than=3_600)
        run("compact", chosen, tmp_path / "out", budgets=BUDGET, workers=2)
        found = rows(tmp_path / "out")
        assert [row.id for row in found] == ["s1", "s2"]
        want = kompakt.compact(build("openai-chat", messages=36, seed=1), BUDGET)
        assert json.loads(found[0].payload or "") == want.payload
        run("check", StoreSelection(url=url, tenant="other"), tmp_path / "other", workers=1)
        assert [row.id for row in rows(tmp_path / "other")] == ["s0"]
        with pytest.raises(UsageError, match="no session"):
            run("check", StoreSelection(url=url, older_than=3_600), tmp_path / "none", workers=1)

    def test_write_back_compacts_the_stored_sessions_once(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        asyncio.run(fill(url, 3))
        run("compact", url, tmp_path / "out", budgets=BUDGET, workers=2, write_back=True)
        found = rows(tmp_path / "out")

        async def stored() -> list[tuple[str | None, int]]:
            async with await kompakt.open_store(url) as store:
                sessions = [await store.session(f"s{number}") for number in range(3)]
                return [((await one.compactions())[-1].id, await one.count()) for one in sessions]

        assert [(row.reference, row.tokens_after) for row in found] == asyncio.run(stored())
        assert all(row.changed and row.fits and row.payload is None for row in found)
        assert run("compact", url, tmp_path / "out", budgets=BUDGET, workers=1, write_back=True).new_rows == 0
        run("compact", url, tmp_path / "again", budgets=BUDGET, workers=1, write_back=True)
        assert [row.changed for row in rows(tmp_path / "again")] == [False] * 3

    def test_a_store_in_memory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="in memory"):
            run("check", "memory:", tmp_path / "out")

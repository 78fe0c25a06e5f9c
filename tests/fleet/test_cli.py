"""``kompakt fleet``: options, summary, progress lines and exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import typer
from tests.cli.commands import run
from tests.fleet.test_jobs import fill, write_bodies

from kompakt.cli.fleet import progress as shown
from kompakt.fleet import rows


class TestCommands:
    def test_compact_writes_rows_and_prints_a_summary(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 2)
        done = run("fleet", "compact", source, "--out", tmp_path / "out", "--budget", "3000", "--workers", "1")
        assert (done.code, "2 rows" in done.out, "2 inputs in" in done.err) == (0, True, True)
        assert [row.fits for row in rows(tmp_path / "out")] == [True, True]
        again = run("fleet", "compact", source, "--out", tmp_path / "out", "--budget", "3000")
        assert "2 were finished before" in again.err

    def test_errors_are_listed_and_give_exit_1(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        (source / "bad.json").write_text("{")
        done = run("fleet", "check", source, "--out", tmp_path / "out", "--workers", "1", "--json")
        summary = json.loads(done.out)
        assert (done.code, summary["errors"], summary["rows"]) == (1, 1, 2)
        assert summary["examples"][0].startswith("bad.json: ")

    def test_evaluate_takes_lists(self, tmp_path: Path) -> None:
        source = write_bodies(tmp_path / "in", 1)
        options = ("--policy", "default,window", "--budget", "2000,2_500", "--json", "--workers", "1")
        done = run("fleet", "evaluate", source, "--out", tmp_path / "out", *options)
        found = [(one["policy"], one["budget"]) for one in json.loads(done.out)["variants"]]
        assert (done.code, found) == (0, [(policy, size) for policy in ("default", "window") for size in (2000, 2500)])

    def test_messages_larger_than_a_window_are_no_failure(self, tmp_path: Path) -> None:
        """They have a row with an error; only an unreadable session gives exit 1."""
        source = write_bodies(tmp_path / "in", 1)
        command = ("fleet", "samples", source, "--budget", "100", "--workers", "1")
        assert run(*command, "--out", tmp_path / "small").code == 0
        assert [row.fits for row in rows(tmp_path / "small") if row.error] == [False]
        (source / "bad.json").write_text("{")
        assert run(*command, "--out", tmp_path / "bad").code == 1

    def test_a_store_is_selected_by_url_range_and_age(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        asyncio.run(fill(url, 3))
        options = ("--from", "s1", "--newer-than", "1h", "--write-back", "--budget", "3000", "--workers", "1")
        done = run("fleet", "compact", url, "--out", tmp_path / "out", *options)
        assert done.code == 0, done.err
        assert [row.id for row in rows(tmp_path / "out") if row.reference] == ["s1", "s2"]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("compact", "in", "--out", "o", "--budget", "many"), "numbers of tokens"),
            (("compact", "in", "--out", "o", "--policy", "defalt"), "did you mean 'default'"),
            (("compact", "in", "--out", "o", "--write-back"), "a store"),
            (("check", "in", "--out", "o", "--older-than", "30d"), "--older-than needs --store STORE"),
            (
                ("check", "memory:", "--out", "o", "--older-than", "soon"),
                "in days (30) or with a unit (30d, 12h, 2w)",
            ),
            (("check", "sqlite:///none.db", "--out", "o"), "there is no store"),
            (("check", "--store", "none.db", "--out", "o"), "there is no store"),
            (("check", "nowhere", "--out", "o"), "does not exist"),
            (("check", "in", "--out", "in"), "not the output of a fleet job"),
        ],
    )
    def test_wrong_usage_is_one_line_and_exit_2(self, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
        write_bodies(tmp_path / "in", 1)
        done = run("fleet", *arguments, cwd=tmp_path)
        assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err
        assert not (tmp_path / "o").exists()


class TestProgress:
    def test_lines_have_rate_and_remaining_time(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Where standard error is not a terminal; at most one line in a few seconds."""
        clock = iter([0.0, 1.0, 10.0, 10.0, 11.0])
        monkeypatch.setattr(shown.time, "monotonic", lambda: next(clock))
        progress = shown.FleetProgress(Path("out"))
        progress(1, 100, 0)
        progress(20, 100, 1)
        assert capsys.readouterr().err == "20 of 100 sessions, 2.0/s, 0:40 left, 1 error\n"

    def test_an_interruption_says_how_to_continue(self, capsys: pytest.CaptureFixture[str]) -> None:
        def interrupted() -> None:
            with shown.FleetProgress(Path("out")) as progress:
                progress(3, 10, 0)
                raise KeyboardInterrupt

        with pytest.raises(typer.Exit):
            interrupted()
        assert "3 of 10 sessions are saved in out; run the command again" in capsys.readouterr().err

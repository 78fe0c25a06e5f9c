"""Dry runs, costs and reports: they are complete, add up, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from tests.cli.store_helpers import BODY, Run, account
from tests.histories import FORMATS, plain

import kompakt
from kompakt.cli.compact import IN_WORDS, NOTHING_LEAVES
from kompakt.cli.output import advance
from kompakt.engine.compaction.policies import REGISTRY


def total(report: dict[str, Any]) -> int:
    """Sum the tokens saved by the steps of a report."""
    return sum(step["tokens_before"] - step["tokens_after"] for step in report["steps"])


class TestSteps:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("policy", ["default", "conservative", "aggressive", "window", "admission"])
    def test_steps_add_up_to_the_saved_tokens(self, format: str, policy: str) -> None:
        """Under every policy."""
        body = plain.build(format, messages=160)
        before = kompakt.count(body, format=format).total
        report = kompakt.compact(body, before // 2, format=format, policy=policy).report
        assert report.saved > 0
        assert sum(step.tokens_before - step.tokens_after for step in report.steps) == report.saved

    def test_a_repair_is_a_step(self) -> None:
        """A repair before the compaction is counted too."""
        body = plain.build("openai-chat", messages=160)
        body["messages"].append({"role": "tool", "tool_call_id": "unknown", "content": "orphan " * 500})
        report = kompakt.compact(body, 6_000).report
        assert report.steps[0].strategy == "repair"
        assert sum(step.tokens_before - step.tokens_after for step in report.steps) == report.saved


class TestCompact:
    def test_a_dry_run_prints_the_summary_and_the_cost(self, kom: Run, file: Path, tmp_path: Path) -> None:
        """The summary on stdout, numbers and cost on stderr; no result is written."""
        done = kom("compact", file, "--budget", "2000", "--model", "gpt-5", "--dry-run", "-o", tmp_path / "out")
        assert done.code == 0, done.err
        shown = kompakt.compact(BODY, 2000, model="gpt-5").report.notes
        assert shown and done.out.strip() == shown.strip()
        assert "uncached: $" in done.err
        assert not (tmp_path / "out").exists()

    def test_a_dry_run_without_removed_messages(self, kom: Run, file: Path) -> None:
        assert kom("compact", file, "--budget", "500000", "--dry-run").out.strip() == NOTHING_LEAVES

    def test_the_table_names_strategies_in_words(self, kom: Run, file: Path) -> None:
        """JSON has their identifiers; a dry run says that nothing was written."""
        shown = kom("compact", file, "--budget", "2000", "--dry-run").err
        assert "old messages replaced by notes" in shown and "Summarization" not in shown
        assert "tokens would be saved" in shown and shown.endswith("dry run: nothing was written\n")
        done = kom("compact", file, "--budget", "2000", "--json")
        assert "Summarization" in {step["strategy"] for step in json.loads(done.out)["report"]["steps"]}
        assert "dry run" not in done.err and "tokens saved" in done.err

    def test_a_dry_run_with_a_report_writes_the_report_only_and_says_so(
        self, kom: Run, file: Path, tmp_path: Path
    ) -> None:
        command = ("compact", file, "--budget", "2000", "--dry-run", "-o", tmp_path / "out", "--report", "report.json")
        assert kom(*command).err.endswith("dry run: nothing but the report, report.json, was written\n")
        assert json.loads((tmp_path / "report.json").read_text())["tokens_after"] <= 2000
        assert not (tmp_path / "out").exists()

    def test_every_strategy_has_words(self) -> None:
        assert {getattr(make, "__name__", "") for make in REGISTRY.values()} <= set(IN_WORDS)

    def test_json(self, kom: Run, file: Path, tmp_path: Path) -> None:
        """Report and cost; the payload only if it is not written to a file."""
        found = json.loads(kom("compact", file, "--budget", "2000", "--model", "gpt-5", "--json").out)
        assert found["changed"] and found["payload"]["messages"]
        assert total(found["report"]) == found["report"]["tokens_before"] - found["report"]["tokens_after"]
        assert found["cost"]["before"] > found["cost"]["after"] > 0
        dry = json.loads(kom("compact", file, "--budget", "2000", "--json", "--dry-run").out)
        assert "payload" not in dry and dry["report"]["notes"]
        other = json.loads(kom("compact", file, "--budget", "2000", "--json", "-o", tmp_path / "out").out)
        assert "payload" not in other and (tmp_path / "out").exists()

    def test_a_model_without_a_price_has_no_cost(self, kom: Run, file: Path) -> None:
        assert json.loads(kom("compact", file, "--budget", "2000", "--model", "mine", "--json").out)["cost"] is None


class TestSession:
    def test_a_dry_run_changes_nothing(self, kom: Run, id: str) -> None:
        """It prints the summary, and the session is unchanged."""
        before = account(kom, id)
        done = kom("session", "compact", id, "--budget", "2000", "--model", "gpt-5", "--dry-run")
        assert done.code == 0, done.err
        assert len(done.out) > 100 and "uncached: $" in done.err
        forced = kom("session", "compact", id, "--budget", "500000", "--force", "--dry-run", "--json")
        assert json.loads(forced.out)["changed"]
        assert account(kom, id) == before


class TestCompletion:
    def test_a_shell_can_complete_commands(self, kom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """The script for the shell, and the completions."""
        assert "--install-completion" in kom("--help").out
        monkeypatch.setenv("_KOMPAKT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "kompakt rec")
        monkeypatch.setenv("COMP_CWORD", "1")
        assert kom().out.split() == ["recall"]


class TestJson:
    def test_every_command_on_sessions_writes_its_result_as_json(self, kom: Run, file: Path, id: str) -> None:
        """One value on stdout."""

        def result(*arguments: str) -> dict[str, Any]:
            done = kom("session", *arguments, "--json")
            assert done.code == 0, done.err
            return json.loads(done.out)

        assert result("import", str(file))["session"] == id
        assert result("verify") == {"sessions": 1, "problems": []}
        assert result("pin", id, "keep this")["pins"] == ["keep this"]
        assert result("compact", id, "--budget", "2000")["changed"]
        assert result("edit", id, "--summary", "shorter")["summary"] == "shorter"
        assert result("undo", id)["undone"]
        assert result("revert", id, "--turn", "1")["messages_taken_back"] > 0
        assert result("fork", id, "--id", "other")["fork"] == "other"
        assert result("gc", "--older-than", "1000")["sessions"] == []
        assert result("delete", "other", "--yes")["removed"] == ["other"]
        assert result("purge", "--tenant", "", "--yes") == {"sessions": 1}


class TestProgress:
    def test_the_progress_bar_pulses_while_the_result_is_fitted(self) -> None:
        """After the last message the history is still fitted, which takes an unknown time."""
        with Progress(disable=True) as bar:
            task = bar.add_task("compacting", total=None)
            advance(bar, task, "compacting", 500, 2000)
            assert bar.tasks[0].percentage == 25
            advance(bar, task, "compacting", 2000, 2000)
            assert not bar.tasks[0].finished and bar.tasks[0].total is None
            assert bar.tasks[0].description == "compacting: finishing"

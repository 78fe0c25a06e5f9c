"""Needs, projections, precision and baselines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evals.sample_sessions import Script, busy, long

import kompakt
from kompakt.evals.case import cases, cuts, record, summary_cases
from kompakt.evals.history_events import events_of, text_of
from kompakt.evals.measures.needs import CALLS, Need, names, needs
from kompakt.evals.measures.precision import assertions
from kompakt.evals.measures.retention import BASELINES, measure_retention, projections
from kompakt.evals.measures.score import ShownText, read, score, spelled_out

Step = tuple[str, dict[str, Any], str]
STEPS: list[Step] = [
    ("Read", {"file_path": "/r/a/b.py"}, "1→x"),
    ("Edit", {"file_path": "/r/a/b.py", "old_string": "x", "new_string": "y"}, "ok"),
    ("Write", {"file_path": "/r/a/c.py", "content": "z"}, "ok"),
    ("Bash", {"command": "rm a/b.py"}, ""),
    ("Bash", {"command": "make"}, "error: no rule\nmake: exit status 2"),
    ("Bash", {"command": "go test ./..."}, "--- FAIL: TestA (0.1s)\n--- PASS: TestB (0.2s)\nFAIL\tx/y\t0.1s"),
    ("todo", {"todos": [{"content": "tidy up", "status": "in_progress"}]}, "ok"),
    ("Bash", {"command": "git show 4fa81c2"}, "commit 4fa81c2 fixes the reader\nsize: 481"),
    ("Grep", {"pattern": "x", "path": "a"}, "a/b.py:1:x"),
]


def needs_after(script: Script) -> list[str]:
    """List what is needed after the first message."""
    trail = events_of(kompakt.parse(script.session().body))
    before = [event for event in trail if event.message == 0]
    return [need.key for need in needs(text_of(before), [event for event in trail if event.message > 0])]


class TestNeeds:
    def test_a_used_name_that_is_not_shown_again_is_a_need(self) -> None:
        script = (
            Script()
            .user("The port is in server_config of /repo/lib/server.toml")
            .call("Grep", {"pattern": "server_config"}, "none")
        )
        assert needs_after(script) == ["server_config"]

    def test_a_name_shown_by_a_tool_is_not_a_need(self) -> None:
        script = Script().user("look at server_config")
        script.call("Bash", {"command": "ls"}, "server_config").call("Grep", {"pattern": "server_config"}, "")
        assert needs_after(script) == []

    def test_a_name_that_is_not_before_the_cut_is_not_a_need(self) -> None:
        script = Script().user("look at my_server_configs").call("Grep", {"pattern": "server_config"}, "")
        assert needs_after(script) == []

    def test_only_the_next_forty_calls_count(self) -> None:
        script = Script().user("server_config")
        for _ in range(CALLS):
            script.call("Bash", {"command": "ls"}, "")
        assert needs_after(script.call("Grep", {"pattern": "server_config"}, "")) == []

    def test_what_is_written_is_not_used(self) -> None:
        """New text of an edit invents; its old text relies on what is known."""
        script = Script().user("server_config and client_config are there")
        script.call("Edit", {"file_path": "x", "old_string": "server_config", "new_string": "client_config"}, "")
        assert needs_after(script) == ["server_config"]

    def test_names_are_paths_ids_numbers_and_identifiers(self) -> None:
        text = "please open /usr/local/lib/thing.py and getHeader, a_b, 1234567 or function"
        assert list(names(text)) == ["lib/thing.py", "getHeader", "1234567"]

    def test_a_bare_list_states_no_need(self) -> None:
        """A name needs two ordinary words within reach."""
        need = Need("server_config", 0)
        assert need.stated_in("the port is read from server_config")
        assert not need.stated_in("client_config\nserver_config\nother_config")
        assert not need.stated_in("the port is here" + "." * 80 + "server_config")
        assert not need.stated_in("module.server_config " + "x" * 52 + "_y_longname", frozenset())

    def test_filler_words_do_not_count(self) -> None:
        assert not Need("server_config", 0).stated_in("also uses server_config", frozenset(["also", "uses"]))

    def test_the_query_does_not_contain_the_need(self) -> None:
        query = Need("server_config", 0, "open the server socket with server_config of config now").query
        assert query == "open the socket with now"


class TestProjections:
    def test_the_whole_history_states_every_fact(self) -> None:
        for script in (busy(), long(20)):
            for case in [script.case(), *cases(record(script.session()))]:
                projection = read(kompakt.render(case.prefix), case)
                found = score(case, projection)
                assert [one for one in found.missed if not one.kind.startswith("need")] == []
                assert projection.fresh == ""
                assert text_of(case.events) == projection.text

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=12), st.booleans())
    def test_any_whole_history_states_every_fact(self, steps: list[Step], error: bool) -> None:
        script = Script().user("Make it work, but never touch the lock file.")
        for name, given_, output in steps:
            script.call(name, given_, output, error=error)
        case = script.case()
        assert score(case, read(kompakt.render(case.prefix), case)).missed == []

    def test_a_list_of_identifiers_states_no_facts(self) -> None:
        script = long(30).call("Grep", {"pattern": "value_0_7|value_3_9", "path": "src"}, "")
        case = list(cases(record(script.session())))[-1]
        found = score(case, ShownText(BASELINES["bare identifiers"](case, case.cut.tokens)))
        assert found.total["modified"] > 3 and found.total["need"] >= 2
        assert found.passed["modified"] == found.passed["read"] == found.passed["need"] == 0

    def test_a_placeholder_does_not_state_the_outcome(self) -> None:
        script = Script().user("go").call("Bash", {"command": "make all"}, "built everything")
        case = script.case()
        script.messages[-1]["content"][0]["content"] = "[hidden]"
        assert score(case, read(script.session().body, case)).passed["command"] == 0

    def test_folders_and_headings_apply_to_the_lines_below_them(self) -> None:
        """A file is stated with its folder, whether the folder is given once or in a list."""
        text = (
            "## Changes made\n- Paths are relative to /x/src/\n- app/main.py: edited 2 times [m1234]\n"
            "## What was looked at\n- /x/doc: guide.md, api.md"
        )
        assert list(spelled_out(text)) == [
            "Changes made: /x/src/app/main.py: edited 2 times [m1234]",
            "What was looked at: /x/doc/guide.md",
            "What was looked at: /x/doc/api.md",
        ]

    @pytest.mark.parametrize("name", BASELINES)
    def test_baselines_stay_within_their_room(self, name: str) -> None:
        case = next(cases(record(long(30).session())))
        shown = dict(projections(case, case.cut.tokens // 10))[name]
        assert 0 < len(shown.text) <= len(case.text) / 10 + 2

    def test_cuts_are_at_rounds_and_budgets_include_the_requests(self) -> None:
        recording = record(long().session())
        starts = {one.start for one in kompakt.rounds(recording.history)}
        total = sum(recording.weight)
        for cut in cuts(recording.history, recording.weight):
            assert cut.at in starts
            assert abs(sum(recording.weight[: cut.at]) / total - cut.share) < 0.05
            assert cut.budget(0.1) == int(cut.tokens * 0.1) + cut.requests
            assert cut.requests >= recording.weight[0]

    def test_a_summary_is_measured_on_the_stretch_before_it(self) -> None:
        script = long(10)
        first = len(script.messages)
        script.user("This session is continued: modified src/module_0.py.")
        script.call("Edit", {"file_path": "/repo/src/late.py", "old_string": "a", "new_string": "b"}, "ok")
        second = len(script.messages)
        script.user("This session is continued: edited src/late.py too.").reply("Good.")
        found = list(summary_cases(record(script.session(summaries=frozenset([first, second])))))
        assert [(one.case.cut.start, one.case.cut.at) for one in found] == [(0, first), (first, second)]
        assert {fact.key for fact in found[1].case.facts if fact.kind == "modified"} == {"src/late.py"}
        assert score(found[1].case, ShownText(found[1].text)).passed["modified"] == 1


class TestPrecision:
    @pytest.mark.parametrize(
        "line",
        [
            "modified src/parser.py",
            "- `src/parser.py` — read, modified",
            "m1a2b created /repo/src/fresh_notes.md; there: src/other.py",
            "deleted: build/old.bin",
            "failed: `pytest -q tests/test_parser.py`",
            "`go test ./...` ok",
        ],
    )
    def test_true_statements_pass(self, line: str) -> None:
        found = assertions(busy().case(), f"Facts\n{line}\n")
        assert found != []
        assert [one for one in found if not one.true] == []

    @pytest.mark.parametrize(
        "line",
        [
            "deleted src/parser.py",
            "modified src/never_seen.py",
            "src/never_seen.py: created",
            "`pytest -q tests/test_parser.py` passed",
            "ok: pytest -q tests/test_parser.py",
        ],
    )
    def test_false_statements_are_found(self, line: str) -> None:
        assert [one.true for one in assertions(busy().case(), line)] == [False]

    def test_invented_constraints_are_found(self) -> None:
        fresh = 'Constraints:\n- "Don\'t touch the migration files."\n- "Always use tabs in every file."\n'
        assert [one.true for one in assertions(busy().case(), fresh)] == [True, False]

    def test_a_heading_applies_to_its_items(self) -> None:
        found = assertions(busy().case(), "Files modified:\n- src/parser.py\n- src/wrong.py\n")
        assert [one.true for one in found] == [True, False]

    def test_quotes_negations_and_commands_are_not_assertions(self) -> None:
        script = Script().user("We changed lib/a.py and deleted lib/b.py yesterday, look at it.")
        fresh = (
            "user: We changed lib/a.py and deleted lib/b.py yesterday\nlib/c.py was not modified\nran `x read lib/d.py`"
        )
        assert assertions(script.case(), fresh) == []


class TestRows:
    def test_a_session_is_measured_at_every_cut(self) -> None:
        rows = list(measure_retention(record(long(40).session()), "default"))
        ours = [row for row in rows if row.mode == "kompakt, 10 %"]
        assert len(ours) == 4
        assert {row.mode for row in rows} == {f"{name}, 10 %" for name in ("kompakt", *BASELINES)}
        for row in ours:
            assert row.note == ""
            assert row.share("valid") == row.share("fits") == row.share("restored") == 1.0
            assert row.tokens <= row.budget
            assert row.total["modified"] > 0

    def test_a_case_that_does_not_fit_scores_zero(self) -> None:
        script = Script().user("x " * 4000)
        script.call("Read", {"file_path": "a/b.py"}, "y " * 3000).reply("done").user("z " * 50)
        from kompakt.evals.measures.retention import compact_case
        from kompakt.evals.measures.score import ResultRow

        blank = ResultRow(measure="retention", mode="10 %", session="s", source="x")
        row = compact_case(blank, script.case(), 20, "default")
        assert row.note.startswith("does not fit")
        assert row.passed["read"] == 0 < row.total["read"]

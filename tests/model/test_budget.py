"""Budgets: the arithmetic of windows, and budgets that contradict themselves are refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kompakt.model.budget import OUTPUT_CAP, Budget, Usage, overflows, usable
from kompakt.model.limits import Limits, limits

counts = st.integers(0, 3_000_000)
sizes = st.builds(
    Limits,
    model=st.just("m"),
    context=st.integers(1, 3_000_000),
    input=st.none() | st.integers(1, 3_000_000),
    output=st.none() | st.integers(1, 500_000),
)
usages = st.builds(Usage, input=counts, cache_read=counts, output=counts)


class TestUsage:
    @given(usages)
    def test_total_counts_each_token_once(self, usage: Usage) -> None:
        """Cache writes and reasoning are parts, not additions."""
        assert usage.total == usage.input + usage.cache_read + usage.output == usage.prompt + usage.output


class TestUsable:
    def test_the_rule(self) -> None:
        """Input limit first, else the context less the smaller of output limit and cap."""
        assert usable(limits("gpt-5")) == 272_000
        assert usable(Limits(model="m", context=200_000, output=64_000)) == 168_000
        assert usable(Limits(model="m", context=200_000, output=8_192)) == 191_808
        assert usable(Limits(model="m", context=200_000)) == 168_000
        assert usable(Limits(model="m", context=200_000, output=64_000), output_cap=10_000) == 190_000
        assert usable(Limits(model="m", context=0, input=5)) == 0

    @given(sizes, st.integers(0, 500_000))
    def test_the_rule_on_any_limits(self, model: Limits, cap: int) -> None:
        """The result is the formula, except where the formula leaves nothing."""
        expected = model.input or model.context - min(model.output or cap, cap)
        got = usable(model, output_cap=cap)
        assert got == expected if expected > 0 else 0 < got <= max(1, model.context // 2)

    def test_a_model_whose_output_fills_its_window_is_not_unlimited(self) -> None:
        """gpt-4 lists 8,192 of output in a window of 8,192."""
        assert usable(limits("gpt-4")) == 4_096

    def test_an_assumed_window_leaves_room(self) -> None:
        """The limits of an unknown model make a budget that can be worked with."""
        with pytest.warns(UserWarning, match="assumed"):
            assert usable(limits("nobody-knows-budget")) > 20_000


class TestOverflows:
    @given(usages, sizes)
    def test_above_usable_only(self, usage: Usage, model: Limits) -> None:
        """Exactly full is not an overflow."""
        assert overflows(usage, model) == (usage.total > usable(model))

    @given(usages)
    def test_unlimited_never_overflows(self, usage: Usage) -> None:
        """A context of 0 has no end."""
        assert not overflows(usage, Limits(model="m", context=0))

    def test_cache_reads_count(self) -> None:
        """A step served from the cache fills the window all the same."""
        model = Limits(model="m", context=200_000, output=8_000)
        assert overflows(Usage(input=1_000, cache_read=190_500, output=501), model)
        assert not overflows(Usage(input=1_000, cache_read=190_500, output=500), model)


class TestBudget:
    @given(st.integers(1, 10_000_000))
    def test_of_keeps_trigger_and_target_apart(self, tokens: int) -> None:
        """A plain budget fires above its tokens and aims well below."""
        budget = Budget.of(tokens)
        assert budget.usable == budget.trigger == tokens
        assert budget.target < budget.trigger
        assert budget.target == int(tokens * 0.5)
        assert not budget.due(tokens) and budget.due(tokens + 1)

    @given(sizes, st.floats(0.01, 1), st.floats(0.01, 1), st.integers(0, 200_000))
    def test_for_model_is_consistent(self, model: Limits, trigger: float, target: float, cap: int) -> None:
        """Whatever the model and the shares, target < trigger <= usable < window."""
        budget = Budget.for_model(model, trigger_share=trigger, target_share=target, output_cap=cap)
        assert 0 <= budget.target < budget.trigger <= budget.usable <= budget.window
        assert budget.usable == usable(model, output_cap=cap)

    def test_for_model_numbers(self) -> None:
        """A Claude of 200,000: 168,000 usable, due at 90 %, down to 70 % of that."""
        budget = Budget.for_model(Limits(model="m", context=200_000, output=64_000))
        assert budget == Budget(window=200_000, reserve=OUTPUT_CAP, trigger=151_200, target=75_600)

    def test_unlimited_is_never_due(self) -> None:
        """No window, no trigger."""
        budget = Budget.for_model(Limits(model="m", context=0))
        assert budget.usable == 0 and not budget.due(10**12)

    def test_an_unlimited_window_may_have_a_trigger(self) -> None:
        """Compaction may be wanted for its price alone."""
        assert Budget(window=0, trigger=100, target=50).due(101)

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"window": -1, "trigger": 1, "target": 0}, "window=-1"),
            ({"window": 10.5, "trigger": 1, "target": 0}, "window=10.5"),
            ({"window": True, "trigger": 1, "target": 0}, "window=True"),
            ({"window": "8k", "trigger": 1, "target": 0}, "window='8k'"),
            ({"window": 100, "reserve": 100, "trigger": 1, "target": 0}, "reserve=100"),
            ({"window": 0, "reserve": 5, "trigger": 1, "target": 0}, "reserve=5"),
            ({"window": 100, "reserve": 20, "trigger": 81, "target": 10}, "trigger=81"),
            ({"window": 100, "trigger": 0, "target": 0}, "trigger=0"),
            ({"window": 100, "trigger": 50, "target": 50}, "target=50"),
        ],
    )
    def test_contradictions_are_refused(self, fields: dict[str, int], named: str) -> None:
        """The error quotes the value and says what to do."""
        with pytest.raises(ValueError, match=named) as caught:
            Budget(**fields)
        assert any(hint in str(caught.value) for hint in ("use ", "set ", "lower "))

    @pytest.mark.parametrize("tokens", [0, -5, 1.5, True, "50k", None])
    def test_of_refuses_what_is_no_count(self, tokens: int) -> None:
        """Zero is not a budget."""
        with pytest.raises(ValueError, match="budget="):
            Budget.of(tokens)

    @given(st.floats(allow_nan=True))
    def test_shares_are_shares(self, share: float) -> None:
        """A share outside (0, 1] is refused, NaN too."""
        assume(not 0 < share <= 1)
        with pytest.raises(ValueError, match="share="):
            Budget.for_model(limits("gpt-5"), trigger_share=share)

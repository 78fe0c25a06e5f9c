"""Budgets: the arithmetic of windows; inconsistent budgets are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kompakt.model.budget import (
    FEW_STEPS,
    FULL_SHARE,
    LEAST_ROOM,
    LEAST_SHARE,
    MIN_ANSWER,
    OUTPUT_CAP,
    STEADY_STEPS,
    Budget,
    Usage,
    size_after_refusal,
    usable,
)
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
            assert usable(limits("unknown-model-budget")) > 20_000


class TestOverflows:
    @given(usages, sizes)
    def test_above_usable_only(self, usage: Usage, model: Limits) -> None:
        """Exactly full is not an overflow."""
        assert Budget.for_model(model).overflows(usage) == (usage.total > usable(model))

    @given(usages)
    def test_unlimited_never_overflows(self, usage: Usage) -> None:
        """A context of 0 has no end."""
        assert not Budget.for_model(Limits(model="m", context=0)).overflows(usage)

    def test_cache_reads_count(self) -> None:
        """A step served from the cache also fills the window."""
        budget = Budget.for_model(Limits(model="m", context=200_000, output=8_000))
        assert budget.overflows(Usage(input=1_000, cache_read=190_500, output=501))
        assert not budget.overflows(Usage(input=1_000, cache_read=190_500, output=500))


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
        """For any model and shares, target < trigger <= usable < window."""
        budget = Budget.for_model(model, trigger_share=trigger, target_share=target, output_cap=cap)
        assert 0 <= budget.target < budget.trigger <= budget.usable <= budget.window
        assert budget.usable == usable(model, output_cap=cap)

    def test_for_model_numbers(self) -> None:
        """A Claude of 200,000: 168,000 usable, due at 90 %, down to half of that."""
        budget = Budget.for_model(Limits(model="m", context=200_000, output=64_000))
        assert budget == Budget(window=200_000, reserve=OUTPUT_CAP, trigger=151_200, target=75_600, relative=True)

    def test_a_limit_of_the_prompt_is_the_window(self) -> None:
        """Nothing is kept free within a limit that does not cover the answer, and nothing can yield beyond it."""
        for model, window in (("gpt-5", 272_000), ("gemini-3-pro", 1_048_576)):
            budget = Budget.for_model(limits(model))
            assert (budget.window, budget.reserve, budget.ceiling) == (window, 0, window)
            assert budget.trigger >= 0.85 * window

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
    def test_contradictions_are_rejected(self, fields: dict[str, Any], named: str) -> None:
        """The error quotes the value and names the fix."""
        with pytest.raises(ValueError, match=named) as caught:
            Budget(**fields)
        assert any(hint in str(caught.value) for hint in ("use ", "set ", "lower "))

    @pytest.mark.parametrize("tokens", [0, -5, 1.5, True, "50k", None])
    def test_of_rejects_invalid_counts(self, tokens: int) -> None:
        """Zero is not a budget."""
        with pytest.raises(ValueError, match="budget="):
            Budget.of(tokens)

    @given(st.floats(allow_nan=True))
    def test_shares_are_shares(self, share: float) -> None:
        """A share outside (0, 1] is rejected, NaN too."""
        assume(not 0 < share <= 1)
        with pytest.raises(ValueError, match="share="):
            Budget.for_model(limits("gpt-5"), trigger_share=share)


class TestGoal:
    @given(st.integers(1, 1_000_000), st.integers(0, 1_000_000), st.floats(0, 100_000))
    def test_leaves_the_fixed_part_and_a_share_of_the_rest(self, tokens: int, fixed: int, step: float) -> None:
        """The target is above the fixed part by between the minimum and half of the variable part."""
        budget, room = Budget.of(tokens), max(0, tokens - fixed)
        goal = budget.goal(step, fixed=fixed)
        assert fixed + int(room * LEAST_SHARE) <= goal <= max(fixed + int(room * 0.5), fixed + int(room * LEAST_SHARE))

    @pytest.mark.parametrize("fixed", [0, 5_000, 10_000, 15_000, 20_000])
    def test_steps_fit_below_the_trigger_where_the_room_exists(self, fixed: int) -> None:
        """Eight ordinary steps at least; where there is no room for them, the smallest share is left."""
        budget = Budget.of(40_000)
        for step in range(100, 5_000, 100):
            goal = budget.goal(step, fixed=fixed)
            least = fixed + int((40_000 - fixed) * LEAST_SHARE)
            assert budget.trigger - goal >= STEADY_STEPS * step or goal == least

    @given(st.integers(1, 1_000_000), st.integers(0, 1_000_000), st.floats(0, 100_000))
    def test_a_single_call_uses_the_room_that_holds_few_steps(self, tokens: int, fixed: int, step: float) -> None:
        budget, room = Budget.of(tokens, steady=False), max(0, tokens - fixed)
        goal = budget.goal(step, fixed=fixed)
        usual = room * (budget.target / budget.trigger)
        assert fixed + int(usual) - 1 <= goal <= fixed + max(int(room * FULL_SHARE), int(usual))
        if step * FEW_STEPS >= room:
            assert goal >= fixed + int(room * FULL_SHARE) - 1
        if max(1.0, step) * STEADY_STEPS < room - usual - 1:
            assert abs(goal - fixed - usual) <= 1

    def test_a_target_in_tokens_is_exact(self) -> None:
        """As long as some variable tokens are left."""
        budget = Budget(window=40_000, trigger=36_000, target=9_000)
        assert budget.goal(5_000, fixed=2_000) == 9_000
        assert budget.goal(10, fixed=16_000) == 16_000 + LEAST_ROOM

    def test_the_share_of_a_policy_applies_to_the_variable_tokens(self) -> None:
        """Three quarters of what the fixed part leaves."""
        assert Budget.of(40_000).goal(10, fixed=20_000, share=0.75) == 35_000

    @given(st.integers(1, 1_000_000), st.floats(0, 1), st.integers(0, 1_000_000))
    def test_a_mark_lies_between_the_fixed_part_and_the_trigger(self, tokens: int, share: float, fixed: int) -> None:
        """For any share."""
        assert min(fixed, tokens) <= Budget.of(tokens).mark(share, fixed=fixed) <= tokens


class TestForRequest:
    WINDOW = Limits(model="m", context=60_000, output=64_000)

    def test_an_output_that_is_stated_is_reserved(self) -> None:
        """Also above the cap for outputs that the request does not state."""
        assert Budget.for_request(Limits(model="m", context=200_000, output=64_000), output=64_000).reserve == 64_000
        assert Budget.for_request(self.WINDOW, output=8_000).reserve == 8_000

    def test_it_yields_to_the_rest_of_the_request(self) -> None:
        """It takes at most half of what system prompt and tools leave."""
        assert Budget.for_request(self.WINDOW, output=32_000, fixed=30_000).reserve == 15_000
        assert Budget.for_request(self.WINDOW, output=32_000, fixed=90_000).usable == 60_000

    def test_it_is_reserved_in_full_where_the_provider_counts_it(self) -> None:
        """As long as other tokens are left."""
        counted = Budget.for_request(self.WINDOW, output=32_000, fixed=20_000, output_counts=True)
        assert counted.reserve == 32_000
        assert Budget.for_request(self.WINDOW, output=32_000, fixed=30_000, output_counts=True).reserve == 15_000

    def test_an_unstated_output_reserves_a_part(self) -> None:
        """The provider gives an answer what there is."""
        assert Budget.for_request(self.WINDOW).reserve == 15_000
        assert Budget.for_request(self.WINDOW, fixed=40_000).reserve == 5_000

    def test_an_assumed_output_limit_does_not_lower_a_stated_output(self) -> None:
        """The output of an unknown model is unknown, but the request states it."""
        unknown = Limits(model="m", context=60_000, output=4_096, known=False)
        assert Budget.for_request(unknown, output=8_000).reserve == 8_000

    @given(sizes, st.none() | st.integers(1, 200_000), st.integers(0, 200_000), st.booleans())
    def test_is_consistent(self, model: Limits, output: int | None, fixed: int, counts: bool) -> None:
        """Any output gives a budget, with a window no larger than the model's."""
        budget = Budget.for_request(model, output=output, fixed=fixed, output_counts=counts)
        assert 0 < budget.trigger <= budget.usable <= budget.ceiling <= budget.window <= model.context


class TestChanges:
    @given(sizes, st.floats(0.25, 4))
    def test_scaled_keeps_proportions(self, model: Limits, ratio: float) -> None:
        """A budget in our tokens is smaller where the provider counts more; never larger."""
        budget = Budget.for_model(model)
        scaled = budget.scaled(ratio)
        assert scaled.trigger <= budget.trigger and scaled.relative
        assert ratio <= 1 or scaled.trigger == max(1, int(budget.trigger / ratio))

    @given(st.integers(2, 1_000_000), st.integers(0, 1_000_000))
    def test_within_what_was_read(self, tokens: int, read: int) -> None:
        """The trigger falls to what a provider reads, never below a quarter, and the target keeps its share."""
        budget = Budget.of(tokens)
        lower = budget.within(read)
        assert max(1, budget.trigger // 4) <= lower.trigger <= budget.trigger
        assert lower.relative and lower.target <= lower.trigger // 2 + 1

    def test_down_to_a_goal(self) -> None:
        """A request of that size is due, and the goal is literal."""
        budget = Budget.of(100_000).down_to(9_000, shown=60_000)
        assert budget.due(60_000) and budget.goal(10, fixed=1_000) == 9_000

    def test_the_ceiling_leaves_room_for_a_call(self) -> None:
        """If the reserve is reduced, the model can still answer."""
        assert Budget.for_model(Limits(model="m", context=200_000, output=64_000)).ceiling == 200_000 - MIN_ANSWER
        assert Budget.of(5_000).ceiling == 5_000


class TestRefusal:
    def test_numbers_of_the_provider_are_used(self) -> None:
        """The limit less the requested output, in our tokens."""
        size, ratio = size_after_refusal(100_000, limit=128_000, actual=130_000, output=8_000)
        assert ratio == 1.3 and size == min(80_000, int(120_000 / 1.3 * 0.95))

    def test_less_is_tried_where_there_are_none(self) -> None:
        """A share of what was sent."""
        assert size_after_refusal(10_000, limit=None) == (8_000, 1.0)

    def test_an_output_larger_than_the_window_leaves_the_least(self) -> None:
        """Nothing helps then; the size is a size all the same."""
        assert size_after_refusal(10_000, limit=8_000, output=9_000)[0] == 2

"""What requests cost under a prompt cache, and the economic trigger against schedules that know the future."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kompakt.engine.compaction.cost import LEAST, REGRET, TROUBLE, Economy, Prices
from kompakt.errors import UsageError
from kompakt.model.limits import Price

Trace = list[tuple[int, float]]
"""New tokens of each request, and the seconds since the one before."""

LIFE = Prices().life
LONG_PAUSE = LIFE + 1


def run(trace: Trace, economy: Economy) -> tuple[list[int], float]:
    """Follow the rule; return when it rewrote and by how much it was ever dearer than sending everything."""
    shown = total = 0
    now = worst = 0.0
    rewritten: list[int] = []
    for step, (new, pause) in enumerate(trace):
        now, total, shown = now + pause, total + new, shown + new
        if economy.due(shown, total=total, now=now):
            shown = economy.goal(shown)
            economy.rewrote(shown, total=total, now=now)
            rewritten.append(step)
        else:
            economy.sent(shown, total=total, now=now)
        if economy.untouched:
            worst = max(worst, economy.paid / economy.untouched)
    return rewritten, worst


def price(trace: Trace, economy: Economy, rewritten: tuple[bool, ...], regret: float, trouble: float) -> float:
    """Price a schedule by hand; what breaks the promise, or rewrites what is short already, costs infinitely much."""
    prices = economy.prices
    carried = total = 0
    paid = untouched = charged = 0.0
    for step, (new, pause) in enumerate(trace):
        rate = prices.cache_write if step == 0 or pause > prices.life else prices.cache_read
        left = max(economy.least, int(economy.share * total))
        untouched += rate * total + prices.cache_write * new
        if rewritten[step]:
            if carried <= left:
                return inf
            paid += prices.cache_write * (left + new)
            charged += trouble
            if paid > (1 + regret) * untouched:
                return inf
            carried = left + new
        else:
            paid += rate * carried + prices.cache_write * new
            carried += new
        total += new
    return paid + charged


def foreseen(trace: Trace, economy: Economy, regret: float, trouble: float) -> float:
    """Find the cheapest schedule, step by step; a way is dropped when another has paid and carries no more."""
    prices = economy.prices
    ways = [(0.0, 0, 0.0)]
    total, untouched = 0, 0.0
    for step, (new, pause) in enumerate(trace):
        rate = prices.cache_write if step == 0 or pause > prices.life else prices.cache_read
        left = max(economy.least, int(economy.share * total))
        untouched += rate * total + prices.cache_write * new
        made = prices.cache_write * (left + new)
        going = [(c + rate * s + prices.cache_write * new, s + new, p + rate * s + prices.cache_write * new)
                 for c, s, p in ways]  # fmt: skip
        going += [(c + made + trouble, left + new, p + made) for c, s, p in ways
                  if s > left and p + made <= (1 + regret) * untouched]  # fmt: skip
        ways = []
        for way in sorted(going):
            if not any(other[1] <= way[1] and other[2] <= way[2] for other in ways):
                ways.append(way)
        total += new
    return ways[0][0]


sizes = st.one_of(st.just(0), st.integers(0, 2_000), st.integers(0, 200_000))
pauses = st.sampled_from([1.0] * 9 + [LONG_PAUSE])
stretches = st.tuples(sizes, pauses, st.integers(0, 40), st.integers(0, 800))
"""A large step, then many small ones: what an adversary would send."""
traces = st.lists(stretches, min_size=1, max_size=4).map(
    lambda many: [one for size, pause, more, small in many for one in [(size, pause), *[(small, 1.0)] * more]]
)
markets = st.sampled_from(
    [
        Prices(),
        Prices(cache_write=1.0),
        Prices(cache_read=0.5, cache_write=1.0),
        Prices(cache_read=0.01, cache_write=2.0),
    ]
)
leasts = st.sampled_from([1_000, LEAST, 20_000])


class TestPrices:
    def test_a_request(self) -> None:
        """Cached tokens are read, others written, answers cost five times as much."""
        assert Prices().request(1_000, cached=800, output=100) == pytest.approx(80 + 250 + 500)
        assert Prices().request(1_000, cached=5_000) == pytest.approx(100)

    def test_what_stays_in_front_is_read(self) -> None:
        """System and tools are not written again."""
        whole = Prices().rewriting(50_000, 20_000, cached=50_000)
        assert whole - Prices().rewriting(50_000, 20_000, cached=50_000, shared=10_000) == pytest.approx(11_500)

    def test_of_a_model(self) -> None:
        """Prices as listed; a provider without a cache price has no cache; unknown models have the usual prices."""
        listed = Prices.of(Price(3e-6, 15e-6, 3e-7, 3.75e-6))
        assert (listed.cache_read, listed.cache_write) == (3e-7, 3.75e-6)
        plain = Prices.of(Price(1e-6, 2e-6))
        assert plain.cache_read == plain.cache_write == 1e-6
        assert Prices.of(Price(1e-6, 2e-6, 5e-7)).cache_write == 1e-6
        assert Prices.of(None, life=3600) == Prices(life=3600)

    @pytest.mark.parametrize("given", [{"input": -1.0}, {"life": inf}, {"cache_read": 2.0}, {"output": float("nan")}])
    def test_nonsense_is_refused(self, given: dict[str, float]) -> None:
        """Once, at the position of the request."""
        with pytest.raises(UsageError):
            Prices(**given)


class TestBounds:
    @settings(max_examples=150, deadline=None)
    @given(traces, markets, leasts, st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5]))
    def test_within_twice_the_clairvoyant(self, trace: Trace, prices: Prices, least: int, share: float) -> None:
        """For any input, the rule pays at most twice as much as the best schedule; both include the overhead."""
        economy = Economy(prices, least=least, share=share, regret=inf)
        rewritten, _ = run(trace, economy)
        best = foreseen(trace, economy, inf, economy.trouble)
        assert economy.paid + economy.trouble * len(rewritten) <= 2 * best + 1e-6

    @settings(max_examples=150, deadline=None)
    @given(traces, markets, leasts, st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5]))
    def test_never_dearer_than_promised(self, trace: Trace, prices: Prices, least: int, share: float) -> None:
        """At no moment is the bill more than 1 % above that of sending everything."""
        _, worst = run(trace, Economy(prices, least=least, share=share))
        assert worst <= 1 + REGRET + 1e-9

    @settings(max_examples=150, deadline=None)
    @given(traces, leasts, st.sampled_from([0.0, 0.05, 0.1]))
    def test_the_cost_is_at_most_twice_that_of_a_clairvoyant_with_the_same_risk(
        self, trace: Trace, least: int, share: float
    ) -> None:
        """A clairvoyant that may not risk more than the rule pays at least half as much."""
        economy = Economy(least=least, share=share)
        rewritten, _ = run(trace, economy)
        best = foreseen(trace, economy, REGRET, economy.trouble)
        assert economy.paid + economy.trouble * len(rewritten) <= 2 * best + 1e-6

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from([0, 500, 9_000, 30_000, 150_000]), pauses), min_size=1, max_size=8),
        st.sampled_from([inf, REGRET]),
        st.sampled_from([0.0, 2_500.0]),
    )
    def test_the_clairvoyant_is_one(self, trace: Trace, regret: float, trouble: float) -> None:
        """The schedule that the rule is compared with is optimal."""
        economy = Economy(least=1_000)
        every = product((False, True), repeat=len(trace))
        best = min(price(trace, economy, schedule, regret, trouble) for schedule in every)
        assert foreseen(trace, economy, regret, trouble) == pytest.approx(best)

    def test_the_promise_has_a_price(self) -> None:
        """A history of five times what is left, then nothing new: who promises waits, who does not saves."""
        trace = [(5 * LEAST, 1.0), *[(0, 1.0)] * 137]
        bound, free = Economy(), Economy(regret=inf)
        run(trace, bound)
        run(trace, free)
        best = foreseen(trace, free, inf, 0.0)
        assert bound.paid > 3 * best
        assert free.paid < 1.3 * best

    def test_a_session_that_ends_right_after(self) -> None:
        """The rewriting that is regretted costs less than 1 %."""
        steps = [(3_000, 1.0)] * 60
        rewritten, _ = run(steps, Economy())
        cut = Economy()
        run(steps[: rewritten[0] + 1], cut)
        assert 0 < cut.paid / cut.untouched <= 1 + REGRET


class TestEconomy:
    def test_a_long_session_costs_half(self) -> None:
        """Two hundred steps of a thousand tokens: less than half of the bill is left."""
        economy = Economy()
        rewritten, _ = run([(1_000, 5.0)] * 200, economy)
        assert economy.paid < 0.5 * economy.untouched
        assert 5 < len(rewritten) < 25

    def test_a_short_session_is_left_alone(self) -> None:
        """The result would be as long as the input."""
        assert run([(400, 1.0)] * 20, Economy())[0] == []

    def test_a_cold_cache_is_a_free_moment(self) -> None:
        """After a long pause everything is written anyhow, so less of it is."""
        short = [(6_000, 1.0)] * 4
        assert run([*short, (500, 1.0)], Economy())[0] == []
        assert run([*short, (500, LONG_PAUSE)], Economy())[0] == [4]

    def test_a_tiny_saving_is_not_worth_the_overhead(self) -> None:
        """Not even when the cache is cold."""
        gain = int(TROUBLE / Prices().cache_write)
        assert run([(LEAST + gain - 10, 1.0), (0, LONG_PAUSE)], Economy())[0] == []
        assert run([(LEAST + gain + 10, 1.0), (0, LONG_PAUSE)], Economy())[0] == [1]

    def test_without_a_clock_the_cache_is_warm(self) -> None:
        """Only the first request is cold."""
        economy = Economy()
        assert economy.is_cold()
        economy.sent(20_000, total=20_000)
        assert not economy.is_cold()
        economy.sent(21_000, total=21_000, now=0.0)
        assert not economy.is_cold(LIFE)
        assert economy.is_cold(LONG_PAUSE)

    def test_news_are_left_alone(self) -> None:
        """The target has room for everything unread, and unread content alone is no reason to rewrite."""
        economy = Economy()
        economy.sent(10_000, total=10_000)
        assert economy.goal(90_000) == LEAST + 80_000
        assert not economy.due(90_000, total=90_000)

    def test_what_must_stay_is_not_asked_for_again(self) -> None:
        """A rewriting that left more than it should is no reason for the next one."""
        economy = Economy(regret=inf)
        economy.sent(60_000, total=60_000)
        economy.rewrote(50_000, total=60_000)
        assert economy.goal(50_000) == 50_000
        for _ in range(100):
            assert not economy.due(50_500, total=60_500)
            economy.sent(50_500, total=60_500)

    def test_the_price_of_a_summary_counts(self) -> None:
        """The price of the summary is part of the decision and of the recorded cost."""
        free, paying = Economy(regret=inf), Economy(regret=inf)
        for economy in (free, paying):
            for _ in range(4):
                economy.sent(60_000, total=60_000)
        assert free.due(60_000, total=60_000)
        assert not paying.due(60_000, total=60_000, making=50_000.0)
        free.rewrote(8_000, total=60_000)
        paying.rewrote(8_000, total=60_000, making=50_000.0)
        assert paying.paid - free.paid == 50_000

    def test_a_rewriting_that_left_too_much_is_noticed(self) -> None:
        """The promise is asked again with the real size; the next goal is that size."""
        economy = Economy()
        for _ in range(20):
            economy.sent(100_000, total=100_000)
        assert economy.due(100_000, total=100_000)
        assert economy.keeps(10_000, total=100_000)
        assert not economy.keeps(90_000, total=100_000)
        assert economy.goal(100_000) == 90_000
        assert not economy.due(100_000, total=100_000)

    def test_a_larger_outcome_can_be_foretold(self) -> None:
        """The caller can state that more will stay."""
        economy = Economy()
        for _ in range(20):
            economy.sent(100_000, total=100_000)
        assert not economy.due(100_000, total=100_000, after=60_000)

    def test_a_resumed_session(self) -> None:
        """The earlier run is known and nothing of it is cached, so rewriting the first request is free."""
        fresh, resumed = Economy(), Economy()
        resumed.take_up(50_000, 50_000)
        assert not fresh.due(50_000, total=50_000)
        assert resumed.due(50_500, total=50_500, now=3.0)
        assert resumed.goal(50_500) == LEAST + 500

    @pytest.mark.parametrize("given", [{"share": 0.6}, {"share": -0.1}, {"least": -1}, {"regret": float("nan")}])
    def test_nonsense_is_refused(self, given: dict[str, float]) -> None:
        """Limits below nothing, and shares that the bound does not cover."""
        with pytest.raises(UsageError):
            Economy(**given)  # pyright: ignore[reportArgumentType]

"""The cost of requests with cached prefixes, and the trigger that compacts when it is cheaper.

A request reads the cached part of its prefix, usually at a tenth of the price, and writes the rest, at slightly more
than the price of plain input. A rewriting writes the whole prefix again now, and each later step reads less. The number
of later steps is unknown, so this is the ski rental problem: keep paying the rent of what could be hidden, and rewrite
as soon as the rent paid since the last rewriting reaches the cost of a rewriting.

**The rule costs at most twice the optimal schedule**, which knows the future.

- r and w are the prices of reading and writing a token, X is what a rewriting would leave of the prefix, and M is the
  cost of making the summary.
- Every schedule carries at least X at every step. So every schedule pays for reading X, for writing new messages and
  for the answers. Beyond that, a step that carries c pays the rent r(c - X), and a step that rewrites pays
  K = (w - r)X + M.
- Divide the run after each rewriting of the rule. In each interval the rule pays K, and rent below K, because it
  rewrites before the step at which the rent would reach K. The optimal schedule either rewrites in the interval and
  pays K, or it carries at least as much as the rule and pays the rent of all steps, which is at least K.
- In the unfinished interval at the end the rule pays only rent, less than K. The optimal schedule pays the same or K.
- X may grow by a share of what is added. Then K at the end of an interval is larger than at the time of the optimal
  rewriting by at most (w - r) times that share. Both schedules paid w for every added token, which covers the
  difference while the share is at most a half.
- When the cache is cold, reading costs w, so K is M alone. The rule then rewrites unless less than M/w tokens can be
  hidden. If M is at most wX/2, this is at most half of X, and its rent is within the bound.

**A session never costs more than 1 % extra.** A rewriting does not pay off if the session ends directly after it. So
none is made unless the whole bill, including this request, stays within 1 % of the cost of sending everything so far.
Savings of earlier rewritings count. Later steps only increase the savings, so the limit holds whenever the session
ends.

Both guarantees cannot hold in full. Before anything is saved, and while the history is less than about eleven times
what a rewriting leaves, the limit forces the rule to wait until the bill is large enough. A schedule without the limit
can be more than three times cheaper, on a session that stops growing at that moment and runs for a hundred more steps.
Compared with an optimal schedule under the same limit, the worst trace found costs 1.8 times as much; the factor two is
tested and not proven. ``regret=inf`` removes the limit, and then the proven bound holds throughout.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct

from kompakt.errors import UsageError
from kompakt.model.limits import Price

CACHE_LIFE = 300.0
"""Seconds that a cached prefix lives after its last use: the shortest time that a provider states."""

REGRET = 0.01
"""Maximum extra cost of a session, as a share of the bill for sending everything."""

SHARE = 0.1
"""Share of the history that a rewriting leaves."""

MOST_SHARE = 0.5
"""Up to this share the bound holds."""

LEAST = 6_000
"""Fewest tokens that a rewriting leaves."""

TROUBLE = 2_500
"""Tokens of plain input added to the cost of a rewriting, so that detail is not lost for a small gain."""


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of a token by how it is sent, in any unit; by default relative to plain input."""

    input: float = 1.0
    output: float = 5.0
    cache_read: float = 0.1
    cache_write: float = 1.25
    life: float = CACHE_LIFE
    """Seconds that the cache holds an unused prefix."""

    def __post_init__(self) -> None:
        """Validate the prices."""
        for name in ("input", "output", "cache_read", "cache_write", "life"):
            if not 0 <= getattr(self, name) < inf:
                raise UsageError(f"{name}={getattr(self, name)!r} is not a price; use a number, 0 or more")
        if self.cache_read > self.cache_write:
            raise UsageError(f"cache_read={self.cache_read!r} is higher than cache_write={self.cache_write!r}")

    @classmethod
    def of(cls, price: Price | None, *, life: float = CACHE_LIFE) -> Prices:
        """Return the prices of a model; without a cache, reading and writing are plain input.

        A model with unknown prices gets the usual proportions.
        """
        if price is None:
            return cls(life=life)
        write = price.input if price.cache_write is None else price.cache_write
        read = price.input if price.cache_read is None else price.cache_read
        return cls(input=price.input, output=price.output, cache_read=min(read, write), cache_write=write, life=life)

    def request(self, prompt: int, *, cached: int = 0, output: int = 0) -> float:
        """Return the cost of a request with ``cached`` tokens in the cache; the others are written to it."""
        cached = min(max(cached, 0), prompt)
        return cached * self.cache_read + (prompt - cached) * self.cache_write + output * self.output

    def rewriting(self, before: int, after: int, *, cached: int, shared: int = 0) -> float:
        """Return the extra cost of rewriting a prompt now; ``shared`` tokens at its start do not change."""
        kept = min(shared, cached, after)
        return self.request(after, cached=kept) - self.request(before, cached=cached)


class Economy:
    """Tracks the cost of one session, and decides before each request whether a rewriting pays off.

    Call ``due`` before a request, and ``sent`` or ``rewrote`` after it. Numbers are tokens of the whole prompt: those
    that are ``shown`` now, and the ``total`` if nothing had ever been hidden. ``shared`` tokens at the start (system,
    tools) do not change when the rest is rewritten. ``making`` is the cost of the summarizer. ``now`` is in seconds of
    any monotonic clock, to detect a cold cache. Each call takes constant time.
    """

    def __init__(
        self, prices: Prices | None = None, *, share: float = SHARE, least: int = LEAST, regret: float = REGRET
    ) -> None:
        if not 0 <= share <= MOST_SHARE:
            raise UsageError(f"share={share!r} of the history is not worth a rewriting; use 0 to {MOST_SHARE}")
        if least < 0 or not regret >= 0:
            raise UsageError(f"least={least!r} and regret={regret!r} are limits; use 0 or more")
        self.prices = prices or Prices()
        self.share, self.least, self.regret = share, least, regret
        self.trouble = min(TROUBLE * self.prices.input, least * self.prices.cache_write / 2)
        self.paid = 0.0
        """The bill so far."""
        self.untouched = 0.0
        """The bill so far if everything had been sent."""
        self.rent = 0.0
        """What a rewriting could have saved since the last one."""
        self.shown = 0
        """Tokens of the last request, which the cache holds."""
        self._total = 0
        self._reached = 0
        """Size after the last rewriting. It may be above the goal because of protected content."""
        self._last: float | None = None
        self._begun = False

    def take_up(self, shown: int, total: int) -> None:
        """Continue an earlier session: the model has seen the prompt, but no cache holds it."""
        self.shown, self._total, self._begun = shown, total, False

    def is_cold(self, now: float | None = None) -> bool:
        """Return whether the cache is empty: before the first request, or after a long pause."""
        if not self._begun:
            return True
        return now is not None and self._last is not None and now - self._last > self.prices.life

    def goal(self, shown: int) -> int:
        """Return the tokens that a rewriting should leave now; messages that the model has not seen are not hidden."""
        return self._left() + max(0, shown - self.shown)

    def due(
        self, shown: int, *, total: int, now: float | None = None, after: int = 0, shared: int = 0, making: float = 0.0
    ) -> bool:
        """Return whether the prompt should be rewritten before it is sent.

        ``after`` is the size after the rewriting, if that is known to be larger than the goal.
        """
        after = max(self.goal(shown), after)
        if after >= shown:
            return False
        extra = self.prices.rewriting(shown, after, cached=self._cached(now), shared=shared) + making
        if self.rent < extra + self.trouble:
            return False
        return self._promised(after, total, now, shared, making)

    def keeps(self, shown: int, *, total: int, now: float | None = None, shared: int = 0, making: float = 0.0) -> bool:
        """Return whether the limit of extra cost holds with a rewritten prompt, now that its size is known.

        If not, undo the rewriting. The next one is then expected to leave as much.
        """
        kept = self._promised(shown, total, now, shared, making)
        if not kept:
            self._reached = max(self._reached, self._old(shown, total))
        return kept

    def _promised(self, after: int, total: int, now: float | None, shared: int, making: float) -> bool:
        bill = self.paid + making + self.prices.request(after, cached=min(shared, self._cached(now)))
        return bill <= (1 + self.regret) * (self.untouched + self._untouched(total, now))

    def sent(self, shown: int, *, total: int, now: float | None = None, output: int = 0) -> None:
        """Record a request that was not rewritten, and the tokens of its answer."""
        price = self.prices.cache_write if self.is_cold(now) else self.prices.cache_read
        self.rent += max(0, min(self.shown, shown) - self._left()) * price
        self._note(shown, total, now, output, cached=self._cached(now))

    def rewrote(
        self, shown: int, *, total: int, now: float | None = None, output: int = 0, shared: int = 0, making: float = 0.0
    ) -> None:
        """Record a request that was rewritten for any reason, and the tokens of its answer."""
        self.rent, self._reached = 0.0, self._old(shown, total)
        self.paid += making
        self._note(shown, total, now, output, cached=min(shared, self._cached(now)))

    def _note(self, shown: int, total: int, now: float | None, output: int, *, cached: int) -> None:
        self.paid += self.prices.request(shown, cached=cached, output=output)
        self.untouched += self._untouched(total, now) + output * self.prices.output
        self.shown, self._total, self._begun = shown, total, True
        self._last = now if now is not None else self._last

    def _left(self) -> int:
        """Return the tokens that a rewriting would leave of the last request."""
        return max(self.least, int(self.share * self._total), self._reached)

    def _old(self, shown: int, total: int) -> int:
        """Return the tokens of a rewritten prompt that the model had seen before."""
        return max(0, shown - max(0, total - self._total))

    def _cached(self, now: float | None) -> int:
        return 0 if self.is_cold(now) else self.shown

    def _untouched(self, total: int, now: float | None) -> float:
        return self.prices.request(total, cached=0 if self.is_cold(now) else self._total)

"""The cost of requests with cached prefixes, and the trigger that compacts when it is cheaper.

A request reads the cached part of its prefix, usually at a tenth of the price, and writes the rest, at slightly more
than the price of plain input. A rewriting writes the whole prefix again now, and each later step reads less. The number
of later steps is unknown, so this is the ski rental problem: keep paying the rent of what could be hidden, and rewrite
as soon as the rent paid since the last rewriting reaches the cost of a rewriting.

**The rule stays within twice the clairvoyant schedule.** Say r and w are the prices of reading and writing a token, X
what a rewriting would leave of the carried prefix, and M what making it costs. Every schedule carries at least X at
every step, so reading X, writing what is new and the answers are paid in any case. Beyond that a step that carries c
pays the rent r(c - X), a step that rewrites pays K = (w - r)X + M. Cut the run after each rewriting of the rule. In
each stretch the rule pays K and a rent below K, for it rewrites before the step whose rent would reach K. The
clairvoyant either rewrites in the stretch and pays K, or carries at least what the rule carries and pays the rent of
all its steps, which is at least K. In the unfinished stretch at the end the rule pays rent only, less than K, and the
clairvoyant as much or K. Three things are left. X may grow by a share of what is added; the K of the end is then
larger than that of the clairvoyant's moment by at most (w - r) times that share, and both have paid w for every token
added, which makes up for it while the share is at most a half. When the cache is cold, reading costs w, so K is M alone
and the rule rewrites unless there is next to nothing to leave out: less than M/w, a part of X, whose rent is that part
of what reading X costs both. And where M is at most wX/2 this part is at most a half, which the bound has room for.

**It keeps a promise.** A rewriting does not pay if the session ends right after it. So none is made unless the whole
bill, this request included, stays within 1 % of what sending everything would have cost up to now; what earlier
rewritings saved counts. Later steps only widen the gap, so the session never costs more than that, whenever it ends.

The two cannot both be had in full. While the history is less than about eleven times what a rewriting leaves, and
nothing has been saved yet, whoever keeps the promise must wait until enough was paid to hide a mistake in; a
clairvoyant who need not keep it is more than three times cheaper on a session that stops growing just then and goes
on for a hundred steps. Against a clairvoyant who keeps it too, the worst trace found pays 1.8 times as much; twice is
tested and not proven. ``regret=inf`` gives the promise up and has the proven bound throughout.
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
"""Minimum tokens that a rewriting leaves: this much is worth reading at every step."""

TROUBLE = 2_500
"""Tokens of plain input added to the cost of a rewriting, because detail is lost and smaller gains do not count."""


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of a token by how it is sent, in any unit; plain input is 1 unless said otherwise."""

    input: float = 1.0
    output: float = 5.0
    cache_read: float = 0.1
    cache_write: float = 1.25
    life: float = CACHE_LIFE
    """Seconds that the cache holds a prefix nobody asks for."""

    def __post_init__(self) -> None:
        """Refuse prices that make no sense, once."""
        for name in ("input", "output", "cache_read", "cache_write", "life"):
            if not 0 <= getattr(self, name) < inf:
                raise UsageError(f"{name}={getattr(self, name)!r} is not a price; use a number, 0 or more")
        if self.cache_read > self.cache_write:
            raise UsageError(f"cache_read={self.cache_read!r} is dearer than cache_write={self.cache_write!r}")

    @classmethod
    def of(cls, price: Price | None, *, life: float = CACHE_LIFE) -> Prices:
        """Take the prices of a model; without a cache, reading and writing are plain input.

        A model whose prices nobody knows gets the usual proportions.
        """
        if price is None:
            return cls(life=life)
        write = price.input if price.cache_write is None else price.cache_write
        read = price.input if price.cache_read is None else price.cache_read
        return cls(input=price.input, output=price.output, cache_read=min(read, write), cache_write=write, life=life)

    def request(self, prompt: int, *, cached: int = 0, output: int = 0) -> float:
        """Return what a request costs of whose prompt so many tokens are in the cache; the rest is written to it."""
        cached = min(max(cached, 0), prompt)
        return cached * self.cache_read + (prompt - cached) * self.cache_write + output * self.output

    def rewriting(self, before: int, after: int, *, cached: int, shared: int = 0) -> float:
        """Return what rewriting a prompt costs now beyond going on; ``shared`` tokens in front stay as they are."""
        kept = min(shared, cached, after)
        return self.request(after, cached=kept) - self.request(before, cached=cached)

    def break_even(self, before: int, after: int, *, cached: int, shared: int = 0) -> float:
        """Return after how many later steps within the cache's life a rewriting has paid for itself."""
        extra = self.rewriting(before, after, cached=cached, shared=shared)
        saved = (before - after) * self.cache_read
        if extra <= 0:
            return 0.0
        return extra / saved if saved > 0 else inf


class Economy:
    """The books of one session, and the question they answer before each request: does rewriting pay now?

    Ask ``due`` before a request, tell ``sent`` or ``rewrote`` behind it. Numbers are tokens of the whole prompt: what
    is ``shown`` of it now, and the ``total`` it would have if nothing had ever been left out. ``shared`` tokens in
    front (system, tools) stay as they are when the rest is rewritten; ``making`` is what a summariser charges; ``now``
    is in seconds, by any clock that goes on, and tells a cold cache. Each call takes constant time.
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
        """The bill so far, had everything been sent."""
        self.rent = 0.0
        """What could have been saved since the last rewriting."""
        self.shown = 0
        """Tokens of the last request: what the cache holds while it lives."""
        self._total = 0
        self._reached = 0
        """Where the last rewriting came down to: what must stay may be more than was asked for."""
        self._last: float | None = None
        self._begun = False

    def take_up(self, shown: int, total: int) -> None:
        """Begin with a session that ran before: the model knows what is there, the cache does not."""
        self.shown, self._total, self._begun = shown, total, False

    def is_cold(self, now: float | None = None) -> bool:
        """Tell whether the cache holds nothing of the session: before the first request, or after a long pause."""
        if not self._begun:
            return True
        return now is not None and self._last is not None and now - self._last > self.prices.life

    def goal(self, shown: int) -> int:
        """Say what a rewriting should come down to now; what the model has not seen yet is left alone."""
        return self._left() + max(0, shown - self.shown)

    def due(
        self, shown: int, *, total: int, now: float | None = None, after: int = 0, shared: int = 0, making: float = 0.0
    ) -> bool:
        """Tell whether the prompt should be rewritten before it is sent.

        ``after`` is what it would come down to, where that is known to be more than the goal.
        """
        after = max(self.goal(shown), after)
        if after >= shown:
            return False
        extra = self.prices.rewriting(shown, after, cached=self._cached(now), shared=shared) + making
        if self.rent < extra + self.trouble:
            return False
        return self._promised(after, total, now, shared, making)

    def keeps(self, shown: int, *, total: int, now: float | None = None, shared: int = 0, making: float = 0.0) -> bool:
        """Tell whether the promise still holds with a prompt that was rewritten, now that its size is known.

        If not, undo the rewriting; the next one will be expected to leave as much.
        """
        kept = self._promised(shown, total, now, shared, making)
        if not kept:
            self._reached = max(self._reached, self._old(shown, total))
        return kept

    def _promised(self, after: int, total: int, now: float | None, shared: int, making: float) -> bool:
        bill = self.paid + making + self.prices.request(after, cached=min(shared, self._cached(now)))
        return bill <= (1 + self.regret) * (self.untouched + self._untouched(total, now))

    def sent(self, shown: int, *, total: int, now: float | None = None, output: int = 0) -> None:
        """Note a request that was sent as it stood, and the tokens of its answer."""
        price = self.prices.cache_write if self.is_cold(now) else self.prices.cache_read
        self.rent += max(0, min(self.shown, shown) - self._left()) * price
        self._note(shown, total, now, output, cached=self._cached(now))

    def rewrote(
        self, shown: int, *, total: int, now: float | None = None, output: int = 0, shared: int = 0, making: float = 0.0
    ) -> None:
        """Note a request that was rewritten before it was sent, for whatever reason, and the tokens of its answer."""
        self.rent, self._reached = 0.0, self._old(shown, total)
        self.paid += making
        self._note(shown, total, now, output, cached=min(shared, self._cached(now)))

    def _note(self, shown: int, total: int, now: float | None, output: int, *, cached: int) -> None:
        self.paid += self.prices.request(shown, cached=cached, output=output)
        self.untouched += self._untouched(total, now) + output * self.prices.output
        self.shown, self._total, self._begun = shown, total, True
        self._last = now if now is not None else self._last

    def _left(self) -> int:
        """Say what a rewriting would leave of what was sent before."""
        return max(self.least, int(self.share * self._total), self._reached)

    def _old(self, shown: int, total: int) -> int:
        """Count what of a rewritten prompt the model had seen before."""
        return max(0, shown - max(0, total - self._total))

    def _cached(self, now: float | None) -> int:
        return 0 if self.is_cold(now) else self.shown

    def _untouched(self, total: int, now: float | None) -> float:
        return self.prices.request(total, cached=0 if self.is_cold(now) else self._total)

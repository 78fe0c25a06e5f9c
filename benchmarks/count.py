"""Counting tokens: new text, and known text in other string objects.

A stateless caller decodes the same history again at every step: equal content, different objects. So the second number
matters more. The text is that of the bundled sessions: source code, logs, test runs, JSON, prose. Each part is counted
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files

import msgspec

import kompakt
from benchmarks.measurement import Row, Spread, row, seconds, spread
from kompakt.model.tokens import Counter, vocabulary

RUNS = 41

TRIES = 3
"""Tries of which each figure is the best, as timeit does it: what else runs on the machine only ever slows a try, and a
try takes a hundredth of a second."""


@cache
def texts() -> tuple[str, ...]:
    """Return the different texts of the bundled sessions, one by one."""
    data = files("kompakt") / "data"
    bodies = [msgspec.json.decode((data / f"{name}-session.json").read_bytes()) for name in ("long", "broken")]
    found = [
        value
        for body in bodies
        for message in kompakt.parse(body)
        for part in message.parts
        for value in (getattr(part, "text", None) or getattr(part, "output", None) or getattr(part, "input", None),)
        if isinstance(value, str) and value
    ]
    return tuple(dict.fromkeys(found))


@cache
def size() -> int:
    """Return the size of the texts in bytes."""
    return sum(len(text.encode()) for text in texts())


def copies() -> list[str]:
    """Make equal texts in other objects, whose hashes nobody has computed yet."""
    return [text.encode().decode() for text in texts()]


def rate(count: Callable[[str], int], fresh: Callable[[], list[str]] = copies) -> float:
    """Measure a count over all texts, in MB/s; the copies are made before the clock starts."""
    given = fresh()

    def run() -> None:
        for text in given:
            count(text)

    return size() / seconds(run) / 1e6


def track_cold() -> float:
    """Count text never seen before, as a new process does: with a counter that has counted nothing."""
    return max(rate(Counter().text) for _ in range(TRIES))


def track_vocabulary() -> float:
    """Count with the tokenizer alone: what kompakt cannot be faster than on new text.

    Remembering the counts of words or lines was tried. It has to be exact, so the text must be cut in Python where the
    vocabulary's pattern would cut it, and that costs what it saves: at best 1.2 times as fast here, where lines repeat
    often, and slower than the tokenizer on real sessions.
    """
    return max(rate(vocabulary("o200k")) for _ in range(TRIES))


@cache
def _warm() -> Counter:
    counter = Counter()
    rate(counter.text)
    return counter


def track_seen() -> float:
    """Count text seen before, in other objects."""
    return rate(_warm().text)


@cache
def _splintr() -> Callable[[str], int]:
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained("o200k_base")
    return lambda text: len(tokenizer.encode_ordinary(text))


def track_splintr() -> float:
    """Count with splintr, which has a cache of its own, on text it has seen."""
    return rate(_splintr())


def track_splintr_cold() -> float:
    """Count with splintr after its cache was emptied."""
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained("o200k_base")
    tokenizer.clear_cache()
    return rate(lambda text: len(tokenizer.encode_ordinary(text)))


def track_chars() -> float:
    """Divide characters by four."""
    return rate(lambda text: len(text) // 4)


def _error_of_chars() -> float:
    counter = _warm()
    total = sum(counter.text(text) for text in texts())
    return sum(len(text) for text in texts()) / 4 / total - 1


def _difference_of_splintr() -> int:
    counter, other = _warm(), _splintr()
    return sum(counter.text(text) != other(text) for text in texts())


def measure() -> list[Row]:
    """Measure the area."""
    vocabulary("o200k")("Loading is not counting.")

    def repeat(track: Callable[[], float]) -> Spread:
        return spread(track() for _ in range(RUNS))

    # In turn, so that a busy machine slows both.
    turns = [(track_cold(), track_vocabulary()) for _ in range(RUNS)]
    cold, alone = (spread(rates) for rates in zip(*turns, strict=True))
    ratio = spread(own / theirs for own, theirs in turns)
    note = f"{len(texts()):,} texts, {size() / 1e6:.1f} MB of code, logs, test runs, JSON and prose"
    differing = f"{_difference_of_splintr()} of {len(texts()):,} texts counted differently"
    wrong = f"off by {_error_of_chars():+.0%} on this text"
    return [
        row("kompakt, new text", cold, "MB/s", at_least=20, note=note),
        row("kompakt over rs-bpe itself, new text", ratio, "×"),
        row("kompakt, seen before, other objects", repeat(track_seen), "MB/s", at_least=300),
        row("rs-bpe itself, new text", alone, "MB/s", peer=True),
        row("splintr, new text", repeat(track_splintr_cold), "MB/s", peer=True),
        row("splintr, seen before", repeat(track_splintr), "MB/s", peer=True, note=differing),
        row("characters / 4", repeat(track_chars), "MB/s", peer=True, note=wrong),
    ]

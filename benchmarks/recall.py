"""Recall: building the index of a long session, and searching it.

The text is a bundled session, repeated with other numbers up to 200,000 tokens, so that hardly any messages are equal.
Peers index and rank the same texts; they neither restore originals, cut passages nor count tokens.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

import kompakt
from benchmarks.measurement import Row, Spread, row, seconds, spread
from kompakt.engine.recall import Memory
from kompakt.engine.recall.passages import spoken
from kompakt.model.messages import JsonObject, Message
from kompakt.model.references import References
from kompakt.model.tokens import Counter

TOKENS = 200_000
RUNS = 9
QUERIES = (
    "which test failed and why",
    "error when parsing the configuration",
    "where are the rows written to the report",
    "what did the user ask for first",
    "import path of the settings module",
)


@cache
def messages() -> tuple[Message, ...]:
    """Return a session of about 200,000 tokens."""
    data = (files("kompakt") / "data" / "long-session.json").read_bytes()
    counter, found, total, copy = Counter(), list[Message](), 0, 0
    while total < TOKENS:
        text = re.sub(rb"(?<=[a-z])\d+", lambda hit, copy=copy: hit[0] + str(copy).encode(), data)
        body: JsonObject = msgspec.json.decode(text)
        for message in kompakt.parse(body):
            found.append(message)
            total += counter.message(message)
            if total >= TOKENS:
                break
        copy += 1
    return tuple(found)


@cache
def texts() -> tuple[str, ...]:
    """Return what peers index: the same parts as texts."""
    return tuple(text for message in messages() for part in message.parts if (text := spoken(part)).strip())


def track_build() -> float:
    """Index the session, its words seen before or not, and name its messages."""
    given = messages()
    return seconds(lambda: Memory(given, counter=Counter()).search("nothing in particular"))


@cache
def _memory() -> Memory:
    memory = Memory(messages(), counter=Counter())
    memory.search("warm")
    return memory


def track_query() -> float:
    """Ask an indexed session, answer included: the mean over the questions."""
    memory = _memory()
    return seconds(lambda: [memory.search(query) for query in QUERIES]) / len(QUERIES)


def track_fetch() -> float:
    """Restore the largest part by its reference."""
    memory = _memory()
    best = max(range(len(messages())), key=lambda place: sum(len(spoken(part)) for part in messages()[place].parts))
    name = References(messages()).names[best]
    return seconds(lambda: memory.recall(name, tokens=None))


LARGE_CHARS = 100_000_000
"""Characters of a history that is scanned and not indexed."""


def track_large() -> float:
    """Ask a history of 100 MB that was never searched before, references included."""
    unit, found, total = messages(), list[Message](), 0
    size = sum(map(len, texts()))
    while total < LARGE_CHARS:
        found += unit
        total += size
    return seconds(lambda: Memory(found, counter=Counter()).search(QUERIES[0]))


def _rank_bm25() -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    from rank_bm25 import BM25Okapi  # optional: comes with `make bench-peers`

    return (
        lambda: BM25Okapi([text.lower().split() for text in texts()]),
        lambda index: [index.get_top_n(query.lower().split(), texts(), n=10) for query in QUERIES],
    )


def _bm25s() -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    import bm25s  # optional: comes with `make bench-peers`

    def build() -> Any:
        index = bm25s.BM25()
        index.index(bm25s.tokenize(list(texts()), show_progress=False), show_progress=False)
        return index

    def ask(index: Any) -> Any:
        return [
            index.retrieve(bm25s.tokenize(query, show_progress=False), k=10, show_progress=False) for query in QUERIES
        ]

    return build, ask


def _peers() -> list[Row]:
    """Measure those that are installed."""
    rows: list[Row] = []
    for name, load in (("rank-bm25", _rank_bm25), ("bm25s", _bm25s)):
        with contextlib.suppress(ImportError):
            build, ask = load()
            index = build()
            built = spread(seconds(build) for _ in range(RUNS))
            asked = spread(seconds(lambda ask=ask, index=index: ask(index)) / len(QUERIES) for _ in range(RUNS))
            rows.append(row(f"{name}, index of whole parts", built.scaled(1000), "ms", peer=True))
            rows.append(row(f"{name}, query, top 10 without an answer", asked.scaled(1000), "ms", peer=True))
    return rows


def measure() -> list[Row]:
    """Measure the area."""

    def repeat(track: Callable[[], float]) -> Spread:
        return spread(track() for _ in range(RUNS)).scaled(1000)

    note = f"{len(messages()):,} messages, {len(texts()):,} parts, about {TOKENS:,} tokens"
    return [
        row("kompakt, index of a session", repeat(track_build), "ms", at_most=1_000, note=note),
        row("kompakt, query with an answer of 1,000 tokens", repeat(track_query), "ms", at_most=20),
        row("kompakt, restore by reference", repeat(track_fetch), "ms", at_most=20),
        row("kompakt, first query on 100 MB", spread([track_large()]).scaled(1000), "ms", at_most=3_000),
        *_peers(),
    ]

"""Full-text search of every store with an index."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.backends import INDEXED, Place
from tests.contract.builders import batch, extend, new_head, row, start

from kompakt.store.records import Head, Records

TEXTS = [
    "the parser of the archive failed on a broken header",
    "nothing of interest here",
    "the archive was rebuilt and the parser was not touched",
    "header header header",
    "münchen straße größe 東京 naïve",
    "src/parser/archive_reader.py line 42 error e0308",
]

HOSTILE = [
    '"',
    "'",
    "''; DROP TABLE rows; --",
    "NEAR(",
    "AND",
    "NOT",
    "OR",
    "*",
    "par*",
    "col:val",
    "^parser",
    "-parser",
    "+",
    "(",
    ")",
    "{a b}",
    "%",
    "_",
    "\\",
    "!",
    "&|!<->",
    "<1>",
    ":*",
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "🙂",
    "x" * 10_000,
    "\r\n",
]


async def written(records: Records, id: str = "session", tenant: str = "tenant") -> Head:
    """Begin a session whose rows have the texts."""
    head = new_head(id, tenant)
    made = batch(head, [row(number, words=text) for number, text in enumerate(TEXTS, 1)])
    await records.commit(made, seen=None)
    return made.head


def on(place: Place, scenario: Callable[[Records], Awaitable[Any]]) -> Any:
    """Run something on the records of a place."""

    async def run() -> Any:
        async with place.opened() as records:
            return await scenario(records)

    return asyncio.run(run())


def asked(place: Place, *words: str, limit: int = 10) -> list[int] | None:
    """Search the texts for words; a store that is to have an index must have one."""

    async def scenario(records: Records) -> list[int] | None:
        head = await written(records)
        await written(records, "other")
        await written(records, tenant="another")
        return await records.search(head.key, list(words), limit=limit)

    found = on(place, scenario)
    assert (found is not None) == (place.name in INDEXED)
    return found


class TestSearch:
    @pytest.mark.parametrize(
        "words, expected",
        [
            (["archive"], {1, 3}),
            (["header"], {1, 4}),
            (["parser", "interest"], {1, 2, 3}),
            (["rebuilt", "absent"], {3}),
            (["absent"], set()),
            ([], set()),
            (["münchen"], {5}),
            (["e0308"], {6}),
        ],
    )
    def test_rows_with_any_word_are_found(self, place: Place, words: list[str], expected: set[int]) -> None:
        """Rows of this session with at least one of the words, each once."""
        found = asked(place, *words)
        if found is not None:
            assert len(found) == len(set(found))
            # A path may be one word or several: what the sixth row is found by is left to the index.
            assert set(found) - {6} == expected - {6}
            assert 6 not in expected or 6 in found

    def test_the_best_row_is_first(self, place: Place) -> None:
        """More of the words, and rarer ones, come before fewer and common ones."""
        found = asked(place, "archive", "rebuilt", "touched")
        if found is not None:
            assert found[0] == 3

    @pytest.mark.parametrize("limit", [0, 1, 2])
    def test_the_limit_is_respected(self, place: Place, limit: int) -> None:
        """The best of them."""
        found = asked(place, "archive", "parser", "header", "rebuilt", limit=limit)
        if found is not None:
            assert len(found) == limit

    def test_query_operators_are_plain_words(self, place: Place) -> None:
        """No character of a query is an operator: nothing fails, nothing matches that has not the word."""

        async def scenario(records: Records) -> None:
            head = await written(records)
            for word in HOSTILE:
                found = await records.search(head.key, [word], limit=10)
                assert found is None or set(found) <= {1, 2, 3, 4, 5, 6}, word
                both = await records.search(head.key, [word, "interest"], limit=10)
                assert both is None or 2 in both, word
            everything = await records.search(head.key, [*HOSTILE, "interest"], limit=10)
            assert everything is None or 2 in everything
            alone = await records.search(head.key, ["NOT"], limit=10)
            assert alone is None or not set(alone) & {1, 2, 4, 5}

        on(place, scenario)

    def test_many_words(self, place: Place) -> None:
        """A whole page as a query is answered."""
        found = asked(place, *(f"word{number}" for number in range(2000)), "interest")
        if found is not None:
            assert found == [2]

    def test_texts_of_any_characters(self, place: Place) -> None:
        """Rows with any bytes in their words are written and found by the readable words."""

        async def scenario(records: Records) -> None:
            head = new_head()
            texts = [f"before {hostile} needle{number} after" for number, hostile in enumerate(HOSTILE)]
            texts.append("needle " * 200_000)
            rows = [row(number, words=text) for number, text in enumerate(texts, 1)]
            await records.commit(batch(head, rows), seen=None)
            assert await records.rows(head.key, upto=1, limit=1) == [row(1)]
            for number in range(len(HOSTILE)):
                found = await records.search(head.key, [f"needle{number}"], limit=100)
                assert found is None or found == [number + 1], HOSTILE[number]

        on(place, scenario)

    def test_a_refused_commit_is_not_indexed(self, place: Place) -> None:
        """The index has what the session has: new rows at once, none of a deleted session."""

        async def scenario(records: Records) -> None:
            head = await start(records, rows=1)
            head = await extend(records, head, [row(2, words="quokka")])
            found = await records.search(head.key, ["quokka"], limit=9)
            assert found in (None, [2])
            await records.delete([head.key])
            assert await records.search(head.key, ["quokka"], limit=9) in (None, [])
            await start(records, rows=2)
            assert await records.search(head.key, ["quokka"], limit=9) in (None, [])

        on(place, scenario)

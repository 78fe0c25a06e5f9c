"""How search handles words, dates, names and meaning."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompakt.engine.recall import Memory
from kompakt.engine.recall import embeddings as meaning
from kompakt.engine.recall.terms import IRREGULAR, STOP, asked, asks_when, exact_names, roots, stamp, stem, tally, terms
from kompakt.model.messages import Message, Text
from kompakt.model.tokens import Counter


class TestWords:
    @pytest.mark.parametrize(
        "forms",
        [
            "container containers",
            "paint painted painting paints",
            "plan planned planning",
            "city cities",
            "write wrote written writing",
            "child children",
            "go went gone",
            "configure configured configuring",
            "quick quickly",
        ],
    )
    def test_forms_of_a_word_meet(self, forms: str) -> None:
        """All have one stem."""
        assert len({stem(form) for form in forms.split()}) == 1, [stem(form) for form in forms.split()]

    @pytest.mark.parametrize("pair", ["bus business", "universe university", "class clay", "this thing"])
    def test_other_words_stay_apart(self, pair: str) -> None:
        """A stem is not a prefix."""
        one, other = pair.split()
        assert stem(one) != stem(other)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("parseHTTPRow2", {"pars", "http", "row", "2", "parsehttprow2"}),
            ("tide_gauge", {"tide", "gaug", "tide_gauge"}),
            ("src/tide/gauge.py", {"gauge.py", "src", "tide", "gaug", "py", "src/tide/gauge.py"}),
            ("de-stress", {"de", "stress", "destress"}),
            ("the and of", set[str]()),
            ("天気予報", {"天気", "気予", "予報"}),
        ],
    )
    def test_terms(self, text: str, expected: set[str]) -> None:
        """An identifier counts as a whole and as its pieces; words that say nothing do not count."""
        assert set(terms(text)) == expected

    @given(st.text(max_size=300))
    def test_any_text_has_terms(self, text: str) -> None:
        """Nothing raises, and the tally counts what is listed."""
        found = terms(text)
        assert sum(tally(text).values()) == len(found) and set(tally(text)) == set(found)

    def test_tables_are_sound(self) -> None:
        """No word is its own form and stop words are plain."""
        assert all(form != word for form, word in IRREGULAR.items())
        assert all(word.isalpha() and word.islower() for word in STOP)


class TestDates:
    @pytest.mark.parametrize(
        "line",
        ["[1:56 pm on 8 May, 2023]", "2023-05-08T13:56", "May 8, 2023", "Session of 8th May 2023:", "8 May 2023"],
    )
    def test_a_stamp_is_read(self, line: str) -> None:
        """Year, month and day, in any notation."""
        assert stamp(f"{line}\nhello") == {"2023", "may", "day 8"}

    @pytest.mark.parametrize("line", ["hello", "We may 8 times", "in May", "x" * 70 + " 8 May 2023 and more", ""])
    def test_no_stamp(self, line: str) -> None:
        """Part of a date is none, nor is a date in a long line."""
        assert stamp(line) == frozenset()

    def test_what_is_asked(self) -> None:
        """A query may name a part of a date; an ordinary word is none."""
        assert asked("What happened in March 2024?") == {"mar", "2024"}
        assert asked("on 3 June") == {"jun", "day 3"}
        assert asked("who was there in May") == {"may"}
        assert asked("may I go, 3 times?") == frozenset()
        assert asks_when("When did it sail?") and asks_when("Which year was it?") and not asks_when("Who sailed?")


class TestNames:
    @pytest.mark.parametrize(
        "word, name",
        [
            ("src/app/config.py:12", "config.py"),
            ("src/app/config.py:12", "src/app/config.py"),
            ("app.jobs.parse_row", "parse_row"),
            ("Context.is_open", "is_open"),
        ],
    )
    def test_a_path_contains_its_names(self, word: str, name: str) -> None:
        """A query for a bare name has the term that the full name has."""
        assert set(exact_names(name)) <= set(terms(word))

    def test_ordinary_words_are_no_names(self) -> None:
        """Words weigh as names only where they look like one."""
        assert exact_names("Where is the harbour gate") == []

    @pytest.mark.parametrize(
        "query, text", [("entries", "one entry"), ("lifting", "lifted"), ("parse_row.py", "a/Parse_Row.py")]
    )
    def test_roots_occur_in_matching_texts(self, query: str, text: str) -> None:
        """A scan by substrings finds other forms of a word."""
        assert any(root in text.lower() for root in roots(query))


class _Tokenizer:
    """Knows a few words; others have no tokens."""

    WORDS = ("boat", "vessel", "ship", "cake", "pastry")

    def encode(self, word: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        found = [self.WORDS.index(word)] if word in self.WORDS else []
        return type("Encoding", (), {"ids": found})


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a tiny table in the place of the installed one."""
    table = numpy.array([[1, 0], [0.95, 0.1], [0.9, 0.2], [0, 1], [0.1, 0.95]], dtype="float32")
    meaning._vector.cache_clear()
    monkeypatch.setattr(meaning, "_loaded", lambda: (_Tokenizer(), table))
    monkeypatch.setattr("kompakt.engine.recall.index.available", lambda: True)


@pytest.mark.usefixtures("vectors")
class TestMeaning:
    def test_other_words_for_the_same(self) -> None:
        """A turn that shares no word with the query is found by its meaning."""
        turns = ["My vessel is moored", "A pastry, please", "Nothing of note"]
        archive = Memory([Message("user", (Text(turn),)) for turn in turns], counter=Counter())
        found = archive.recall("boat")
        assert found.hits[0].text == turns[0] and turns[1] not in found.text
        assert found == archive.recall("boat")

    def test_it_grows(self) -> None:
        """Messages added later are compared as if they had been there from the start."""
        texts = ["the ship came", "cake for all", "a vessel left"]
        grown, whole = meaning.Meaning(), meaning.Meaning()
        for place, text in enumerate(texts):
            grown.add(place, text)
            grown.likeness("boat", without=frozenset())
            whole.add(place, text)
        assert grown.likeness("boat", without=frozenset()) == whole.likeness("boat", without=frozenset())
        assert whole.likeness("the of", without=frozenset()) == []
        assert meaning.Meaning().likeness("boat", without=frozenset()) == []


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package, or one without the files, is no error."""
    for missing in (lambda name: None, lambda name: type("Spec", (), {"submodule_search_locations": ["/nowhere"]})):
        meaning.available.cache_clear()
        monkeypatch.setattr(meaning, "find_spec", missing)
        assert not meaning.available()
    meaning.available.cache_clear()

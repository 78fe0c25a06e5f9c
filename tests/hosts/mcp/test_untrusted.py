"""Recorded text as data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kompakt.hosts.mcp.untrusted import MAX_LABEL, bounded, framed, label
from kompakt.view.visible import cleaned


class TestCleaned:
    @given(st.text(st.characters(codec=None), max_size=200))
    def test_nothing_invisible_is_left(self, text: str) -> None:
        """What is left is valid Unicode, and cleaning it again changes nothing."""
        done = cleaned(text)
        assert done.encode() and cleaned(done) == done if text else done == ""
        assert all(char in "\n\t" or char.isprintable() or ord(char) > 0x2FFF or char.isspace() for char in done)

    def test_escapes_are_readable(self) -> None:
        assert cleaned("a\x1b[31m\u202eb\0\U000e0041\r\n\tc") == "a\\x1b[31m\\u202eb\\x00\\U000e0041\n\tc"
        assert cleaned("\ud800") == "\ufffd" and cleaned("\ud83d\ude00") == "\U0001f600"


class TestFrame:
    @given(st.text(max_size=200).map(cleaned))
    def test_the_end_is_not_part_of_the_text(self, text: str) -> None:
        mark = framed(text, origin="x").rpartition("end ")[2]
        assert mark not in text

    def test_an_origin_is_one_short_line(self) -> None:
        assert label("a\nb  c\x1b") == "a b c\\x1b"
        assert len(label("x" * 10_000)) == MAX_LABEL


class TestBounded:
    @given(st.text(max_size=300), st.integers(1, 50))
    def test_the_result_fits_and_is_a_beginning(self, text: str, tokens: int) -> None:
        done = bounded(text, tokens, len)
        assert len(done) <= tokens and text.startswith(done)
        assert done == text[:tokens]

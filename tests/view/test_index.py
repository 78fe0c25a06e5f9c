"""Titles: one line of printable characters, from the words of the user."""

from __future__ import annotations

import pytest

from kompakt.model.messages import Message, Text, ToolResult
from kompakt.view.index import MAX_TITLE, request_title, short_path, title_of


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Fix the parser.", "Fix the parser."),
        ("  Fix\n\nthe\tparser. ", "Fix the parser."),
        ("<system-reminder>\nNever <b>.\n</system-reminder>\n<env a='1'>x</env> Fix it.", "Fix it."),
        ("<system-reminder>only context</system-reminder>", ""),
        ("<b>not closed", "<b>not closed"),
        ("a < b and <c> is kept", "a < b and <c> is kept"),
        ("\u202efix\u0000 \ud800it\u200b", "fix it"),
        ("<a>" * 100_000, ("<a>" * 100)[: MAX_TITLE - 1] + "…"),
    ],
)
def test_the_title_of_a_session_has_the_first_words_of_its_user(text: str, title: str) -> None:
    assert request_title(Message("user", (Text(text),))) == title


def test_a_title_is_short_whatever_the_message_holds() -> None:
    for text in ("x" * 10_000_000, "\n" * 100_000 + "end", "\u2028" * 500):
        made = title_of(Message("tool", (ToolResult("c", text),)))
        assert 0 < len(made) <= MAX_TITLE and made.isprintable()


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("/home/me/code/shop/cart/tax.py", "…/shop/cart/tax.py"),
        ("/home/me/code/shop/cart/", "…/code/shop/cart"),
        ("cart/tax.py", "cart/tax.py"),
        ("/srv/cart/tax.py", "/srv/cart/tax.py"),
        ("https://example.com/a/b/c/d", "https://example.com/a/b/c/d"),
        ("cat /home/me/code/shop/cart/tax.py", "cat /home/me/code/shop/cart/tax.py"),
    ],
)
def test_a_long_path_is_shown_by_its_end(subject: str, shown: str) -> None:
    """The beginning is the same for most files of a session, and rows are narrow."""
    assert short_path(subject) == shown

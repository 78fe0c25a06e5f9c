"""Recorded text without characters that act on a terminal, a page or a model and that a person does not see."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that a terminal or a model reads and a person does not see: controls, directions, zero width, tags."""

_UNSURE = re.compile("[\xa0-\u2fff]")
"""Characters of which Python knows whether they are visible: soft hyphens and unassigned ones are not."""


def cleaned(text: str) -> str:
    """Escape characters that are not visible, and replace halves of surrogate pairs, which JSON cannot carry."""
    whole = text.replace("\r\n", "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _UNSURE.sub(_shown, _HIDDEN.sub(_escaped, whole))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _shown(found: re.Match[str]) -> str:
    """Keep a character that is visible or a space."""
    return found[0] if found[0].isprintable() or found[0].isspace() else _escaped(found)

"""Hints for misspelled names in settings and arguments."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to ``name``, or list all known names."""
    from difflib import get_close_matches  # late: needed only for an error message

    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(names))}"

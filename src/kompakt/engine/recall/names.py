"""Names: paths, identifiers and numbers, the words that a next step is made of.

An answer ends with names that stand near what was asked for and did not fit, and those that calls used last: what to
ask for next. One pass over the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.model.tokens import Counter

_TOKEN = re.compile(r"(?:[~@]|(?<![\w.-]))[\w.-]*+(?:/[\w.@+-]+)+|[A-Za-z_]\w*(?:[.-]\w+)*|\d[\w.-]*")
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")

_LINE_NUMBER = re.compile(r"(?<=\w)-\d+\Z")
"""What a search prints behind a path."""

_SHORTEST = 6
_LONGEST = 120
"""Characters of a name: shorter ones say little, longer ones are data."""


def names(text: str) -> Iterator[str]:
    """Yield the names in a text; ordinary words are none."""
    for found in _TOKEN.findall(text):
        name = found.rstrip("./-")
        if "/" in name:
            name = _LINE_NUMBER.sub("", name)
        if _SHORTEST <= len(name) <= _LONGEST and _is_name(name):
            yield name


def _is_name(name: str) -> bool:
    if name.replace("-", "").isalpha():
        return _INNER_CAPITAL.search(name) is not None
    return True


def listed(found: Iterable[str], *, beside: str, tokens: int, counter: Counter) -> list[str]:
    """Take as many names as fit that do not stand beside them already."""
    taken: list[str] = []
    for name in dict.fromkeys(found):
        if name in beside:
            continue
        cost = counter.scaled(counter.text(f" {name}"))
        if cost <= tokens:
            taken.append(name)
            tokens -= cost
        if tokens < 3:
            break
    return taken

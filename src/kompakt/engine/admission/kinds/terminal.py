"""What a program writes to a terminal: colours are removed, and of a line that is redrawn its last states stay.

A progress bar writes one line again and again, with a carriage return between the states. Of states with the same words
the last one stays. Cost: one look at lines with a carriage return or an escape character.
"""

from __future__ import annotations

import re

from kompakt.model.phrases import FOLD

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[@-Z\\^_=>])")
"""A control sequence: colours, moves of the cursor, titles of windows."""

_REDRAWN = re.compile(r"\r(?!\n|\Z)")

_NO_WORDS = re.compile(r"[\W\d_]+")


def replace(text: str) -> tuple[str, int]:
    """Remove colours and redrawn states; return the text, and how many states were removed."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if _REDRAWN.search(text) is None:
        return text, 0
    lines = text.split("\n")
    gone = 0
    for place, line in enumerate(lines):
        if "\r" in line.rstrip("\r"):
            lines[place], count = _last_states(line)
            gone += count
    return "\n".join(lines), gone


def _last_states(line: str) -> tuple[str, int]:
    """Keep the last state with the same words; return the states and how many are gone."""
    states = [state for state in line.split("\r") if state.strip()]
    last = {_NO_WORDS.sub("", state): place for place, state in enumerate(states)}
    gone = len(states) - len(last)
    kept = "\n".join(states[place] for place in sorted(last.values()))
    return (f"{kept} {FOLD}redrawn {gone} times" if gone else kept), gone

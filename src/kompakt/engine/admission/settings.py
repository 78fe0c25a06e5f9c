"""How hard outputs are compressed at admission: two levels, and everything in between by hand.

``GENTLE`` leaves out what is said twice and what is only layout, and folds what is very large: for agents at work, who
edit what they read. ``FIRM`` also folds the bodies of source files to signatures: for histories that must shrink.
"""

from __future__ import annotations

import msgspec

from kompakt.errors import UsageError
from kompakt.model.json import prepare

KINDS = frozenset(
    ["blob", "diff", "html", "json", "listing", "log", "repeat", "search", "source", "table", "test run", "trace"],
)
"""The kinds of output that are known."""


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What admission may do."""

    min_tokens: int = 400
    """Outputs of fewer tokens are left alone."""
    min_saving: float = 0.15
    """An output that does not get smaller by this share is left alone: it would be changed for nothing."""
    max_body_tokens: int = 12_000
    """A file read whole that is larger than this is folded to its signatures."""
    max_range_tokens: int = 16_000
    """The same for a part of a file: who asks for lines means these lines."""
    fold_echoes: bool = False
    """Whether lines go that an editing tool shows of the change it was just asked to make."""
    show_again: bool = True
    """Whether a file that was folded is shown when it is read again whole; its parts always are."""
    max_matches: int = 30
    """Matching lines shown of one file of a search."""
    max_matching_files: int = 60
    """Files of a search that are shown with lines; the others are named."""
    diff_context: int = 1
    """Unchanged lines shown on either side of a change."""
    max_log_lines: int = 120
    """Lines of a log shown beside those that report a failure: the beginning and, twice as many, the end."""
    max_line: int = 1_200
    """Maximum characters of a line; the middle of a longer one is cut."""
    max_items: int = 8
    """Items shown of a long array of objects, beside those that report a failure or look unlike the others."""
    max_json_tokens: int = 3_000
    """A JSON value that is larger than this, layout apart, is sampled."""
    max_table_rows: int = 60
    """Rows shown of a table, beside those that report a failure or hold a rare value: two thirds from its beginning."""
    max_frames: int = 12
    """Frames shown of one stack trace."""
    number_every: int = 10
    """Of the line numbers of a file, one in this many stays."""
    kinds: frozenset[str] = KINDS
    """Kinds that are compressed."""


GENTLE = AdmissionSettings()
"""For an agent at work."""

FIRM = AdmissionSettings(
    min_tokens=120,
    min_saving=0.1,
    max_body_tokens=300,
    max_range_tokens=300,
    fold_echoes=True,
    show_again=False,
    max_matches=3,
    max_matching_files=15,
    diff_context=0,
    max_log_lines=30,
    max_line=800,
    max_items=3,
    max_json_tokens=1_000,
    max_table_rows=15,
    max_frames=6,
    number_every=50,
)
"""For the least tokens: bodies are folded, and a second look at them shows them."""

DEFAULT = GENTLE
"""The default level."""

_LEVELS = {"gentle": GENTLE, "firm": FIRM}


def level_named(name: str) -> AdmissionSettings:
    """Return the settings of a level.

    Raises:
        UsageError: there is no such level.
    """
    if name not in _LEVELS:
        raise UsageError(f"admission={name!r} is not known; use {' or '.join(map(repr, _LEVELS))}, or settings")
    return _LEVELS[name]


prepare(AdmissionSettings)

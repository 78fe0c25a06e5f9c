"""Calls that the user refused: they did not happen, and the user's reason binds like any other demand."""

from __future__ import annotations

import re

from kompakt.model.messages import ToolResult

ZONE = 1_500
"""Characters at the beginning of an answer in which a refusal is looked for."""

_REFUSED = re.compile(
    r"doesn't want to (?:proceed|take|run)"
    r"|(?:rejected|denied|declined|refused|cancell?ed|aborted) by (?:the )?user"
    r"|user (?:has )?(?:rejected|denied|declined|refused)|tool use was rejected|not approved by (?:the )?user",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?:the user said|user feedback|user's reason|reason|feedback|instructions?)\s*:\s*(.*)", re.DOTALL | re.IGNORECASE
)


def refusal(result: ToolResult) -> str | None:
    """Return the user's reason, empty when none was given; ``None`` when the call was not refused.

    An answer that is not marked as an error must be nothing but the refusal: a file may speak of one.
    """
    output = result.output
    found = _REFUSED.search(output, 0, ZONE if result.is_error else 200)
    if found is None or (not result.is_error and len(output) > ZONE):
        return None
    reason = _REASON.search(output, found.end())
    return " ".join(reason[1].split()) if reason else ""

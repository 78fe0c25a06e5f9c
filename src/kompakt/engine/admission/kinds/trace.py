"""Stack traces: the first and the last frames stay, and everything that is not a frame. Cost: one look at each line."""

from __future__ import annotations

import re

_HINTS = ('  File "', "\tat ", "    at ", "goroutine ", " +0x", "#0 ")

_FRAME = re.compile(
    r'\s+File "[^"]+", line \d+'
    r"|\s+at [\w$.<>\[\]/ ]+[(:]|\s+at (?:async )?(?:/|file:|node:)|\s+\.\.\. \d+ more"
    r"|\t\S+\.\w+:\d+(?: \+0x[0-9a-f]+)?$|[\w./*()-]+\([\w., {}?]*\)$"
    r"|\s*#?\d+:? +0x[0-9a-f]+|#\d+ +(?:0x|\S+ \()"
)
"""A frame, as Python, Java, JavaScript, Go, Rust and debuggers write it."""


def is_trace(text: str) -> bool:
    """Tell whether a text is mostly frames: judged by its first lines."""
    if not any(hint in text for hint in _HINTS):
        return False
    lines = [line for line in text[:8_000].split("\n", 60)[:60] if line.strip()]
    return sum(_FRAME.match(line) is not None for line in lines) * 3 > len(lines)


def folded_frames(text: str, lines: list[str], limit: int) -> set[int]:
    """Find the frames in the middle of long traces: those that are not shown."""
    gone: set[int] = set()
    if not any(hint in text for hint in _HINTS):
        return gone
    run: list[list[int]] = []
    for place, line in enumerate(lines):
        if _FRAME.match(line):
            run.append([place])
        elif run and line[:4] == "    " and lines[run[-1][0]].lstrip().startswith("File ") and len(run[-1]) < 4:
            run[-1].append(place)  # the code of a frame
        else:
            gone |= _middle(run, limit)
            run = []
    return gone | _middle(run, limit)


def _middle(run: list[list[int]], limit: int) -> set[int]:
    """Take the first and last frames off: the last more, since what raised stands there or at the very top."""
    if len(run) <= limit:
        return set()
    head = limit // 2
    return {place for frame in run[head : len(run) - (limit - head)] for place in frame}

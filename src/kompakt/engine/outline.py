"""A summary by code: one line for each thing that happened, each with its reference.

Needs no model, gives the same text for the same history, and is bounded: when it grows too long, the oldest lines of
the least weight go first, and a line says how many. What the user said weighs most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt.engine.summary import Material
from kompakt.model.messages import Message, Text, ToolCall, ToolResult
from kompakt.model.tokens import json_text

_LEFT_OUT = re.compile(r"\((\d+) more lines left out\)")

_LINE = re.compile(r"m[0-9a-f]{4,} (\S+)")
"""How a line of an outline begins: reference, then who or what."""

_USER, _ASSISTANT, _TOOL = 240, 120, 100
"""Characters kept of a user's sentence, an assistant's, a call with its result."""


def summarize(material: Material) -> str:
    """Write the outline of what is left out, within its tokens."""
    names: dict[str, str] = {}
    told = (material.earlier or "").splitlines()
    lines = [(_weight(line), line) for line in told if line and not _LEFT_OUT.fullmatch(line) and not _own(line)]
    left = sum(int(found[1]) for line in told if (found := _LEFT_OUT.fullmatch(line)))
    for reference, message in zip(material.references, material.messages, strict=True):
        lines += [(_weight(line), line) for line in _lines(reference, message, names)]
    return _bounded(lines, left, material)


def _own(line: str) -> bool:
    """Tell whether a line repeats what kompakt itself said."""
    return "[kompakt" in line


def _weight(line: str) -> int:
    """Weigh a line: what the user said, and what an earlier summary said in other words, most; talk least."""
    found = _LINE.match(line)
    if found is None:
        return 2
    return {"user:": 2, "called": 1}.get(found[1], 0)


def _lines(reference: str, message: Message, names: dict[str, str]) -> Iterator[str]:
    for part in message.parts:
        if type(part) is Text and part.text.strip() and "[kompakt" not in part.text:
            limit = _USER if message.role == "user" else _ASSISTANT
            yield f"{reference} {message.role}: {one_line(part.text, limit)}"
        elif type(part) is ToolCall:
            names[part.id] = part.name
            yield f"{reference} called {part.name} {one_line(json_text(part.input), _TOOL)}"
        elif type(part) is ToolResult:
            verdict = "failed" if part.is_error else "answered"
            yield f"{reference} {names.get(part.call_id, 'a tool')} {verdict}: {quoted(part.output)}"


def one_line(text: str, limit: int) -> str:
    """Fold a text into one line of at most so many characters."""
    folded = " ".join(text[: limit * 4].split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def quoted(text: str) -> str:
    """Quote the first line of a tool's output: it is data, whatever it says."""
    return '"' + one_line(text, _TOOL).replace('"', "'").replace("[kompakt", "[ kompakt") + '"'


def _bounded(lines: list[tuple[int, str]], left: int, material: Material) -> str:
    """Keep the heaviest and newest lines that fit, in their order; say how many did not, those of before included.

    A line that did not fit once never would again, since only newer ones come: folding loses nothing to starting over.
    """
    costs = [material.count(line) + 1 for _, line in lines]
    order = sorted(range(len(lines)), key=lambda i: (lines[i][0], i), reverse=True)
    room = material.max_tokens - 30
    kept: set[int] = set()
    for i in order:
        if costs[i] <= room:
            room -= costs[i]
            kept.add(i)
    text = "\n".join(line for i, (_, line) in enumerate(lines) if i in kept)
    left += len(lines) - len(kept)
    return f"{text}\n({left} more lines left out)" if left and text else text

"""Draw the picture of the README: a bundled session before and after compaction.

`scripts/make_numbers.py` writes it and checks that it is up to date. Sizes are rounded, so a few tokens more or less
do not change the picture.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import kompakt

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "before-after.svg"
BUDGET = 30_000
ROW = 26

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
  .page { fill: #ffffff; stroke: #d1d9e0; } .title { font-weight: 600; font-size: 15px; } .dim { fill: #59636e; }
  .bad { fill: #d1242f; font-weight: 600; } .good { fill: #1a7f37; font-weight: 600; }
  .kept { fill: #dafbe1; } .notes { fill: #ddf4ff; } .hidden { fill: #eff2f5; } .arrow { stroke: #818b98; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .page { fill: #0d1117; stroke: #3d444d; } .dim { fill: #9198a1; } .bad { fill: #f85149; }
    .good { fill: #3fb950; } .kept { fill: #12351e; } .notes { fill: #0c2d4d; } .hidden { fill: #212830; }
  }"""


class Box(NamedTuple):
    """A coloured row of a card; ``height`` is in rows."""

    kind: str
    text: str
    height: int = 1


def picture() -> str:
    """Return the picture as SVG."""
    body = json.loads((files("kompakt") / "data" / "long-session.json").read_bytes())
    done = kompakt.compact(body, budget=BUDGET)
    before, after = len(body["messages"]), len(done.payload["messages"])
    newest = after - 4  # system prompt, first request, and the question and answer with the notes
    gone = before - 2 - newest
    task = "“… Don't touch the migrations …”"
    left = [
        Box("kept", "system prompt"),
        Box("kept", f"your task: {task}"),
        Box("hidden", f"{gone} messages: files read, commands, test runs, edits", 6),
        Box("kept", f"the newest {newest} messages"),
    ]
    right = [
        Box("kept", "system prompt, unchanged"),
        Box("kept", f"your task, unchanged: {task}"),
        Box("notes", "notes that code took from the session:"),
        Box("notes", "   · what you asked for and forbade, in your words"),
        Box("notes", "   · open tasks, findings, decisions"),
        Box("notes", "   · changed files, failures, what was read"),
        Box("kept", f"the newest {newest} messages, unchanged"),
        Box("hidden", f"{gone} messages: in the store; the model finds them with recall", 2),
    ]
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 360" role="img" aria-label="A session before and '
        'after compaction">',
        f"<style>{STYLE}\n</style>",
        *_card(10, "Your agent sends", f"{before} messages, {done.tokens_before:,.2g} tokens", left),
        *_card(530, "The model receives", f"{after} messages, {done.tokens_after:,.2g} tokens", right),
        '<path class="arrow" d="M478 170 h38 m-9 -7 l9 7 l-9 7" stroke-width="2"/>',
        f'<text x="26" y="336" class="bad">window of {BUDGET:,} tokens: 400 context_length_exceeded</text>',
        '<text x="546" y="336" class="good">fits, valid, and nothing is lost</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _card(left: int, title: str, size: str, boxes: list[Box]) -> list[str]:
    lines = [
        f'<rect class="page" x="{left}" y="10" width="460" height="340" rx="8"/>',
        f'<text class="title" x="{left + 16}" y="38">{title}</text>',
        f'<text class="dim" x="{left + 444}" y="38" text-anchor="end">{_plain(size)}</text>',
    ]
    top = 54
    for box in boxes:
        height = box.height * ROW
        gap = 0 if box.kind == "notes" else 2  # notes are one block
        shade = ' class="dim"' if box.kind == "hidden" else ""
        lines += [
            f'<rect class="{box.kind}" x="{left + 12}" y="{top}" width="436" height="{height - gap}" rx="4"/>',
            f'<text{shade} x="{left + 22}" y="{top + height / 2 + 4:.0f}" xml:space="preserve">{box.text}</text>',
        ]
        top += height
    return lines


def _plain(text: str) -> str:
    """Write rounded sizes such as ``9.8e+04`` in full."""
    return " ".join(f"{float(word):,.0f}" if "e+" in word else word for word in text.split())

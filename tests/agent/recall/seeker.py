"""A scripted model that recalls what it is asked for, and conversations whose facts have left the context.

The model is independent of the code under test: it reads the requests as a provider gets them, and answers only with
what it finds there.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.gateway.client_sessions import needle
from tests.gateway.scripted_model import opening
from tests.gateway.upstreams import KEYS, Raw
from tests.provider import Answer, Call
from tests.provider.answer import Seen
from tests.provider.script import PREFIX

QUESTION = re.compile(r"What is the marker in (\S+)\?")
MARKER = re.compile(r"the marker here is (needle[0-9a-f]{12})")
LABEL = re.compile(r"read_file result of (\S+):")
TOOLS = ("recall", "kompakt_recall")


def facts(format: str, rounds: int) -> dict[str, str]:
    """Return the marker in each file of the long history."""
    ids = [f"{PREFIX[format]}0penin9_{number:05d}_0" for number in range(rounds)]
    return {f"old/{id[-7:]}.py": needle(id) for id in ids}


def history(format: str, rounds: int, lines: int = 10) -> list[Any]:
    return opening(format, rounds=rounds, lines=lines)


class Seeker:
    """Asked for markers, it recalls each file, reads the results, and answers with the markers that it found."""

    def __init__(self, *, thinking: bool = False) -> None:
        self.thinking, self.calls = thinking, 0

    def __call__(self, seen: Seen) -> Answer:
        thinking = "Let me see." if self.thinking else ""
        searched = [call.arguments["query"].split()[-1] for call in seen.last_calls if call.name in TOOLS]
        if seen.results and searched:
            newest = json.dumps(seen.items[-len(searched) - 2 :])
            found = [f"The marker in {path} is {marker_near(newest, path)}." for path in searched]
            return Answer(" ".join(found), thinking=thinking)
        asked = QUESTION.findall(seen.closing)
        if not asked:
            return Answer("Yes.", thinking=thinking)
        tool = next((tool["name"] for tool in seen.tools if tool["name"] in TOOLS), None)
        if tool is None:
            return Answer("I cannot look that up.", thinking=thinking)
        self.calls += 1
        stem = f"{PREFIX[seen.format]}5eeke7_{self.calls:05d}"
        calls = [Call(f"{stem}_{at}", tool, {"query": f"marker here is in {path}"}) for at, path in enumerate(asked)]
        return Answer("", tuple(calls), thinking=thinking)


def marker_near(text: str, path: str) -> str:
    """Return the marker that a recall result shows for a file: one below a label with the file's name."""
    below = ""
    for line in text.split("\\n"):
        found = LABEL.search(line)
        below = found[1] if found else below
        marker = MARKER.search(line)
        if marker and below == path:
            return marker[1]
    return "unknown"


def dropped(raw: Raw, format: str, known: dict[str, str]) -> list[str]:
    """Return the files whose marker is not in a request."""
    text = json.dumps(raw.json[KEYS[format]])
    return [path for path, marker in known.items() if marker not in text]


def questions(paths: list[str], *, each: int = 5) -> list[tuple[list[str], str]]:
    """Return questions for a few files each, with their files."""
    parts = [paths[at : at + each] for at in range(0, len(paths), each)]
    return [(part, " ".join(f"What is the marker in {path}?" for path in part)) for part in parts]

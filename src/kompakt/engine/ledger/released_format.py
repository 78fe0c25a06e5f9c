"""Ledgers as version 0.1 wrote them, for stores and chains that still hold some.

A line began with a reference, or with ``+`` for the reference of the line before. The sections that quoted the user,
listed tasks, files, commands, failures and remarks are converted. Lists of names, values, ids and tests are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

HEADING = "Facts by code, oldest first; each begins with a reference that recall takes, + is the one before:"

_LINE = re.compile(r"(?:(?P<reference>m[0-9a-f]{4,40}(?:\.\d+)?)|\+|-) (?P<body>.*)")
_SECTIONS = {
    "The user's own words:": "user",
    "Tasks:": "state",
    "Waiting for the user:": "findings",
    "Files:": "changes",
    "Commands:": "runs",
    "Calls that failed:": "runs",
    "Other calls:": "looked",
    "What the assistant told:": "findings",
}
_DROPPED = frozenset(["Tests:", "Values:", "Ids:", "Names:"])
_ROOT = re.compile(r"Files, below (.*):")
_TASK = re.compile(r"task (?:#(\S+) )?(open|in progress|done|dropped): (.*)")
_FILE = re.compile(r"(read|created and modified|created|modified|deleted) (.+)")
_BOXES = {"open": "[ ]", "in progress": "[>]", "done": "[x]", "dropped": "[-]"}
_SPEAKERS = ("user: ", "asked the user: ", "told: ")


def converted(text: str, heading: str, sections: Mapping[str, str]) -> str:
    """Rewrite the old ledgers in a text in the present format; everything else stays."""
    if HEADING not in text:
        return text
    return "\n".join(_lines(text, heading, sections))


def _lines(text: str, heading: str, sections: Mapping[str, str]) -> Iterator[str]:
    section, root, reference, in_ledger = "", "", "", False
    for line in text.split("\n"):
        if line == HEADING:
            in_ledger = True
            yield heading
        elif in_ledger and (line in _SECTIONS or line in _DROPPED or _ROOT.fullmatch(line)):
            rooted = _ROOT.fullmatch(line)
            root = rooted[1] if rooted else ""
            section = "changes" if rooted else _SECTIONS.get(line, "")
            if section:
                yield sections[section]
        elif in_ledger and (found := _LINE.fullmatch(line)):
            reference = found["reference"] or ("" if line.startswith("- ") else reference)
            body = _body(section, found["body"].partition("; there: ")[0], root)
            if section and body:
                yield f"- {body} [{reference}]" if reference and section not in ("user", "state") else f"- {body}"
        else:
            in_ledger = False
            yield line


def _body(section: str, body: str, root: str) -> str:
    for speaker in _SPEAKERS:
        body = body.removeprefix(speaker)
    if section == "state" and (task := _TASK.fullmatch(body)):
        return f"{_BOXES[task[2]]} {f'#{task[1]} ' if task[1] else ''}{task[3]}"
    if section == "changes" and (file := _FILE.fullmatch(body)):
        path = file[2] if not root or file[2].startswith("/") else f"{root.rstrip('/')}/{file[2]}"
        words = {"modified": "edited", "created and modified": "created and edited"}.get(file[1], file[1])
        return "" if file[1] == "read" else f"{path}: {words}"
    return body

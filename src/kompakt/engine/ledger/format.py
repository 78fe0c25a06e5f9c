"""How a ledger is written: one line a fact, reference first, and read again without loss (see ``parsing``).

The reference leads, then what is so, then what it is so about; names that were seen there follow after a fixed word. A
later pass reads its own lines back, so facts are merged as facts and not as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from kompakt.engine.ledger.facts import Fact, Kind
from kompakt.engine.ledger.path_roots import below

HEADING = "Facts by code, oldest first; each begins with a reference that recall takes, + is the one before:"
"""Begins the ledger; what stands before it in a summary is a narrative."""

THERE = "; there: "
"""Stands between a fact and the names seen there."""

SEEN = "seen in "
"""Begins a line of names whose place is no fact of its own."""

SAME = "+ "
"""Stands for the reference of the line before."""

BARE = "- "
"""Begins what an earlier summary told without a reference."""

ROOTED = "Files, below "
"""Begins the heading of the files before the directory that most of them lie in."""

NAMES = "Names:"
"""Begins the names whose place is no fact of its own."""

SECTIONS: tuple[tuple[Kind, str], ...] = (
    ("word", "The user's own words:"),
    ("task", "Tasks:"),
    ("question", "Waiting for the user:"),
    ("file", "Files:"),
    ("command", "Commands:"),
    ("failure", "Calls that failed:"),
    ("call", "Other calls:"),
    ("test", "Tests:"),
    ("value", "Values:"),
    ("id", "Ids:"),
    ("remark", "What the assistant told:"),
)

HEADINGS = frozenset([*(heading for _, heading in SECTIONS), NAMES])
"""Every heading but that of files below a root."""


_REMEMBERED = 256
"""Lines about calls that are remembered: each is wanted several times in one ledger, and again in the next."""


def narrated(text: str) -> str:
    """Make a summariser's words fit to stand before a ledger: no line of them begins one or looks like a marker."""
    marked = (HEADING, "[kompakt")
    return "\n".join(f"> {line}" if line.startswith(marked) else line for line in text.split("\n"))


def line_of(fact: Fact, root: str = "") -> str:
    """Write one fact; what it was told with stands on more lines when it is much."""
    if not fact.reference:
        return f"{BARE}{fact.key}"
    if fact.kind in ("command", "failure", "call"):
        return _told(fact)
    if fact.kind == "file":
        body = f"{fact.relation} {below(fact.key, root)}"
    elif fact.kind == "task":
        body = f"task {''.join(f'#{id} ' for id in fact.notes[-1:])}{fact.relation}: {fact.key}"
    elif fact.kind == "test":
        body = f"test {fact.relation}: {fact.key}"
    elif fact.kind == "value":
        body = f"value of {fact.key}: {fact.relation}"
    elif fact.kind == "id":
        body = f"id {fact.key} names {fact.relation}"
    else:
        body = f"{SPEAKERS[fact.kind]}{fact.key}"
    return f"{fact.reference} {body}"


@lru_cache(maxsize=_REMEMBERED)
def _told(fact: Fact) -> str:
    """Write a call that was told about, each stretch of quotations with its origin."""
    about = f"`{fact.key}`" if fact.kind == "command" else fact.key
    out, since = [f"{fact.reference} {fact.relation}: {about}"], 0
    for note in fact.notes:
        if since and since + len(note) > _REACH:
            out.append(f"\n{fact.reference} more from `{fact.key[:ORIGIN]}`: {note}")
            since = 0
        else:
            out.append(f" said {note}" if not since and len(out) == 1 else f" {note}")
        since += len(note) + 1
    return "".join(out)


_REACH = 170
"""Characters of quotations behind one naming of their origin."""

ORIGIN = 40
"""Characters of the origin that are named again."""


def _listed(facts: Sequence[Fact]) -> list[str]:
    """Write tests that went alike in one run on shared lines; one whose name could be taken for two stands alone."""
    out: list[str] = []
    for fact in facts:
        if ", " in fact.key:
            out.append(line_of(fact))
            continue
        lead = f"{fact.reference} tests {fact.relation}: "
        if out and out[-1].startswith(lead) and len(out[-1]) + len(fact.key) < _LINE:
            out[-1] += f", {fact.key}"
        else:
            out.append(lead + fact.key)
    return out


_LINE = 180
"""Longest line of tests: its first words still speak for its last."""

SPEAKERS: dict[Kind, str] = {"word": "user: ", "question": "asked the user: ", "remark": "told: "}


def write(facts: Sequence[Fact], names: Mapping[tuple[str, str], str], loose: Sequence[str], root: str = "") -> str:
    """Write facts by section, with the names seen at them; ``loose`` are lines of names whose place is no fact.

    Nothing to tell is nothing: a heading alone would only take room.
    """
    if not facts and not loose:
        return ""
    out = [HEADING]
    for kind, heading in SECTIONS:
        told = [fact for fact in facts if fact.kind == kind]
        if kind == "test":
            lines = _listed(sorted(told, key=lambda fact: (fact.at, fact.reference, fact.relation)))
        else:
            lines = [line_of(fact, root) + names.get((fact.kind, fact.key), "") for fact in told]
        if lines:
            heading = f"{ROOTED}{root}:" if kind == "file" and root else heading
            out += [heading, *_dittoed("\n".join(lines).split("\n"))]
    if loose:
        out += [NAMES, *_dittoed(loose)]
    return "\n".join(out)


def _dittoed(lines: Iterable[str]) -> Iterator[str]:
    """Say a reference once for lines that share it."""
    last = ""
    for line in lines:
        reference, _, body = line.partition(" ")
        yield f"{SAME}{body}" if reference == last else line
        last = reference

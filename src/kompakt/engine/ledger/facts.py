"""What a fact is, and how two facts about the same thing become one.

A fact says something about a key: a file, a command, a task, a sentence of the user's. Later facts about the same key
take the place of earlier ones, and keep of them what is still true.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal[
    "word", "task", "file", "command", "failure", "call", "test", "value", "id", "question", "remark"
]
"""What a fact is about: the user's own words, a task, a file, a command, another call that failed or
answered, a test, a value that was told, an id, a question that waits for the user, what the assistant told."""

OPERATIONS = ("read", "created", "modified", "deleted", "created and modified")
"""What can have become of a file; one that was read and modified is a modified one."""


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One thing that is so, with where it was seen."""

    kind: Kind
    key: str
    relation: str
    reference: str
    notes: tuple[str, ...] = ()
    """What was said about it, quoted: error lines, mostly."""
    at: int = -1
    """The message it comes from; -1 for what an earlier summary told."""


def joined(earlier: Fact, later: Fact) -> Fact:
    """Say the later fact with what the earlier one still tells."""
    relation = later.relation
    if later.kind == "file":
        relation = _operation(earlier.relation, later.relation)
        if relation == earlier.relation:
            return Fact("file", earlier.key, relation, earlier.reference, earlier.notes, later.at)
    elif later.kind == "command":
        relation = _outcome(earlier.relation, later.relation)
    elif later.kind == "id":
        relation = earlier.relation  # the words that it first came with say what it is
    elif later.kind == "value":
        if later.at < earlier.at:  # it was only read later
            earlier, later = later, earlier
        values = dict.fromkeys([*later.relation.split(BEFORE), *earlier.relation.split(BEFORE)])
        relation = BEFORE.join(list(values)[:MAX_VALUES])
    notes = tuple(dict.fromkeys([*earlier.notes, *later.notes]))[-MAX_NOTES:]
    return Fact(later.kind, later.key, relation, later.reference, notes, later.at)


BEFORE = ", before that "
"""Stands between a value and the one it took the place of."""

MAX_NOTES = 24
"""Quotations kept of all runs of one command, the newest."""

MAX_VALUES = 8
"""Values of one key that are told, newest first."""


def _operation(earlier: str, later: str) -> str:
    """Tell what became of a file: a look at it changes nothing, and one that was there was changed, not made."""
    if earlier == "deleted" or later == "deleted":
        return later
    if later == "read":
        return earlier
    return "created and modified" if "created" in earlier else "modified"


def _outcome(earlier: str, later: str) -> str:
    """Tell how a command went last, and how it went before when that was otherwise."""
    now = later.partition(BEFORE)[0]
    last, _, before = earlier.partition(BEFORE)
    last, before = last.partition(",")[0], later.partition(BEFORE)[2] or before
    was = last if last != now.partition(",")[0] else before
    return f"{now}{BEFORE}{was}" if was else now

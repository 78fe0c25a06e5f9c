"""Problems, changes and repairs: what checking and mending a history say.

A problem always has the code of the contract rule it breaks; a change always says what was done where, so that a
repair can be read, doubted and undone.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kompakt.model.messages import Json

Action: TypeAlias = Literal["added", "dropped", "merged", "moved", "renamed", "replaced", "stripped"]


class Problem(msgspec.Struct, frozen=True):
    """One place where a history breaks its provider's contract."""

    code: str
    path: str
    message: str
    repairable: bool = True

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.message}" + ("" if self.repairable else " (not repairable)")


class Change(msgspec.Struct, frozen=True):
    """One thing that a repair did."""

    code: str
    action: Action
    path: str
    """Where it stood in the payload that was given."""
    message: str

    def __str__(self) -> str:
        return f"{self.code} {self.action} {self.path}: {self.message}"


class Repair(msgspec.Struct, frozen=True):
    """A mended payload and what was done to it; the payload given is untouched."""

    payload: Json
    changes: tuple[Change, ...]
    remaining: tuple[Problem, ...] = ()
    """What no repair can mend without guessing."""

    @property
    def changed(self) -> bool:
        """Tell whether anything was done."""
        return bool(self.changes)

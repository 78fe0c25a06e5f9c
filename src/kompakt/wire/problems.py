"""Problems, changes and repairs: the results of checking and repairing a history.

A problem always has the code of the contract rule it breaks; a change always says what was done where, so that a
repair can be read, doubted and undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:  # type checkers know a default, so that ``Repair`` alone is a type; Python does from 3.13 on
    from typing_extensions import TypeVar

    Shape = TypeVar("Shape", bound=Sequence[Any] | Mapping[str, Any], default=Any)
else:
    from typing import TypeVar

    Shape = TypeVar("Shape")
    """The type of a payload: what comes back has the type of what was given."""

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


class Repair(msgspec.Struct, Generic[Shape], frozen=True):
    """A repaired payload and what was done to it; the payload given is untouched."""

    payload: Shape
    changes: tuple[Change, ...]
    remaining: tuple[Problem, ...] = ()
    """Problems that no repair can solve without guessing."""

    @property
    def changed(self) -> bool:
        """Tell whether anything was done."""
        return bool(self.changes)

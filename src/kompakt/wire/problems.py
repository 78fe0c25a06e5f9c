"""Problems, changes and repairs: the results of checking and repairing a history.

A problem has the code of the rule it breaks. A change states its action and its place, so that a repair can be
reviewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:  # a default makes ``Repair`` alone a type; Python supports defaults from 3.13 on
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
    """One change that a repair made."""

    code: str
    action: Action
    path: str
    """The path in the given payload."""
    message: str

    def __str__(self) -> str:
        return f"{self.code} {self.action} {self.path}: {self.message}"


class Repair(msgspec.Struct, Generic[Shape], frozen=True):
    """A repaired payload and its changes; the given payload is not modified."""

    payload: Shape
    changes: tuple[Change, ...]
    remaining: tuple[Problem, ...] = ()
    """Problems that cannot be repaired without guessing."""

    @property
    def changed(self) -> bool:
        """Return whether the repair changed anything."""
        return bool(self.changes)

"""Every error kompakt raises, in one tree.

    KompaktError
    ├── InputError            the caller's data cannot be read as a history
    │   ├── MalformedPayload  a value of the wrong type; names the path
    │   ├── UnknownFormat     no provider's format fits
    │   ├── AmbiguousFormat   more than one fits; pass ``format=``
    │   └── UnreadableFile    not JSON, not a transcript, not there; names file and position
    ├── DoesNotFit            what must stay is larger than the budget; names floor, budget and the largest parts
    ├── StoreError            a store did not do what it was asked; nothing that was acknowledged is lost
    │   ├── StoreUnavailable  it cannot be reached, is full, is read-only, or stopped answering
    │   ├── StoreDamaged      what is kept there is not what was written; names the session and the place
    │   ├── WrongKey          what is kept is encrypted and no key was given, or the other way round
    │   ├── StoreVersion      its schema is one that this version of kompakt does not know
    │   ├── Conflict          another writer was first; read again and try again
    │   └── Busy              another process holds the session's lock for longer than the caller would wait
    ├── SummaryFault          a summary that cannot be used (kompakt.agent.summarizer.llm); names the fault
    ├── ProviderError         a provider did not answer a request
    │   ├── ProviderRefused   it refuses this request and would again; names status and its words
    │   │   └── Overflowed    because it is too long; carries the numbers that were stated
    │   └── ProviderUnavailable  it cannot be reached or failed, also when tried again
    └── UsageError            a call that cannot be meant: names the argument and the way out

A message quotes the offending value and names the way out. Nothing else leaves the package on purpose.
"""

from __future__ import annotations

TYPE_CHECKING = False  # a hook runs at every tool call, and importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KompaktError(Exception):
    """Root of the tree: catch this to catch everything kompakt raises."""


class InputError(KompaktError):
    """The data given is not a history kompakt can read."""


class MalformedPayload(InputError):
    """A value inside the payload has a type no provider would take."""

    def __init__(self, path: str, expected: str, found: object) -> None:
        self.path = path
        self.expected = expected
        self.found = found
        super().__init__(f"{path}: expected {expected}, found {_describe(found)}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.expected, self.found), vars(self)


class UnknownFormat(InputError):
    """The payload resembles none of the five formats, or the name given is not one of them."""


class AmbiguousFormat(InputError):
    """The payload reads equally well, or equally badly, in several formats."""

    def __init__(self, reason: str, candidates: Sequence[str]) -> None:
        self.reason = reason
        self.candidates = tuple(candidates)
        names = ", ".join(repr(name) for name in candidates)
        super().__init__(f"{reason}: could be {names}; say which with format=… (--format on the command line)")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.candidates), vars(self)


class UnreadableFile(InputError):
    """A file that holds no history; the text names the file and the position."""


class DoesNotFit(KompaktError):
    """What must stay in the context is larger than the budget allows."""

    def __init__(
        self, *, floor: int, budget: int, largest: Sequence[tuple[str, int]], places: Sequence[str] = ()
    ) -> None:
        self.floor = floor
        self.budget = budget
        self.largest = tuple(largest)
        self.places = tuple(places)
        """Where the first of the largest parts are, such as "message 3 of 40, user"."""
        named = [f"{name} ({place})" for (name, _), place in zip(self.largest, self.places, strict=False)]
        named += [name for name, _ in self.largest[len(named) :]]
        parts = "; ".join(f"{name} {tokens:,}" for name, (_, tokens) in zip(named, self.largest, strict=True) if tokens)
        super().__init__(
            f"{floor:,} tokens must stay, {floor - budget:,} more than the budget of {budget:,}. Raise the budget to "
            f"at least {floor:,} (budget={floor} in Python, --budget {floor} on the command line), or shorten what "
            f"must stay. Its largest parts in tokens: {parts}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _does_not_fit, (self.floor, self.budget, self.largest, self.places), vars(self)


class StoreError(KompaktError):
    """A store did not do what it was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written to; what was acknowledged is still there."""


class StoreDamaged(StoreError):
    """What is kept is not what was written."""


class WrongKey(StoreError):
    """What is kept is encrypted and no key was given, or it is not encrypted and one was given."""


class StoreVersion(StoreError):
    """The store was made by a version of kompakt that keeps things otherwise."""


class Conflict(StoreError):
    """Somebody else wrote to the session first."""


class Busy(StoreError):
    """Another holder keeps the session's lock for longer than the caller waits."""


class ProviderError(KompaktError):
    """A provider did not answer a request."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ProviderRefused(ProviderError):
    """The provider refuses this very request; sent again it would be refused again."""


class Overflowed(ProviderRefused):
    """The request is too long for the model."""

    def __init__(
        self, message: str, *, status: int | None = None, overflow: object = None, round: str | None = None
    ) -> None:
        self.overflow = overflow
        """A ``kompakt.Overflow`` with what the provider stated."""
        self.round = round
        """The round that brought the overflow, where it was looked for."""
        super().__init__(message, status=status)


class ProviderUnavailable(ProviderError):
    """The provider could not be reached, or failed, for as often as it was tried."""


class UsageError(KompaktError, ValueError):
    """An argument that cannot be meant."""


def _does_not_fit(
    floor: int, budget: int, largest: Sequence[tuple[str, int]], places: Sequence[str] = ()
) -> DoesNotFit:
    return DoesNotFit(floor=floor, budget=budget, largest=largest, places=places)


def _describe(value: object) -> str:
    """Name a value's JSON type, with the value when it is short."""
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    name = names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
    shown = repr(value)
    return name if value is None or isinstance(value, dict | list) or len(shown) > 40 else f"{name} {shown}"


_CLOSE = 0.75
"""Similarity from which a name is taken for a misspelled one: "cluade" is, "vscode" is not."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to ``name``, or list all known names."""
    from difflib import get_close_matches  # late: needed only for an error message

    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(names))}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about a name that is probably misspelled; empty if it resembles no known one."""
    from difflib import get_close_matches  # late: needed only for an error message

    close = get_close_matches(name, list(known), n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]}? " if close else ""


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

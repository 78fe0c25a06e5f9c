"""The errors that the inspector answers with."""

from __future__ import annotations

from kompakt.errors import Busy, Conflict, DoesNotFit, KompaktError, StoreError
from kompakt.view.directories import MissingSession


class InspectorError(Exception):
    """A request that is refused or fails; the message says what to do."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def as_answer(error: KompaktError) -> InspectorError:
    """Return the answer for an error of kompakt."""
    text = str(error)
    if isinstance(error, MissingSession):
        return InspectorError(404, "not_found", text)
    if isinstance(error, Busy | Conflict):
        return InspectorError(409, "conflict", text)
    if isinstance(error, DoesNotFit):
        return InspectorError(409, "does_not_fit", text)
    if isinstance(error, StoreError):
        return InspectorError(503, "store_unavailable", text)
    return InspectorError(400, "invalid_request", text)

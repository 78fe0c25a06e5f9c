"""Errors of the gateway, in the format of the provider whose endpoint was called.

The client's SDK reads them like errors of the provider. They never repeat content that a client sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from kompakt.gateway.outcomes import OUTCOME_HEADER, outcome_of_error
from kompakt.wire.registry import WIRES

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
MAX_MESSAGE = 1_000
"""Characters of a message."""


class GatewayError(Exception):
    """An error that the gateway itself reports to the client."""

    def __init__(self, status: int, message: str, *, code: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        super().__init__(message)

    def response(self, format: str | None) -> Response:
        return error_response(format, self.status, self.message, code=self.code, headers=self.headers)


def error_response(
    format: str | None, status: int, message: str, *, code: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response in the format of the called endpoint."""
    body = msgspec.json.encode(error_body(format, status, without_controls(message), code=code))
    own = {**(headers or {}), OUTCOME_HEADER: outcome_of_error(code), "x-kompakt-refusal": code}
    return Response(body, status, headers=own, media_type="application/json")


def error_body(format: str | None, status: int, message: str, *, code: str) -> dict[str, object]:
    """Return the body of an error in the format of a provider; ``None`` gives OpenAI's."""
    return WIRES[format or "openai-chat"].error_body(status, message, code=code)


def without_controls(text: str) -> str:
    """Replace control characters, which could forge log lines or control a terminal, and limit the length."""
    return _CONTROL.sub(" ", text)[:MAX_MESSAGE]

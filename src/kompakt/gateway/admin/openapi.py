"""The responses of the session API, and the OpenAPI document that is generated from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kompakt.gateway.tenants import KEY_HEADER
from kompakt.version import __version__

MAX_PAGE = 200
MAX_TOKENS = 100_000
MAX_QUERY = 2_000
MAX_BUDGET = 100_000_000

Json = dict[str, Any]
Count = Annotated[int, Meta(ge=0)]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class _Response(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class SessionSummary(_Response):
    """A session in a list."""

    id: str
    title: str
    """The start of the first request."""
    model: str | None
    client: str | None
    purpose: str | None
    """What the session is for, unless it is a conversation: ``title``, ``quota-check``, ``loop-check``, …"""
    tenant: str
    format: str
    messages: Count
    turns: Count
    created: Time
    touched: Time
    compactions: Count
    tokens_before: Count | None
    """Tokens before the newest compaction."""
    tokens_after: Count | None
    """Tokens after the newest compaction."""


class CompactionSummary(_Response):
    """One compaction of a session."""

    id: str
    at: Time
    reason: str
    policy: str
    tokens_before: Count
    tokens_after: Count
    undone: bool


class SessionDetails(_Response):
    """A session and its compactions."""

    session: SessionSummary
    compactions: list[CompactionSummary]


class SessionPage(_Response):
    """A page of the list of sessions."""

    sessions: list[SessionSummary]
    next: str | None
    """The value of ``after`` for the next page."""


class RecallResult(_Response):
    """Messages found by recall."""

    found: bool
    text: str
    references: Sequence[str]
    tokens: Count


class Preview(_Response):
    """The result that a compaction would have."""

    due: bool
    """Whether the gateway would compact now, with this budget."""
    budget: Count
    """Tokens above which a compaction is due."""
    target: Count
    policy: str
    tokens_before: Count
    tokens_after: Count
    messages_before: Count
    messages_after: Count
    strategies: Sequence[str]
    text: str
    """The text that would replace the hidden messages."""


class UndoneCompaction(_Response):
    """A compaction that was undone."""

    undone: str
    tokens: Count


class ErrorDetails(_Response):
    message: str
    type: str
    param: None
    code: str


class ErrorResponse(_Response):
    """An error of the gateway."""

    error: ErrorDetails


_SCHEMAS: Json = msgspec.json.schema_components(
    [SessionPage, SessionDetails, RecallResult, Preview, UndoneCompaction, ErrorResponse],
    ref_template="#/components/schemas/{name}",
)[1]


_AMBIGUOUS = "Several tenants have a session of this id, and the request names no tenant"


def document(policies: Sequence[str]) -> Json:
    """Return the OpenAPI document; ``policies`` are those that a request may select."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kompakt gateway",
            "version": __version__,
            "description": "Sessions that the gateway recorded. All other paths are passed on to the providers.",
        },
        "security": [{"key": []}, {}],
        "paths": _paths(list(policies)),
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": KEY_HEADER}},
            "schemas": _SCHEMAS,
        },
    }


def _paths(policies: list[str]) -> Json:
    tenant = _query(
        "tenant",
        {"type": "string"},
        "The tenant, for keys that see several. Changes need it where several tenants have a session of the id.",
    )
    id = {"type": "string", "minLength": 1}
    one = [{"name": "id", "in": "path", "required": True, "description": "The id of a session.", "schema": id}, tenant]
    page = [
        _query("limit", _number(MAX_PAGE), "The largest number of sessions."),
        _query("after", {"type": "string"}, "The value of `next` of the previous page."),
        tenant,
    ]
    words = {"type": "string", "minLength": 1, "maxLength": MAX_QUERY, "pattern": r"\S"}
    recall = [
        *one,
        _query("q", words, "Words or a reference.", required=True),
        _query("tokens", _number(MAX_TOKENS), "The largest size of the result."),
    ]
    preview = [
        *one,
        _query("budget", _number(MAX_BUDGET), "Tokens above which a compaction is due; default: the model's window."),
        _query("policy", {"type": "string", "enum": policies}, "One of the policies that requests may select."),
    ]
    itself = {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    sessions = "/kompakt/sessions"
    return {
        sessions: {"get": _operation("List sessions.", page, SessionPage)},
        f"{sessions}/{{id}}": {
            "get": _operation("Show a session.", one, SessionDetails),
            "delete": _operation("Delete a session.", one, None, conflict=f"{_AMBIGUOUS}."),
        },
        f"{sessions}/{{id}}/recall": {"get": _operation("Search a session.", recall, RecallResult)},
        f"{sessions}/{{id}}/preview": {
            "get": _operation("Preview a compaction.", preview, Preview, conflict="The result exceeds the budget.")
        },
        f"{sessions}/{{id}}/undo": {
            "post": _operation(
                "Undo the newest compaction.",
                one,
                UndoneCompaction,
                conflict=f"There is no compaction to undo, or {_AMBIGUOUS.lower()}.",
            )
        },
        "/kompakt/openapi.json": {
            "get": {"summary": "Describe the API.", "operationId": "describe", "responses": {"200": itself}}
        },
    }


def _operation(
    summary: str, parameters: list[Json], result: type[_Response] | None, *, conflict: str | None = None
) -> Json:
    errors = {
        "400": "A parameter is invalid.",
        "401": "The key is invalid.",
        "403": "There is no key, and the client is on another machine.",
        "404": "There is no such session.",
        "503": "The store is unavailable.",
    }
    errors |= {"409": conflict} if conflict else {}
    done = {"204": {"description": "Deleted."}} if result is None else {"200": _response(str(result.__doc__), result)}
    failed = {status: _response(description, ErrorResponse) for status, description in errors.items()}
    id = "".join(part.capitalize() if at else part.lower() for at, part in enumerate(summary.rstrip(".").split()))
    return {"summary": summary, "operationId": id, "parameters": parameters, "responses": {**done, **failed}}


def _response(description: str, schema: type[_Response]) -> Json:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"description": description, "content": content}


def _query(name: str, schema: Json, description: str, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _number(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}

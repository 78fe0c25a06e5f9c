"""The description of the gateway's own interface, as OpenAPI; tests hold the interface to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kompakt.version import __version__

Json = dict[str, Any]


def document(policies: Sequence[str]) -> Json:
    """Return the description; ``policies`` are those that a request may select."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kompakt gateway",
            "version": __version__,
            "description": "Sessions that the gateway recorded. Providers' own endpoints are passed on beside it.",
        },
        "security": [{"key": []}, {}],
        "paths": _paths(list(policies)),
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "x-kompakt-key"}},
            "schemas": _SCHEMAS,
        },
    }


def _paths(policies: list[str]) -> Json:
    one = [_path("id", "A session, as the list names it."), _TENANT]
    words = {"type": "string", "minLength": 1, "maxLength": 2000, "pattern": r"\S"}
    recall = [
        *one,
        _query("q", words, "Words or a reference.", True),
        _query("tokens", {"type": "integer", "minimum": 1, "maximum": 100_000}, "How long the answer may be."),
    ]
    budget = {"type": "integer", "minimum": 1, "maximum": 100_000_000}
    look = [
        *one,
        _query("budget", budget, "Tokens above which a compaction is due; what the model holds when not given."),
        _query("policy", {"type": "string", "enum": policies}, "One of the policies that requests may select."),
    ]
    page = [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 200}, "How many at most."),
        _query("after", {"type": "string"}, "Where to go on: `next` of the page before."),
        _TENANT,
    ]
    itself = {"200": {"description": "This.", "content": {"application/json": {"schema": {"type": "object"}}}}}
    return {
        "/kompakt/sessions": {"get": _operation("List sessions.", page, _answer("Some sessions.", "Page"))},
        "/kompakt/sessions/{id}": {
            "get": _operation("Show a session.", one, _answer("The session.", "Session")),
            "delete": _operation("Remove a session for good.", one, {"204": {"description": "It is gone."}}),
        },
        "/kompakt/sessions/{id}/recall": {
            "get": _operation("Find what was said.", recall, _answer("What was found.", "Recalled"))
        },
        "/kompakt/sessions/{id}/preview": {
            "get": _operation("Preview a compaction.", look, _answer("What it would do.", "Preview"), unfit=True)
        },
        "/kompakt/sessions/{id}/undo": {
            "post": _operation("Undo the newest compaction.", one, _answer("It is undone.", "Undone"), nothing=True)
        },
        "/kompakt/openapi.json": {
            "get": {"summary": "Describe the interface.", "operationId": "describe", "responses": itself}
        },
    }


def _operation(
    summary: str, parameters: list[Json], answers: Json, *, unfit: bool = False, nothing: bool = False
) -> Json:
    refusals = {
        "400": "A parameter cannot be meant.",
        "401": "The key is not known.",
        "403": "No key, and not the gateway's own machine.",
        "404": "There is no such session.",
        "503": "The store does not answer.",
    }
    refusals |= {"409": "There is no compaction to undo."} if nothing else {}
    refusals |= {"409": "What must stay is larger than the budget."} if unfit else {}
    wrong = {status: _answer(said, "Error")["200"] for status, said in refusals.items()}
    name = "".join(part.capitalize() if at else part.lower() for at, part in enumerate(summary.rstrip(".").split()))
    return {"summary": summary, "operationId": name, "parameters": parameters, "responses": {**answers, **wrong}}


def _answer(description: str, schema: str) -> Json:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"200": {"description": description, "content": content}}


def _query(name: str, schema: Json, description: str, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _path(name: str, description: str) -> Json:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


_TENANT = _query("tenant", {"type": "string"}, "Of which tenant, for whoever sees several.")
_COUNT: Json = {"type": "integer", "minimum": 0}
_TOKENS: Json = {"type": ["integer", "null"], "minimum": 0}
_TEXT: Json = {"type": "string"}
_MAYBE: Json = {"type": ["string", "null"]}
_TIME: Json = {"type": "string", "format": "date-time"}


def _object(properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(schema: str) -> Json:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}


_SCHEMAS: Json = {
    "Listed": _object(
        {
            "id": _TEXT,
            "title": _TEXT,
            "model": _MAYBE,
            "client": _MAYBE,
            "purpose": _MAYBE,
            "tenant": _TEXT,
            "format": _TEXT,
            "messages": _COUNT,
            "turns": _COUNT,
            "created": _TIME,
            "touched": _TIME,
            "compactions": _COUNT,
            "tokens_before": _TOKENS,
            "tokens_after": _TOKENS,
        }
    ),
    "Compaction": _object(
        {
            "id": _TEXT,
            "at": _TIME,
            "reason": _TEXT,
            "policy": _TEXT,
            "tokens_before": _COUNT,
            "tokens_after": _COUNT,
            "undone": {"type": "boolean"},
        }
    ),
    "Session": _object({"session": {"$ref": "#/components/schemas/Listed"}, "compactions": _list("Compaction")}),
    "Page": _object({"sessions": _list("Listed"), "next": {"type": ["string", "null"]}}),
    "Recalled": _object(
        {
            "found": {"type": "boolean"},
            "text": _TEXT,
            "references": {"type": "array", "items": _TEXT},
            "tokens": _COUNT,
        }
    ),
    "Preview": _object(
        {
            "due": {"type": "boolean"},
            "budget": _COUNT,
            "target": _COUNT,
            "policy": _TEXT,
            "tokens_before": _COUNT,
            "tokens_after": _COUNT,
            "messages_before": _COUNT,
            "messages_after": _COUNT,
            "strategies": {"type": "array", "items": _TEXT},
            "text": _TEXT,
        }
    ),
    "Undone": _object({"undone": _TEXT, "tokens": _COUNT}),
    "Error": _object({"error": _object({"message": _TEXT, "type": _TEXT, "param": {"type": "null"}, "code": _TEXT})}),
}

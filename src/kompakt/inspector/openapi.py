"""The OpenAPI document of the inspector, generated from the values that it returns."""

from __future__ import annotations

from typing import Any

import msgspec

from kompakt.version import __version__
from kompakt.view import values

MAX_BUDGET = 100_000_000

Json = dict[str, Any]

_RESULTS = (
    values.SessionList,
    values.SessionDetail,
    values.Growth,
    values.MessagePage,
    values.MessageText,
    values.StepRequest,
    values.ContextView,
    values.CompactionView,
    values.CompactionPreview,
    values.RecallAnswer,
    values.ActionResult,
    values.InspectorAction,
)
_SCHEMAS: Json = msgspec.json.schema_components(_RESULTS, ref_template="#/components/schemas/{name}")[1]

_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


def document(prefix: str, *, has_login: bool = False) -> Json:
    """Return the OpenAPI document of the API below a prefix; a gateway has a login."""
    paths = {**_paths(), **(_LOGIN if has_login else {})}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kompakt inspector",
            "version": __version__,
            "description": "What a session consists of, what its compactions removed, and what one would remove.",
        },
        "paths": {f"{prefix}/api{path}": operations for path, operations in paths.items()},
        "components": {"schemas": {**_SCHEMAS, "Error": _ERROR}},
    }


def _paths() -> Json:
    one = "/sessions/{id}"
    return {
        "/sessions": {
            "get": _operation(
                "List sessions.",
                values.SessionList,
                query={"query": _TEXT, "cursor": _TEXT, "limit": _number(1, 500)},
            )
        },
        one: {"get": _operation("Show a session.", values.SessionDetail, path=["id"])},
        f"{one}/growth": {"get": _operation("Show how requests grew.", values.Growth, path=["id"])},
        f"{one}/context": {"get": _operation("Show the next request.", values.ContextView, path=["id"])},
        f"{one}/messages": {
            "get": _operation(
                "List messages.",
                values.MessagePage,
                path=["id"],
                query={
                    "start": _number(0),
                    "limit": _number(1, 500),
                    "kind": {"type": "string", "enum": list(values.KINDS)},
                },
            )
        },
        f"{one}/messages/{{seq}}": {
            "get": _operation("Show a message.", values.MessageText, path=["id", "seq"], query={"offset": _number(0)})
        },
        f"{one}/steps/{{step}}": {
            "get": _operation("Show a request as sent.", values.StepRequest, path=["id", "step"])
        },
        f"{one}/compactions/{{compaction}}": {
            "get": _operation(
                "Show a compaction.",
                values.CompactionView,
                path=["id", "compaction"],
                query={"start": _number(0), "limit": _number(1, 1_000)},
            )
        },
        f"{one}/recall": {
            "get": _operation(
                "Recall like the model.",
                values.RecallAnswer,
                path=["id"],
                query={"query": {"type": "string", "minLength": 1, "maxLength": 2_000}},
                required=("query",),
            )
        },
        f"{one}/preview": {
            "post": _operation(
                "Preview a compaction.",
                values.CompactionPreview,
                path=["id"],
                body={
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "budget": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_BUDGET},
                        "policy": {"type": ["string", "null"]},
                    },
                },
            )
        },
        f"{one}/actions": {
            "post": _operation(
                "Change a session.",
                values.ActionResult,
                path=["id"],
                body={"$ref": "#/components/schemas/InspectorAction"},
            )
        },
        "/events": {"get": _stream("Follow all sessions.")},
        f"{one}/events": {"get": _stream("Follow a session.", path=["id"])},
        "/openapi.json": {
            "get": {
                "summary": "Describe the API.",
                "operationId": "describeTheApi",
                "responses": {
                    "200": {"description": "This document.", "content": _content({"type": "object"})},
                },
            }
        },
    }


_TEXT: Json = {"type": "string"}
_PATHS: dict[str, Json] = {
    "id": {"type": "string", "minLength": 1},
    "seq": {"type": "integer", "minimum": 0, "maximum": 999_999_999_999},
    "step": {"type": "integer", "minimum": 0, "maximum": 999_999_999_999},
    "compaction": {"type": "string", "minLength": 1},
}
_ERRORS = {
    "400": "The request is invalid.",
    "401": "The gateway requires a key.",
    "403": "The request has no token, or comes from another site.",
    "404": "There is no such session, message, step or compaction.",
    "409": "The session was changed by another writer, or does not fit the budget.",
    "503": "The store is unavailable.",
}


def _operation(
    summary: str,
    result: type[msgspec.Struct],
    *,
    path: list[str] | None = None,
    query: dict[str, Json] | None = None,
    required: tuple[str, ...] = (),
    body: Json | None = None,
) -> Json:
    schema = {"$ref": f"#/components/schemas/{result.__name__}"}
    made = _described(summary, path, query, required, body)
    done = {"description": str(result.__doc__).partition("\n")[0], "content": _content(schema)}
    return {**made, "responses": {"200": done, **_failures(is_post=body is not None)}}


def _stream(summary: str, path: list[str] | None = None) -> Json:
    events = "Server-sent events `changed` with the id of a session and the number of its last message."
    done = {"description": events, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {**_described(summary, path, None, (), None), "responses": {"200": done, **_failures(is_post=False)}}


def _described(
    summary: str, path: list[str] | None, query: dict[str, Json] | None, required: tuple[str, ...], body: Json | None
) -> Json:
    words = summary.rstrip(".").split()
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": _PATHS[name]} for name in path or ()
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in (query or {}).items()
    ]
    made: Json = {
        "summary": summary,
        "operationId": "".join(word.capitalize() if at else word.lower() for at, word in enumerate(words)),
        "parameters": parameters,
    }
    if body is not None:
        header = {"name": "X-Kompakt-Inspect", "in": "header", "required": True, "schema": {"const": "1"}}
        made["parameters"] = [*parameters, header]
        made["requestBody"] = {"required": True, "content": _content(body)}
    return made


def _failures(*, is_post: bool) -> Json:
    errors = dict(_ERRORS)
    if is_post:
        errors |= {"413": "The body is too large.", "415": "The body is not JSON."}
    schema = {"$ref": "#/components/schemas/Error"}
    return {status: {"description": text, "content": _content(schema)} for status, text in errors.items()}


def _content(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


_LOGIN: Json = {
    "/login": {
        "post": {
            **_described(
                "Log in.",
                None,
                None,
                (),
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["key"],
                    "properties": {"key": {"type": "string"}},
                },
            ),
            "responses": {
                "200": {
                    "description": "The key is in a cookie from now on.",
                    "content": _content({"type": "object"}),
                },
                **_failures(is_post=True),
            },
        }
    }
}


def _number(least: int, most: int | None = None) -> Json:
    return {"type": "integer", "minimum": least, "maximum": 999_999_999_999 if most is None else most}

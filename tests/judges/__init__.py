"""Judges that decide whether a provider would take a request, without asking the library under test.

Every judge is written from the providers' documents alone and is at least as strict as the provider;
the one invariant is that nothing in this package imports the library it judges.

A fault is one line, ``CODE path: what is wrong``; an empty list means accepted.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


def judge(format: str, payload: dict[str, Any] | list[Any]) -> list[str]:
    """Return the faults of a request body, or of a bare list of messages, in the named wire format."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    try:
        json.dumps(payload, ensure_ascii=False, default=repr).encode()
    except UnicodeEncodeError as error:
        return [f"TX-1 payload: {error.reason}"]
    faults: list[str] = import_module(f"tests.judges.{format.replace('-', '_')}").judge(payload)
    return faults

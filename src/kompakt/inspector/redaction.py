"""Views of sessions without their contents: every text becomes its kind and size, every name a number.

A text is only kept where it can be nothing else than a word of kompakt itself: a kind, a state, a time. Everything
else is replaced, so a new field is redacted until it is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from kompakt.engine.compaction.policies import BUILT_IN, REGISTRY
from kompakt.model.messages import JsonObject
from kompakt.view.values import KINDS, kind_name
from kompakt.wire.registry import WIRES

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")

_WORDS = {
    "kind": frozenset(KINDS),
    "state": frozenset(["sent", "shortened", "replaced", "undone"]),
    "role": frozenset(["system", "developer", "user", "assistant", "model", "tool", "function"]),
    "format": frozenset(WIRES),
    "policy": frozenset(BUILT_IN),
    "strategy": frozenset([*BUILT_IN, *(strategy.__name__ for strategy in REGISTRY.values())]),
    "action": frozenset(["pin", "unpin", "undo", "redo", "compact", "edit", "delete"]),
}
"""Fields with a fixed set of words."""

_NODES = {
    "Request",
    "System prompt",
    "Tool definitions",
    "User",
    "Assistant",
    "Tool results",
    "Summary",
    "Framing",
    "Pivot",
    "Not in the recording",
    "Pins and notes",
}
"""Names of parts of a context that kompakt gives."""

_REASONS = re.compile(
    r"(?:[\W\d_]|\b(?:an?|agent(?:'s)?|as|at|budget|by|cut|due|fits|for|full|in|is|its|limit|long|longer|manual|messages|"
    r"model|nearly|note|of|old|older|on|or|outputs?|over|overflow|own|pivot|removed|replaced|requested|results?|short|"
    r"shortened|summary|text|than|the|to|tokens?|tool|trigger|was|what|window|with)\b)*",
    re.I,
)
"""Reasons that consist of words of kompakt only. Any other reason is replaced."""

_FIXED = frozenset(["body", "read_only_reason"])
"""Fields that the export itself writes."""


class Redaction:
    """Replaces names by numbers, the same name always by the same number."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}

    def _named(self, what: str, name: str) -> str:
        known = self._names.setdefault(what, {})
        return known.setdefault(name, f"{what}{len(known) + 1}")

    def file(self, data: JsonObject) -> JsonObject:
        """Redact the data of an exported file."""
        return {
            "sessions": [self._value("", row) for row in data["sessions"]],
            "content": {self._named("session-", id): self._content(one) for id, one in data["content"].items()},
            "total": data["total"],
        }

    def _content(self, content: JsonObject) -> JsonObject:
        rows = {str(row["seq"]): row for row in content["rows"]}
        texts = {
            seq: {name: self._text(rows[seq]["kind"], text["total"]) for name in ("text", "shown") if text.get(name)}
            for seq, text in content["texts"].items()
        }
        for text in texts.values():
            text["total"] = len(text.get("text", ""))  # a message may have no text
        return {
            "texts": texts,
            "notes": content["notes"],
            "compactions": {self._named("c", id): self._value("", one) for id, one in content["compactions"].items()},
            "steps": {number: self._value("", one) for number, one in content["steps"].items()},
            **{name: self._value("", content[name]) for name in ("detail", "growth", "context", "rows")},
        }

    def _text(self, kind: object, size: int) -> Any:
        return f"[{kind_name(str(kind))}, {size:,} characters]"

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list | tuple):
            return [self._value(name, inner) for inner in cast("list[Any]", value)]
        if isinstance(value, str):
            return self._string(name, value)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise TypeError(f"{name}: a {type(value).__name__} cannot be redacted")

    def _object(self, value: JsonObject) -> JsonObject:
        made = {name: self._value(name, inner) for name, inner in value.items()}
        kind, tokens = value.get("kind"), value.get("tokens")
        size = f"{tokens:,} tokens" if isinstance(tokens, int) else "?"
        if "title" in value:
            what = kind_name(str(kind)) if kind in KINDS else "text"
            made["title"] = f"[{what}, {size}]" if "last_activity" not in value else f"[session, {size}]"
        if "children" in value:
            made["name"] = self._node(value, size)
        if "last_activity" in value or "tokens_before" in value or "before" in value:
            made["id"] = self._named("session-" if "last_activity" in value else "c", value["id"])
        return made

    def _node(self, node: JsonObject, size: str) -> str:
        """Return the name of a part of a context: of a group, a tool, or a message."""
        name, kind = node["name"], node["kind"]
        if name in _NODES or re.fullmatch(r"[\d,]+ smaller ones", name):
            return name
        is_tool = kind == "tools" or (kind == "tool_results" and node["children"])
        return self._named("tool ", name) if is_tool else f"[{kind_name(kind)}, {size}]"

    def _string(self, name: str, text: str) -> str | None:
        if not text:
            return text
        single = "strategy" if name == "strategies" else "kind" if name == "kinds" else name
        if single in _WORDS and text in _WORDS[single]:
            return text
        if name in _FIXED or (name in ("at", "created", "last_activity") and _TIME.fullmatch(text)):
            return text
        if name == "policies":
            return text if text in BUILT_IN else self._named("policy ", text)
        if name in ("reason", "why") and _REASONS.fullmatch(text):
            return text
        rules: dict[str, Callable[[], str | None]] = {
            "ref": lambda: self._named("m", text),
            "refs": lambda: self._named("m", text),
            "unrecoverable": lambda: self._named("m", text),
            "tool": lambda: self._named("tool ", text),
            "parent": lambda: self._named("session-", text),
            "compaction": lambda: self._named("c", text),
            "client": lambda: None,
            "model": lambda: None,
        }
        return rules[name]() if name in rules else f"[{len(text):,} characters]"

"""Edit settings files of other programs as text: JSON with comments and trailing commas, changed only where asked.

A file is scanned into nodes with their positions. An edit inserts or deletes characters at these positions, so
comments, order, indentation and line ends of everything else stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from kompakt.errors import UsageError

_TRIVIA = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"-?\d[\d.eE+-]*|true|false|null")
_COMMENT = re.compile(r"//|/\*")


Path: TypeAlias = Sequence[str | int]
"""Keys of objects and positions in arrays."""


class JsonNode(msgspec.Struct):
    """A value in a text."""

    start: int
    end: int
    value: Any
    keys: list[str] = []
    """The keys of an object."""
    inner: list[JsonNode] = []
    """Members of an object or items of an array. A member starts at its key."""
    values: list[JsonNode] = []
    """The values of the members of an object, or the items of an array."""

    def find(self, path: Path) -> JsonNode | None:
        """Return the value at a path of keys and positions."""
        node = self
        for key in path:
            if isinstance(key, int) and isinstance(node.value, list) and key < len(node.values):
                node = node.values[key]
            elif isinstance(key, str) and isinstance(node.value, dict) and key in node.value:
                node = node.values[_last(node.keys, key)]
            else:
                return None
        return node


def _last(keys: Sequence[str], key: str) -> int:
    """Return the position of a key; of a key that an object has twice, agents read the last."""
    return len(keys) - 1 - keys[::-1].index(key)


def read(text: str, name: str) -> JsonNode:
    """Scan a text; errors call it ``name``. An empty text is an empty object.

    Raises:
        UsageError: the text is not JSON, or not an object.
    """
    scanner = _Scanner(text, name)
    at = scanner.skip(1 if text.startswith("\ufeff") else 0)
    if at == len(text):
        return JsonNode(at, at, {})
    try:
        root = scanner.value(at)
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply; correct the file and run the command again") from None
    if scanner.skip(root.end) != len(text):
        raise scanner.fault(root.end, "text after the end")
    if not isinstance(root.value, dict):
        raise UsageError(f"{name}: the settings are not an object; correct the file and run the command again")
    return root


class _Scanner:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def fault(self, at: int, what: str) -> UsageError:
        line = self.text.count("\n", 0, at) + 1
        return UsageError(f"{self.name}: line {line}: {what}; correct the file and run the command again")

    def skip(self, at: int) -> int:
        found = _TRIVIA.match(self.text, at)
        return at if found is None else found.end()

    def value(self, at: int) -> JsonNode:
        first = self.text[at : at + 1]
        if first == "{":
            return self._container(at, "}", self._member)
        if first == "[":
            return self._container(at, "]", self.value)
        found = (_STRING if first == '"' else _SCALAR).match(self.text, at)
        if found is None:
            raise self.fault(at, "not a JSON value")
        return JsonNode(at, found.end(), self._decoded(found[0], at))

    def _decoded(self, text: str, at: int) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self.fault(at, f"{text[:40]!r} is not JSON") from None

    def _container(self, start: int, close: str, element: Callable[[int], JsonNode]) -> JsonNode:
        node, at = JsonNode(start, start, {} if close == "}" else [], [], [], []), self.skip(start + 1)
        while self.text[at : at + 1] != close:
            inner = element(at)
            node.inner.append(inner)
            node.values.append(inner.values[0] if close == "}" else inner)
            if close == "}":
                node.keys.append(inner.keys[0])
                node.value[inner.keys[0]] = inner.value
            else:
                node.value.append(inner.value)
            at = self.skip(inner.end)
            if self.text[at : at + 1] == ",":
                at = self.skip(at + 1)
            elif self.text[at : at + 1] != close:
                raise self.fault(at, f"a comma or {close} is missing")
        node.end = at + 1
        return node

    def _member(self, at: int) -> JsonNode:
        key = _STRING.match(self.text, at)
        if key is None:
            raise self.fault(at, "a key in quotes is missing")
        colon = self.skip(key.end())
        if self.text[colon : colon + 1] != ":":
            raise self.fault(colon, "a colon is missing")
        value = self.value(self.skip(colon + 1))
        return JsonNode(at, value.end, value.value, [self._decoded(key[0], at)], [], [value])


# --- edits -----------------------------------------------------------------------------------------------------------


def put(text: str, path: Sequence[str], value: Any, name: str) -> str:
    """Set the value at a path of keys; objects on the way are created.

    Raises:
        UsageError: the text is not JSON, or a value on the way is not an object.
    """
    root = read(text, name)
    found = root.find(path)
    if found is not None:
        if found.value == value:
            return text
        return _checked(
            text[: found.start] + _rendered(value, _indent_at(text, found.start), text) + text[found.end :], name
        )
    depth = next(depth for depth in range(len(path) - 1, -1, -1) if root.find(path[:depth]) is not None)
    parent = root.find(path[:depth])
    assert parent is not None
    if not isinstance(parent.value, dict):
        raise UsageError(
            f"{name}: {'.'.join(path[:depth])} is not an object; correct the file and run the command again"
        )
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    if parent.start == parent.end:  # an empty file
        gap = "" if not text or text.endswith(("\n", "\ufeff")) else _line_end(text)  # a comment may end the file
        created = json.dumps({path[depth]: value}, indent=2, ensure_ascii=False)
        return _checked(f"{text}{gap}{created}\n", name)
    return _checked(_inserted(text, parent, value, key=path[depth]), name)


def append(text: str, path: Sequence[str], value: Any, name: str) -> str:
    """Append an item to the array at a path of keys; the array is created.

    Raises:
        UsageError: the text is not JSON, or the value is not an array.
    """
    found = read(text, name).find(path)
    if found is None:
        return put(text, path, [value], name)
    if not isinstance(found.value, list):
        raise UsageError(f"{name}: {'.'.join(path)} is not an array; correct the file and run the command again")
    return _checked(_inserted(text, found, value), name)


def drop(text: str, path: Sequence[str], name: str) -> str:
    """Delete the member at a path of keys, and objects that are empty without it."""
    root = read(text, name)
    if root.find(path) is None:
        return text
    parent = root.find(path[:-1])
    assert parent is not None
    if len(parent.inner) == 1 and len(path) > 1 and not _has_comment(text, parent):
        return drop(text, path[:-1], name)
    return _checked(_deleted(text, parent, _last(parent.keys, path[-1])), name)


def drop_items(text: str, path: Path, is_ours: Callable[[Any], bool], name: str) -> str:
    """Delete the items of the array at a path of keys that satisfy a condition; also the array if it is then empty."""
    while True:
        found = read(text, name).find(path)
        if found is None or not isinstance(found.value, list):
            return text
        index = next((at for at, item in enumerate(found.value) if is_ours(item)), None)
        if index is None:
            return text
        keys = [key for key in path if isinstance(key, str)]
        if len(found.inner) == 1 and len(keys) == len(path) and not _has_comment(text, found):
            return drop(text, keys, name)
        text = _checked(_deleted(text, found, index), name)


def _checked(text: str, name: str) -> str:
    """Return an edited text.

    Raises:
        UsageError: it is no longer valid.
    """
    read(text, name)
    return text


def _has_comment(text: str, node: JsonNode) -> bool:
    """Return whether there is a comment in a container, outside its elements."""
    ends = [node.start + 1, *(inner.end for inner in node.inner)]
    starts = [*(inner.start for inner in node.inner), node.end - 1]
    return any(_COMMENT.search(text, end, start) for end, start in zip(ends, starts, strict=True))


def _inserted(text: str, node: JsonNode, value: Any, key: str | None = None) -> str:
    """Add an element at the end of a container."""
    is_inline = bool(node.inner) and "\n" not in text[node.start : node.end]
    close = node.end - 1
    while text[close - 1].isspace():
        close -= 1
    outer = _indent_at(text, node.start)
    indent = _indent_at(text, node.inner[0].start) if node.inner and not is_inline else outer + _unit(text)
    written = json.dumps(value, ensure_ascii=False) if is_inline else _rendered(value, indent, text)
    if key is not None:
        written = f"{json.dumps(key, ensure_ascii=False)}: {written}"
    end = _line_end(text)
    if is_inline:
        last = node.inner[-1].end
        comma = "" if "," in _without_comments(text[last:close]) else ", "
        return f"{text[:last]}{comma}{text[last:close]}{written}{text[close:]}"
    if not node.inner:
        return f"{text[:close]}{end}{indent}{written}{end}{outer}{text[node.end - 1 :]}"
    last = node.inner[-1].end
    comma = "" if "," in _without_comments(text[last:close]) else ","
    return f"{text[:last]}{comma}{text[last:close]}{end}{indent}{written}{text[close:]}"


def _deleted(text: str, node: JsonNode, index: int) -> str:
    """Delete an element of a container with one comma; comments beside it stay."""
    start, end = node.inner[index].start, node.inner[index].end
    if index + 1 < len(node.inner):
        after = node.inner[index + 1].start
        if _COMMENT.search(text, end, after) is None:
            return text[:start] + text[after:]
        return text[:start] + _without_comma(text, end).lstrip(" \t")
    if not index:
        close = node.end - 1
        if not _has_comment(text, node):
            return text[: node.start + 1] + text[close:]
        return text[:start] + _without_comma(text, end)
    before = node.inner[index - 1].end
    if _COMMENT.search(text, before, start) is None:
        return text[:before] + text[end:]
    kept, rest = text[:start], _without_comma(text, end)
    if rest == text[end:]:  # no trailing comma: the comma before the element goes
        kept = text[:before] + _without_comma(text[:start], before)
    gap = "" if rest.lstrip(" \t")[:1] in ("\r", "\n") else _line_end(text)  # a comment may end the line
    return kept.rstrip() + gap + rest


def _without_comma(text: str, at: int) -> str:
    """Return the text from a position on, without the comma that follows the element that ends there."""
    comma = _Scanner(text, "").skip(at)
    return text[at:comma] + text[comma + 1 :] if text[comma : comma + 1] == "," else text[at:]


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", "", text, flags=re.DOTALL)


def _rendered(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return f"{_line_end(text)}{indent}".join(lines)


def _indent_at(text: str, at: int) -> str:
    """Return the white space at the start of the line of a position."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """Return one step of indentation as the file has it."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else "  "


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"

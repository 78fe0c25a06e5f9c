"""Every regular expression of the package takes linear time on any text.

Patterns are found by walking the modules, so new ones are tested automatically. Each gets long texts that repeat one
unit: common characters, and for each repetition in the pattern what it repeats, after what precedes it and together
with it. On texts of this length, quadratic work takes a hundred times as long as linear work, so the verdict does not
depend on the machine.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from re import _constants as op  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from time import process_time
from typing import Any

import pytest

import kompakt

SIZES = (30, 60, 90, 120, 1_000, 4_000, 16_000)
"""Text lengths in characters. Short ones come first, so that an exponential or cubic pattern does not run for hours."""

SECONDS = 0.06
"""Seconds. A linear pattern takes less for the longest text; quadratic ones take at least twice as long."""

GROWTH = 9
"""Four times the text takes four times as long in linear time and sixteen times as long in quadratic time."""

USED_AS = {
    "kompakt.engine.admission.failures._RAISED": {"match"},
    "kompakt.gateway.upstream._ENDPOINTS": {"fullmatch"},
}
"""The method of patterns that are called through another name."""

BOUNDED = {"kompakt.evals.measures.precision._PATH": 1_000, "kompakt.model.limits._VENDOR": 200}
"""Patterns that never see more characters than this: the caller cuts the text."""

UNITS = [
    *("a", "A", "1", " ", "\t", "\n", "\r\n", "{", "[", "]", "(", ")", "<", ">", "/", "\\", ".", ",", ":", ";", "-"),
    *("_", "=", '"', "'", "`", "#", "*", "~", "@", "|", "+", "é", "a ", "1 ", "a.", "a/", "a_", "a-", "a:", "a=", "aA"),
    *("a1", '"a"', "<a>", "<a ", " \n", "a\n", "::", "m1"),
]

BRANCHES = 4
"""Alternatives of a repetition that are tried."""

MAX_REPEATED = 3
"""Highest bound of a repetition that is repeated fully in a text."""

_METHODS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"}
_ANCHORED = {"match", "fullmatch"}
_CLASSES = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}
_SIGNS = "x a1_.-/:\n\"'([{<=#"


# --- which patterns there are, and how they are used ---------------------------------------------------------------


def _patterns_in(value: object, name: str) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _patterns_in(inner, name)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _patterns_in(inner, name)


@cache
def _nodes() -> dict[str, list[ast.Attribute | ast.Call]]:
    """Return the attributes and calls in each file."""
    root, found = Path(kompakt.__file__).parent, {}
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Call)]
        found[str(path.relative_to(root))] = nodes
    return found


def _named() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield the named patterns of a module or class."""
    for found in pkgutil.walk_packages(kompakt.__path__, "kompakt."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:  # an adapter whose framework is not installed
            if not found.name.startswith("kompakt.integrations."):
                raise
            continue
        for name, value in list(vars(module).items()):
            yield from _patterns_in(value, f"{module.__name__}.{name}")
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, inside in list(vars(value).items()):
                    yield from _patterns_in(inside, f"{module.__name__}.{inner}")


def _literal() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the patterns that are written inline."""
    for path, nodes in _nodes().items():
        for node in nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            called, first = node.func, node.args[0]
            is_re = isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr in _METHODS
            if is_re and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield f"{path}:{called.attr}", re.compile(first.value), called.attr


@cache
def _uses() -> dict[str, dict[str, set[str]]]:
    """Return the methods that are called on each name, by file."""
    uses: dict[str, dict[str, set[str]]] = {}
    for path, nodes in _nodes().items():
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in _METHODS:
                holder = node.value
                name = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", None)
                if name is not None:
                    uses.setdefault(name, {}).setdefault(path, set()).add(node.attr)
    return uses


def _methods(name: str) -> set[str]:
    """Return how a pattern is used; ``search`` if unknown."""
    if name in USED_AS:
        return USED_AS[name]
    module, _, variable = name.rpartition(".")
    files = _uses().get(variable, {})
    if variable.startswith("_"):
        files = {path: used for path, used in files.items() if path == f"{module[8:].replace('.', '/')}.py"}
    used = set[str]().union(*files.values())
    anchored = used & _ANCHORED
    return anchored | {"finditer"} if used - anchored or not used else anchored


def _all() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    found: dict[str, tuple[re.Pattern[Any], set[str]]] = {}
    seen: set[tuple[Any, int]] = set()
    every = [(name, pattern, _methods(name)) for name, pattern in _named()]
    every += [(name, pattern, {method} & _ANCHORED or {"finditer"}) for name, pattern, method in _literal()]
    for name, pattern, methods in every:
        if (pattern.pattern, pattern.flags) not in seen:
            seen.add((pattern.pattern, pattern.flags))
            found[f"{name} {len(found)}"] = pattern, methods
    return found


PATTERNS = _all()


# --- texts that a pattern may find hard ----------------------------------------------------------------------------


def _character(items: list[Any]) -> str:
    """Return a character of a set."""
    if items[0][0] is op.NEGATE:
        return next((sign for sign in _SIGNS if not any(_is_in(sign, one) for one in items[1:])), "x")
    return _one(items[0])


def _one(item: Any) -> str:
    kind, value = item
    if kind is op.LITERAL:
        return chr(value)
    if kind is op.RANGE:
        return chr(value[0])
    return next((sign for sign in _SIGNS if _is_in(sign, item)), "x")


def _is_in(sign: str, item: Any) -> bool:
    kind, value = item
    if kind is op.LITERAL:
        return ord(sign) == value
    if kind is op.RANGE:
        return value[0] <= ord(sign) <= value[1]
    name = str(value).removeprefix("CATEGORY_")
    return re.match(_CLASSES.get(name, "(?!)"), sign) is not None


def _example(tree: Any, branch: int = 0) -> str:
    """Return a text that roughly matches a pattern or a part of it; later branches repeat short repetitions fully."""
    out: list[str] = []
    for kind, value in tree:
        if kind is op.LITERAL:
            out.append(chr(value))
        elif kind is op.IN:
            out.append(_character(value))
        elif kind in (op.ANY, op.NOT_LITERAL, op.GROUPREF):
            out.append("x")
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            most = value[1] if branch and value[1] <= MAX_REPEATED else 1
            out.append(_example(value[2], branch) * max(most, value[0]))
        elif kind is op.SUBPATTERN:
            out.append(_example(value[-1], branch))
        elif kind is op.ATOMIC_GROUP:
            out.append(_example(value, branch))
        elif kind is op.BRANCH:
            out.append(_example(value[1][branch % len(value[1])], branch))
    return "".join(out)


def _repeated(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the repetitions of a pattern, each with an example of what precedes it."""
    for item in tree:
        kind, value = item
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            body = value[2]
            if value[1] > 1:
                for branch in range(BRANCHES):
                    unit = _example(body, branch)
                    yield before, unit
                    if before:  # the pattern is tried again at every unit
                        yield "", before + unit
                        yield "", (before + unit)[:-1]
                if len(body) == 1 and body[0][0] is op.IN and body[0][1][0][0] is not op.NEGATE:
                    yield from ((before, _one(one)) for one in body[0][1])
            yield from _repeated(body, before)
        elif kind is op.SUBPATTERN:
            yield from _repeated(value[-1], before)
        elif kind is op.ATOMIC_GROUP:
            yield from _repeated(value, before)
        elif kind is op.BRANCH:
            for branch in value[1]:
                yield from _repeated(branch, before)
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            yield from _repeated(value[1], before)
        before += _example([item])


def _tree(pattern: re.Pattern[Any]) -> Any:
    return parser.parse(pattern.pattern, pattern.flags)


def _texts(pattern: re.Pattern[Any], size: int) -> Iterator[Any]:
    """Make long texts for a pattern; the last character is one that few patterns match."""
    tree = _tree(pattern)
    whole = _example(tree)
    units = {("", unit) for unit in [*UNITS, whole, whole + " ", whole[:-1]]} | set(_repeated(tree))
    for before, unit in sorted(units):
        if unit:
            for end in ("", "\x01"):
                text = before + (unit * (size // len(unit) + 1))[:size] + end
                yield text if isinstance(pattern.pattern, str) else text.encode()


def _seconds(pattern: re.Pattern[Any], methods: set[str], text: Any) -> float:
    start = process_time()
    for method in sorted(methods):
        if method == "finditer":
            list(pattern.finditer(text))
        else:
            getattr(pattern, method)(text)
    return process_time() - start


@pytest.mark.parametrize("name", PATTERNS)
def test_takes_linear_time(name: str) -> None:
    """The longest text is fast, or takes time proportional to its length."""
    pattern, methods = PATTERNS[name]
    if not any(_repeated(_tree(pattern))):
        return  # nothing in it can take long
    longest = BOUNDED.get(name.rpartition(" ")[0], SIZES[-1])
    for texts in zip(*(_texts(pattern, min(size, longest)) for size in SIZES), strict=True):
        shorter = 0.0
        for text in texts:
            taken = _seconds(pattern, methods, text)
            if taken > SECONDS:  # perhaps the machine was busy
                taken = min(taken, *(_seconds(pattern, methods, text) for _ in range(3)))
            assert taken <= SECONDS or taken < GROWTH * shorter, f"{pattern.pattern!r} {text[:60]!r} × {len(text)}"
            shorter = taken


def test_patterns_are_found() -> None:
    """The walk finds patterns in modules, in tables and inline."""
    names = {name.rpartition(" ")[0] for name in PATTERNS}
    assert {"kompakt.engine.admission.kinds.json_value._LAYOUT", "kompakt.gateway.upstream._ENDPOINTS"} <= names
    assert any(name.endswith(".py:sub") for name in names) and len(names) > 150

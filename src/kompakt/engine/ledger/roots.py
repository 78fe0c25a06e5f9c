"""The directory that most files of a session lie in, so that it is said once and not in every line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

LEAST = 3
"""Files that must lie in a directory before it is worth naming."""

KEPT = 2
"""Components of a path that are always said."""

HERE = "./"
"""Begins, beside a root, a path whose directory was never said: it need not lie below the root."""

_ABSOLUTE = re.compile(r"[/~]|[A-Za-z]:[\\/]")


def common_root(paths: Iterable[str]) -> str:
    """Find the directory whose naming saves most: how many files lie in it, times how long it is."""
    inside: Counter[str] = Counter()
    for path in paths:
        if path.startswith("/"):
            parts = path.split("/")[:-KEPT]
            inside.update("/".join(parts[:depth]) for depth in range(2, min(len(parts), _DEEPEST) + 1))
    best = max(inside, key=lambda root: ((inside[root] - 1) * len(root), root), default="")
    return best if inside[best] >= LEAST else ""


_DEEPEST = 32
"""Components of a root at most."""


def below(path: str, root: str) -> str:
    """Say a path as it lies below the root; one outside stays as it is, a relative one says that it is one."""
    if not root or path.startswith(HERE):
        return HERE + path if root else path
    if path.startswith(f"{root}/"):
        inner = path[len(root) + 1 :]
        return path if not inner or inner.startswith(HERE) or _ABSOLUTE.match(inner) else inner
    return path if _ABSOLUTE.match(path) else HERE + path


def absolute(path: str, root: str) -> str:
    """Undo ``below``."""
    if not root or _ABSOLUTE.match(path):
        return path
    return path.removeprefix(HERE) if path.startswith(HERE) else f"{root}/{path}"

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


class Roots:
    """Directories, by how many files lie in them."""

    __slots__ = ("_best", "_inside")

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._inside: Counter[str] = Counter()
        self._best: str | None = ""
        for path in paths:
            self.add(path)

    def add(self, path: str) -> None:
        """Count a file that was not counted before."""
        if path.startswith("/"):
            parts = path.split("/")[:-KEPT]
            self._inside.update("/".join(parts[:depth]) for depth in range(2, min(len(parts), _DEEPEST) + 1))
            self._best = None

    @property
    def best(self) -> str:
        """The directory whose naming saves most: how many files lie in it, times how long it is."""
        if self._best is None:
            inside = self._inside
            best = max(inside, key=lambda root: ((inside[root] - 1) * len(root), root), default="")
            self._best = best if inside[best] >= LEAST else ""
        return self._best


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

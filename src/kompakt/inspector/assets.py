"""The files of the page, from the package. Only files that are listed at the start are served."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

PAGE = "index.html"

_SCRIPT = b'<script type="module"'

_NOT_PRELOADED = ("app.js", "offline.js")
"""The page names the first itself; only exported files have the second."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


class Asset(NamedTuple):
    """A file of the page."""

    data: bytes
    media_type: str


class Assets(NamedTuple):
    """All files of the page, and a hash over them that is part of their addresses."""

    files: dict[str, Asset]
    version: str

    def page(self) -> bytes:
        """Return the page. Its files are addressed below the version, so that browsers can keep them.

        It names all modules, so that a browser asks for them at once and not as it finds them, one after the other.
        """
        page = self.files.get(PAGE)
        if page is None:
            return b"<!doctype html><title>kompakt</title><p>The files of the inspector are not installed."
        modules = sorted(name for name in self.files if name.endswith(".js") and name not in _NOT_PRELOADED)
        links = "\n".join(f'<link rel="modulepreload" href="static/{name}">' for name in modules)
        data = page.data.replace(_SCRIPT, links.encode() + b"\n" + _SCRIPT)
        return data.replace(b'"static/', f'"static/{self.version}/'.encode())


@cache
def load_assets() -> Assets:
    """Read the files of the page."""
    found: dict[str, Asset] = {}
    _collect(files("kompakt.inspector") / "static", "", found)
    hasher = hashlib.blake2b(digest_size=8)
    for name in sorted(found):
        hasher.update(f"{name} {len(found[name].data)} ".encode() + found[name].data)
    return Assets(found, hasher.hexdigest())


def _collect(folder: Traversable, prefix: str, found: dict[str, Asset]) -> None:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            _collect(entry, f"{name}/", found)
            continue
        media_type = _TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            found[name] = Asset(entry.read_bytes(), media_type)

"""The files of the page, from the package. Only files that are listed at the start are served.

The modules of the page become one script: a browser on a first visit waits for three files and not for seventeen, and
an exported file contains the same script with other data.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

PAGE = "index.html"

_SCRIPT = "app.js"

_TYPES = {".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
"""Files that are served as they are."""

_FOLDER = files("kompakt.inspector") / "static"


class Asset(NamedTuple):
    """A file of the page."""

    data: bytes
    media_type: str


class Assets(NamedTuple):
    """All files of the page, and a hash over them that is part of their addresses."""

    files: dict[str, Asset]
    page: bytes
    """The page. Its files are addressed below the version, so that browsers can keep them."""
    version: str


@cache
def load_assets() -> Assets:
    """Read the files of the page."""
    found = {_SCRIPT: Asset(bundle(api="api").encode(), "text/javascript; charset=utf-8")}
    for entry in _FOLDER.iterdir():
        media_type = _TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            found[entry.name] = Asset(entry.read_bytes(), media_type)
    hasher = hashlib.blake2b(digest_size=8)
    for name in sorted(found):
        hasher.update(f"{name} {len(found[name].data)} ".encode() + found[name].data)
    version = hasher.hexdigest()
    return Assets(found, read_text(PAGE).replace('"static/', f'"static/{version}/').encode(), version)


def read_text(name: str) -> str:
    """Read a file of the page."""
    return (_FOLDER / name).read_text("utf-8")


# --- one script ------------------------------------------------------------------------------------------------------

_IMPORT = re.compile(r"^import (?:\{([^}]*)\} from )?'\./([\w-]+)\.js';$", re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|let|class) (\w+))", re.M)


def bundle(*, api: str) -> str:
    """Combine the modules of the page into one script, each as a function that returns its exports.

    ``api`` is the module from which the others read sessions: ``api`` asks the server, ``offline`` reads the file.
    """
    parts: dict[str, str] = {}

    def module(name: str) -> str:
        return api if name == "api" else name

    def imported(found: re.Match[str]) -> str:
        """Replace an import by constants of the imported module."""
        names = (found[1] or "").replace(" as ", ": ").strip()
        return f"const {{{names}}} = {_variable(module(found[2]))};" if names else ""

    def add(name: str) -> None:
        if name in parts:
            return
        source = read_text(f"{name}.js")
        for found in _IMPORT.finditer(source):
            add(module(found[2]))
        names = ", ".join(found[1] for found in _EXPORT.finditer(source))
        body = _EXPORT.sub("", _IMPORT.sub(imported, source))
        parts[name] = f"const {_variable(name)} = (() => {{\n{body}\nreturn {{{names}}};\n}})();"

    add("app")
    return "'use strict';\n" + "\n".join(parts.values())


def _variable(name: str) -> str:
    return f"module_{name.replace('-', '_')}"

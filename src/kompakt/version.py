"""The version, in the one place that the build reads, and the commands that start and extend this installation."""

from __future__ import annotations

__version__ = "0.2.0"


def own_program() -> str:
    """Return how a shell starts this installation: ``kompakt`` if that is what it finds, else the full path."""
    import os  # late, as in the other functions: a hook runs at every tool call, and only messages need these
    import shlex
    import shutil
    import sys

    beside = shutil.which("kompakt", path=os.path.dirname(sys.executable))
    running = os.path.abspath(sys.argv[0]) if sys.argv else ""
    is_named = os.path.splitext(os.path.basename(running))[0] == "kompakt" and os.path.isfile(running)
    program = running if is_named else beside
    if program is None:
        return f"{shlex.quote(sys.executable)} -m kompakt"
    found = shutil.which("kompakt")
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(program)
    return "kompakt" if is_found else shlex.quote(program)


def install_command(extra: str = "") -> str:
    """Return the shell command that adds an extra to this installation; without one, it adds missing packages.

    It names what kompakt was installed from: a clone, a file, a repository or the package index. Paths are absolute,
    so the command works in any folder.
    """
    import shlex

    source, is_editable = _source()
    name, _, address = source.partition(" @ ")
    extra = extra.replace("_", "-")  # as in the metadata: pip before 23.3 knows no other spelling
    wanted = name + (f"[{extra}]" if extra else "") + (f" @ {address}" if address else "")
    return f"{_installer()} {'-e ' if is_editable else ''}{shlex.quote(wanted)}"


def _source() -> tuple[str, bool]:
    """Return what to install, and whether it is a clone that Python runs in place."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").exists() and (clone / "src" / "kompakt").exists():
        return str(clone), True
    try:
        origin = json.loads(distribution("kompakt").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        return f"kompakt @ {origin['vcs_info'].get('vcs', 'git')}+{url}", False
    path = Path(unquote(urlsplit(url).path))
    return (str(path), False) if url.startswith("file:") and path.exists() else ("kompakt", False)


def _installer() -> str:
    """Return ``pip install`` if the shell finds the pip of this environment; otherwise name the environment."""
    import os
    import shlex
    import shutil
    import sys
    from importlib.util import find_spec

    found = shutil.which("pip")
    if found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable):
        return "pip install"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") is not None else f"uv pip install --python {python}"

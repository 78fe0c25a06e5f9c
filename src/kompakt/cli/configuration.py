"""Settings from ``kompakt.toml``: what neither a flag nor a ``KOMPAKT_…`` variable says.

Looked for in the working directory, then in the user's configuration folder; the first one found counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kompakt.engine.policies import BUILT_IN, Policy, load_policies
from kompakt.errors import UsageError

NAME = "kompakt.toml"


def find() -> Path | None:
    """Find the configuration file."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path(NAME), home / "kompakt" / NAME) if path.is_file()), None)


def defaults() -> dict[str, Any]:
    """Read the defaults for each command: top-level keys for all, a table of a command's name for that one.

    Raises:
        UsageError: the file is no TOML.
    """
    path = find()
    if path is None:
        return {}
    import tomllib  # late: only who has a configuration pays for it

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    common = {key: value for key, value in data.items() if not isinstance(value, dict)}
    commands = ("check", "repair", "count", "compact", "recall", "doctor", "demo", "session")
    for command in commands:
        if not isinstance(data.get(command, {}), dict):
            raise UsageError(f"{path}: {command} must be a table, [{command}]")
    return {command: {**common, **data.get(command, {})} for command in commands}


def policy(name: str) -> str | Policy:
    """Find a policy by name, among the built-in ones or in the configuration file."""
    path = find()
    own = {} if path is None else load_policies(path)
    if name not in own and name not in BUILT_IN:
        raise UsageError(f"policy {name!r} is not known; use one of {', '.join(map(repr, {**BUILT_IN, **own}))}")
    return own.get(name, name)

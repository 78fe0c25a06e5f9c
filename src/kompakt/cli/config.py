"""Settings from ``kompakt.toml``. Flags and ``KOMPAKT_…`` variables take precedence.

The file is read from the working directory, else from the user's configuration folder. An unknown key is an error, so
that a misspelled setting is not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kompakt.errors import UsageError, nearest

if TYPE_CHECKING:
    from kompakt.engine.compaction.policies import Policy

NAME = "kompakt.toml"

OTHER_TABLES = ("serve", "policies")
"""Tables that are read elsewhere, by ``gateway.config.load`` and ``load_policies``."""


def find() -> Path | None:
    """Return the path of the configuration file, if there is one."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path(NAME), home / "kompakt" / NAME) if path.is_file()), None)


def defaults(root: Any) -> dict[str, Any]:
    """Return the default options of each command of ``root``. Top-level keys apply to all commands, a table to one.

    Raises:
        UsageError: the file is not valid TOML, or has an unknown key.
    """
    path = find()
    if path is None:
        return {}
    import tomllib  # late: only needed with a configuration file

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    options = {name: _options(command) for name, command in root.commands.items()}
    everywhere = {key: name for names in options.values() for key, name in names.items()}
    tables = (*options, *OTHER_TABLES)
    common: dict[str, Any] = {}
    for key, value in data.items():
        if key in tables:
            if not isinstance(value, dict):
                raise UsageError(f"{path}: {key} is not a table; write [{key}]")
        elif isinstance(value, dict):
            raise UsageError(f"{path}: unknown table [{key}]; {nearest(key, tables)}")
        else:
            common |= _read(key, value, everywhere, f"{path}")
    return {
        command: {**common, **_table(data.get(command, {}), known, f"{path}: [{command}]")}
        for command, known in options.items()
        if command not in OTHER_TABLES
    }


def _options(command: Any) -> dict[str, str]:
    """Map every spelling of a command's settings to the parameter name."""
    found: dict[str, str] = {}
    for inner in getattr(command, "commands", {}).values():
        found |= _options(inner)
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name not in (None, "help", "version"):
            names = [parameter.name, *(text.lstrip("-").replace("-", "_") for text in parameter.opts)]
            found |= {name: parameter.name for name in names if len(name) > 1}
    return found


def _table(table: Mapping[str, Any], known: dict[str, str], where: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in table.items():
        settings |= _read(key, value, known, where)
    return settings


def _read(key: str, value: Any, known: dict[str, str], where: str) -> dict[str, Any]:
    name = key.replace("-", "_")
    if name not in known:
        raise UsageError(f"{where}: unknown setting {key!r}; {nearest(name, known)}")
    return {known[name]: value}


def policy(name: str) -> str | Policy:
    """Return a policy of the configuration file, or the name of a built-in one."""
    from kompakt.engine.compaction.policies import BUILT_IN, load_policies  # late: not every command needs a policy

    path = find()
    own = {} if path is None else load_policies(path)
    if name not in own and name not in BUILT_IN:
        raise UsageError(f"unknown policy {name!r}; {nearest(name, {**BUILT_IN, **own})}")
    return own.get(name, name)

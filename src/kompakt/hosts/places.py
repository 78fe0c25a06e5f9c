"""Files that kompakt keeps beside coding agents: the store, the log of hooks, and which sessions run in which folder.

Hooks import this module on every call, so it imports nothing but ``os``.
"""

from __future__ import annotations

import os

MAX_NOTES = 20
"""Sessions of one folder that are noted; older notes are removed."""

MAX_LOG = 1_000_000
"""Bytes of the log of hooks; a longer one starts again."""


def data_folder() -> str:
    """Return the folder of stores."""
    return os.path.join(os.environ.get("XDG_DATA_HOME") or _home(".local", "share"), "kompakt")


def state_folder() -> str:
    """Return the folder of logs, backups and notes about running sessions."""
    return os.path.join(os.environ.get("XDG_STATE_HOME") or _home(".local", "state"), "kompakt")


def _home(*names: str) -> str:
    return os.path.join(os.path.expanduser("~"), *names)


def store_url() -> str:
    """Return the store of recorded agent sessions: ``KOMPAKT_STORE``, a URL or path, else a file in the data folder."""
    return os.environ.get("KOMPAKT_STORE") or f"sqlite:///{os.path.join(data_folder(), 'sessions.db')}"


def without_credentials(url: str) -> str:
    """Return the URL of a store as it can be printed: without user, password and query string."""
    scheme, separator, rest = url.partition("://")
    shown, _, query = rest.partition("?")
    if "@" in query:  # the question mark may be part of a password
        return f"{scheme}{separator}..."
    return f"{scheme}{separator}{shown.rpartition('@')[2]}"


def shown_store(url: str) -> str:
    """Return a store as people name it: the path of a SQLite file, or a URL without credentials."""
    from kompakt.store import sqlite_path  # late: hooks need no store for most events

    path = sqlite_path(url)
    return without_credentials(url) if path is None else path


def make_store_folder(url: str) -> None:
    """Create the folder of a SQLite store.

    Raises:
        OSError: the folder cannot be created.
    """
    from kompakt.store import sqlite_path  # late: hooks need no store for most events

    path = sqlite_path(url)
    if path:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)


def session_name(agent: str, session: str) -> str:
    """Return the id under which the session of an agent is stored."""
    return f"{agent}/{session}"


def outputs_name(agent: str, session: str) -> str:
    """Return the id of the stored session with the originals of shortened outputs."""
    return f"{agent}/{session}/outputs"


def session_file(agent: str, session: str, kind: str) -> str:
    """Return the file with one kind of note about a session, such as its size."""
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in session)
    return os.path.join(state_folder(), "sessions", f"{agent}-{safe}.{kind}")


def log(text: str) -> None:
    """Append a line to the log of hooks. A log that cannot be written is no reason to fail."""
    import time  # late: most calls log nothing

    path = log_file()
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {os.getpid()} {' '.join(text.split())}\n"
    try:
        make_folder_of(path)
        start = os.O_TRUNC if os.path.exists(path) and os.path.getsize(path) > MAX_LOG else os.O_APPEND
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | start, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)
    except OSError:
        return


def log_file() -> str:
    """Return the path of the log of hooks."""
    return os.path.join(state_folder(), "hooks.log")


# --- current session -----------------------------------------------------------------------------------------------


def note_session(agent: str, session: str, *, folder: str, transcript: str | None) -> None:
    """Note that an agent works on a session in a folder, so that the MCP server can find it.

    Raises:
        OSError: the note cannot be written.
    """
    import json  # late: most calls note nothing
    import time

    url = store_url()
    note = {
        "agent": agent,
        "session": session_name(agent, session),
        "outputs": outputs_name(agent, session),
        "folder": folder,
        "transcript": transcript,
        "store": url if url == without_credentials(url) else None,  # a password is not written to a file
        "time": time.time(),
    }
    write(_note_file(folder, session_name(agent, session)), json.dumps(note).encode())
    for path in _note_files(folder)[MAX_NOTES:]:
        try:
            os.unlink(path)
        except FileNotFoundError:  # another hook removed it
            continue


def noted_sessions(folder: str) -> list[dict[str, object]]:
    """Return the notes on the sessions of a folder, newest first."""
    import json

    notes: list[dict[str, object]] = []
    for path in _note_files(folder):
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            notes.append(found)
    return notes


def _note_file(folder: str, session: str) -> str:
    return os.path.join(_note_folder(folder), f"{_hashed(session)}.json")


def _note_files(folder: str) -> list[str]:
    """List the notes on the sessions of a folder, newest first."""
    try:
        with os.scandir(_note_folder(folder)) as entries:
            found = [(one.stat().st_mtime_ns, one.path) for one in entries if one.name.endswith(".json")]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _note_folder(folder: str) -> str:
    return os.path.join(state_folder(), "current", _hashed(os.path.realpath(folder)))


def _hashed(name: str) -> str:
    from hashlib import sha256  # late: most calls note nothing

    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def make_folder_of(path: str) -> None:
    """Create the folder of a file in the state folder, and the state folder, for their owner only.

    Raises:
        OSError: a folder cannot be created.
    """
    root = state_folder()
    os.makedirs(root, mode=0o700, exist_ok=True)
    at = root
    for name in os.path.relpath(os.path.dirname(path), root).split(os.sep):  # makedirs sets the mode of the last only
        at = os.path.join(at, name)
        os.makedirs(at, mode=0o700, exist_ok=True)


def write(path: str, data: bytes) -> None:
    """Write a file in the state folder atomically, readable by its owner only."""
    make_folder_of(path)
    temporary = f"{path}.{os.getpid()}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise

"""Install kompakt into a coding agent, and remove it: settings files are changed with a backup, undo restores them.

Each agent names the files it needs and, for each, how its entries are put in and taken out. A manifest in the state
folder keeps the bytes from before. Undo restores them byte for byte. If a file was changed since, it is not
overwritten: only the entries of kompakt are taken out of it.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from kompakt import files
from kompakt.errors import UnreadableFile, UsageError, plural
from kompakt.hosts import jsonc, places
from kompakt.version import __version__, install_command, own_program

Scope: TypeAlias = Literal["user", "project"]

HOOK = "kompakt-hook"
HOOK_MODULE = "kompakt.hosts.hook"
"""The program that all hooks run. Entries of kompakt are recognized by it."""


MAX_DIFF_LINE = 200
"""Characters of the longest line that a diff shows as it is. Settings on one line are shown with line breaks."""


class HostEntry(msgspec.Struct, frozen=True):
    """An entry of kompakt in a file of an agent."""

    kind: Literal["hook", "status line", "MCP server", "plugin"]
    command: str
    """The shell command that the agent runs."""


class HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an agent that kompakt writes to."""

    path: Path
    put_in: Callable[[str], str]
    """Adds the entries of kompakt to the text of the file; the text is unchanged if they are there."""
    take_out: Callable[[str], str]
    """Removes the entries of kompakt. An empty text means that the file can go."""
    entries: Callable[[str], list[HostEntry]]
    """Returns the entries of kompakt in the text of the file."""
    holds: str = ""
    """What the file is for, in a few words."""


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed for one agent."""

    agent: str
    program: str
    """The command that starts the agent."""
    tested: str
    """Version of the agent whose hooks the plugin is tested with."""
    scope: Scope
    files: tuple[HostFile, ...]
    notes: tuple[str, ...] = ()
    """What the user has to know or do."""

    @property
    def command(self) -> str:
        """Return the command that installs it."""
        return f"{own_program()} install {self.agent}{' --project' if self.scope == 'project' else ''}"


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one file, before it is made."""

    path: Path
    before: bytes | None
    """``None``: the file does not exist."""
    after: bytes | None
    note: str = ""
    summary: str = ""
    """What changes, in a few words, such as "adds 7 hooks and 1 status line"."""

    @property
    def is_change(self) -> bool:
        """Return whether anything changes."""
        return self.before != self.after

    @property
    def is_written(self) -> bool:
        """Return whether the file is now as it is after the change."""
        return _read(self.path) == self.after

    @property
    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = self._texts
        if self.is_shown_indented:
            old, new = _indented(old), _indented(new)
        was, becomes = ("/dev/null" if data is None else str(self.path) for data in (self.before, self.after))
        lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), was, becomes)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    @property
    def is_shown_indented(self) -> bool:
        """Return whether the diff shows long lines with line breaks that the file does not have."""
        lines = [line for text in self._texts for line in text.splitlines()]
        return max(map(len, lines), default=0) > MAX_DIFF_LINE and any(_indented(text) != text for text in self._texts)

    @property
    def _texts(self) -> tuple[str, str]:
        old, new = (_text(data, self.path) if data is not None else "" for data in (self.before, self.after))
        return old, new


def _indented(text: str) -> str:
    """Return JSON with line breaks, for a diff that can be read; another text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except ValueError:
        return text


class FileBackup(msgspec.Struct, frozen=True, kw_only=True):
    """What a file was before the installation."""

    path: str
    before: str | None
    """The bytes in base64; ``None`` if there was no file."""
    after: str
    """SHA-256 of what was installed."""
    folders: tuple[str, ...] = ()
    """Folders that were created for it, outermost first."""


class InstallManifest(msgspec.Struct, frozen=True, kw_only=True):
    """An installation, so that it can be undone."""

    agent: str
    scope: Scope
    version: str
    files: tuple[FileBackup, ...]


# --- commands --------------------------------------------------------------------------------------------------------


def no_recall(agent: str) -> str:
    """Return what is missing without the MCP server, and the command that adds it to the user's settings."""
    adding = f"{install_command('mcp')} && {own_program()} install {agent}"
    return f"The tool recall needs the extra mcp; to add it: {adding}"


def has_recall(scope: Scope) -> bool:
    """Return whether the MCP server can run here; the settings of a project are for machines where it can."""
    return scope == "project" or find_spec("mcp") is not None


def hook_command(agent: str, event: str, scope: Scope) -> str:
    """Return the shell command of a hook. In a project, which others share, it is looked up in the path."""
    words = [*launcher(scope), agent, event, *([] if has_recall(scope) else ["--no-recall"])]
    command = shlex.join(words)
    # Without kompakt on this machine the command does nothing, instead of failing at every event.
    return f"command -v {HOOK} >/dev/null || exit 0; {command}" if scope == "project" else command


def bin_folder() -> str:
    """Return the folder with the programs of this installation."""
    return str(Path(sys.executable).parent)


def shared_notes(scope: Scope) -> tuple[str, ...]:
    """Return what the settings of a project, which name programs without a path, need on this machine."""
    if scope != "project":
        return ()
    found = shutil.which(HOOK)
    if found is None:
        state = f"{HOOK} is not on PATH: the hooks of this project do nothing here until"
    elif sys.prefix != sys.base_prefix and Path(found).parent == Path(sys.executable).parent:
        state = f"{HOOK} is on PATH only while this environment is active. For other terminals"
    else:
        return ()
    return (f"{state} you add {bin_folder()} to the PATH of your shell.",)


def launcher(scope: Scope) -> list[str]:
    """Return the command that starts the hook program."""
    if scope == "project":
        return [HOOK]
    beside = Path(sys.executable).with_name(HOOK)
    return [str(beside)] if beside.exists() else [sys.executable, "-m", HOOK_MODULE]


def mcp_command(scope: Scope) -> list[str]:
    """Return the command that starts the MCP server."""
    if scope == "project":
        return ["kompakt", "mcp"]
    beside = Path(sys.executable).with_name("kompakt")
    return [str(beside), "mcp"] if beside.exists() else [sys.executable, "-m", "kompakt", "mcp"]


# --- hooks in JSON -------------------------------------------------------------------------------------------------


def put_hooks(
    text: str, *, agent: str, events: Mapping[str, int], matchers: Mapping[str, str], scope: Scope, name: str
) -> str:
    """Add a hook for each event to settings in JSON; ``events`` has the seconds after which an agent stops waiting.

    Raises:
        UsageError: the text is not JSON, or its hooks have another shape.
    """
    text = text or "{}\n"
    for event, seconds in events.items():
        hook = {"type": "command", "command": hook_command(agent, event, scope), "timeout": seconds}
        group = {**({"matcher": matchers[event]} if event in matchers else {}), "hooks": [hook]}
        found = jsonc.read(text, name).find(("hooks", event))
        if found is not None and isinstance(found.value, list):
            if [item for item in found.value if _is_own_group(item)] == [group]:
                continue
            text = jsonc.drop_items(text, ("hooks", event), _is_own_group, name)
        text = jsonc.append(text, ("hooks", event), group, name)
    return text


def take_hooks(text: str, *, name: str) -> str:
    """Remove the hooks of kompakt from settings in JSON."""
    hooks = jsonc.read(text, name).find(("hooks",))
    for event in hooks.keys if hooks is not None else ():
        text = jsonc.drop_items(text, ("hooks", event), _is_own_group, name)
        groups = jsonc.read(text, name).find(("hooks", event))
        for at in range(len(groups.values) if groups is not None else 0):  # groups that others added hooks to
            text = jsonc.drop_items(text, ("hooks", event, at, "hooks"), is_own_hook, name)
    return text


def own_hooks(text: str, *, name: str) -> list[HostEntry]:
    """Return the hooks of kompakt in settings in JSON."""
    hooks = jsonc.read(text, name).find(("hooks",))
    groups: list[Any] = [group for one in hooks.values for group in one.values] if hooks is not None else []
    inner = [group.find(("hooks",)) for group in groups]
    found = [hook.value for one in inner if one is not None for hook in one.values]
    return [HostEntry("hook", hook["command"]) for hook in found if is_own_hook(hook)]


def _is_own_group(group: Any) -> bool:
    hooks: Any = cast("dict[str, Any]", group).get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and bool(hooks) and all(map(is_own_hook, cast("list[Any]", hooks)))


_OWN_COMMAND = re.compile(
    rf"""(?:^|[\s/\\'"]){re.escape(HOOK)}(?:\.exe)?(?=[\s'"]|$)|\s-m\s+{re.escape(HOOK_MODULE)}\b"""
)


def is_own_hook(entry: Any) -> bool:
    """Return whether a hook or status line in the settings of an agent is that of kompakt."""
    command: Any = cast("dict[str, Any]", entry).get("command") if isinstance(entry, dict) else None
    return isinstance(command, str) and _OWN_COMMAND.search(command) is not None


# --- install ---------------------------------------------------------------------------------------------------------


def plan_install(plan: HostPlan) -> list[PlannedChange]:
    """Return the changes that an installation makes.

    Raises:
        UsageError: a file cannot be understood; the message names file and line.
    """
    return [plan_file(file) for file in plan.files]


def plan_file(file: HostFile) -> PlannedChange:
    """Return the change that an installation makes to one file.

    Raises:
        UnreadableFile: the file cannot be read.
        UsageError: it cannot be understood; the message names file and line.
    """
    before = _read(file.path)
    text = "" if before is None else _text(before, file.path)
    changed = file.put_in(text)
    after = before if changed == text else changed.encode()
    summary = _summary(file, text, changed)
    return PlannedChange(path=file.path, before=before, after=after, note=file.holds, summary=summary)


def _summary(file: HostFile, before: str, after: str) -> str:
    """Return what a change of a file does to the entries of kompakt."""
    old, new = Counter(file.entries(before)), Counter(file.entries(after))
    added, removed = (Counter(entry.kind for entry in one.elements()) for one in (new - old, old - new))
    parts = {"adds": added - removed, "updates": added & removed, "removes": removed - added}
    said = [f"{verb} {_listed(kinds)}" for verb, kinds in parts.items() if kinds]
    return ", ".join(said) or ("updates its text" if before != after else "changes nothing")


def _listed(kinds: Counter[str]) -> str:
    *first, last = [plural(number, kind) for kind, number in kinds.items()]
    return f"{', '.join(first)} and {last}" if first else last


def install(plan: HostPlan, changes: Sequence[PlannedChange]) -> None:
    """Write the changes; if one fails or is interrupted, nothing was changed.

    Raises:
        UnreadableFile: a file cannot be written.
        UsageError: a file was changed by another program in the meantime.
    """
    previous = {backup.path: backup for backup in _manifest_files(plan)}
    backups: list[FileBackup] = []
    for change, file in zip(changes, plan.files, strict=True):
        if change.after is not None:
            backups.append(_backup(change, file, previous.get(str(change.path))))
    kept = [backup for path, backup in previous.items() if path not in {str(change.path) for change in changes}]
    manifest = InstallManifest(agent=plan.agent, scope=plan.scope, version=__version__, files=(*kept, *backups))
    path = _manifest_path(plan)
    earlier = _read(path)
    try:
        places.write(str(path), msgspec.json.encode(manifest))
        _write_changes(changes)
    except (OSError, UnreadableFile, UsageError, KeyboardInterrupt) as error:
        _put_back(path, earlier)
        if isinstance(error, OSError):
            raise UnreadableFile(f"{path}: {error.strerror or error}") from None
        raise


def _write_changes(changes: Sequence[PlannedChange]) -> None:
    """Write the changes; if one fails or is interrupted, it and those before it are taken back."""
    begun: list[PlannedChange] = []
    try:
        for change in changes:
            if _read(change.path) != change.before:
                raise UsageError(f"{change.path}: another program changed the file; run the command again")
            if change.is_change:
                begun.append(change)
                _put_back(change.path, change.after)
    except (OSError, UnreadableFile, UsageError, KeyboardInterrupt):
        for change in reversed(begun):
            if _read(change.path) != change.before:
                _put_back(change.path, change.before)
        raise


def _backup(change: PlannedChange, file: HostFile, previous: FileBackup | None) -> FileBackup:
    """Return what undo restores: after a second installation still what was there before the first."""
    before, folders = change.before, [one for one in reversed(change.path.parents) if not one.exists()]
    if previous is not None and change.before is not None:
        if sha256(change.before).hexdigest() == previous.after:
            before = None if previous.before is None else base64.b64decode(previous.before)
        else:
            before = _taken_out(change.before, file)
        folders = previous.folders
    elif change.before is not None:
        before = _taken_out(change.before, file) if not change.is_change else change.before
    return FileBackup(
        path=str(change.path),
        before=None if before is None else base64.b64encode(before).decode(),
        after=sha256(change.after or b"").hexdigest(),
        folders=tuple(map(str, folders)),
    )


def _taken_out(data: bytes, file: HostFile) -> bytes | None:
    text = file.take_out(_text(data, file.path))
    return text.encode() if text.strip() else None


# --- undo ------------------------------------------------------------------------------------------------------------


def plan_undo(plan: HostPlan) -> list[PlannedChange]:
    """Return the changes that remove an installation; without a manifest, entries of kompakt are searched for."""
    known = {backup.path: backup for backup in _manifest_files(plan)}
    changes: list[PlannedChange] = []
    for file in plan.files:
        now, backup = _read(file.path), known.get(str(file.path))
        if now is None:
            continue
        text = _text(now, file.path)
        if backup is not None and sha256(now).hexdigest() == backup.after:
            before = None if backup.before is None else base64.b64decode(backup.before)
            note = "will be as it was" if before is not None else "created by kompakt, will be deleted"
            summary = _summary(file, text, "" if before is None else _text(before, file.path))
            changes.append(PlannedChange(path=file.path, before=now, after=before, note=note, summary=summary))
            continue
        left = file.take_out(text)
        if left == text:
            continue
        is_created = backup is not None and backup.before is None
        after = None if left.strip() in ("", "{}") and (is_created or not left) else left.encode()
        note = "changed since the installation, so only the entries of kompakt go" if backup else "entries removed"
        summary = _summary(file, text, left)
        changes.append(PlannedChange(path=file.path, before=now, after=after, note=note, summary=summary))
    return changes


def undo(plan: HostPlan, changes: Sequence[PlannedChange]) -> None:
    """Write the changes, then delete folders that the installation created and that are empty, and the manifest.

    If a change fails or is interrupted, nothing was changed.

    Raises:
        UnreadableFile: a file cannot be written.
        UsageError: a file was changed by another program in the meantime.
    """
    _write_changes(changes)
    for backup in _manifest_files(plan):
        for folder in reversed(backup.folders):
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
    path = _manifest_path(plan)
    path.unlink(missing_ok=True)
    for folder in (path.parent, path.parent.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


# --- files -----------------------------------------------------------------------------------------------------------


def _manifest_path(plan: HostPlan) -> Path:
    """Return the file of the manifest; each project and each settings folder of an agent has its own."""
    where = sha256(str(plan.files[0].path).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Path(places.state_folder()) / "install" / f"{plan.agent}-{plan.scope}-{where}.json"


def _manifest_files(plan: HostPlan) -> tuple[FileBackup, ...]:
    path = _manifest_path(plan)
    data = _read(path)
    if data is None:
        return ()
    try:
        return msgspec.json.decode(data, type=InstallManifest).files
    except msgspec.MsgspecError as error:
        raise UnreadableFile(f"{path}: {error}; delete the file to undo without it") from None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(f"cannot read {path}: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Return the text of a settings file; empty if it does not exist.

    Raises:
        UnreadableFile: it cannot be read, or is not text in UTF-8.
    """
    data = _read(path)
    return "" if data is None else _text(data, path)


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; correct the file and run the command again") from None


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreadableFile(f"{path.parent}: {error.strerror or error}") from None
    files.write(path, data)


def _put_back(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, data)

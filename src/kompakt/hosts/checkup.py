"""Check an installation in a coding agent: settings, hook program, MCP server, and a scripted compaction."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from kompakt.errors import KompaktError, UnreadableFile, UsageError, plural
from kompakt.hosts import places
from kompakt.hosts.hook import CHECKED
from kompakt.hosts.install import (
    HOOK,
    HostEntry,
    HostFile,
    HostPlan,
    PlannedChange,
    bin_folder,
    has_recall,
    no_recall,
    plan_file,
    read_text,
)
from kompakt.hosts.rehearsal import rehearse
from kompakt.session.store import open_store

SECONDS = 30
"""Time for a program to answer."""

_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "kompakt doctor", "version": "1"},
    },
}


State: TypeAlias = Literal["ok", "note", "problem"]


class HostCheck(msgspec.Struct, frozen=True):
    """The result of one check."""

    what: str
    state: State
    """``note``: the plugin works, but not here or not for everything."""
    detail: str

    @property
    def works(self) -> bool:
        """Return whether this is no problem."""
        return self.state != "problem"


def check_host(plan: HostPlan) -> Iterator[HostCheck]:
    """Check everything that an installation needs, and that rules come back after a scripted compaction."""
    yield _check_program(plan)
    entries: list[HostEntry] = []
    for file in plan.files:
        try:
            found, change = file.entries(read_text(file.path)), plan_file(file)
        except (UnreadableFile, UsageError) as error:
            yield HostCheck(file.holds, "problem", str(error))
            continue
        entries += found
        yield _check_file(plan, file, change)
    hooks = {_command_for(plan.agent, entry.command, "check") for entry in entries if entry.kind != "MCP server"}
    for command in sorted(hooks):
        found = _check_hook(command)
        yield found
        if found.works:
            yield from _check_compaction(plan.agent, command)
    servers = [entry.command for entry in entries if entry.kind == "MCP server"]
    for command in servers:
        yield _check_server(command)
    if plan.agent == "codex" and hooks:
        yield HostCheck("trust", "note", "Codex runs the hooks only after you trusted them: it asks when it starts")
    if not servers and not has_recall(plan.scope):
        yield HostCheck("MCP server", "problem", no_recall(plan.agent))
    yield asyncio.run(_check_store())
    yield check_log()


def _check_program(plan: HostPlan) -> HostCheck:
    """Report the version of the agent. A missing or old one is no fault of the plugin."""
    path = shutil.which(plan.program)
    if path is None:
        detail = f"`{plan.program}` is not on PATH here; its version was not checked (tested with {plan.tested})"
        return HostCheck(plan.agent, "note", detail)
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return HostCheck(plan.agent, "note", f"`{plan.program} --version` failed: {error}")
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if found is None:
        return HostCheck(plan.agent, "note", f"`{plan.program} --version` names no version")
    if _numbers(found[0]) < _numbers(plan.tested):
        detail = f"version {found[0]}; the plugin is tested with {plan.tested}, an older one may lack some hooks"
        return HostCheck(plan.agent, "note", detail)
    return HostCheck(plan.agent, "ok", f"version {found[0]}; the plugin is tested with {plan.tested}")


_VERSION = re.compile(r"(?<!\d)\d+(?:\.\d+)+")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _check_compaction(agent: str, command: str) -> Iterator[HostCheck]:
    """Run a scripted session through the hook program, and report whether the user's rule came back."""
    found = rehearse(agent, lambda event: _command_for(agent, command, event))
    because = f" ({found.error})" if found.error else ""
    said = [f'{name}: "{words}" → {"returned" if back else "LOST"}' for name, words, back in found.returned]
    state: State = "ok" if found.works else "problem"
    yield HostCheck("compaction test", state, f"{'; '.join(said)}{'' if found.works else because}")
    if found.is_recorded:
        yield HostCheck("recording", "ok", "recall finds what the test session printed (in a temporary store)")
    else:
        yield HostCheck("recording", "problem", f"recall does not find what the test session printed{because}")


def _check_file(plan: HostPlan, file: HostFile, change: PlannedChange) -> HostCheck:
    """Check the entries of a file. Those of another installation of kompakt are no problem if they are complete."""
    agent = plan.agent
    path = file.path
    if not change.is_change:
        return HostCheck(change.note, "ok", f"{path}: entries present")
    found, wanted = file.entries(read_text(file.path)), file.entries((change.after or b"").decode())
    if found != wanted and _tasks(agent, found) == _tasks(agent, wanted):
        detail = f"{path}: entries of another installation of kompakt, which is checked below in place of this one"
        return HostCheck(change.note, "note", detail)
    detail = f"{path}: entries missing or outdated; to renew them: {plan.command}"
    return HostCheck(change.note, "problem", detail)


def _tasks(agent: str, entries: list[HostEntry]) -> list[tuple[str, str]]:
    """Return what the entries are for, without the path of the program. A plugin has more text than its commands."""
    if any(entry.kind == "plugin" for entry in entries):
        return [(entry.kind, entry.command) for entry in entries]
    return [
        (entry.kind, "" if entry.kind == "MCP server" else entry.command.rpartition(f" {agent} ")[2])
        for entry in entries
    ]


def _command_for(agent: str, command: str, event: str) -> str:
    """Return the command of a hook or status line with another event."""
    start, separator, rest = command.rpartition(f" {agent} ")
    return f"{start}{separator}{event}{rest.removeprefix(rest.split()[0])}"


def _check_hook(command: str) -> HostCheck:
    try:
        done = subprocess.run(command, shell=True, input=b"{}", capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HostCheck("hook program", "problem", f"no answer after {SECONDS} s: {command}")
    return _checked("hook program", command, done, done.stdout.decode(errors="replace").strip() == CHECKED)


def _check_server(command: str) -> HostCheck:
    sent = json.dumps(_INITIALIZE).encode() + b"\n"
    try:
        done = subprocess.run(command, shell=True, input=sent, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HostCheck("MCP server", "problem", f"no answer after {SECONDS} s: {command}")
    return _checked("MCP server", command, done, b'"serverInfo"' in done.stdout)


def _checked(what: str, command: str, done: subprocess.CompletedProcess[bytes], works: bool) -> HostCheck:
    """Report how a command that is configured in the agent ended."""
    if works:
        return HostCheck(what, "ok", f"{command} answers")
    program = _SHARED.match(command)
    if program is not None and shutil.which(program[1]) is None:
        detail = f"{program[1]} is not on PATH, so it does nothing; add {bin_folder()} to the PATH of your shell"
        return HostCheck(what, "problem", detail)
    error = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no answer"
    return HostCheck(what, "problem", f"configured as {command}, which ends with exit code {done.returncode}: {error}")


_SHARED = re.compile(rf"(?:command -v )?({re.escape(HOOK)}|kompakt)\s")
"""The start of a command of a project, which has no path of a machine."""


async def _check_store() -> HostCheck:
    url, name = places.store_url(), f"kompakt doctor {os.getpid()}"
    shown = places.shown_store(url)
    try:
        places.make_store_folder(url)
        async with await open_store(url) as store:
            session = await store.session(name)
            await session.append([{"role": "user", "content": "This message tests the store."}], format="anthropic")
            await session.delete()
    except (KompaktError, OSError) as error:
        return HostCheck("store", "problem", f"{shown}: {error}")
    return HostCheck("store", "ok", f"sessions are recorded in {shown}, which can be written")


def check_log() -> HostCheck:
    """Show the newest failure of a hook; an old one is no problem."""
    try:
        with open(places.log_file(), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    path = places.log_file()
    if not lines:
        return HostCheck("log of hooks", "ok", f"no failures so far; they are logged in {path}")
    return HostCheck("log of hooks", "note", f"{plural(len(lines), 'failure')} in {path}, the last: {lines[-1]}")

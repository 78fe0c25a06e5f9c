"""Check an installation in a coding agent: entries in its settings, the hook program, the MCP server and the store."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator

import msgspec

from kompakt.errors import KompaktError
from kompakt.hosts import places
from kompakt.hosts.hook import CHECKED
from kompakt.hosts.install import (
    HostEntry,
    HostFile,
    HostPlan,
    PlannedChange,
    has_recall,
    no_recall,
    plan_install,
    read_text,
)
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


class HostCheck(msgspec.Struct, frozen=True):
    """The result of one check."""

    what: str
    works: bool
    detail: str


def check_host(plan: HostPlan) -> Iterator[HostCheck]:
    """Check everything that an installation needs."""
    entries = [(file, entry) for file in plan.files for entry in file.entries(read_text(file.path))]
    for file, change in zip(plan.files, plan_install(plan), strict=True):
        yield _check_file(plan.agent, file, change)
    hooks = {_checked_command(plan.agent, entry.command) for _, entry in entries if entry.kind != "MCP server"}
    for command in sorted(hooks):
        yield _check_hook(command)
    servers = [entry.command for _, entry in entries if entry.kind == "MCP server"]
    for command in servers:
        yield _check_server(command)
    if not servers and not has_recall(plan.scope):
        yield HostCheck("MCP server", False, no_recall())
    yield asyncio.run(_check_store())
    yield _check_log()


def _check_file(agent: str, file: HostFile, change: PlannedChange) -> HostCheck:
    """Check the entries of a file. Those of another installation of kompakt are no problem if they are complete."""
    path = places.short_path(file.path)
    if not change.is_change:
        return HostCheck(change.note, True, f"{path}: entries present")
    found, wanted = file.entries(read_text(file.path)), file.entries((change.after or b"").decode())
    if found != wanted and _tasks(agent, found) == _tasks(agent, wanted):
        return HostCheck(change.note, True, f"{path}: entries of another installation of kompakt")
    return HostCheck(change.note, False, f"{path}: entries missing or outdated; run `kompakt install {agent}` again")


def _tasks(agent: str, entries: list[HostEntry]) -> list[tuple[str, str]]:
    """Return what the entries are for, without the path of the program. A plugin has more text than its commands."""
    if any(entry.kind == "plugin" for entry in entries):
        return [(entry.kind, entry.command) for entry in entries]
    return [
        (entry.kind, "" if entry.kind == "MCP server" else entry.command.rpartition(f" {agent} ")[2])
        for entry in entries
    ]


def _checked_command(agent: str, command: str) -> str:
    """Return the command of a hook or status line with the event ``check``."""
    start, separator, event = command.rpartition(f" {agent} ")
    return f"{start}{separator}check{event.removeprefix(event.split()[0])}"


def _check_hook(command: str) -> HostCheck:
    try:
        done = subprocess.run(command, shell=True, input=b"{}", capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HostCheck("hook program", False, f"no answer after {SECONDS} s: {command}")
    return _checked("hook program", command, done, done.stdout.decode(errors="replace").strip() == CHECKED)


def _check_server(command: str) -> HostCheck:
    sent = json.dumps(_INITIALIZE).encode() + b"\n"
    try:
        done = subprocess.run(command, shell=True, input=sent, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HostCheck("MCP server", False, f"no answer after {SECONDS} s: {command}")
    return _checked("MCP server", command, done, b'"serverInfo"' in done.stdout)


def _checked(what: str, command: str, done: subprocess.CompletedProcess[bytes], works: bool) -> HostCheck:
    """Report how a command that is configured in the agent ended."""
    if works:
        return HostCheck(what, True, f"answers: {command}")
    error = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no answer"
    return HostCheck(what, False, f"configured as {command}, which ends with exit code {done.returncode}: {error}")


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
        return HostCheck("store", False, f"{shown}: {error}")
    return HostCheck("store", True, f"{shown} can be written")


def _check_log() -> HostCheck:
    """Show the newest failure of a hook; an old one is no problem."""
    try:
        with open(places.log_file(), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    if not lines:
        return HostCheck("log of hooks", True, "no failures")
    return HostCheck("log of hooks", True, f"{len(lines)} failures in {places.log_file()}, the last: {lines[-1]}")

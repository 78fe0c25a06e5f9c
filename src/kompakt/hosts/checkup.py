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
from kompakt.hosts.install import HostPlan, has_recall, hook_command, mcp_command, no_recall, plan_install
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
    for change in plan_install(plan):
        detail = "entries missing or outdated; run `kompakt install` again" if change.is_change else "entries present"
        yield HostCheck(f"{change.note}", not change.is_change, f"{change.path}: {detail}")
    yield _check_hook(plan)
    if has_recall(plan.scope):
        yield _check_server(plan)
    else:
        yield HostCheck("MCP server", False, no_recall())
    yield asyncio.run(_check_store())
    yield _check_log()


def _check_hook(plan: HostPlan) -> HostCheck:
    command = hook_command(plan.agent, "check", plan.scope)
    try:
        done = subprocess.run(command, shell=True, input=b"{}", capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HostCheck("hook program", False, f"no answer after {SECONDS} s: {command}")
    works = done.stdout.decode(errors="replace").strip() == CHECKED
    error = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return HostCheck("hook program", works, command if works else f"exit {done.returncode}: {error or command}")


def _check_server(plan: HostPlan) -> HostCheck:
    command, sent = mcp_command(plan.scope), json.dumps(_INITIALIZE).encode() + b"\n"
    try:
        done = subprocess.run(command, input=sent, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return HostCheck("MCP server", False, f"{' '.join(command)}: {error}")
    works = b'"serverInfo"' in done.stdout
    error = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return HostCheck("MCP server", works, " ".join(command) if works else f"exit {done.returncode}: {error}")


async def _check_store() -> HostCheck:
    url, name = places.store_url(), f"kompakt doctor {os.getpid()}"
    shown = places.without_credentials(url)
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

"""``kompakt install``: install kompakt into a coding agent, or remove it. ``kompakt hook`` is what agents call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kompakt.cli.input import AsJson
from kompakt.cli.output import waiting
from kompakt.cli.store_options import plural
from kompakt.errors import UsageError, nearest
from kompakt.hosts import claude_code_settings, codex_settings, places, shim_settings
from kompakt.hosts import install as installation
from kompakt.hosts.install import HostPlan, PlannedChange, Scope
from kompakt.model.json import indented_json

if TYPE_CHECKING:
    from kompakt.hosts.erasure import ErasurePlan

PLANS: dict[str, Callable[[Scope, Path | None], HostPlan]] = {
    "claude-code": claude_code_settings.plan,
    "codex": codex_settings.plan,
    "opencode": shim_settings.opencode_plan,
    "pi": shim_settings.pi_plan,
}
"""Agents that kompakt can be installed into."""

AgentName = Annotated[str, typer.Argument(metavar="AGENT", help=f"Coding agent: {', '.join(PLANS)}.")]
Project = Annotated[bool, typer.Option("--project", help="Change the settings of this folder instead of your own.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
InstallDryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes; write nothing.")]
Undo = Annotated[bool, typer.Option("--undo", help="Remove kompakt and restore the files as they were.")]
Erase = Annotated[
    bool,
    typer.Option(
        "--erase", help="With --undo: also delete the recorded sessions of the agent, notes about them, and the log."
    ),
]


def plan_for(agent: str, *, project: bool = False) -> HostPlan:
    """Return what is installed for an agent.

    Raises:
        UsageError: the agent is unknown.
    """
    if agent not in PLANS:
        raise UsageError(f"unknown agent {agent!r}; {nearest(agent, PLANS)}")
    return PLANS[agent]("project" if project else "user", None)


def install(
    agent: AgentName,
    project: Project = False,
    yes: Yes = False,
    dry_run: InstallDryRun = False,
    undo: Undo = False,
    erase: Erase = False,
    as_json: AsJson = False,
) -> None:
    """Install kompakt into a coding agent, or remove it with --undo.

    Prints the changes as a diff and asks before it writes. The agent's sessions are then recorded, huge outputs are
    shortened with the original kept, and constraints and notes return after each compaction.

    \b
    Examples:
      kompakt install claude-code
      kompakt install codex --project --dry-run
      kompakt install claude-code --undo
      kompakt install claude-code --undo --erase
    """
    if erase and not undo:
        raise UsageError("--erase deletes recorded sessions and needs --undo: kompakt install AGENT --undo --erase")
    plan = plan_for(agent, project=project)
    erased = _plan_erasure(plan.agent) if erase else None
    changes = installation.plan_undo(plan) if undo else installation.plan_install(plan)
    needed = [change for change in changes if change.is_change]
    if not as_json:
        _show(needed, plan, undo=undo)
        if erased is not None:
            typer.echo(erased.summary, err=True)
    is_done = False
    if (needed or erased) and not dry_run:
        _confirm(agent, yes=yes, undo=undo, erase=bool(erased), as_json=as_json)
    if not dry_run and (needed or undo):
        (installation.undo if undo else installation.install)(plan, changes)
        is_done = bool(needed)
    if erased and not dry_run:
        _erase(erased)
    if as_json:
        report = _report(plan, needed, undo=undo, done=is_done)
        if erased is not None:
            report["erased"] = {"sessions": erased.sessions, "files": [str(path) for path in erased.files]}
        typer.echo(indented_json(report), nl=False)
        return
    if erased and not dry_run:
        typer.echo(f"erased {plural(erased.sessions, 'session')} and {plural(len(erased.files), 'file')}", err=True)
    if is_done:
        typer.echo(f"kompakt was {'removed from' if undo else 'installed into'} {agent}", err=True)
        if not undo:
            typer.echo(f"next: run kompakt doctor --client {agent}, then restart {agent}", err=True)
        if undo and not erase:
            store = places.shown_store(places.store_url())
            typer.echo(f"note: recorded sessions stay in {store}; --undo --erase deletes them", err=True)


def _show(needed: list[PlannedChange], plan: HostPlan, *, undo: bool) -> None:
    if not needed:
        typer.echo(f"nothing to do: kompakt is {'not' if undo else 'already'} installed in {plan.agent}", err=True)
    for change in needed:
        typer.echo(change.diff.encode("utf-8", "replace"), nl=False)
    for change in needed:  # below the diffs, which may be longer than the terminal
        path = places.short_path(change.path)
        typer.echo(f"{path}: {change.summary}{f' ({change.note})' if undo else ''}", err=True)
    for note in () if undo or not needed else plan.notes:
        typer.echo(f"note: {note}", err=True)


def _plan_erasure(agent: str) -> ErasurePlan:
    import asyncio  # late: `--help` does not need these

    from kompakt.hosts.erasure import plan_erasure

    return asyncio.run(plan_erasure(agent))


def _erase(plan: ErasurePlan) -> None:
    import asyncio

    from kompakt.hosts.erasure import erase

    with waiting("erasing"):
        asyncio.run(erase(plan))


def _report(plan: HostPlan, needed: list[PlannedChange], *, undo: bool, done: bool) -> dict[str, Any]:
    files = [
        {"path": str(change.path), "summary": change.summary, "note": change.note, "diff": change.diff}
        for change in needed
    ]
    action = "undo" if undo else "install"
    return {
        "agent": plan.agent,
        "scope": plan.scope,
        "action": action,
        "done": done,
        "files": files,
        "notes": plan.notes,
    }


def _confirm(agent: str, *, yes: bool, undo: bool, erase: bool, as_json: bool) -> None:
    """Ask for confirmation; without a terminal, require --yes."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError(f"pass --yes to {'remove kompakt from' if undo else 'install kompakt into'} {agent}")
    try:
        is_confirmed = typer.confirm(
            "Write these changes, and erase for good?" if erase else "Write these changes?", err=True
        )
    except typer.Abort:  # Ctrl-C at the prompt
        raise KeyboardInterrupt from None
    if not is_confirmed:
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


def hook(
    agent: Annotated[str, typer.Argument(metavar="AGENT")],
    event: Annotated[str, typer.Argument(metavar="EVENT")] = "",
) -> None:
    """Answer an event of a coding agent, with JSON on standard input. Agents call the faster `kompakt-hook`."""
    from kompakt.hosts.hook import main

    raise typer.Exit(main([agent, event]))

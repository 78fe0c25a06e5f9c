"""``kompakt install``: install kompakt into a coding agent, or remove it. ``kompakt hook`` is what agents call."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kompakt.cli.input import AsJson, spelled
from kompakt.cli.output import waiting, wrapped
from kompakt.errors import KompaktError, UnreadableFile, UsageError, did_you_mean, plural
from kompakt.hosts import claude_code_settings, codex_settings, places, shim_settings
from kompakt.hosts import install as installation
from kompakt.hosts.install import HostPlan, PlannedChange, Scope
from kompakt.model.json import indented_json
from kompakt.store import sqlite_path
from kompakt.version import own_program

if TYPE_CHECKING:
    from kompakt.hosts.erasure import ErasurePlan

PLANS: dict[str, Callable[[Scope, Path | None], HostPlan]] = {
    "claude-code": claude_code_settings.plan,
    "codex": codex_settings.plan,
    "opencode": shim_settings.opencode_plan,
    "pi": shim_settings.pi_plan,
}
"""Agents that kompakt can be installed into."""

ALIASES = {"claude": "claude-code"}
"""Other names of agents."""

WHERE: dict[Scope, str] = {"user": "your own settings", "project": "the settings of this folder"}
"""How a scope is named to people."""

AgentName = Annotated[
    str,
    typer.Argument(
        metavar="AGENT",
        show_default=False,
        help=f"Coding agent: {', '.join(PLANS)}; claude means claude-code.",
    ),
]
Project = Annotated[bool, typer.Option("--project", help="Change the settings of this folder instead of your own.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
InstallDryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes as a diff; write nothing.")]
Undo = Annotated[bool, typer.Option("--undo", help="Remove kompakt and restore the files as they were.")]
Erase = Annotated[
    bool,
    typer.Option(
        "--erase",
        help="With --undo: also delete the recorded sessions of the agent, notes about them, the log, and the default "
        "store if it is then empty.",
    ),
]


def plan_for(agent: str, *, project: bool = False) -> HostPlan:
    """Return what is installed for an agent; the project is that of the working directory.

    Raises:
        FileNotFoundError: the working directory was deleted.
        UsageError: the agent is unknown.
    """
    name = spelled(agent)
    name = ALIASES.get(name, name)
    if name not in PLANS:
        close = did_you_mean(name, [*PLANS, *ALIASES])
        raise UsageError(f"there is no plugin for {agent!r}; {close}kompakt has plugins for {', '.join(PLANS)}")
    return PLANS[name]("project" if project else "user", Path.cwd())


class InstalledScopes(NamedTuple):
    """Where kompakt is installed in an agent."""

    plans: list[HostPlan]
    unreadable: dict[Scope, str]
    """The scopes with settings that cannot be read, and why."""


def installed_scopes(agent: str) -> InstalledScopes:
    """Find the scopes in which kompakt is installed in an agent; here the project is that of the current folder."""
    found = InstalledScopes([], {})
    seen: set[Path] = set()  # in the home folder both scopes have the same settings file
    for scope in WHERE:
        try:
            plan = plan_for(agent, project=scope == "project")
            changes = installation.plan_undo(plan)
        except (UnreadableFile, UsageError) as error:
            if str(error) not in found.unreadable.values():
                found.unreadable[scope] = str(error)
            continue
        if any(change.path not in seen for change in changes):
            found.plans.append(plan)
        seen |= {file.path for file in plan.files}
    return found


def install(
    agent: AgentName = "",
    project: Project = False,
    yes: Yes = False,
    dry_run: InstallDryRun = False,
    undo: Undo = False,
    erase: Erase = False,
    as_json: AsJson = False,
) -> None:
    """Install kompakt into a coding agent, or remove it with --undo.

    Lists the changes and asks before it writes; --dry-run shows them line by line. The agent's sessions are then
    recorded, huge outputs are shortened with the original kept, and your rules return after each compaction.

    \b
    Examples:
      kompakt install claude-code
      kompakt install codex --project --dry-run
      kompakt install claude-code --undo
      kompakt install claude-code --undo --erase
    """
    if not agent:
        raise UsageError(f"name a coding agent: {', '.join(PLANS)}; for example: {own_program()} install claude-code")
    if erase and not undo:
        command = f"{own_program()} install {plan_for(agent).agent} --undo --erase"
        raise UsageError(f"--erase deletes recorded sessions and needs --undo: {command}")
    plan = plan_for(agent, project=project)
    erased = _plan_erasure(plan.agent) if erase else None
    changes = installation.plan_undo(plan) if undo else installation.plan_install(plan)
    needed = [change for change in changes if change.is_change]
    if not as_json:
        _show(needed, plan, undo=undo, dry_run=dry_run)
        if erased is not None:
            _say(*erased.lines("would erase" if dry_run else "erases"))
        if dry_run and (needed or erased):
            _say("dry run: nothing was changed")
    is_done = is_store_deleted = False
    if (needed or erased) and not dry_run:
        _confirm(plan, needed, yes=yes, undo=undo, erase=bool(erased), as_json=as_json)
    try:
        if not dry_run and (needed or undo):
            (installation.undo if undo else installation.install)(plan, changes)
            is_done = bool(needed)
        if erased and not dry_run:
            is_store_deleted = _erase(erased)
    except KeyboardInterrupt:
        done = _done_before_interruption(plan, needed, erased) if undo else []
        if not done:
            raise
        _say(f"kompakt: interrupted; {'; '.join(done)}; run the command again to finish")
        raise typer.Exit(130) from None
    notes = [] if undo else [*_recorded(plan), *plan.notes]
    if undo and not (dry_run and needed):
        notes += _elsewhere(plan)
    if undo and not (dry_run or erase):
        notes += _left(plan)
    if as_json:
        report = _report(needed, plan, notes, undo=undo, done=is_done or bool(erased and not dry_run))
        if erased is not None:
            report["erased"] = {
                "sessions": erased.sessions,
                "files": [str(path) for path in erased.files],
                "store": str(erased.store_file) if is_store_deleted or (dry_run and erased.store_file) else None,
            }
        typer.echo(indented_json(report), nl=False)
        return
    if erased and not dry_run:
        _say(f"erased {plural(erased.sessions, 'session')} and {plural(len(erased.files), 'file')}")
        if erased.store_file is not None:
            stays = "stays, because another program uses it or recorded a new session"
            _say(f"{erased.store}: {'deleted' if is_store_deleted else stays}")
    if is_done:
        _say_done(plan, undo=undo)
    if undo:  # those of an installation are shown before the question
        _say(*(f"note: {note}" for note in notes))


def _say(*texts: str) -> None:
    for text in texts:
        typer.echo(wrapped(text), err=True)


def _done_before_interruption(plan: HostPlan, needed: list[PlannedChange], erased: ErasurePlan | None) -> list[str]:
    """Return what was changed, read from the files and the store."""
    done: list[str] = []
    if needed and all(change.is_written for change in needed):
        done.append(f"kompakt was removed from {plan.agent} ({WHERE[plan.scope]})")
    if not erased:
        return done
    files = sum(not path.exists() for path in erased.files)
    if files:
        done.append(f"{files:,} of {plural(len(erased.files), 'file')} erased")
    try:
        sessions = erased.sessions - _plan_erasure(plan.agent).sessions
    except KompaktError:
        return [*done, f"whether sessions in {erased.store} were erased is not known, because it cannot be read now"]
    if sessions:
        done.append(f"{sessions:,} of {plural(erased.sessions, 'session')} erased")
    return done


def _say_done(plan: HostPlan, *, undo: bool) -> None:
    if undo:
        _say(f"kompakt was removed from {plan.agent} ({WHERE[plan.scope]})")
        return
    _say(f"kompakt was installed into {plan.agent} ({WHERE[plan.scope]})")
    _say(f"next, test it: {own_program()} doctor --client {plan.agent}", f"then restart {plan.agent}")


def _left(plan: HostPlan) -> list[str]:
    """Return what is left of a removed plugin: its recorded sessions, or the default store without any sessions."""
    store = places.shown_store(places.store_url())
    erasing = f"{own_program()} install {plan.agent} --undo --erase"
    try:
        erasable = _plan_erasure(plan.agent)
    except KompaktError as error:  # the plugin is removed even if its store cannot be read
        return [f"recorded sessions may be left in {store}, which cannot be read: {error}"]
    if sessions := erasable.sessions:
        pronoun = "it" if sessions == 1 else "them"
        stay = f"{plural(sessions, 'recorded session')} of {plan.agent} {'stays' if sessions == 1 else 'stay'}"
        return [f"{stay} in {store}; to delete {pronoun}: {erasing}"]
    if erasable.store_file is None:
        return []
    return [f"the store {store} stays; it has no sessions; to delete it: {erasing}"]


def _elsewhere(plan: HostPlan) -> list[str]:
    """Return where else kompakt is, or may be, installed in the same agent, and how to remove it there."""
    found = installed_scopes(plan.agent)
    removable = [
        f"{plan.agent} still has the plugin in {WHERE[other.scope]}; to remove it: {other.command} --undo"
        for other in found.plans
        if other.scope != plan.scope
    ]
    unknown = [
        f"{plan.agent} may still have the plugin in {WHERE[scope]}, which cannot be read: {error}"
        for scope, error in found.unreadable.items()
        if scope != plan.scope
    ]
    return [*removable, *unknown]


def _show(needed: list[PlannedChange], plan: HostPlan, *, undo: bool, dry_run: bool) -> None:
    if not needed:
        _say(f"nothing to do: {plan.agent} has {'no' if undo else 'the'} plugin in {WHERE[plan.scope]}")
    for change in needed if dry_run else ():
        _show_diff(change)
    for change in needed:  # below the diffs, which may be longer than the terminal
        said = f"{change.summary}{f' ({change.note})' if undo else ''}"
        _say(f"{change.path}: {_would(said) if dry_run else said}")
    _say(*(f"note: {note}" for note in (() if undo or not needed else (*_recorded(plan), *plan.notes))))


def _would(said: str) -> str:
    """Return what an installation does in the words of a dry run: "would add 7 hooks" for "adds 7 hooks"."""
    verbs = re.sub(r"(^|, )(add|update|remove|change)s ", r"\1\2 ", said)
    return f"would {verbs}".replace("will be", "would be")


def _recorded(plan: HostPlan) -> list[str]:
    """Return what the plugin will write, and where, for a person who has not decided yet."""
    url = places.store_url()
    is_local = sqlite_path(url) is not None
    here = " Nothing is sent anywhere, and only your user can read the files." if is_local else ""
    return [
        f"Once it is installed, kompakt records the sessions of {plan.agent} as a whole, with any secrets in them, in "
        f"{places.shown_store(url)}.{here}",
        f"Failures of the plugin are logged in {places.log_file()}. A copy of your settings, for --undo, is beside it.",
    ]


def _show_diff(change: PlannedChange) -> None:
    typer.echo(change.diff.encode("utf-8", "replace"), nl=False)
    if change.is_shown_indented:
        _say(f"note: {change.path} has long lines; they are shown with line breaks and stay as long")


def _plan_erasure(agent: str) -> ErasurePlan:
    import asyncio  # late: `--help` does not need these

    from kompakt.hosts.erasure import plan_erasure

    return asyncio.run(plan_erasure(agent))


def _erase(plan: ErasurePlan) -> bool:
    import asyncio

    from kompakt.hosts.erasure import erase

    with waiting("erasing"):
        return asyncio.run(erase(plan))


def _report(needed: list[PlannedChange], plan: HostPlan, notes: list[str], *, undo: bool, done: bool) -> dict[str, Any]:
    files = [
        {"path": str(change.path), "summary": change.summary, "note": change.note, "diff": change.diff}
        for change in needed
    ]
    return {
        "agent": plan.agent,
        "scope": plan.scope,
        "action": "undo" if undo else "install",
        "done": done,
        "files": files,
        "notes": notes,
    }


def _confirm(plan: HostPlan, needed: list[PlannedChange], *, yes: bool, undo: bool, erase: bool, as_json: bool) -> None:
    """Ask for confirmation, and show the diff on request; without a terminal, require --yes."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError(f"pass --yes to {'remove kompakt from' if undo else 'install kompakt into'} {plan.agent}")
    question = "Remove?" if undo else "Install?"
    if erase:
        question = "Remove, and erase for good?" if needed else "Erase for good?"
    choices = "[y]es, [N]o, [d]iff" if needed else "[y]es, [N]o"
    while True:
        try:
            answer = typer.prompt(f"{question} {choices}", default="n", show_default=False, err=True).strip().lower()
        except typer.Abort:  # Ctrl-C at the prompt
            raise KeyboardInterrupt from None
        if answer in ("y", "yes"):
            return
        if answer in ("n", "no"):
            typer.echo("nothing was changed", err=True)
            raise typer.Exit(1)
        if answer in ("d", "diff") and needed:
            for change in needed:
                _show_diff(change)
        else:
            typer.echo(f"please answer y{', n or d' if needed else ' or n'}", err=True)


def hook(
    agent: Annotated[str, typer.Argument(metavar="AGENT")],
    event: Annotated[str, typer.Argument(metavar="EVENT")] = "",
) -> None:
    """Answer an event of a coding agent, with JSON on standard input. Agents call the faster `kompakt-hook`."""
    from kompakt.hosts.hook import main

    raise typer.Exit(main([agent, event]))

"""Arguments and options that several commands share, and how FILE is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from kompakt.api import check, parse, parse_any, repair
from kompakt.cli.output import MANY_BYTES, waiting
from kompakt.errors import InputError, UsageError, plural
from kompakt.files import Loaded, load
from kompakt.model.messages import History
from kompakt.wire.wire import Problem


def spelled(agent: str) -> str:
    """Return the name of an agent as options spell it: ``Claude Code`` is ``claude-code``."""
    return re.sub(r"[\s_]+", "-", agent.strip().lower())


def option(name: str, metavar: str, help: str, **rest: Any) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=help, **rest)


def folder(name: str, metavar: str, help: str) -> Any:
    """Declare an option for a folder that has to exist."""
    return option(name, metavar, help, exists=True, file_okay=False)


File: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A request body, a list of messages, or a transcript of Claude Code, Codex, opencode, pi, Gemini CLI, "
        "OpenHands, SWE-agent or tau-bench; - reads standard input.",
    ),
]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Input format: openai-chat, openai-responses, anthropic, gemini or bedrock. Default: detected.",
    ),
]
SessionName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="NAME",
        help="Session of a file that has several, by name or number. Default: the first. FILE#NAME does the same.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Strict: TypeAlias = Annotated[
    bool,
    typer.Option("--strict", help="Also apply the rules of compatible servers such as Mistral, DeepSeek and vLLM."),
]
Budget: TypeAlias = Annotated[
    int | None,
    option(
        "budget",
        "N",
        "Token budget. About two thirds of it are used right after a compaction, more if few steps fit. Default: that "
        "of the model, of which about half is used.",
        min=1,
        envvar="KOMPAKT_BUDGET",
    ),
]
ModelName: TypeAlias = Annotated[
    str | None, option("model", "M", "Count tokens as this model does.", envvar="KOMPAKT_MODEL")
]
PolicyName: TypeAlias = Annotated[
    str,
    option(
        "policy",
        "P",
        "Compaction policy: default, conservative, aggressive, window, or one from kompakt.toml.",
        envvar="KOMPAKT_POLICY",
    ),
]
Out: TypeAlias = Annotated[
    str | None,
    typer.Option("-o", "--out", metavar="OUT", help="Write the result to this file instead of standard output."),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show the actions, the summary and the costs; write no result.")
]


def read_history(
    file: str, format: str | None, session: str | None = None, *, ignores_sides: bool = True
) -> tuple[History, Loaded]:
    """Read a file into a history without repairing it. What is skipped is reported on standard error."""
    loaded = open_file(file, format, session)
    transcript = loaded.transcript
    if transcript is not None:
        for skipped in transcript.skipped:
            typer.echo(f"{loaded.name}: line {skipped.line}: skipped: {skipped.reason}", err=True)
        if transcript.sidechains and ignores_sides:
            typer.echo(f"{loaded.name}: {plural(len(transcript.sidechains), 'side chain')} ignored", err=True)
    return loaded.payload, loaded


def open_file(file: str, format: str | None, session: str | None = None) -> Loaded:
    """Read a file; the payload is a ``History``. Which session was read and what was skipped is reported.

    Raises:
        InputError: the file contains no history. The message names the file.
        UsageError: the file is a transcript, and its messages have another format.
    """
    loaded = load_session(file, session)
    if loaded.transcript is not None:
        if format not in (None, loaded.format):
            kind = loaded.transcript.kind
            raise UsageError(f"{loaded.name}: a transcript of {kind}, in the format {loaded.format!r}, not {format!r}")
        return loaded
    try:
        return Loaded(loaded.name, parse_any(loaded.payload, format))
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def load_session(file: str, session: str | None = None) -> Loaded:
    """Read a file, or one of its sessions. Which session was read and what was skipped is reported.

    Raises:
        UnreadableFile: the file contains no history, or no such session. The message names the file.
    """
    path = Path(file.partition("#")[0])
    with waiting(f"reading {file}", when=path.is_file() and path.stat().st_size >= MANY_BYTES):
        loaded = load(file if session is None else f"{file}#{session}")
    transcript = loaded.transcript
    if transcript is None:
        return loaded
    if loaded.sessions and session is None and file == loaded.name:
        other = loaded.sessions[-1]
        typer.echo(
            f"{loaded.name}: {len(loaded.sessions)} sessions; reading {transcript.name}; "
            f"select another with --session {other}",
            err=True,
        )
    if transcript.left_out:
        kinds = sorted(transcript.left_out.items(), key=lambda entry: (-entry[1], entry[0]))
        named = ", ".join(f"{number:,} {kind}" for kind, number in kinds)
        typer.echo(
            f"{loaded.name}: skipped {sum(transcript.left_out.values()):,} records without a message: {named}", err=True
        )
    return loaded


def skipped_records(loaded: Loaded) -> dict[str, dict[str, int]]:
    """Return the entry of a JSON report that counts the skipped records of a transcript by type."""
    return {"skipped_records": loaded.transcript.left_out} if loaded.transcript is not None else {}


def open_history(file: str, format: str | None, session: str | None = None) -> tuple[History, Loaded]:
    """Read a file into a history. The open calls of a transcript are closed, as the next request would do."""
    history, loaded = read_history(file, format, session)
    if loaded.transcript is None:
        return history, loaded
    try:
        repaired = repair(history, resting=True)
        if not repaired.changes:
            return history, loaded
        for change in repaired.changes:
            typer.echo(f"{loaded.name}: repaired: {change}", err=True)
        return parse(repaired.payload, loaded.format), loaded
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def problems_of(loaded: Loaded, *, strict: bool = False) -> list[Problem]:
    """Return the problems of a file: those of its history and, for a transcript, those of its lines."""
    transcript = loaded.transcript
    found = check(loaded.payload, strict=strict, resting=transcript is not None)
    return found if transcript is None else transcript.with_problems(found)


def check_out(loaded: Loaded, file: str, out: str | None) -> None:
    """Refuse to overwrite the input transcript, which is the only copy.

    Raises:
        UsageError: OUT is the transcript.
    """
    if loaded.transcript is None or out is None or "-" in (out, file):
        return
    if Path(out).resolve() == Path(loaded.name).resolve():
        raise UsageError(f"-o {out} is the transcript itself and would be overwritten; name another file")

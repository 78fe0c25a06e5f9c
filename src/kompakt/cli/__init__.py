"""The command line: data on standard output, everything else on standard error.

Exit codes: 0 success, 1 problems found, 2 wrong usage or unreadable input, 3 does not fit. ``commands.py`` registers
the commands. This module starts them and prints errors without a traceback. It imports little, because importing all
commands takes a third of a second.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kompakt.errors import DoesNotFit, KompaktError
from kompakt.version import install_command

if TYPE_CHECKING:
    from kompakt.cli.commands import app

__all__ = ["app", "main"]

QUICK = {"mcp": "kompakt.cli.mcp"}
"""Commands that another program starts and waits for. Their module has an ``app`` with only this command."""


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("kompakt.cli.commands").app


def main() -> None:
    """Run the command line. Errors are printed as one line, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # histories may contain lone surrogates
    warnings.formatwarning = _warning
    try:
        _run()
    except DoesNotFit as error:
        _report(error)
        raise SystemExit(3) from None
    except KompaktError as error:
        _report(error)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader has closed the pipe. Redirect stdout, so that the flush at exit does not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # during the imports; later the commands handle it
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kompakt"):
            raise
        _report(_missing(error.name))
        raise SystemExit(2) from None
    except OSError as error:
        _report(_failed(error))
        raise SystemExit(2) from None


def _run() -> None:
    from kompakt.cli import config  # late: `import kompakt.cli` alone needs nothing

    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in QUICK and config.find() is None:  # with a file, its settings are checked against all commands
        import_module(QUICK[name]).app(sys.argv[2:], prog_name=f"kompakt {name}")
    else:
        import_module("kompakt.cli.commands").app(prog_name="kompakt")


def _failed(error: OSError) -> str:
    """Return what could not be read or written; without a file name it is the working directory or the output."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if error.filename is None:
            return "the working directory does not exist any more; start the command in another one"
    name = error.filename
    where = os.fsdecode(name) if isinstance(name, str | bytes) else "cannot write the output"
    return f"{where}: {error.strerror or error}"


def _warning(message: Warning | str, *_: object) -> str:
    """Print a warning as one line, without the source line that caused it."""
    return f"kompakt: warning: {message}\n"


def _missing(module: str) -> str:
    """Return which package is missing and the extra that installs it."""
    from kompakt.cli.doctor import CORE, EXTRAS  # late: only needed for this error

    package = module.partition(".")[0].replace("_", "-")
    if package in CORE:
        return f"{package} is not installed; install it with: {install_command()}"
    extra = EXTRAS.get(package, "all")
    return f"this command needs {package}; install it with: {install_command(extra)}"


def _report(error: object) -> None:
    text = f"kompakt: {error}"
    if sys.stderr.isatty():
        from kompakt.cli.output import wrapped  # late: only errors in a terminal need it

        text = wrapped(text)
    print(text, file=sys.stderr)  # noqa: T201

"""Run the command line in a separate process with its own standard streams.

Importing the package takes most of the time of a short command. So each command is a fork of one process that has
imported it already: environment, working directory, streams and exit code are its own, as in a new process.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

SOURCE = str(Path(__file__).parent.parent.parent / "src")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH")))), "COLUMNS": "200"}


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path, input: bytes | None = None, cwd: Path | None = None) -> Outcome:
    """Run ``kompakt`` and wait for it."""
    environment = {**os.environ, **ENVIRONMENT}
    given = (list(map(str, arguments)), input or b"", str(cwd or Path.cwd()), environment)
    server = _server(os.getpid())
    assert server.stdin is not None and server.stdout is not None
    pickle.dump(given, server.stdin)
    server.stdin.flush()
    code, out, err = pickle.load(server.stdout)
    return Outcome(code, out.decode(), err.decode())


@cache
def _server(owner: int) -> subprocess.Popen[bytes]:
    """Start the process that forks; ``owner`` is the process that talks to it."""
    del owner
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT},
    )
    atexit.register(server.kill)
    return server


def _serve() -> None:
    """Fork a process for each command; the fork returns from here and runs it."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            arguments, input, folder, environment = pickle.load(requests)
        except EOFError:
            os._exit(0)
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(input)
            given.seek(0)
            child = os.fork()
            if child == 0:
                for stream, number in ((given, 0), (out, 1), (err, 2)):
                    os.dup2(stream.fileno(), number)
                break
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            answer: list[Any] = [code]
            for stream in (out, err):
                stream.seek(0)
                answer.append(stream.read())
        pickle.dump(answer, answers)
        answers.flush()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["kompakt", *arguments]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115


if __name__ == "__main__":
    sys.path[0] = ""  # not the folder of this file, which has modules of the same names as the standard library
    from kompakt.cli import main
    from kompakt.cli.commands import COMMANDS
    from kompakt.model.tokens import vocabulary

    for _name, _entry in COMMANDS.items():
        _entry.load(_name)
    vocabulary("o200k")
    _serve()
    main()

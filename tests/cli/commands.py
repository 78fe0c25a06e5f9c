"""Run the command line in a separate process with its own standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = str(Path(__file__).parent.parent.parent / "src")


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path, input: bytes | None = None, cwd: Path | None = None) -> Outcome:
    """Run ``kompakt`` and wait for it."""
    found = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (SOURCE, found))), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "kompakt", *map(str, arguments)],
        input=input if input is not None else b"",
        capture_output=True,
        cwd=cwd,
        env=environment,
        timeout=240,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

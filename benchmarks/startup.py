"""Start-up time of `import kompakt`, `kompakt --help` and `kompakt mcp`, including the start of the interpreter.

Byte code is written to a temporary folder, so the result does not depend on the environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.measurement import Row, Spread, row, seconds, spread

RUNS = 10
SOURCE = Path(__file__).parent.parent / "src"


@cache
def _environment() -> dict[str, str]:
    byte_code = tempfile.mkdtemp(prefix="kompakt-bench-")
    atexit.register(shutil.rmtree, byte_code, ignore_errors=True)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": byte_code}


def _run(code: str) -> float:
    environment = _environment()
    command = [sys.executable, "-c", code]
    with tempfile.TemporaryFile() as nowhere:
        return seconds(lambda: subprocess.run(command, check=True, env=environment, stdout=nowhere)) * 1000


def _repeat(code: str) -> Spread:
    _run(code)  # writes the byte code
    return spread(_run(code) for _ in range(RUNS))


def track_interpreter() -> Spread:
    """Start Python and do nothing."""
    return _repeat("pass")


def track_import() -> Spread:
    """Start Python and import kompakt."""
    return _repeat("import kompakt")


def track_help() -> Spread:
    """Run `kompakt --help`."""
    return _repeat("import sys; from kompakt.cli import main; sys.argv = ['kompakt', '--help']; main()")


def track_mcp() -> Spread:
    """Start `kompakt mcp` as a client does, and wait for its first answer."""
    command = [sys.executable, "-m", "kompakt", "mcp"]
    hello = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'

    def answer() -> None:
        server = subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(hello)
        server.stdin.flush()
        server.stdout.readline()
        server.kill()
        server.communicate()

    answer()  # writes the byte code
    return spread(seconds(answer) * 1000 for _ in range(RUNS))


def track_mcp_library() -> Spread:
    """Import the MCP library."""
    return _repeat("import mcp.server.lowlevel, mcp.server.stdio")


def track_typer_help() -> Spread:
    """Run `--help` of an empty Typer application."""
    code = (
        "import sys, typer; app = typer.Typer(rich_markup_mode=None, add_completion=False); app.command()(lambda: None)"
    )
    return _repeat(f"{code}; sys.argv = ['empty', '--help']; app()")


def measure() -> list[Row]:
    """Measure the area."""
    return [
        row("python -c pass", track_interpreter(), "ms", peer=True),
        row("python -c 'import kompakt'", track_import(), "ms", at_most=150),
        row("kompakt --help", track_help(), "ms", at_most=300),
        row("--help of an empty Typer application", track_typer_help(), "ms", peer=True),
        row("first answer of kompakt mcp", track_mcp(), "ms", at_most=1_000),
        row("import of the MCP library", track_mcp_library(), "ms", peer=True),
    ]

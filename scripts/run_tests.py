#!/usr/bin/env python3
"""Run everything that `make test` runs: pytest, and beside it the suites of the frameworks and the packaging test.

    run_tests.py FRAMEWORK...

The output of the other scripts is shown when pytest is done. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
PYTEST = ("-m", "pytest", "-n", "2", "--dist", "loadgroup")


def main(frameworks: list[str]) -> int:
    """Run everything; return 1 if something failed."""
    scripts = [("scripts/test_integrations.py", *frameworks), ("scripts/test_packaging.py", "--fast")]
    with tempfile.TemporaryFile() as output, ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: [run(script, output) for script in scripts])
        codes = [run(PYTEST), *beside.result()]
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    return int(any(codes))


def run(arguments: tuple[str, ...], output: IO[bytes] | None = None) -> int:
    """Run Python with these arguments; return its exit code."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=output, stderr=output, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Test the framework adapters, each in a virtual environment of its own, because frameworks pin each other's libraries.

    test_integrations.py                   all frameworks
    test_integrations.py langchain litellm only these
    test_integrations.py --rebuild NAME    install again

An environment has kompakt from this repository and the versions of tests/integrations/requirements/NAME.txt. It is
built once and again when one of the files it depends on changes. The tests are tests/integrations/suite_NAME.py; then
pyright checks the adapter against the framework's own types.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "tests" / "integrations" / "requirements"
ENVIRONMENTS = ROOT / ".venv-integrations"
TOOLS = ("pytest", "pytest-timeout")


def main() -> int:
    """Run the chosen suites; return 1 if one fails."""
    names = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description="Test the framework adapters, each in its own environment.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"frameworks; default: all ({', '.join(names)})")
    parser.add_argument("--rebuild", action="store_true", help="install the frameworks again")
    options = parser.parse_args()
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"unknown framework {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    outcomes = {name: test(name, rebuild=options.rebuild) for name in options.names or names}
    for name, problem in outcomes.items():
        sys.stdout.write(f"{name:16} {problem or 'passed'}\n")
    return int(any(outcomes.values()))


def test(name: str, *, rebuild: bool) -> str | None:
    """Run one suite; return what failed."""
    began = time.monotonic()
    sys.stdout.write(f"--- {name}\n")
    sys.stdout.flush()
    python = environment(name, rebuild=rebuild)
    if python is None:
        return "installation failed"
    # No cache and no conftest of the other tests: they need the development dependencies. Frameworks deprecate a lot.
    suite = [python, "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir=tests/integrations", "-W", "ignore"]
    if subprocess.run([*suite, f"tests/integrations/suite_{name}.py"], cwd=ROOT, check=False).returncode:
        return "tests failed"
    types = ["pyright", "--pythonpath", python, f"src/kompakt/integrations/{name}.py"]
    if subprocess.run([sys.executable, "-m", *types], cwd=ROOT, check=False).returncode:
        return "type check failed"
    sys.stdout.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    return None


def environment(name: str, *, rebuild: bool) -> str | None:
    """Return the interpreter of an environment, after installing what changed; ``None`` if that failed."""
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = REQUIREMENTS / f"{name}.txt"
    sources = (wanted, ROOT / "pyproject.toml")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    if not rebuild and stamp.exists() and stamp.read_text() == digest:
        return str(python)
    sys.stdout.write(f"installing {name} …\n")
    sys.stdout.flush()
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    if subprocess.run([*pip, "-r", str(wanted), *TOOLS, "-e", str(ROOT)], cwd=ROOT, check=False).returncode:
        return None
    stamp.write_text(digest)
    return str(python)


if __name__ == "__main__":
    sys.exit(main())

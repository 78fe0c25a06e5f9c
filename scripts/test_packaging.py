"""Build wheel and sdist, install the wheel into empty environments, and try it there.

Usage: python scripts/test_packaging.py [--fast] [--record] [--python PATH]... [EXTRA]...

Without EXTRA, every extra in pyproject.toml is installed, each into its own environment; "none" is the installation
without extras. --python names other interpreters than this one. --fast builds the wheel only, and tries it with the
packages of this environment. --record writes the outcomes to benchmarks/results/packaging.json, and keeps those of
other interpreters and extras there. Extras that cannot be installed here are reported and do not fail the run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

RESULTS = ROOT / "benchmarks/results/packaging.json"

WORKS = "works"

META = ("all", "dev", "bench")
"""Extras that are collections of packages for development."""

FRAMEWORKS = {
    path.stem.replace("_", "-"): path.stem for path in sorted((ROOT / "src/kompakt/integrations").glob("[a-z]*.py"))
}
"""Extras with the modules that need them."""

WANTED = ("Summary", "License-Expression", "Author", "Keywords", "Requires-Python", "Description-Content-Type")
"""Metadata that every distribution has."""

MACHINE = re.compile(r"/(?:home|root|work|tmp|Users)/")

KEY = "a" * 64

BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]}

MISSING: dict[str, list[tuple[str, ...]]] = {
    "gateway": [("serve", "--port", "0"), ("serve", "--make-key", "acme")],
    "mcp": [("mcp",)],
    "postgres": [("session", "list", "--store", "postgresql://127.0.0.1:1/x")],
    "redis": [("session", "list", "--store", "redis://127.0.0.1:1")],
    "encryption": [("session", "import", "request.json", "--key-file", "key")],
    "inspector": [("inspect", "request.json", "--no-browser")],
    "fleet": [("fleet", "check", ".", "--out", "checked")],
}
"""Commands that need an extra: without it they exit with 2 and name it."""

PRESENT: dict[str, list[tuple[tuple[str, ...], int, str]]] = {
    "gateway": [(("demo",), 0, "kompakt serve"), (("serve", "--make-key", "acme"), 0, "acme")],
    "mcp": [(("mcp", "--show", "--transcript", "request.json"), 0, "1 message")],
    "postgres": [(("session", "list", "--store", "postgresql://127.0.0.1:1/x"), 2, "cannot be reached")],
    "redis": [(("session", "list", "--store", "redis://127.0.0.1:1"), 2, "cannot be reached")],
    "encryption": [(("session", "import", "request.json", "--key-file", "key"), 0, "request-")],
    "inspector": [(("inspect", "request.json", "--html", "session.html"), 0, "session.html written")],
    "fleet": [(("fleet", "check", "request.json", "--out", "checked"), 0, "1 row")],
}
"""Commands that work with an extra: arguments, exit code, and text of the output."""

IMPORTS = {
    "telemetry": "import opentelemetry.trace",
    "agent": "import kompakt; kompakt.OpenAIChat('gpt-5', api_key='x'); kompakt.AnthropicMessages('m', api_key='x')",
    "evals": "import matplotlib; import kompakt.evals.run",
    "tui": "import textual; import kompakt.inspector.terminal",
    "fleet": "import pyarrow; import ray.data; import kompakt.fleet.ray_engine",
    "docs": "import material; import mkdocs; import yaml; import zensical",
    "recall": "import wordllama",
    **{extra: f"import kompakt.integrations.{module}" for extra, module in FRAMEWORKS.items()},
}
"""Code that works with an extra."""


class Failed(Exception):
    """Something that the package should do and does not."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    chosen = parser.parse_args()
    known = ["none", *(name for name in PROJECT["optional-dependencies"] if name not in META)]
    unknown = set(chosen.extras) - set(known)
    if unknown:
        parser.error(f"unknown extras: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="kompakt-package-") as folder:
        try:
            if chosen.fast:
                return run_fast(Path(folder))
            pythons = chosen.python or [sys.executable]
            return run(Path(folder), chosen.extras or known, pythons, record=chosen.record)
        except Failed as error:
            print(f"FAILED: {error}")
            return 1


def run_fast(folder: Path) -> int:
    wheel = build_wheel(ROOT, folder / "dist")
    check_wheel(wheel)
    target = folder / "target"
    pip(sys.executable, "install", "--no-deps", "--target", str(target), str(wheel))
    environment = {"PYTHONPATH": str(target)}
    try_out([sys.executable, "-P", "-m", "kompakt"], folder / "work", environment, extra=None)
    print("the wheel works")
    return 0


def run(folder: Path, extras: list[str], pythons: list[str], *, record: bool) -> int:
    wheel, sdist = build_wheel(ROOT, folder / "dist"), build_sdist(folder / "builder", folder / "dist")
    check_wheel(wheel)
    compare(wheel, build_wheel(sdist, folder / "from-sdist"))
    skipped, failed = list[str](), list[str]()
    for python in pythons:
        version = output([python, "-c", "import platform; print(platform.python_version())"]).strip()
        for extra in extras:
            began = time.monotonic()
            place = folder / f"env-{version}-{extra}"
            try:
                reason = try_extra(place, python, wheel, extra)
                outcome = "cannot be installed" if reason else WORKS
                if reason:
                    skipped.append(f"{extra} on Python {version}")
            except Failed as error:
                reason, outcome = f"FAILED: {error}", "fails"
                failed.append(f"{extra} on Python {version}")
            print(f"Python {version}, {extra:<16} {reason or WORKS} ({time.monotonic() - began:.0f} s)", flush=True)
            if record:
                record_outcome(extra, version, outcome)
            shutil.rmtree(place)  # some extras need gigabytes
    print(f"failed: {', '.join(failed) or 'nothing'}; not installable here: {', '.join(skipped) or 'nothing'}")
    return 1 if failed else 0


def record_outcome(extra: str, version: str, outcome: str) -> None:
    """Add one outcome to the results, by extra and by minor version of Python."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"extras": {}}
    found["kompakt"] = output(
        [sys.executable, "-c", "from kompakt.version import __version__; print(__version__)"]
    ).strip()
    rows = found["extras"]
    rows.setdefault(extra, {})[".".join(version.split(".")[:2])] = outcome
    found["extras"] = {name: dict(sorted(row.items())) for name, row in sorted(rows.items())}
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


# --- build ---------------------------------------------------------------------------------------------------------


def build_wheel(source: Path, out: Path) -> Path:
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(out), str(source))
    return next(out.glob("kompakt-*.whl"))


def build_sdist(builder: Path, out: Path) -> Path:
    output([sys.executable, "-m", "venv", "--without-pip", str(builder)])
    pip(str(builder / "bin/python"), "install", "hatchling")
    output([str(builder / "bin/python"), "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)], cwd=ROOT)
    return next(out.glob("kompakt-*.tar.gz"))


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has every file of the package, and its metadata."""
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        info = next(name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(opened.read(f"{info}/METADATA").decode())
        entry_points = opened.read(f"{info}/entry_points.txt").decode()
    source = ROOT / "src"
    ours = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    missing = {name for name in ours if "__pycache__" not in name} - names
    expect(not missing, f"the wheel lacks {sorted(missing)}")
    strange = {name for name in names if not name.startswith(("kompakt/", f"{info}/"))}
    expect(not strange, f"the wheel has files outside the package: {sorted(strange)}")
    absent = [name for name in WANTED if not metadata[name]]
    expect(not absent, f"the metadata lacks {absent}")
    expect(bool(metadata.get_all("Project-URL")), "the metadata has no URL")
    classifiers = " ".join(metadata.get_all("Classifier") or ())
    for version in ("3.11", "3.12", "3.13"):
        expect(f"Python :: {version}" in classifiers, f"no classifier for Python {version}")
    for line in metadata.items():
        expect(not MACHINE.search(line[1]), f"a path of this machine is in the metadata: {line}")
    for name in PROJECT["scripts"]:
        expect(f"{name} = " in entry_points, f"no entry point {name}")
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size // 1024:,} kB")


def compare(wheel: Path, other: Path) -> None:
    """Check that the wheel built from the sdist has the same files."""
    first, second = contents(wheel), contents(other)
    expect(first.keys() == second.keys(), f"other files from the sdist: {sorted(first.keys() ^ second.keys())}")
    changed = [name for name in first if first[name] != second[name]]
    expect(not changed, f"other contents from the sdist: {changed}")
    print(f"the sdist builds the same wheel: {len(first)} files")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


# --- try -----------------------------------------------------------------------------------------------------------


def try_extra(folder: Path, python: str, wheel: Path, extra: str) -> str | None:
    """Install the wheel with one extra and try it; return why it cannot be installed here, if so."""
    output([python, "-m", "venv", "--without-pip", str(folder)])
    there = folder / "bin/python"
    wanted = str(wheel) if extra == "none" else f"{wheel}[{extra}]"
    try:
        # The constraints are for development, where frameworks, which limit each other's versions, are not installed.
        limits = () if extra in FRAMEWORKS else ("-c", str(ROOT / "constraints.txt"))
        pip(str(there), "install", "--no-compile", *limits, wanted)
    except Failed as error:
        return f"cannot be installed: {str(error).strip().splitlines()[-1]}"
    try_out([str(folder / "bin/kompakt")], folder / "work", {}, extra=extra)
    if extra in IMPORTS:
        output([str(there), "-c", IMPORTS[extra]], cwd=folder / "work")
    return None


def try_out(kompakt: list[str], work: Path, environment: Mapping[str, str], *, extra: str | None) -> None:
    """Try the main commands, and those that an extra adds. ``None`` stands for this environment with all packages."""
    work.mkdir()
    (work / "request.json").write_text(json.dumps(BODY))
    (work / "key").write_text(KEY)

    def call(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*kompakt, *arguments],
            cwd=work,
            env={**os.environ, "PYTHONPATH": "", "XDG_CONFIG_HOME": str(work), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        expect("Traceback" not in done.stderr, f"kompakt {' '.join(arguments)}: {done.stderr}")
        return done.returncode, done.stdout + done.stderr

    check_call(call, ("--version",), 0, "kompakt ")
    check_call(call, ("--help",), 0, "Commands:")
    check_call(call, ("check", "request.json"), 0, "no problems")
    check_call(call, ("count", "request.json", "--json"), 0, '"total"')
    check_call(call, ("demo", "--fast"), 0, "HTTP 200")
    check_call(call, ("doctor", "--offline"), 0, "tokenizer")
    check_call(call, ("session", "import", "request.json", "--id", "smoke"), 0, "smoke")
    check_call(call, ("session", "verify"), 0, "no problems")
    check_call(call, ("install", "opencode", "--project", "--yes"), 0, "kompakt was installed")
    (work / "kompakt.db").unlink()
    for name, commands in MISSING.items():
        for arguments in commands if extra == "none" else ():
            check_call(call, arguments, 2, f".whl[{name}]'")
    for arguments, code, text in PRESENT.get(extra or "gateway", ()):
        check_call(call, arguments, code, text)


def check_call(call: Callable[..., tuple[int, str]], arguments: tuple[str, ...], code: int, text: str) -> None:
    found, shown = call(*arguments)
    expect(found == code and text in shown, f"kompakt {' '.join(arguments)}: exit {found}, expected {code}: {shown}")


# --- tools ---------------------------------------------------------------------------------------------------------


def pip(python: str, *arguments: str) -> None:
    output([sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet", *arguments])


def output(command: list[str], *, cwd: Path | None = None) -> str:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    expect(done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


if __name__ == "__main__":
    sys.exit(main())

"""Install packages with pip and report each phase in one line, with a heartbeat while pip works.

Usage: python scripts/install_packages.py NAME PIP-ARGUMENTS... NAME is what the lines call the installation. If pip
fails, its whole output is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

NEW_FILE = re.compile(r"\s*(?:Downloading|Using cached) \S+?\.(?:whl|tar\.gz)(?!\.metadata)\b")
INSTALLING = "Installing collected packages:"
EVERY = 5
"""Seconds between two lines of progress while packages are collected."""


def install(name: str, arguments: list[str]) -> int:
    """Run pip and print what it does."""
    started = printed = time.monotonic()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    pip = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert pip.stdout is not None
    say(f"Installing {name}: this takes about a minute the first time")
    output = list[str]()
    files = 0
    try:
        for line in pip.stdout:
            output.append(line)
            if INSTALLING in line:
                say(f"  unpacking {line.count(',') + 1} packages")
            elif NEW_FILE.match(line):
                files += 1
                if time.monotonic() - printed >= EVERY:
                    printed = time.monotonic()
                    say(f"  packages fetched: {files}")
    except KeyboardInterrupt:
        pip.wait()
        say("interrupted; run the same command again to continue")
        return 130
    code = pip.wait()
    if code:
        print("".join(output), file=sys.stderr)
        say(f"pip could not install {name}; its output is above")
    else:
        say(f"  done in {time.monotonic() - started:.0f} s")
    return code


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:]))

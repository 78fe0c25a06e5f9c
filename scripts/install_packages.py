"""Install packages with pip and print one line for each stage; in a terminal, the line of a download counts packages.

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
FETCHING = "  1. fetching packages"


def install(name: str, arguments: list[str]) -> int:
    """Run pip and print what it does."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    pip = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert pip.stdout is not None
    say(f"Installing {name} (a minute or more the first time)")
    is_terminal = sys.stdout.isatty()
    say(FETCHING, end="" if is_terminal else "\n")
    output = list[str]()
    files, is_fetching = 0, True
    try:
        for line in pip.stdout:
            output.append(line)
            if NEW_FILE.match(line):
                files += 1
                if is_terminal:
                    say(f"\r{FETCHING}: {files}", end="")
            elif INSTALLING in line:
                is_fetching = False
                count = line.count(",") + 1
                say(f"{chr(10) if is_terminal else ''}  2. installing {count} package{'' if count == 1 else 's'}")
    except KeyboardInterrupt:
        pip.wait()
        say("\ninterrupted; run the same command again to continue")
        return 130
    pip.stdout.close()
    code = pip.wait()
    if is_terminal and is_fetching:
        say("")
    if code:
        print("".join(output), file=sys.stderr)
        say(f"pip could not install {name}; its output is above")
    else:
        say(f"  done after {time.monotonic() - started:.0f} s")
    return code


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:]))

"""Projections of recorded sessions before and after a change of the compacted context, side by side.

    python -m benchmarks.projections SESSIONS --before OLD/src --out PAGE.md

`OLD/src` is the source of the version to compare with, for example from `git archive COMMIT src`. Both versions run in
a process of their own on the same payloads and budgets. Each excerpt is the beginning of the text that stands for what
left the context. Names of users, mail addresses and keys are replaced before anything is written.
`results/projections/judgements.json` has one sentence for each session.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec

import kompakt
from benchmarks.measurement import RESULTS
from kompakt.errors import KompaktError

OUT = RESULTS / "projections"

SESSIONS = (
    "claude-code/01_3118c3a750_0.jsonl",
    "claude-code/20_388d3a424a_0.jsonl",
    "claude-code/26_2cf8fa0634_0.jsonl",
    "claude-code/62_f30e5c547e_1.jsonl",
    "claude-code/84_6dc1c1b06e_0.jsonl",
    "claude-code/89_7eb280e769_20.jsonl",
    "claude-code/98_78b713483d_0.jsonl",
    "claude-code/a5_d8ec9bae67_0.jsonl",
    "claude-code/cd_95adddad32_0.jsonl",
    "claude-code/fc_99c919b212_0.jsonl",
)
"""Ten sessions of Claude Code; sessions with private talk or with records of customers are left out."""

SHARE = 0.15
"""The budget: this share of the tokens of the session, at least ``LEAST``."""
LEAST = 3_000

LINES, WIDTH = 25, 130
"""Lines of an excerpt, and characters of a line."""

_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_KEY = re.compile(r"\b(?:sk|ghp|gho|xox[bap]|AKIA|AIza)[-_A-Za-z0-9]{12,}|\b[A-Za-z0-9+]{48,}={0,2}")
_HOME = re.compile(r"/(?:Users|home)/([\w.-]+)")


HEAD = """# Projections before and after

Each session is compacted to 15 % of its tokens (at least 3,000) by two versions. Shown is the beginning of the text
that stands for what left the context. The sentence on a session is one person's judgement of these excerpts.
"""


class Excerpt(msgspec.Struct, frozen=True):
    """What one version made of a session."""

    tokens: int
    text: str
    error: str = ""


def private_words(directory: Path) -> list[str]:
    """List the names of users in the paths of all sessions, longest first, with the names they are part of."""
    texts = (path.read_text(errors="replace") for path in directory.rglob("*.json*"))
    names = {name for text in texts for name in _HOME.findall(text)}
    names -= {"user", "dev", "runner", "linuxbrew", "me", "username", "test", "example"}
    parts = {part for name in names for part in re.split(r"[-_.]", name) if len(part) > 2}
    return sorted(names | parts, key=len, reverse=True)


def redacted(text: str, words: list[str]) -> str:
    """Replace names of users, mail addresses and keys."""
    text = _KEY.sub("KEY", _MAIL.sub("MAIL", text))
    for word in words:
        text = re.sub(rf"(?i)(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])", "user", text)
    return re.sub(r"/(?:Users|home)/", "~", text)


def compacted(payloads: list[dict[str, Any]]) -> list[Excerpt]:
    """Compact payloads with the version of kompakt that this process has."""
    found: list[Excerpt] = []
    for given in payloads:
        try:
            result = kompakt.compact(given["body"], budget=given["budget"], format=given["format"])
        except KompaktError as problem:
            found.append(Excerpt(0, "", str(problem)))
            continue
        found.append(Excerpt(result.tokens_after, _new_text(given["body"], cast("dict[str, Any]", result.payload))))
    return found


def _new_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the summary among the messages that were not in the session, else their longest text."""
    known = {json.dumps(message, sort_keys=True) for message in before["messages"]}
    texts = [
        text
        for message in after["messages"]
        if json.dumps(message, sort_keys=True) not in known
        for text in _texts(message.get("content"))
    ]
    summaries = [text for text in texts if "[kompakt summary" in text]
    return max(summaries or texts, key=len, default="")


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if isinstance(part, dict) and isinstance(part.get("text"), str)]


def run(source: Path, payloads: Path) -> list[Excerpt]:
    """Compact payloads in a process that imports kompakt from ``source``."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent.parent}"}
    command = [sys.executable, "-m", "benchmarks.projections", "--worker", str(payloads)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=list[Excerpt])


def excerpt(text: str) -> str:
    """Cut a text to its first lines, each of limited width, as a block of Markdown."""
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 2]} …" for line in text.split("\n")]
    left = len(lines) - LINES
    return "\n".join(["````text", *lines[:LINES], *([f"… {left} more lines"] if left > 0 else []), "````"])


def report(directory: Path, source: Path) -> str:
    """Compact the sessions with both versions and write the page."""
    from kompakt.evals.session_files import read  # the version to compare with need not have it

    payloads: list[dict[str, Any]] = []
    for name in SESSIONS:
        path, _, _ = name.partition("#")
        session = next(found for found in read(directory / path, name=path) if found.name == name)
        tokens = kompakt.count(session.body, format=session.format).total
        budget = max(LEAST, int(tokens * SHARE))
        payloads.append({"body": session.body, "format": session.format, "tokens": tokens, "budget": budget})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "payloads.json"
        file.write_bytes(msgspec.json.encode(payloads))
        old, new = run(source, file), run(Path(kompakt.__file__).parent.parent, file)
    judgements = json.loads((OUT / "judgements.json").read_text()) if (OUT / "judgements.json").exists() else {}
    words = private_words(directory)
    out: list[str] = []
    for name, given, first, second in zip(SESSIONS, payloads, old, new, strict=True):
        size = f"{given['tokens']} tokens, budget {given['budget']}."
        out += [f"## {name}", "", f"{size} {judgements.get(name, '')}".strip()]
        for title, found in (("Before", first), ("After", second)):
            size = found.error or f"{found.tokens} tokens in all, {len(found.text)} characters of text"
            out += ["", f"**{title}**: {redacted(size, words)}", "", excerpt(redacted(found.text, words))]
        out.append("")
    return "\n".join(out)


def main() -> None:
    """Write the page, or compact payloads for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", type=Path, nargs="?", help="directory of recorded sessions")
    parser.add_argument("--before", type=Path, help="source folder of the version to compare with")
    parser.add_argument(
        "--out", type=Path, default=Path("projections.md"), help="page to write; it quotes the sessions"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.worker is not None:
        sys.stdout.buffer.write(msgspec.json.encode(compacted(json.loads(given.worker.read_bytes()))))
        return
    if given.sessions is None or given.before is None:
        parser.error("SESSIONS and --before are needed")
    given.out.write_text(f"{HEAD}\n{report(given.sessions, given.before)}")


if __name__ == "__main__":
    main()

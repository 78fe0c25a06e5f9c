"""The bytes of projections: a refactoring must not change them.

Run ``python -m tests.golden.test_projections`` to update the hashes after an intended change of wording or
selection, and say in the commit why they changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import kompakt

HASHES = Path(__file__).with_name("projections.json")
SESSIONS = ("broken-session", "long-session")
FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")
POLICIES = ("default", "conservative", "aggressive", "window", "admission")
SHARES = (0.15, 0.4, 0.7)
CASES = [(session, format) for session in SESSIONS for format in FORMATS]


def payload_of(session: str, format: str) -> Any:
    """Return a bundled session, repaired, in a format."""
    body = json.loads((files("kompakt") / "data" / f"{session}.json").read_text(encoding="utf-8"))
    history = kompakt.parse(kompakt.repair(body).payload)
    return kompakt.repair(kompakt.render(history, format=format, dropped=[]), format).payload


def hashes_of(session: str, format: str) -> Iterator[tuple[str, str]]:
    """Compact a session in every way and hash what comes out."""
    payload = payload_of(session, format)
    total = kompakt.count(payload, format=format).total
    for policy in POLICIES:
        for share in SHARES:
            try:
                made = kompakt.compact(
                    payload, int(total * share), policy=policy, format=format, pins=["never"]
                ).payload
            except kompakt.DoesNotFit as error:
                made = {"floor": error.floor}
            text = json.dumps(made, ensure_ascii=False)
            yield f"{session} {format} {policy} {share}", hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("session, format", CASES, ids=[" ".join(case) for case in CASES])
def test_projections_keep_their_bytes(session: str, format: str) -> None:
    """Same history, budget and policy: the same bytes as when the hashes were written."""
    expected: dict[str, str] = json.loads(HASHES.read_text())
    changed = [name for name, found in hashes_of(session, format) if expected[name] != found]
    assert changed == []


if __name__ == "__main__":
    found = dict(pair for case in CASES for pair in hashes_of(*case))
    HASHES.write_text(json.dumps(found, indent=1) + "\n")

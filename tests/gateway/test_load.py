"""Two hundred sessions at once: no error, and memory that does not grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.gateway.load import SESSIONS, load_gateway

SECONDS = float(os.environ.get("KOMPAKT_LOAD_SECONDS", "60"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_two_hundred_sessions_at_once(tmp_path: Path) -> None:
    load = load_gateway(tmp_path, SECONDS)
    assert load.failures == []
    assert load.requests > SESSIONS * 2 and load.compactions > SESSIONS / 4
    assert load.growth <= 0.10, f"{load.memory_at(0.5):,.0f} bytes grew by {load.growth:.1%}"
    assert load.overhead["p99"] < 5, load.overhead  # every processor is busy: most of it is waiting for one

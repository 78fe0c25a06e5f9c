"""Two hundred concurrent sessions: no request fails and no memory leaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.load import LIFE, SESSIONS, load_gateway

WARM_UP, MEASURED = 1, 1
"""Cycles, in which every session sends its ``LIFE`` requests."""

MAX_BLOCKS = 0.5
"""Memory blocks per request that are not freed. A leak is at least one block per request; the noise is below 0.1."""


@pytest.mark.timeout(600)
def test_two_hundred_sessions_at_once_leak_no_memory(tmp_path: Path) -> None:
    load = load_gateway(tmp_path, lambda cycles: cycles == WARM_UP + MEASURED, measured=True)
    assert load.failures == []
    assert load.requests == SESSIONS * LIFE * (WARM_UP + MEASURED)
    assert load.compactions >= SESSIONS
    kept = (load.blocks[-1] - load.blocks[WARM_UP - 1]) / (SESSIONS * LIFE * MEASURED)
    assert kept <= MAX_BLOCKS, f"{kept:.2f} memory blocks per request are not freed: {load.blocks}"
    assert load.growth <= 0.10, f"{load.memory_at(0.5):,.0f} bytes grew by {load.growth:.1%}"

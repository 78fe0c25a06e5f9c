"""Fifty writers on ten sessions from four processes: nothing is lost, doubled or torn, and each due point is compacted
once. ``KOMPAKT_RACE`` is how many seconds each store is given; ``make soak`` gives them minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.contract.backends import STORES
from tests.faults.writers import LEAST_TURNS, WRITERS, race_on

SECONDS = float(os.environ.get("KOMPAKT_RACE", "5"))


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_many_writers(store: str, tmp_path: Path) -> None:
    outcome = race_on(store, SECONDS, tmp_path)
    assert outcome.failures == []
    assert outcome.appends >= 3 * WRITERS * LEAST_TURNS
    assert outcome.compactions >= 1

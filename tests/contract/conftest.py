"""Four places to keep sessions, each held to the same contract.

``place`` is one of them, empty. A server that is not installed is an error, never a reason to leave a test out.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.backends import STORES, Place


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Name an empty place."""
    return Place(request.param, tmp_path)

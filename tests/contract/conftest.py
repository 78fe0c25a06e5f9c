"""Four stores that must fulfil the same contract.

``place`` is one of them, empty. A missing server is an error, never a reason to skip a test.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.backends import STORES, Place


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an empty store."""
    return Place(request.param, tmp_path)

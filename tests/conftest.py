"""Settings that every test shares.

``KOMPAKT_EXAMPLES`` is how often each property is tried: 100 by default, fewer in the quick round, thousands in a soak.
In CI the examples are derived from the test alone, so that a red build is red again when it is run again.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "kompakt",
    max_examples=int(os.environ.get("KOMPAKT_EXAMPLES", "100")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("kompakt")


SERVED = frozenset(["contract", "faults", "gateway", "hosts", "store"])
"""Folders whose tests start servers and processes: slow, all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what starts servers out of the quick round."""
    for item in items:
        if SERVED.intersection(item.path.parts):
            item.add_marker(pytest.mark.slow)

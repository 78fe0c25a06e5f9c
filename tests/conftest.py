"""Settings for all tests.

``KOMPAKT_EXAMPLES`` sets the number of examples per property: 100 by default and in `make test`, 10 in `make check`,
thousands in `make soak`. Hypothesis derives the examples from the test itself, so the same tree always gives the same
verdict. With ``KOMPAKT_RANDOM=1`` it draws new examples instead; `make soak` sets that.
"""

from __future__ import annotations

import os
import signal
import ssl
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

settings.register_profile(
    "kompakt",
    max_examples=int(os.environ.get("KOMPAKT_EXAMPLES", "100")),
    deadline=None,
    derandomize=not os.environ.get("KOMPAKT_RANDOM"),
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("kompakt")

# Hypothesis mixes constants of the project's modules into its examples, those that happen to be imported when a test
# starts. That depends on which tests ran before, so without a fixed set the same tree could give another verdict.
if not os.environ.get("KOMPAKT_RANDOM") and hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = providers.Constants  # type: ignore[attr-defined]

# A shell that starts a background job makes it ignore Ctrl-C, and every process started from there inherits that. Tests
# that interrupt a process need the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Every HTTP client loads the certificates, which takes 20 ms. The tests use no TLS, so one context serves all.
ssl.create_default_context = cache(ssl.create_default_context)

TESTS = Path(__file__).parent

SERVED = frozenset(["contract", "faults", "fleet", "gateway", "hosts", "inspector", "store"])
"""Folders with slow tests that start servers and processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start servers as slow."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in SERVED:
            item.add_marker(pytest.mark.slow)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: compressed data can contain a time, and all workers must collect the same names."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None

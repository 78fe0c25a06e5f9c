"""The test run itself: the same verdict for any way of starting it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif("KOMPAKT_RANDOM" in os.environ, reason="a soak draws new examples on purpose")
def test_properties_try_the_same_examples_every_time() -> None:
    """Without KOMPAKT_RANDOM no example is drawn at random or remembered from an earlier run."""
    assert settings().derandomize
    assert settings().database is None


def test_a_run_in_the_background_can_interrupt_its_processes() -> None:
    """Shells start background jobs with Ctrl-C ignored; tests that interrupt a process work there too."""
    program = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert done.stdout.strip() == "True"


@pytest.mark.skipif("KOMPAKT_RANDOM" in os.environ, reason="a soak draws new examples on purpose")
def test_examples_do_not_depend_on_imported_modules() -> None:
    """Constants of modules that other tests imported are not mixed into the examples."""
    assert len(providers._get_local_constants()) == 0

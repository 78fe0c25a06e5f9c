"""Every function accepts a mutated payload or raises a ``KompaktError``; see ``tests.properties.invariants``.

A failure names the format and the number of the mutation, which give the same payload again. The soak tries 100,000.
"""

from __future__ import annotations

import os

import pytest
from tests.histories import FORMATS
from tests.histories.mutations import mutated
from tests.properties.invariants import faults, same

EACH = 4 * int(os.environ.get("KOMPAKT_EXAMPLES", "100"))
"""Mutations of each format."""

CHUNKS = 4


class TestMutations:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_mutated_payloads_are_handled(self, format: str, chunk: int) -> None:
        """Check, repair, count, compact, recall, parse and render: no foreign error, one pass is enough, nothing is
        changed in place."""
        wrong = {number: found for number in range(chunk, EACH, CHUNKS) if (found := faults(format, number))}
        assert wrong == {}

    @pytest.mark.parametrize("format", FORMATS)
    def test_a_number_always_gives_the_same_payload(self, format: str) -> None:
        """A failure can be reproduced."""
        for number in range(20):
            assert same(mutated(format, number), mutated(format, number))

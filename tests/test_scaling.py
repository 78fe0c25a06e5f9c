"""The capacity plan in docs/scaling.md follows from measured costs. That the page is not stale: tests/test_docs.py."""

from __future__ import annotations

from typing import Any

from benchmarks.scaling import Plan, bars, curve_plot, needs


def run(server: str, workers: int, rate: float) -> dict[str, Any]:
    return {
        "server": server,
        "workers": workers,
        "pinned": False,
        "requests_per_second": rate,
        "server_seconds": 0.004,
        "memory": workers * 150_000_000,
    }


LOAD = {"runs": [run("gateway", 1, 200), run("gateway", 2, 380)], "setting": {"mean_body_bytes": 30_000}}
GROWTH = {"derived": {"sessions_disk_per_million_tokens": 20e6}}


def test_a_plan_follows_from_measured_costs() -> None:
    plan = Plan(sessions=86_400, requests=100, tokens=50_000, seconds=10, busy=2, use=0.5)
    found = needs(plan, LOAD, GROWTH)
    assert (found.average, found.peak) == (100, 200)
    assert found.workers == 2  # 200 requests of 4 ms, at half of the peak
    assert found.memory == 300e6 and found.database == 20
    assert found.open_requests == 2_000 and found.bytes_in == 6e6
    assert found.disk == 86_400 * 0.05 * 20e6


def test_plots_show_their_values() -> None:
    assert "1,234" in bars("Rates", [("one", 1_234.4), ("two", 2_000.0)])
    assert "1,000 messages" in curve_plot("Times", [(500, 0.25), (1_000, 0.5)])

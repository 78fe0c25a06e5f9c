"""Test every guarantee of `compact` on 100,000 histories and store the result.

Hypothesis draws 20,000 histories for each of the five formats, with budgets, policies and pins. Independent judges
check each result. The last result is in benchmarks/results/soak.json.

With `--mutations COUNT`, that many mutated payloads go through check, repair, count, compact, recall, parse and render,
in equal parts for each format; see benchmarks/results/soak_mutations.json.

With `--sessions MINUTES`, fifty writers in four processes race on ten stored sessions, on memory, SQLite, PostgreSQL
and Redis; see benchmarks/results/soak_sessions.json.

With `--gateway MINUTES`, two hundred sessions use one gateway concurrently; see benchmarks/results/soak_gateway.json.

With `--fleet SESSIONS`, a fleet job runs on that many sessions, on local processes and on a Ray cluster of
two nodes, with killed workers, an interruption and a lost node; see benchmarks/results/soak_fleet.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks" / "results" / "soak.json"
FORMATS = 5
RACES = ROOT / "benchmarks" / "results" / "soak_sessions.json"
MUTATIONS = ROOT / "benchmarks" / "results" / "soak_mutations.json"
LOAD = ROOT / "benchmarks" / "results" / "soak_gateway.json"
FLEET = ROOT / "benchmarks" / "results" / "soak_fleet.json"
MAX_GROWTH = 0.10
CHUNK = 500
"""Mutations per task."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="histories for each format")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mutations", type=int, metavar="COUNT", help="run mutated payloads instead")
    parser.add_argument("--sessions", type=float, metavar="MINUTES", help="race on stored sessions instead")
    parser.add_argument("--gateway", type=float, metavar="MINUTES", help="run sessions through a gateway instead")
    parser.add_argument("--pause", type=float, metavar="SECONDS", help="between two requests of a session of --gateway")
    parser.add_argument("--fleet", type=int, metavar="SESSIONS", help="run fleet jobs on that many sessions instead")
    options = parser.parse_args()
    if options.mutations is not None:
        return try_mutations(options.mutations, options.processes)
    if options.sessions is not None:
        return race_on_sessions(options.sessions)
    if options.gateway is not None:
        return soak_gateway(options.gateway, options.pause)
    if options.fleet is not None:
        return soak_fleet(options.fleet)
    began = time.monotonic()
    tests = ["tests/properties/test_compaction.py", "-k", "keeps_every_promise", "-n", str(options.processes)]
    code, counts = run_tests(tests, {"KOMPAKT_EXAMPLES": str(options.examples), "KOMPAKT_RANDOM": "1"})
    result = {
        "what": "tests/properties/test_compaction.py: keeps every promise or names the floor",
        "histories": options.examples * FORMATS,
        "formats": FORMATS,
        **counts,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return code


def run_tests(tests: list[str], environment: dict[str, str]) -> tuple[int, dict[str, int]]:
    """Run tests without a time limit; return the exit code and the counts of their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *tests, "--timeout", "0", f"--junitxml={junit}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, **environment},
            check=False,
        )
        suites = ElementTree.parse(junit).getroot()
    names = ("tests", "failures", "errors", "skipped")
    return done.returncode, {key: sum(int(suite.get(key, 0)) for suite in suites) for key in names}


def try_mutations(count: int, processes: int) -> int:
    """Run mutated payloads through every function and store the faults."""
    began = time.monotonic()
    sys.path.insert(0, str(ROOT))
    from tests import histories

    each = count // FORMATS
    tasks = [(name, start, min(start + CHUNK, each)) for name in histories.FORMATS for start in range(0, each, CHUNK)]
    found: list[str] = []
    with ProcessPoolExecutor(processes) as pool:
        for number, wrong in enumerate(pool.map(mutation_faults, tasks), start=1):
            found += wrong
            print(f"{number}/{len(tasks)} chunks, {len(found)} faults", flush=True)
    result = {
        "what": "mutated payloads through check, repair, count, compact, recall, parse and render",
        "payloads": each * FORMATS,
        "formats": FORMATS,
        "faults": len(found),
        "first_faults": found[:20],
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    MUTATIONS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 1 if found else 0


def mutation_faults(task: tuple[str, int, int]) -> list[str]:
    """Run a range of mutations of one format; an unexpected error is a fault."""
    from tests.properties.invariants import faults

    name, start, stop = task
    logging.disable(logging.CRITICAL)
    found: list[str] = []
    for number in range(start, stop):
        try:
            found += [f"{name} {number}: {fault}" for fault in faults(name, number)]
        except Exception:  # noqa: BLE001 - whatever comes out is what is looked for
            found.append(f"{name} {number}: {traceback.format_exc(limit=-3)}")
    return found


def race_on_sessions(minutes: float) -> int:
    """Let many writers race on every store and store the result."""
    sys.path.insert(0, str(ROOT))
    from tests.contract.backends import STORES
    from tests.faults.writers import PROCESSES, SESSIONS, WRITERS, race_on

    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for store in STORES:
            outcome = race_on(store, minutes * 60 / len(STORES), Path(folder) / store)
            found.append(
                {
                    "store": store,
                    "seconds": round(outcome.seconds, 1),
                    "appends": outcome.appends,
                    "compactions": outcome.compactions,
                    "failures": outcome.failures,
                }
            )
            print(json.dumps(found[-1]), flush=True)
    result = {"writers": WRITERS, "sessions": SESSIONS, "processes": PROCESSES, "stores": found}
    RACES.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if any(one["failures"] for one in found) else 0


def soak_gateway(minutes: float, pause: float | None) -> int:
    """Run many sessions through one gateway and store the result."""
    sys.path.insert(0, str(ROOT))
    from tests.gateway.load import PAUSE, SESSIONS, load_gateway

    pause = PAUSE if pause is None else pause
    with tempfile.TemporaryDirectory() as folder:
        end = time.monotonic() + minutes * 60
        load = load_gateway(Path(folder), lambda cycles: time.monotonic() >= end, pause=pause)
    latencies = sorted(load.latencies)
    result = {
        "sessions": SESSIONS,
        "pause": pause,
        "seconds": round(load.seconds, 1),
        "load_average": round(os.getloadavg()[2], 1),
        "requests": load.requests,
        "compactions": load.compactions,
        "failures": len(load.failures),
        "first_failures": load.failures[:3],
        "memory_mb": {share: round(load.memory_at(share) / 1e6, 1) for share in (0.1, 0.35, 0.5, 0.65, 0.92)},
        "growth": round(load.growth, 3),
        "overhead_at_most_ms": {name: seconds * 1_000 for name, seconds in load.overhead.items()},
        "latency_ms": {
            f"p{share}": round(latencies[len(latencies) * share // 100] * 1_000, 1) for share in (50, 90, 99)
        },
    }
    LOAD.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 1 if load.failures or load.growth > MAX_GROWTH else 0


def soak_fleet(sessions: int) -> int:
    """Compare the rows of both engines on many sessions, after faults, and store the result."""
    began = time.monotonic()
    code, counts = run_tests(["tests/fleet"], {"KOMPAKT_FLEET_SESSIONS": str(sessions)})
    result = {
        "what": "tests/fleet: the rows of Ray and of local processes are equal, also after faults and a resume",
        "sessions": sessions,
        "formats": FORMATS,
        **counts,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    FLEET.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return code


if __name__ == "__main__":
    raise SystemExit(main())

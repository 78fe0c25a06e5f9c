"""Run the benchmarks: python -m benchmarks.run [AREA]... [--transcripts DIR].

Prints one table per area, writes benchmarks/results/AREA.json, and exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import accuracy, count, engine, parse, recall, sessions, startup
from benchmarks.measurement import save, show

AREAS = {
    "starting": startup,
    "parsing": parse,
    "counting": count,
    "engine": engine,
    "recalling": recall,
    "sessions": sessions,
}


def main(arguments: list[str]) -> int:
    """Measure the given areas, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure kompakt.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"one of {', '.join(AREAS)}; default: all")
    parser.add_argument("--transcripts", type=Path, metavar="DIR", help="Claude Code transcripts, for accuracy")
    given = parser.parse_args(arguments)
    unknown = set(given.areas) - AREAS.keys()
    if unknown:
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    missed = 0
    for area in given.areas or AREAS:
        rows = AREAS[area].measure()
        show(area, rows)
        save(area, rows)
        missed += sum(row.verdict == "MISSED" for row in rows)
    if given.transcripts:
        missed += accuracy.main([str(given.transcripts)])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

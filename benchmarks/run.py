"""Run the benchmarks: python -m benchmarks.run [AREA]... [--transcripts DIR].

Prints a table an area, writes benchmarks/results/AREA.json, exits 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import accuracy, counting, engine, parsing, recalling, sessions, starting
from benchmarks.measuring import save, show

AREAS = {
    "starting": starting,
    "parsing": parsing,
    "counting": counting,
    "engine": engine,
    "recalling": recalling,
    "sessions": sessions,
}


def main(arguments: list[str]) -> int:
    """Measure the areas that are asked for, or all of them."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure kompakt.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all when none is named")
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

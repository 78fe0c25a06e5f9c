"""Fleet jobs on two cores: python -m benchmarks.fleet [--sessions N] [--runs N].

Compacts the same sessions in one process, with two local workers, and with two workers on Ray. Every job runs in new
processes, which have nothing in their caches. The time of one process and of the local engine is that of the whole job,
with the start of the processes. Ray takes seconds to start, so its rate is measured from the first result on, and
compared with the rate of the local engine from its first result on.

The engines run in turn, so that a busy machine slows all of them. Writes benchmarks/results/fleet.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import msgspec
from tests.histories.plain import build

from benchmarks.measurement import Row, row, save, show, spread
from kompakt.fleet import run
from kompakt.fleet.jobs import FleetSettings, Variant
from kompakt.fleet.local import run_serially
from kompakt.fleet.output import FleetManifest, FleetOutput, FleetRun, read_rows
from kompakt.fleet.run import pending
from kompakt.fleet.sources import items_in

SESSIONS, MESSAGES = 600, 360
FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini")
BUDGET = 16_000
WORKERS = 2
TOGETHER = 0.05
"""Seconds within which results came at the same time."""


class JobTimes(msgspec.Struct):
    """When the results of a job came."""

    began: float
    marks: list[tuple[int, float]] = []
    """Finished sessions and the time."""

    def __call__(self, done: int, total: int, errors: int) -> None:
        if done and (not self.marks or done > self.marks[-1][0]):
            self.marks.append((done, time.perf_counter()))

    @property
    def seconds(self) -> float:
        """Return the time until the last result."""
        return self.marks[-1][1] - self.began

    @property
    def startup(self) -> float:
        """Return the time until the first result."""
        return self.marks[0][1] - self.began

    @property
    def rate(self) -> float:
        """Return the sessions per second after the first results, which may come together."""
        first, start = next(mark for mark in reversed(self.marks) if mark[1] < self.marks[0][1] + TOGETHER)
        last, end = self.marks[-1]
        return (last - first) / (end - start)


def write_sessions(folder: Path, sessions: int) -> None:
    for number in range(sessions):
        body = build(FORMATS[number % 4], messages=MESSAGES, seed=number)
        (folder / f"{number:04}.json").write_text(json.dumps(body))


def in_one_process(source: Path, out: Path) -> JobTimes:
    """Run the job in one new process, with the same output."""
    began = time.perf_counter()  # the clock is the same in all processes
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return JobTimes(began, process.submit(_run_here, source, out).result())


def _run_here(source: Path, out: Path) -> list[tuple[int, float]]:
    times = JobTimes(time.perf_counter(), [])
    record = FleetRun(started="", engine="none", workers=1, versions={})
    output = FleetOutput(out, FleetManifest(kompakt="", job="compact", source="", settings={}), record)
    tasks = pending(items_in(source), [Variant("default", BUDGET)], set())
    for number, rows in enumerate(run_serially(tasks, FleetSettings(job="compact")), start=1):
        output.add(rows)
        times(number, len(tasks), 0)
    output.close()
    return times.marks


def on_engine(engine: str, source: Path, out: Path) -> JobTimes:
    times = JobTimes(time.perf_counter(), [])
    run("compact", source, out, budgets=BUDGET, workers=WORKERS, engine=engine, progress=times)  # type: ignore[arg-type]
    return times


def measure(sessions: int, runs: int) -> tuple[list[Row], int]:
    """Run every engine in turn and compare."""
    found: dict[str, list[JobTimes]] = {"one": [], "local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sessions"
        source.mkdir()
        write_sessions(source, sessions)
        for number in range(runs):
            found["one"].append(in_one_process(source, Path(folder) / f"one-{number}"))
            for engine in ("local", "ray"):
                found[engine].append(on_engine(engine, source, Path(folder) / f"{engine}-{number}"))
            print(", ".join(f"{name} {times[-1].seconds:.1f} s" for name, times in found.items()), flush=True)
        rows = read_rows(Path(folder) / "local-0", columns=["id", "source", "input_hash", "job", "tokens_before"])
        tokens = sum(one.tokens_before or 0 for one in rows)
    speedup = spread(one.seconds / two.seconds for one, two in zip(found["one"], found["local"], strict=True))
    ratio = spread(ray.rate / local.rate for ray, local in zip(found["ray"], found["local"], strict=True))
    made = [
        row("one process", spread(one.seconds for one in found["one"]), "s"),
        row("local, two workers", spread(one.seconds for one in found["local"]), "s"),
        row("local, two workers, compared with one process", speedup, "×", at_least=1.7),
        row("local, first result after", spread(one.startup for one in found["local"]), "s"),
        row("local, rate", spread(one.rate for one in found["local"]), "sessions/s"),
        row("Ray, two workers, rate", spread(one.rate for one in found["ray"]), "sessions/s"),
        row("Ray, rate compared with local", ratio, "×", at_least=0.75),
        row("Ray, first result after", spread(one.startup for one in found["ray"]), "s"),
        row("tokens compacted, local", spread(tokens / one.seconds for one in found["local"]), "tokens/s"),
    ]
    return made, tokens


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fleet", description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    rows, tokens = measure(given.sessions, given.runs)
    show("fleet", rows)
    save("fleet", rows, sessions=given.sessions, tokens=tokens, ray=version("ray"), pyarrow=version("pyarrow"))
    return 1 if any(one.verdict == "MISSED" for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

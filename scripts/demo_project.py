"""Tidewatch, a harbour booking service that does not exist: the project that the bundled sessions work on.

Source files are put together from a few shapes and a vocabulary; what an agent sees of them (reads, searches, edits,
test runs) is computed from their current text, so a session is true to itself. Equal seeds give equal text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from string import Template

MODULES: dict[str, tuple[str, ...]] = {
    "tidewatch/berths/allocation.py": ("berth", "stay", "quay"),
    "tidewatch/berths/calendar.py": ("slot", "closure", "season"),
    "tidewatch/berths/conflicts.py": ("overlap", "stay", "berth"),
    "tidewatch/berths/pricing.py": ("quote", "surcharge", "season"),
    "tidewatch/vessels/registry.py": ("vessel", "owner", "callsign"),
    "tidewatch/vessels/draught.py": ("draught", "clearance", "vessel"),
    "tidewatch/vessels/arrivals.py": ("arrival", "pilot", "vessel"),
    "tidewatch/tides/tables.py": ("tide", "station", "reading"),
    "tidewatch/tides/windows.py": ("window", "tide", "sill"),
    "tidewatch/tides/forecast.py": ("forecast", "station", "surge"),
    "tidewatch/billing/invoices.py": ("invoice", "line", "customer"),
    "tidewatch/billing/tariffs.py": ("tariff", "season", "band"),
    "tidewatch/billing/ledger.py": ("entry", "account", "invoice"),
    "tidewatch/api/routes.py": ("route", "request", "stay"),
    "tidewatch/api/errors.py": ("failure", "request", "hint"),
    "tidewatch/storage/repository.py": ("record", "query", "cursor"),
    "tidewatch/storage/cache.py": ("entry", "ticket", "lease"),
    "tidewatch/jobs/nightly.py": ("batch", "import", "station"),
    "tidewatch/jobs/reminders.py": ("reminder", "arrival", "owner"),
}
MIGRATIONS = (
    "0005_split_accounts",
    "0006_index_stays",
    "0007_add_sill_margin",
    "0008_tariff_bands",
)

SHAPES = tuple(
    Template(text)
    for text in (
        '''\
def find_${a}(${b}_id: str, *, at: datetime | None = None) -> ${A} | None:
    """Return the ${a} that is in force for a ${b}, or None."""
    moment = at or clock.now()
    candidates = [one for one in _${a}s.values() if one.${b}_id == ${b}_id and one.valid_at(moment)]
    if len(candidates) > 1:
        log.warning("%d ${a}s for ${b} %s at %s; taking the newest", len(candidates), ${b}_id, moment)
    return max(candidates, key=lambda one: one.created_at, default=None)
''',
        '''\
def merge_${a}s(first: Sequence[${A}], second: Sequence[${A}]) -> list[${A}]:
    """Join two lists of ${a}s; of two with one key the later revision wins."""
    merged = {one.key: one for one in first}
    for one in second:
        known = merged.get(one.key)
        if known is None or known.revision < one.revision:
            merged[one.key] = one
    return sorted(merged.values(), key=attrgetter("${c}", "key"))
''',
        '''\
@dataclass(frozen=True)
class ${A}:
    """One ${a}, as the ${c} desk sees it."""

    key: str
    ${b}_id: str
    revision: int
    created_at: datetime
    ${c}: Decimal = Decimal("${n}.00")
    notes: tuple[str, ...] = ()

    def valid_at(self, moment: datetime) -> bool:
        """Tell whether the ${a} counts at a moment."""
        return self.created_at <= moment < self.created_at + timedelta(hours=${n})

    def with_note(self, note: str) -> ${A}:
        """Return the same ${a} with one more note."""
        return replace(self, notes=(*self.notes, note), revision=self.revision + 1)
''',
        '''\
def load_${a}s(path: Path, *, strict: bool = True) -> Iterator[${A}]:
    """Read ${a}s from a file of the ${c} office, one a line."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip("\\n").split(";")
            if len(fields) != ${n} + 2:
                if strict:
                    raise ${A}Malformed(path, number, len(fields))
                log.info("%s:%d: skipped, %d fields", path, number, len(fields))
                continue
            yield ${A}(key=fields[0], ${b}_id=fields[1], revision=int(fields[2]), created_at=_moment(fields[3]))
''',
        '''\
async def publish_${a}(${a}: ${A}, *, bus: Bus, attempts: int = ${n}) -> None:
    """Tell subscribers about a ${a}; give up after the last attempt."""
    for attempt in range(1, attempts + 1):
        try:
            await bus.send("${b}.${a}", asdict(${a}))
        except BusUnavailable as error:
            log.warning("attempt %d of %d for ${a} %s: %s", attempt, attempts, ${a}.key, error)
            await asyncio.sleep(backoff(attempt, base=0.${n}))
        else:
            return
    raise ${A}NotPublished(${a}.key)
''',
        '''\
def total_${c}(items: Iterable[${A}], *, per_${b}: bool = False) -> Decimal | dict[str, Decimal]:
    """Add up the ${c} of ${a}s, as one number or by ${b}."""
    if not per_${b}:
        return sum((one.${c} for one in items), Decimal(0))
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for one in items:
        totals[one.${b}_id] += one.${c}
    return dict(totals)
''',
        '''\
def _check_${a}(${a}: ${A}) -> list[str]:
    """List what is wrong with a ${a}, in words for the harbour office."""
    wrong: list[str] = []
    if not ${a}.key.strip():
        wrong.append("the ${a} has no key")
    if ${a}.revision < 0:
        wrong.append(f"revision {${a}.revision} is negative")
    if ${a}.${c} > LIMIT_${C}:
        wrong.append(f"${c} {${a}.${c}} is above {LIMIT_${C}}")
    return wrong
''',
    )
)

HEADER = Template('''\
"""The ${a} desk of the harbour: look up, check, tell others."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import Path

from tidewatch import clock
from tidewatch.bus import Bus, BusUnavailable, backoff

log = logging.getLogger(__name__)

LIMIT_${C} = Decimal("${n}00")
''')


@dataclass(frozen=True)
class Bug:
    """One fault of the project: the function it sits in, the wrong words and the right ones."""

    path: str
    function: str
    source: str
    wrong: str
    right: str
    test: str
    error: str


class Project:
    """The files of Tidewatch as they are now."""

    def __init__(self, random: Random, bugs: tuple[Bug, ...]) -> None:
        self.random = random
        self.files = {path: _module(random, words) for path, words in MODULES.items()}
        for name in MIGRATIONS:
            self.files[f"tidewatch/storage/migrations/{name}.py"] = _migration(name)
        for bug in bugs:
            self.files[bug.path] += "\n\n" + bug.source
            self.files[test_path(bug)] = self.files.get(test_path(bug), "") + _test(bug)

    def read(self, path: str, start: int, count: int) -> str:
        """Show lines of a file with their numbers."""
        lines = self.files[path].splitlines()[start - 1 : start - 1 + count]
        return "\n".join(f"{start + i:6d}\t{line}" for i, line in enumerate(lines))

    def line_of(self, path: str, text: str) -> int:
        """Find the line on which a text stands first."""
        return self.files[path][: self.files[path].index(text)].count("\n") + 1

    def grep(self, pattern: str, *, most: int = 40) -> str:
        """List the lines that match, as a search tool prints them."""
        hits = [
            f"{path}:{number}:{line}"
            for path, text in sorted(self.files.items())
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
        more = [f"... {len(hits) - most} more matches"] if len(hits) > most else []
        return "\n".join(hits[:most] + more) or "No matches found"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text that stands in a file once and show the place."""
        self.files[path] = self.files[path].replace(old, new, 1)
        line = self.line_of(path, new)
        return f"The file {path} has been updated.\n" + self.read(path, max(1, line - 4), 10)

    def tree(self, folder: str) -> str:
        """List the files of a folder as `ls -l` would."""
        rows = [
            f"-rw-r--r-- 1 dev dev {len(text):6d} Oct {self.random.randrange(10, 29)} 09:{len(text) % 60:02d} {path}"
            for path, text in sorted(self.files.items())
            if path.startswith(folder)
        ]
        return "\n".join([f"total {len(rows) * 8}", *rows])

    def run_tests(self, bug: Bug | None, *, dots: int) -> str:
        """Print a test run; with a bug one test fails and says why."""
        tests = sorted(path for path in self.files if path.startswith("tests/"))
        body = [f"{path} {'.' * (7 + len(path) % 23)}" for path in tests]
        seconds = f"{self.random.uniform(1, 9):.2f}s"
        start = ["=" * 28 + " test session starts " + "=" * 28, "platform linux -- Python 3.12.7, pytest-8.4.1"]
        if bug is None:
            return "\n".join(
                [*start, f"collected {dots} items", "", *body, "", f"===== {dots} passed in {seconds} ====="]
            )
        return "\n".join(
            [
                *start,
                f"collected {dots} items",
                "",
                *body,
                "",
                *self._failure(bug),
                "=== short test summary info ===",
                f"FAILED {test_path(bug)}::{bug.test} - {bug.error}",
                f"===== 1 failed, {dots - 1} passed in {seconds} =====",
            ]
        )

    def _failure(self, bug: Bug) -> list[str]:
        line = self.line_of(bug.path, f"def {bug.function}") + 4
        test_line = self.line_of(test_path(bug), f"def {bug.test}") + 3
        source = self.files[bug.path].splitlines()
        return [
            "=" * 34 + " FAILURES " + "=" * 34,
            f"__________ {bug.test} __________",
            "",
            *[f"    {text}" for text in self.files[test_path(bug)].splitlines()[test_line - 4 : test_line]],
            "",
            f"{test_path(bug)}:{test_line}: in {bug.test}",
            *[f"    {text}" for text in source[line - 4 : line + 2]],
            f"{bug.path}:{line}: in {bug.function}",
            f"E   {bug.error}",
        ]

    def logs(self, module: str, count: int) -> str:
        """Print lines of the service's log."""
        rows = [self._log_line(module, 7 * 3600 + i * 13 + self.random.randrange(9)) for i in range(count)]
        return "\n".join(rows)

    def _log_line(self, module: str, second: int) -> str:
        random = self.random
        level = random.choice(("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR"))
        said = random.choice(
            (
                f"stay ST-{random.randrange(10**5):05d} moved to {random.choice('ABCDEF')}{random.randrange(1, 30)}",
                f"request took {random.randrange(12, 900)} ms, {random.randrange(1, 40)} rows",
                f"station {random.randrange(100, 400)} has no reading since {random.randrange(2, 9)} h",
                f"retry {random.randrange(1, 4)} of 3 for invoice INV-{random.randrange(10**6):06d}",
                f"cache miss for window:{random.getrandbits(40):010x}",
            )
        )
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        return f"2026-10-14T{clock}.{random.randrange(1000):03d}Z {level:<7} [{module}] {said}"

    def rows(self, count: int) -> str:
        """Print records of the database as JSON."""
        random = self.random
        records = [
            {
                "stay": f"ST-{random.randrange(10**5):05d}",
                "vessel": random.choice(("Marlis", "Ostwind", "Kea", "Fjordhest", "Tern IV", "Amalfi Rose")),
                "berth": f"{random.choice('ABCDEF')}{random.randrange(1, 30)}",
                "from": f"2026-10-{random.randrange(1, 15):02d}T{random.randrange(24):02d}:00:00Z",
                "to": f"2026-10-{random.randrange(15, 29):02d}T{random.randrange(24):02d}:00:00Z",
                "draught_m": round(random.uniform(0.9, 4.8), 2),
                "paid": random.random() < 0.7,
            }
            for _ in range(count)
        ]
        return json.dumps({"count": count, "records": records}, indent=1)

    def diff(self, bug: Bug) -> str:
        """Print the change of one bug as a diff."""
        line = self.line_of(bug.path, bug.right.splitlines()[0].strip())
        old, new = bug.wrong.splitlines(), bug.right.splitlines()
        return "\n".join(
            [f"diff --git a/{bug.path} b/{bug.path}", f"--- a/{bug.path}", f"+++ b/{bug.path}"]
            + [f"@@ -{line},{len(old)} +{line},{len(new)} @@ def {bug.function}"]
            + [f"-{text}" for text in old]
            + [f"+{text}" for text in new]
        )


def test_path(bug: Bug) -> str:
    """Name the file that tests a bug's module."""
    return "tests/test_" + bug.path.rsplit("/", 1)[1]


def _module(random: Random, words: tuple[str, ...]) -> str:
    used = random.sample(SHAPES[:2] + SHAPES[3:], 4)
    texts = [_fill(HEADER, random, words), _fill(SHAPES[2], random, words)]
    texts += [_fill(shape, random, words) for shape in used]
    texts += [_fill(shape, random, words[::-1]) for shape in random.sample(SHAPES, 2)]
    return "\n\n".join(texts)


def _fill(shape: Template, random: Random, words: tuple[str, ...]) -> str:
    a, b, c = words
    n = random.randrange(2, 9)
    return shape.substitute(a=a, b=b, c=c, A=a.capitalize(), C=c.upper(), n=n)


def _migration(name: str) -> str:
    table = name.split("_", 1)[1]
    return f'''"""Schema step {name}: applied in every harbour since last year; never edited again."""

TABLE = "{table}"
UP = f"ALTER TABLE {{TABLE}} ADD COLUMN revision INTEGER NOT NULL DEFAULT 0"
DOWN = f"ALTER TABLE {{TABLE}} DROP COLUMN revision"
'''


def _test(bug: Bug) -> str:
    module = bug.path.removesuffix(".py").replace("/", ".")
    return f'''
from {module} import {bug.function}


def {bug.test}(harbour):
    """The case from the report: see the harbour office's note of 14 October."""
    case = harbour.case("{bug.test.removeprefix("test_")}")
    assert {bug.function}(*case.given) == case.expected


def {bug.test}_at_the_edge(harbour):
    for case in harbour.edge_cases("{bug.function}"):
        assert {bug.function}(*case.given) == case.expected, case.name
'''

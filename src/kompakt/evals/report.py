"""The report: JSON, Markdown tables, and plots if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kompakt.evals.measures.retention import SUMMARY, TENTH
from kompakt.evals.measures.score import SCORED_KINDS, ResultRow
from kompakt.evals.results import Goal, Metric, goals, metrics, shortfalls

RESULTS = "results.json"
REPORT = "report.md"
MOST_MISSED = 12
"""Misses of each kind that the report lists. The rows hold more."""

_MARKS = {True: "yes", False: "**no**", None: "–"}


class Results(msgspec.Struct, frozen=True):
    """The results of a run."""

    version: str
    policy: str
    sessions: int
    goals: list[Goal]
    metrics: list[Metric]
    by_source: dict[str, list[Metric]]
    skipped: list[str] = []
    """Files that could not be read and measures that failed. They are not in the metrics."""


def gather(rows: Sequence[ResultRow], *, version: str, policy: str, skipped: Sequence[str] = ()) -> Results:
    found = metrics(rows)
    sources = dict.fromkeys(row.source for row in rows)
    apart = {source: metrics(row for row in rows if row.source == source) for source in sources}
    count = len({row.session for row in rows})
    return Results(version, policy, count, goals(found, rows), found, apart, list(skipped))


def write(results: Results, rows: Sequence[ResultRow], out: Path) -> list[Path]:
    """Write the report into a folder and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    data, page = out / RESULTS, out / REPORT
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    pictures = _pictures(results, out)
    page.write_text(markdown(results, rows, [path.name for path in pictures if path.suffix == ".svg"]))
    return [data, page, *pictures]


def _pictures(results: Results, out: Path) -> list[Path]:
    try:
        from kompakt.evals.plots import draw  # late: matplotlib is an extra
    except ImportError:
        return []
    return draw(results.metrics, out)


def markdown(results: Results, rows: Sequence[ResultRow], pictures: Sequence[str] = ()) -> str:
    """Return the report as one Markdown page."""
    blocks = [
        "# Evaluation",
        f"kompakt {results.version}, policy `{results.policy}`, {results.sessions} sessions.",
        "## Goals",
        _table(
            ("metric", "goal", "measured", "reached"),
            ((g.name, g.goal, g.found, _MARKS[g.reached]) for g in results.goals),
        ),
    ]
    for size in (TENTH, SUMMARY):
        blocks += [f"## Retention at {size}", _comparison(results.metrics, size)]
    blocks += ["## By source", _sources(results)]
    blocks += ["## Distributions and worst sessions", _distributions(results.metrics)]
    blocks += [f"![{name}]({name})" for name in pictures]
    blocks += ["## Missed goals", _needed(rows)]
    blocks += ["## Misses", _missed(rows)]
    if results.skipped:
        blocks += ["## Skipped", "\n".join(f"- {line}" for line in results.skipped)]
    return "\n\n".join(blocks) + "\n"


def _comparison(found: Sequence[Metric], size: str) -> str:
    """Compare kompakt, the baselines and recorded summaries at one size."""
    modes = list(dict.fromkeys(one.mode for one in found if one.measure == "retention" and one.mode.endswith(size)))
    modes.sort(key=lambda mode: not mode.startswith("kompakt"))
    shares = {(one.mode, one.kind): one for one in found if one.measure == "retention"}
    lines: list[tuple[str, ...]] = []
    for kind in SCORED_KINDS:
        cells = [f"{one.share:.1%}" if (one := shares.get((mode, kind))) else "–" for mode in modes]
        total = next((str(shares[mode, kind].total) for mode in modes if (mode, kind) in shares), "0")
        lines.append((kind, total, *cells))
    return _table(("kind", "expected", *(mode.removesuffix(f", {size}") for mode in modes)), lines)


def _sources(results: Results) -> str:
    kinds = (*SCORED_KINDS, "precision", "reachable", "restored", "fits", "valid")
    lines: list[tuple[str, ...]] = []
    for source, found in results.by_source.items():
        shares = {
            one.kind: one.share for one in found if one.measure == "retention" and one.mode == f"kompakt, {TENTH}"
        }
        if shares:
            lines.append((source, *(f"{shares[kind]:.0%}" if kind in shares else "–" for kind in kinds)))
    return _table((f"at {TENTH}", *kinds), lines)


def _distributions(found: Sequence[Metric]) -> str:
    chosen = [one for one in found if one.measure != "retention" or one.mode.startswith("kompakt")]
    lines = [
        (one.measure, one.mode, one.kind, f"{one.passed}/{one.total}", f"{one.share:.1%}", f"{one.median:.0%}",
         f"{one.p10:.0%}", f"{one.least:.0%}", "; ".join(one.worst))
        for one in chosen
    ]  # fmt: skip
    return _table(("measure", "mode", "kind", "passed", "share", "median", "p10", "least", "worst"), lines)


def _needed(rows: Sequence[ResultRow]) -> str:
    """List the missed goals with the causes of their misses."""
    lines = [
        (one.name, f"{one.passed}/{one.total}", str(one.more), str(one.unfit), str(one.absent), str(one.key_only),
         "; ".join(one.worst))
        for one in shortfalls(rows)
    ]  # fmt: skip
    if not lines:
        return "Every retention goal is reached."
    head = ("goal", "passed", "short by", "below the floor", "absent", "key only", "cases with most avoidable misses")
    return f"{_table(head, lines)}\n\n{_REMEDIES}"


_REMEDIES = (
    "*Below the floor*: system prompt, tools, requests and the open round alone exceed the budget; only a larger "
    "budget helps. *Absent*: the ledger left it out; more tokens or a shorter line would include it. *Key only*: the "
    "name is present, but not what it is about."
)


def _missed(rows: Sequence[ResultRow]) -> str:
    seen: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        if row.measure == "retention" and row.mode.startswith("kompakt"):
            for one in row.missed:
                line = (one.kind, f"{row.session}@{row.at}", row.mode, one.key, one.why)
                seen.setdefault(one.kind, []).append(line)
    lines = [line for kind in seen for line in seen[kind][:MOST_MISSED]]
    return _table(("kind", "session and cut", "mode", "missed", "why"), lines) if lines else "None."


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows])


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 160 else f"{flat[:159]}…"

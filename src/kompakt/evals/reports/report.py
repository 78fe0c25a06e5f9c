"""The report: numbers as JSON, tables as Markdown, and pictures where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kompakt.evals.measures.context import SUMMARY, TENTH
from kompakt.evals.measures.measure import ASKED
from kompakt.evals.measures.shortfall import shortfalls
from kompakt.evals.reports.results import Goal, Number, goals, numbers
from kompakt.evals.reports.row import Row

RESULTS = "results.json"
REPORT = "report.md"
MOST_MISSED = 12
"""Misses of a kind that the report lists; the rows hold more."""

_MARKS = {True: "yes", False: "**no**", None: "–"}


class Results(msgspec.Struct, frozen=True):
    """Everything that was measured, gathered."""

    version: str
    policy: str
    sessions: int
    goals: list[Goal]
    numbers: list[Number]
    by_source: dict[str, list[Number]]
    skipped: list[str] = []
    """Files that could not be read, and measures that failed; nothing of them is in the numbers."""


def gather(rows: Sequence[Row], *, version: str, policy: str, skipped: Sequence[str] = ()) -> Results:
    """Gather rows into results."""
    found = numbers(rows)
    sources = dict.fromkeys(row.source for row in rows)
    apart = {source: numbers(row for row in rows if row.source == source) for source in sources}
    count = len({row.session for row in rows})
    return Results(version, policy, count, goals(found, rows), found, apart, list(skipped))


def write(results: Results, rows: Sequence[Row], out: Path) -> list[Path]:
    """Write the report into a folder; the files that were written come back."""
    out.mkdir(parents=True, exist_ok=True)
    data, page = out / RESULTS, out / REPORT
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    pictures = _pictures(results, out)
    page.write_text(markdown(results, rows, [path.name for path in pictures if path.suffix == ".svg"]))
    return [data, page, *pictures]


def _pictures(results: Results, out: Path) -> list[Path]:
    try:
        from kompakt.evals.reports.plots import draw  # late: matplotlib is an extra
    except ImportError:
        return []
    return draw(results.numbers, out)


def markdown(results: Results, rows: Sequence[Row], pictures: Sequence[str] = ()) -> str:
    """Write the whole report as one page."""
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
        blocks += [f"## Told, at {size}", _beside(results.numbers, size)]
    blocks += ["## By source", _sources(results)]
    blocks += ["## Distributions and worst sessions", _distributions(results.numbers)]
    blocks += [f"![{name}]({name})" for name in pictures]
    blocks += ["## What would be needed", _needed(rows)]
    blocks += ["## What was missed", _missed(rows)]
    if results.skipped:
        blocks += ["## What was skipped", "\n".join(f"- {line}" for line in results.skipped)]
    return "\n\n".join(blocks) + "\n"


def _beside(found: Sequence[Number], size: str) -> str:
    """Set kompakt, the baselines and real summaries side by side at one size."""
    modes = list(dict.fromkeys(one.mode for one in found if one.measure == "told" and one.mode.endswith(size)))
    modes.sort(key=lambda mode: not mode.startswith("kompakt"))
    shares = {(one.mode, one.kind): one for one in found if one.measure == "told"}
    lines: list[tuple[str, ...]] = []
    for kind in ASKED:
        cells = [f"{one.share:.1%}" if (one := shares.get((mode, kind))) else "–" for mode in modes]
        asked = next((str(shares[mode, kind].asked) for mode in modes if (mode, kind) in shares), "0")
        lines.append((kind, asked, *cells))
    return _table(("kind", "asked", *(mode.removesuffix(f", {size}") for mode in modes)), lines)


def _sources(results: Results) -> str:
    kinds = (*ASKED, "precision", "reachable", "restored", "fits", "valid")
    lines: list[tuple[str, ...]] = []
    for source, found in results.by_source.items():
        shares = {one.kind: one.share for one in found if one.measure == "told" and one.mode == f"kompakt, {TENTH}"}
        if shares:
            lines.append((source, *(f"{shares[kind]:.0%}" if kind in shares else "–" for kind in kinds)))
    return _table((f"at {TENTH}", *kinds), lines)


def _distributions(found: Sequence[Number]) -> str:
    chosen = [one for one in found if one.measure != "told" or one.mode.startswith("kompakt")]
    lines = [
        (one.measure, one.mode, one.kind, f"{one.told}/{one.asked}", f"{one.share:.1%}", f"{one.median:.0%}",
         f"{one.p10:.0%}", f"{one.least:.0%}", "; ".join(one.worst))
        for one in chosen
    ]  # fmt: skip
    return _table(("measure", "mode", "kind", "told", "share", "median", "p10", "least", "worst"), lines)


def _needed(rows: Sequence[Row]) -> str:
    """Say by how much goals are missed, and for want of what."""
    lines = [
        (one.name, f"{one.told}/{one.asked}", str(one.more), str(one.unfit), str(one.absent), str(one.alone),
         "; ".join(one.worst))
        for one in shortfalls(rows)
    ]  # fmt: skip
    if not lines:
        return "Every goal on what is told is reached."
    head = ("goal", "told", "short by", "below the floor", "no room", "without words", "where most could be told")
    return f"{_table(head, lines)}\n\n{_REMEDIES}"


_REMEDIES = (
    "*Below the floor*: system, tools, requests and the open round alone are larger than the budget; only a larger "
    "budget helps. *No room*: the ledger had to leave it out; more tokens, or a cheaper line, would tell it. *Without "
    "words*: the name or key is there, what it is about is not."
)


def _missed(rows: Sequence[Row]) -> str:
    seen: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        if row.measure == "told" and row.mode.startswith("kompakt"):
            for one in row.missed:
                line = (one.kind, f"{row.session}@{row.at}", row.mode, one.key, one.why)
                seen.setdefault(one.kind, []).append(line)
    lines = [line for kind in seen for line in seen[kind][:MOST_MISSED]]
    return _table(("kind", "session and cut", "mode", "missed", "why"), lines) if lines else "Nothing."


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows])


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 160 else f"{flat[:159]}…"

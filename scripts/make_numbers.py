"""Write every measured figure of the documentation from benchmarks/results.

Usage: python scripts/make_numbers.py [--check]. With --check, nothing is written and a stale or unmarked figure gives
exit code 1. A document contains two kinds of marks; both are invisible when it is rendered:

    <!-- number: engine/rows/cold compaction, default/value = {:.0f} ms -->76 ms<!-- /number -->
    <!-- table: exam -->
    …
    <!-- /table -->

The path of a number starts with a file of benchmarks/results without its suffix; an item of a list is selected by its
position or its name, written without backquotes. What follows the equals sign is a Python format. DERIVED has values
that are computed from several results, TABLES the tables. A measured figure without marks is an error, except those in
ALLOWED: settings, limits and examples, which no benchmark measures.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the pages of benchmarks/ are written by its modules

RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]

NUMBER = re.compile(r"(<!-- number: (?P<path>[^=]+?) = (?P<format>.+?) -->)(?P<value>.*?)(<!-- /number -->)", re.S)
TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<value>.*?)(<!-- /table -->)", re.S)
REGION = re.compile(r"<!-- (admission exam) -->\n.*?<!-- end of \1 -->", re.S)
CODE = re.compile(r"^([ ]*)```.*?^\1```[ ]*$|`[^`\n]+`", re.M | re.S)
FIGURE = re.compile(
    r"(?<![\w.])\d[\d,.]*\d*(?: to \d[\d.,]*)?\s?"
    r"(?:ms|µs|s|seconds?|minutes?|[KMG]B(?:/s)?|×|%|times(?= (?:as|the|faster|slower))|(?:tokens|requests|messages)/s)"
    r"(?![\w/])|× \d[\d.]*(?: to \d[\d.]*)?"
    r"|(?i:\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|thirty) (?:milli)?(?:second|minute|hour)s\b)"
)

GENERATED = (
    "docs/comparison.md",
    "docs/scaling.md",
    "docs/concepts/cost.md",
    "docs/reference/",
    "docs/p/",
    "docs/changelog.md",
)
"""Pages that are generated as a whole."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "docs/concepts/compaction.md": ("75 %", "70 %", "95 %"),  # settings of policies, budgets and narratives
    "docs/guides/sessions.md": ("100 MB", "15 seconds"),  # an example, and the lifetime of a lock
    "docs/guides/evaluating.md": ("85 %", "10 %"),  # where sessions are cut
    "docs/guides/gateway.md": ("128 MB", "64 MB", "32 MB", "0.5 to 30 seconds", "20 seconds", "30 seconds"),  # settings
    "docs/guides/counting.md": ("× 1.01 to 1.14",),  # factors of src/kompakt/model/tokens
    "docs/guides/fleet.md": ("70 %",),  # where sessions are cut
    "docs/guides/compacting.md": ("70 %",),
    "docs/guides/agents.md": ("90 %", "70 %", "80 %", "15 seconds", "three minutes"),  # triggers, lock and time limits
    "docs/guides/opencode-pi.md": ("30 seconds",),  # a time limit
}
"""Figures that are settings, limits or examples, by page."""


# --- values


@cache
def results() -> dict[str, Any]:
    """Return all results by file name, with the derived values."""
    found: dict[str, Any] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        if path.parent.name != "exam":
            found[str(path.relative_to(RESULTS).with_suffix(""))] = json.loads(path.read_text(encoding="utf-8"))
    return found | {name: derive() for name, derive in DERIVED.items()}


def value_at(path: str) -> Any:
    """Return the value at a path such as ``engine/rows/one more step on 50,000 messages/value``."""
    keys = path.split("/")
    for length in range(len(keys), 0, -1):
        if (name := "/".join(keys[:length])) in results():
            value, rest = results()[name], keys[length:]
            break
    else:
        raise KeyError(f"no file of benchmarks/results for {path!r}")
    for key in rest:
        value = _item(value, key, path)
    return value


def _item(value: Any, key: str, path: str) -> Any:
    if isinstance(value, dict) and key in value:
        return value[key]
    if isinstance(value, list):
        if key.isdigit() and int(key) < len(value):
            return value[int(key)]
        for item in value:
            if isinstance(item, dict) and str(item.get("name")).replace("`", "") == key:
                return item
    raise KeyError(f"nothing is named {key!r} in {path!r}")


def shown(value: Any, format: str) -> str:
    """Format a value; a percent sign has a space before it, as everywhere in the documentation."""
    return re.sub(r"(?<=\d)%", " %", format.format(value))


CLAUDE_CODE_SESSIONS = 6
"""The first sessions of the exam; the others are of pi, OpenHands, an airline's customer service, and a chat."""


EXAM_ROUNDS = (("key", ("grades", "grades.second")), ("key.readers", ("grades.readers",)))
"""The key of each part of the round, which says whose answer each label is, and the grades of its graders."""


def exam_scores() -> dict[str, dict[str, float]]:
    """Return the points of 100 by condition, for all sessions, for those of Claude Code, and for the others.

    The score of a context is the mean over all questions of the share of gold points, over graders and readers.
    """
    points: dict[tuple[str, str], list[float]] = defaultdict(list)
    for key_name, graders in EXAM_ROUNDS:
        key = _exam_file(key_name)
        for question, labels in ((one, labels) for grader in graders for one, labels in _exam_file(grader).items()):
            group = "claude-code" if int(question.split(".")[0]) <= CLAUDE_CODE_SESSIONS else "others"
            for label, reader in key[question].items():
                given, condition = labels[label]["points"], reader.removesuffix(".second")
                points["all", condition].append(sum(given) / len(given))
                points[group, condition].append(sum(given) / len(given))
    scores: dict[str, dict[str, float]] = {"all": {}, "claude-code": {}, "others": {}}
    for (group, condition), values in points.items():
        scores[group][condition] = 100 * sum(values) / len(values)
    return scores


def _exam_file(name: str) -> Any:
    return json.loads((RESULTS / "exam" / f"{name}.json").read_text(encoding="utf-8"))


def exam_size() -> dict[str, int]:
    grades = _exam_file("grades")
    return {"questions": len(grades), "sessions": len({name.split(".")[0] for name in grades})}


def savings() -> dict[str, dict[str, float]]:
    """Return what the default saves, by window: least and most, and the cost of the dearest session.

    The default trigger, 0.9, was not measured. 0.85 and 0.95 are on either side of it, so both are reported.
    """
    rows = json.loads((RESULTS / "trade_off.json").read_text())["rows"]
    near = [row for row in rows if row["mode"] == "default" and row["trigger"] in (0.85, 0.95)]
    found: dict[str, dict[str, float]] = {}
    for window in {row["window"] for row in near}:
        saved = [row["saved"] for row in near if row["window"] == window]
        found[str(window)] = {"least": min(saved), "most": max(saved)}
    return found | {"all": {"dearest": max(row["dearest"] for row in near) - 1}}


def kompakt_rates() -> dict[str, float]:
    """Return the shares of the comparison for kompakt's default policy."""
    scores = json.loads((RESULTS / "comparison.json").read_text())["scores"]
    own = next(score for score in scores if score["name"] == "kompakt, `default`")
    return {"task_lost": own["task_lost"] / (own["feasible"] - own["raised_feasible"])}


def engine_history() -> dict[str, int]:
    """Return the size of the history that the engine's benchmark compacts."""
    rows = json.loads((RESULTS / "engine.json").read_text())["rows"]
    note = next(row["note"] for row in rows if row["name"] == "cold compaction, `window`")
    return {"tokens": int(re.findall(r"([\d,]+) tokens", note)[0].replace(",", ""))}


DERIVED: dict[str, Callable[[], Any]] = {
    "exam": exam_scores,
    "exam_size": exam_size,
    "savings": savings,
    "engine_history": engine_history,
    "kompakt_rates": kompakt_rates,
}


# --- tables


def comparison_table() -> Iterator[str]:
    """Compare libraries, one a column, as a newcomer asks: is it valid, does it fit, is my task still there."""
    columns = {
        "kompakt": "kompakt, `default`",
        "LangChain `trim_messages`": "LangChain `trim_messages`",
        "LangChain summary": "LangChain `SummarizationMiddleware`",
        "Agent Framework, composed": "Agent Framework, composed",
        "Agent Framework, context window": "Agent Framework, context window",
        "LiteLLM `trim_messages`": "LiteLLM `trim_messages`",
    }
    scores = {one["name"]: one for one in results()["comparison"]["scores"]}
    chosen = [scores[name] for name in columns.values()]
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    answered = [one["cases"] - one["raised"] for one in chosen]
    possible = [one["feasible"] - one["raised_feasible"] for one in chosen]

    def row(label: str, cells: list[str]) -> str:
        return f"| {label} | {' | '.join(cells)} |"

    def kept(name: str, wholes: list[int]) -> list[str]:
        return [share(whole - one[name], whole) for one, whole in zip(chosen, wholes, strict=True)]

    yield row("request is valid", kept("invalid", answered))
    yield row("within the budget", kept("over", possible))
    yield row("task kept word for word", kept("task_lost", possible))
    yield row("newest request kept word for word", kept("newest_lost", possible))
    yield row("prompt cache still matches", [percent(one["stable"]) for one in chosen])
    yield row("gives up with an error", [share(one["raised"], one["cases"]) for one in chosen])
    base = chosen[0]["time"]
    yield row("time, kompakt = 1", [_ratio(one["time"] / base) for one in chosen])


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def share(part: int, whole: int) -> str:
    """Return a share in percent that is 100 or 0 only if it is exactly that."""
    return f"{100 * part // whole} %" if part in (0, whole) else f"{100 * part / whole:.1f} %"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def exam_table() -> Iterator[str]:
    """Show what readers can answer, with the size of the context and the model calls that it takes."""
    names = {
        "summary": ("a summary by a large model", "1 large call"),
        "same": ("kompakt, in as many tokens as that summary", "none"),
        "narrative": ("kompakt with a model, in as many tokens as that summary", "1 large call"),
        "tenth": ("kompakt, 10 % of the session", "none"),
        "20": ("kompakt, 20 % of the session", "none"),
        "33": ("kompakt, 33 % of the session", "none"),
        "recall": ("kompakt, 10 % of the session, model may use `recall`", "none, small lookups"),
    }
    scores = exam_scores()
    columns = ("all sessions", "Claude Code (6 sessions)", "others (4 sessions)", "model calls to make it")
    yield f"| what the model sees after compaction | {' | '.join(columns)} |"
    yield "|---|---:|---:|---:|---|"
    for condition, (name, calls) in names.items():
        cells = " | ".join(f"{scores[group][condition]:.0f}" for group in ("all", "claude-code", "others"))
        yield f"| {name} | {cells} | {calls} |"


def verifier_table() -> Iterator[str]:
    """Yield the rows of AG2's compaction verifier."""
    yield "| strategy | tokens kept | wasted actions | failed calls | repeated calls | stopped early |"
    yield "|---|---|---|---|---|---|"
    for name, row in results()["compaction_verifier"]["strategies"].items():
        extra = (f"{row[key]:+.2f}" for key in ("wasted", "blocked", "refetch", "stopped"))
        yield f"| {name} | {row['kept_tokens']:.0%} | {' | '.join(extra)} |".replace("%", " %")


def harness_table() -> Iterator[str]:
    """Yield the strategy tests of pydantic-ai-harness that were run on kompakt, by group."""
    yield "| tests | number | its own strategies pass | kompakt passes | differs by design | fails |"
    yield "|---|---:|---:|---:|---:|---:|"
    groups = results()["harness_strategies"]["groups"]
    total = {key: sum(row[key] for row in groups.values()) for key in next(iter(groups.values()))}
    for name, row in [*groups.items(), ("**all**", total)]:
        shown_name = f"`{name}`" if name in groups else name
        yield f"| {shown_name} | {' | '.join(str(row[key]) for key in total)} |"


def harness_design_table() -> Iterator[str]:
    """Yield why kompakt does something else than the strategies of pydantic-ai-harness."""
    yield "| what kompakt does instead | tests |"
    yield "|---|---:|"
    for reason, tests in results()["harness_strategies"]["differing"].items():
        yield f"| {reason[0].upper()}{reason[1:]} | {len(tests)} |"


OBJECTS = {
    "same": "the same objects",
    "new": "new objects",
    "copied": "copies of messages and calls",
    "parsed": "messages parsed from JSON",
}
"""What a framework gives to its adapter at every step."""


def adapters_table() -> Iterator[str]:
    """Yield the time that each adapter adds to a step."""
    yield "| framework | what it gives at every step | ms, nothing hidden | ms, most hidden |"
    yield "|---|---|---:|---:|"
    for name, row in results()["adapters"]["frameworks"].items():
        page = name.removesuffix("_proxy")
        times = f"{row['median_ms']:.2f} | {row['hidden_median_ms']:.2f}"
        yield f"| [`{name}`](../integrations/{page}.md) | {OBJECTS[row['objects']]} | {times} |"


PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of Python that the package supports."""


def packaging_table() -> Iterator[str]:
    """Show with which versions of Python the extras were installed into an empty environment and tried."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = ["none", *(name for name in project["optional-dependencies"] if name not in ("all", "dev", "bench"))]
    outcomes = results()["packaging"]["extras"]

    def listed(chosen: list[str]) -> str:
        return ", ".join(f"`{name}`" for name in chosen) or "none"

    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for name in names:
        found = {version: outcomes.get(name, {}).get(version) for version in PYTHONS}
        works = tuple(version for version in PYTHONS if found[version] == "works")
        fails = tuple(version for version in PYTHONS if found[version] not in (None, "works"))
        groups[works, fails].append(name)
    yield "| extras | installed and tried with Python | cannot be installed with |"
    yield "|---|---|---|"
    for (works, fails), members in sorted(groups.items(), key=lambda group: (group[0][1], -len(group[1]))):
        yield f"| {listed(members)} | {', '.join(works) or 'not yet'} | {', '.join(fails) or '–'} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "adapters": adapters_table,
    "comparison": comparison_table,
    "exam": exam_table,
    "harness": harness_table,
    "harness-design": harness_design_table,
    "packaging": packaging_table,
    "verifier": verifier_table,
}


# --- pages


def pages() -> list[Path]:
    return [*DOCUMENTS, *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """Return a document with the values of the results between its marks."""
    text = NUMBER.sub(lambda found: f"{found[1]}{shown(value_at(found['path']), found['format'])}{found[5]}", text)
    return TABLE.sub(lambda found: f"{found[1]}\n" + "\n".join(TABLES[found["name"]]()) + f"\n\n{found[4]}", text)


def generated() -> dict[Path, str]:
    """Return the pages and parts of pages that modules of benchmarks/ write, and the picture of the README."""
    from benchmarks import admission_exam, compare, scaling, trade_off
    from scripts.make_picture import PICTURE, picture

    scores = {score["name"]: score for score in results()["comparison"]["scores"]}
    contenders = [*compare.KOMPAKT, *compare.PEERS]
    measured = [one for one in contenders if one.name in scores]
    typed = [compare.msgspec.convert(scores[one.name], compare.Score) for one in measured]
    missing = [one for one in contenders if one.name not in scores]
    rows = compare.msgspec.convert(results()["admission/measured"], list[admission_exam.Measured])
    guide = admission_exam.GUIDE.read_text(encoding="utf-8")
    return {
        compare.PAGE: compare.page(typed, measured, missing),
        trade_off.PAGE: trade_off.page(results()["trade_off"], trade_off.exam_sizes()),
        admission_exam.GUIDE: admission_exam.with_region(guide, admission_exam.summary(rows)),
        scaling.PAGE: scaling.page(
            *(results()[name] for name in ("load", "growth", "soak_gateway", "fleet", "soak_fleet"))
        ),
        **scaling.pictures(results()["load"], results()["growth"]),
        PICTURE: picture(),
    }


def unmarked(path: Path, text: str) -> list[str]:
    """List the measured figures of a document that are not between marks."""
    name = str(path.relative_to(ROOT))
    if name.startswith(GENERATED):
        return []

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    for pattern in (NUMBER, TABLE, REGION, CODE):
        text = pattern.sub(blank, text)
    allowed = ALLOWED.get(name, ())
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r} is not generated: mark it as a number, or "
        "allow it in scripts/make_numbers.py"
        for found in FIGURE.finditer(text)
        if " ".join(found[0].split()) not in allowed
    ]


def main(arguments: list[str]) -> int:
    problems: list[str] = []
    texts = {page: renewed(page.read_text(encoding="utf-8")) for page in pages()}
    for page, text in {**texts, **generated()}.items():
        problems += unmarked(page, text) if page.suffix == ".md" else []
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            problems.append(f"{page.relative_to(ROOT)} is stale: run python scripts/make_numbers.py")
        else:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

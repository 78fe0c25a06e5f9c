"""Compare kompakt with other libraries and write docs/comparison.md: python -m benchmarks.compare [--cases N].

All libraries get the same random histories and budgets. `benchmarks.random_cases` has the checks and `benchmarks.peers`
the calls. `make bench-peers` installs the other libraries. The page has shares and ratios of one run, no seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.histories.plain import build

import kompakt.model.tokens
from benchmarks.engine import STABLE_BUDGET, STEPS, stability
from benchmarks.measurement import RESULTS, seconds
from benchmarks.peers import KOMPAKT, PEERS, Contender, installed, neutral_tokens
from benchmarks.random_cases import Case, draw, has_words, is_valid, starts_with_user

PAGE = Path(__file__).parent.parent / "docs" / "comparison.md"
SPEED_CHARS = 300
"""Mean size of a tool output in speed comparisons: short, because some libraries take minutes otherwise."""
SPEED_RUNS = 9
SLOW = 3.0
"""Seconds after which one run is enough."""
MAX_SECONDS = 100
"""Time limit of a library for its cases and for its steps. The page notes where it applied."""


class Score(msgspec.Struct):
    """The results of one library."""

    name: str
    version: str
    cases: int = 0
    feasible: int = 0
    raised: int = 0
    raised_feasible: int = 0
    invalid: int = 0
    over: int = 0
    task_lost: int = 0
    newest_lost: int = 0
    starts: int = 0
    time: float = 0.0
    """As a multiple of the first contender's."""
    stable: float = 0.0
    steps: int = 0
    """Steps that ``stable`` is a share of."""
    errors: dict[str, int] = {}

    @property
    def answered(self) -> int:
        """Cases that gave an output."""
        return self.cases - self.raised


def judge_case(contender: Contender, case: Case, score: Score) -> None:
    """Run a contender on one case and add the outcome to its score."""
    score.cases += 1
    score.feasible += case.is_feasible
    given = json.dumps(case.messages)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            out = contender.compact(json.loads(given), case.budget)
    except Exception as error:  # noqa: BLE001 — anybody's code; that it raises is what is counted
        score.raised += 1
        score.raised_feasible += case.is_feasible
        score.errors[type(error).__name__] = score.errors.get(type(error).__name__, 0) + 1
        return
    score.invalid += not is_valid(out)
    score.over += case.is_feasible and neutral_tokens(out) > case.budget
    if case.is_feasible:
        score.task_lost += not has_words(out, case.task)
        score.newest_lost += not has_words(out, case.newest)
    score.starts += starts_with_user(out)


def time_all(contenders: Sequence[Contender]) -> dict[str, float]:
    """Time everyone in turn on 1,000 messages of texts not seen before, to half: as multiples of the first one's time.

    Each may use its own fastest counter.
    """
    small = build("openai-chat", messages=20, mean_chars=SPEED_CHARS, seed=1_000)["messages"]
    for one in contenders:
        one.shrink(one.read(small), 200, fast=True)  # pays for imports
    ratios: dict[str, list[float]] = {one.name: [] for one in contenders}
    slow: set[str] = set()
    for seed in range(SPEED_RUNS):
        messages = build("openai-chat", messages=1_000, mean_chars=SPEED_CHARS, seed=2_000 + seed)["messages"]
        budget = neutral_tokens(messages) // 2
        base = 0.0
        for one in contenders:
            if one.name in slow:
                continue
            native = one.read(json.loads(json.dumps(messages)))
            kompakt.model.tokens._shared.cache_clear()  # a policy must not profit from what another counted
            taken = seconds(lambda one=one, native=native, budget=budget: one.shrink(native, budget, fast=True))
            base = base or taken
            ratios[one.name].append(taken / base)
            if taken > SLOW:
                slow.add(one.name)
    return {name: statistics.median(found) for name, found in ratios.items()}


def score(contender: Contender, cases: Sequence[Case]) -> Score:
    """Measure one library."""
    found = Score(contender.name, installed(contender) or kompakt.__version__)
    end = time.monotonic() + MAX_SECONDS
    for case in cases:
        judge_case(contender, case, found)
        if time.monotonic() > end:
            break
    found.stable, found.steps = stability(contender, max_seconds=MAX_SECONDS)
    return found


# --- the page ----------------------------------------------------------------------------------------------------

HEAD = """\
# Comparison with other libraries

Every library gets the same {cases} valid OpenAI Chat histories: 4 to 120 messages, one to four parallel calls, results
in and out of order, one or several turns, ending with a tool result or a request. Budgets are 5 to 90 % of the history.

"""

COLUMNS = "| call | invalid | over budget | task lost | newest lost | user first | raises | time | prefix kept |"

LEGEND = """
- **invalid**: rejected by the tests' own implementation of OpenAI's rules, which is not part of kompakt: a result
  without a call, a call without a result, or nothing left to answer. A share of all outputs, like *user first*.
- **over budget**, **task lost**, **newest lost**: of the {feasible} cases whose budget has room for the system
  prompt and the first and newest user message. Counted in o200k by OpenAI's published rule. Lost means: not present
  verbatim. kompakt shortens the first request only as a last resort; see [compaction](concepts/compaction.md).
- **raises**: in brackets, the share of those same cases. kompakt raises `DoesNotFit` with the required size if the
  shortened open tool round does not fit either; other libraries return something larger or invalid.
- **time**: to reduce 1,000 messages to half their tokens, as a multiple of kompakt's `window`, measured alternately.
  Other libraries get ready-made messages and use their fastest counter; kompakt parses, counts in o200k, and renders.
- **prefix kept**: share of {steps} steps under {budget:,} tokens after which the previous request is a prefix of the
  next one, as prompt caches require. Libraries with state keep it between steps.

This page is generated from `benchmarks/results/comparison.json`; `make bench-peers` measures again.

## Calls

"""


def _share(part: int, whole: int) -> str:
    return "–" if not whole else "0" if not part else f"{part / whole:.1%}".replace("%", " %")


def _line(one: Score) -> str:
    answered = one.feasible - one.raised_feasible
    cells = [
        one.name,
        _share(one.invalid, one.answered),
        _share(one.over, answered),
        _share(one.task_lost, answered),
        _share(one.newest_lost, answered),
        _share(one.starts, one.answered),
        f"{_share(one.raised, one.cases)} ({_share(one.raised_feasible, one.feasible)})",
        f"{one.time:,.2g}" if one.time < 10 else f"{one.time:,.0f}",
        f"{one.stable:.1%}".replace("%", " %"),
    ]
    return f"| {' | '.join(cells)} |"


def page(scores: Sequence[Score], contenders: Sequence[Contender], missing: Sequence[Contender]) -> str:
    dashes = "|---" + "|---:" * (COLUMNS.count("|") - 2) + "|"
    table = [COLUMNS, dashes, *[_line(one) for one in scores]]
    facts = {"cases": scores[0].cases, "feasible": scores[0].feasible, "steps": STEPS, "budget": STABLE_BUDGET}
    calls = [
        f"- {one.name}, {contender.package} {one.version}: {contender.call}" + _remark(contender, one, scores[0].cases)
        for one, contender in zip(scores, contenders, strict=True)
    ]
    calls += [f"- {one.name}: not installed, not measured" for one in missing]
    return HEAD.format(**facts) + "\n".join(table) + "\n" + LEGEND.format(**facts) + "\n".join(calls) + "\n"


def _remark(contender: Contender, one: Score, asked: int) -> str:
    errors = ", ".join(f"`{name}` {count}×" for name, count in sorted(one.errors.items()))
    short = [f"{one.cases} cases" if one.cases < asked else "", f"{one.steps} steps" if one.steps < STEPS else ""]
    cut = " and ".join(filter(None, short))
    limit = f"only {cut}, because of the time limit" if cut else ""
    remarks = [contender.remark, f"raised {errors}" if errors else "", limit]
    return "".join(f"; {text}" for text in remarks if text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description="Compare kompakt with other libraries.")
    parser.add_argument("--cases", type=int, default=500, metavar="N", help="number of histories; default: 500")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page to write")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    present = [*KOMPAKT, *(one for one in PEERS if installed(one))]
    missing = [one for one in PEERS if not installed(one)]
    cases = [draw(number) for number in range(given.cases)]
    scores: list[Score] = []
    for one in present:
        print(f"{one.name} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        scores.append(score(one, cases))
        print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    times = time_all(present)
    for one in scores:
        one.time = times[one.name]
    text = page(scores, present, missing)
    print(text)
    given.out.write_text(text, encoding="utf-8")
    record = msgspec.json.format(msgspec.json.encode({"area": "comparison", "scores": scores}), indent=2)
    if given.out == PAGE:
        (RESULTS / "comparison.json").write_bytes(record + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

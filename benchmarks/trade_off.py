"""The bill of recorded sessions under several settings, beside the exam score of contexts of that size.

    python -m benchmarks.trade_off DATA     replay the sessions of a folder, write benchmarks/results/trade_off.json
    python -m benchmarks.trade_off          write docs/concepts/cost.md from the results

A setting is the share of the usable window at which a context is compacted, and whether it is also compacted earlier
to save money. Each session is replayed request by request and priced with a prompt cache. Exam scores are taken from
benchmarks/results/exam/sizes.json: {"share of the session's tokens": points}, by hand or from ``kompakt eval --exam``.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_left
from pathlib import Path
from statistics import median
from typing import Any

from kompakt.engine.compaction.cost import Prices
from kompakt.evals.case import Recording, record
from kompakt.evals.measures.bills import Schedule, above_half, cost_of_everything, economic, replay, requests
from kompakt.evals.session_files import sessions
from kompakt.model.budget import Budget
from kompakt.model.limits import Limits

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "trade_off.json"
SIZES = RESULTS / "exam" / "sizes.json"
PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "cost.md"

WINDOWS = (200_000, 64_000)
OUTPUT = 8_000
TRIGGERS = (0.5, 0.6, 0.7, 0.85, 0.95)
MODES = ("when full", "default", "opt-in")
"""Compact only at the trigger; also when it is cheaper above half of the window; also when it is cheaper below."""

TOLERANCE = 0.01
"""Difference of shares below which a context has the size of one that was examined."""

MIN_TOKENS = 32_000
"""Sessions with fewer tokens are compacted under no setting."""


def measure(data: Path) -> dict[str, Any]:
    """Replay every long session under every setting."""
    recordings = [record(one) for one in sessions(data, print) if not one.questions]
    chosen = [one for one in recordings if sum(one.weight) >= MIN_TOKENS]
    prices, rows = Prices(), list[dict[str, Any]]()
    sent = {one.session.name: requests(one) for one in chosen}
    untouched = {name: cost_of_everything(listed, prices) for name, listed in sent.items()}
    for window in WINDOWS:
        for share in TRIGGERS:
            for mode in MODES:
                began = time.perf_counter()
                rows.append(_row(chosen, sent, untouched, window, share, mode))
                print(f"{rows[-1]} {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
                found = {"sessions": len(chosen), "prices": _prices(prices), "rows": rows}
                ROWS.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(ROWS.read_text())


def _prices(prices: Prices) -> dict[str, float]:
    return {name: getattr(prices, name) for name in ("input", "output", "cache_read", "cache_write", "life")}


def _row(chosen: list[Recording], sent: Any, untouched: Any, window: int, share: float, mode: str) -> dict[str, Any]:
    limits = Limits(model="", context=window, output=OUTPUT)
    budget = Budget.for_model(limits, trigger_share=share)
    schedule: Schedule | None = {"when full": None, "default": above_half(budget), "opt-in": economic}[mode]
    paid = whole = 0.0
    left: list[float] = []
    rewrites, worst = 0, 0.0
    compacted = 0
    for one in chosen:
        name = one.session.name
        bill = replay(one, sent[name], "default", budget, Prices(), schedule=schedule)
        paid, whole = paid + bill.paid, whole + untouched[name].paid
        rewrites, compacted = rewrites + bill.rewrites, compacted + bool(bill.rewrites)
        left += bill.left
        worst = max(worst, bill.dearest)
    return {
        "window": window, "trigger": share, "mode": mode, "saved": round(1 - paid / whole, 4), "rewrites": rewrites,
        "compacted": compacted, "left": round(median(left), 4) if left else None,
        "least": round(min(left), 4) if left else None, "dearest": round(worst, 4),
    }  # fmt: skip


def exam_score(share: float | None, sizes: dict[float, float]) -> str | None:
    """Interpolate the exam score of a context of this share of the session; ``None`` outside of what was measured."""
    known = sorted(sizes)
    if share is None or not known:
        return None
    share = min((one for one in known if abs(one - share) <= TOLERANCE), default=share)
    if not known[0] <= share <= known[-1]:
        return None
    at = bisect_left(known, share)
    if known[at] == share:
        return f"{sizes[share]:.0f}"
    low, high = known[at - 1], known[at]
    return f"{sizes[low] + (sizes[high] - sizes[low]) * (share - low) / (high - low):.0f}"


def exam_sizes() -> dict[float, float]:
    """Return the exam scores by the share of the session that the context has."""
    return {float(share): score for share, score in json.loads(SIZES.read_text()).items()} if SIZES.exists() else {}


def page(found: dict[str, Any], sizes: dict[float, float]) -> str:
    """Return the documentation page."""
    lines = [_HEAD.format(sessions=found["sessions"])]
    for window in WINDOWS:
        lines += [f"### A window of {window:,} tokens", "", _TABLE]
        for row in found["rows"]:
            if row["window"] == window:
                left = _percent(row["left"]) if row["left"] is not None else "–"
                score = exam_score(row["left"], sizes) or "–"
                lines.append(
                    f"| {_percent(row['trigger'])} | {_NAMES[row['mode']]} | {_percent(row['saved'])} "
                    f"| {row['compacted']} | {row['rewrites']} | {left} | {score} |"
                )
        lines.append("")
    lines += [_sizes(sizes), _CHOICE]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _sizes(sizes: dict[float, float]) -> str:
    if not sizes:
        return "No exam has been taken yet for contexts of several sizes.\n"
    rows = "\n".join(f"| {_percent(share)} | {score:.1f} |" for share, score in sorted(sizes.items()))
    return f"Exam scores that were measured:\n\n| share of the session's tokens | points of 100 |\n|---|---|\n{rows}\n"


_NAMES = {"when full": "no", "default": "above half of the window (default)", "opt-in": "always (`economic=True`)"}

_TABLE = (
    "| compact at | earlier, to save money | saved | sessions compacted | compactions | left by a compaction, median "
    "| exam score at that size |\n|---|---|---|---|---|---|---|"
)

_HEAD = """\
# Cost and quality

A compaction rewrites the prompt, so the provider's cache is lost once and the new prompt is written to it; each later
step then reads less. Rewriting early and often saves money, and each rewriting leaves less of the session for the model
to read. This page shows both.

## Settings

- `trigger_share` of `Budget.for_model`: the share of the usable window at which a context is compacted. Default: 0.9.
- `economic` in `CompactionConfig`: whether a context that still fits is compacted because that is cheaper. By default
  that happens only above half of the window, and no further down than an ordinary compaction goes. `True` also allows
  it below; `False` turns it off.

## Measured

{sessions} recorded sessions of at least 32,000 tokens, replayed request by request on the engine, priced with a prompt
cache: input 1, output 5, cache read 0.1, cache write 1.25 per token. A cached prefix lives for five minutes, and an
answer may have 8,000 tokens. *Saved* is relative to sending everything each time, even beyond the window. *Left by a
compaction* is the size of the new context as a share of all tokens so far. The exam score is that of a context of this
share of a session, without a model and without recall; sizes that were not examined have none. Run
`python -m benchmarks.trade_off DATA` for your own sessions.
"""

_CHOICE = """\
## The default

Compaction when the window is full keeps most of a session and saves least. The default also compacts above half of the
window when that is cheaper: in a large window it saves about ten points more, with contexts of the same size. To
compact whenever it is cheaper saves most, and leaves a tenth of the session; readers then miss about a quarter of what
is asked, without recall. This costs quality, so it is left to the user (`economic=True`).
"""


def main() -> None:
    """Measure if a folder is given, and write the page."""
    found = measure(Path(sys.argv[1])) if len(sys.argv) > 1 else json.loads(ROWS.read_text())
    PAGE.write_text(page(found, exam_sizes()))


if __name__ == "__main__":
    main()

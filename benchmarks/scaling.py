"""docs/scaling.md and its plots, from the results of `benchmarks.load`, `growth` and `fleet`, and of two soaks.

`python scripts/make_numbers.py` writes them. Nothing on the page is typed in but the assumptions in ``Plan``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from kompakt.gateway.pivots.lookup import MAX_BYTES as PIVOTS
from kompakt.gateway.request.history import MAX_BYTES as CHAINS
from kompakt.gateway.storage.recorder import MAX_PREFIX_BYTES as PREFIXES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scaling.md"
IMAGES = ROOT / "docs" / "images"

DAY = 86_400
GOAL = 1.7
"""How many times the requests of one worker two workers are to serve."""
POOL = 10
"""Connections that a worker opens to PostgreSQL at most."""
DEFAULT_POSTGRES = 100
"""``max_connections`` of PostgreSQL, unless it is raised."""


class Plan(NamedTuple):
    """What is assumed of a day; everything else is measured."""

    sessions: int = 1_000_000
    requests: int = 40
    """Requests of a session."""
    tokens: int = 60_000
    """Tokens of a session that are stored once."""
    seconds: float = 10.0
    """Time that a provider takes to answer."""
    busy: float = 3.0
    """Requests in the busiest minute over those of an average one."""
    use: float = 0.5
    """Share of a core's peak that is used."""


class Capacity(NamedTuple):
    """What a plan needs."""

    average: float
    peak: float
    workers: int
    memory: float
    open_requests: float
    database: int
    bytes_in: float
    disk: float


def needs(plan: Plan, load: dict[str, Any], growth: dict[str, Any]) -> Capacity:
    """Compute the capacity for a plan from the measured costs."""
    one, two = run_of(load, "gateway", 1), run_of(load, "gateway", 2)
    average = plan.sessions * plan.requests / DAY
    peak = average * plan.busy
    workers = math.ceil(peak * max(one["server_seconds"], two["server_seconds"]) / plan.use)
    return Capacity(
        average=average,
        peak=peak,
        workers=workers,
        memory=workers * two["memory"] / 2,
        open_requests=peak * plan.seconds,
        database=workers * POOL,
        bytes_in=peak * load["setting"]["mean_body_bytes"],
        disk=plan.sessions * plan.tokens / 1e6 * growth["derived"]["sessions_disk_per_million_tokens"],
    )


def run_of(load: dict[str, Any], server: str, workers: int, *, pinned: bool = False) -> dict[str, Any]:
    """Return the run with the median rate; the upper one of two."""
    runs = _runs_of(load, server, workers, pinned=pinned)
    return sorted(runs, key=lambda one: one["requests_per_second"])[len(runs) // 2]


def _runs_of(load: dict[str, Any], server: str, workers: int, *, pinned: bool = False) -> list[dict[str, Any]]:
    wanted = (server, workers, pinned)
    return [one for one in load["runs"] if (one["server"], one["workers"], one.get("pinned", False)) == wanted]


def row_value(result: dict[str, Any], start: str) -> float:
    """Return the value of the row whose name starts like this."""
    return next(row["value"] for row in result["rows"] if row["name"].startswith(start))


def _many(load: dict[str, Any]) -> list[str]:
    """Describe the run with twice as many sessions; earlier results have none."""
    if "many" not in load:
        return []
    many, sessions = load["many"], load["setting"]["many_sessions"]
    text = (
        f"With {sessions:,} live sessions, two workers serve {many['requests_per_second']:,.0f} requests per second, "
        f"and at half of that rate their own time is {1e3 * many['own_p99']:.1f} ms for 99 of 100 requests."
    )
    return [*_wrapped(text), ""]


def _soaked(soak: dict[str, Any]) -> list[str]:
    memory = soak["memory_mb"]
    return _wrapped(
        f"In a run of {soak['seconds'] / 60:.0f} minutes at a low rate, {soak['requests']:,} requests of "
        f"{soak['sessions']} concurrent sessions, with {soak['compactions']:,} compactions, went through one worker; "
        f"{soak['failures']} failed. Its memory grew from {memory['0.1']:.0f} MB near the start to "
        f"{memory['0.92']:.0f} MB near the end. Caches were filling during the run; the largest are limited to "
        f"{CHAINS / 2**20:.0f} MB of recent requests, {PIVOTS / 2**20:.0f} MB of compactions and "
        f"{PREFIXES / 2**20:.0f} MB of keys. (`python scripts/soak.py --gateway 60 --pause {soak['pause']:g}`, "
        "`benchmarks/results/soak_gateway.json`.)"
    )


def _without_compactions(run: dict[str, Any]) -> float:
    """Return the slowest 99 of 100 among the outcomes other than a compaction."""
    return max(own["p99"] for outcome, own in run["own"].items() if outcome != "compacted")


def _share(found: dict[str, Any], outcome: str) -> float:
    """Return the share of the requests with an outcome."""
    counts = {name: own["requests"] for name, own in found["own"].items()}
    return counts.get(outcome, 0) / sum(counts.values())


# --- the page ------------------------------------------------------------------------------------------------------


def page(
    load: dict[str, Any],
    growth: dict[str, Any],
    soak: dict[str, Any],
    fleet: dict[str, Any],
    soak_fleet: dict[str, Any],
) -> str:
    """Write the page."""
    one, two, bare = run_of(load, "gateway", 1), run_of(load, "gateway", 2), run_of(load, "bare", 1)
    servers = {"bare proxy": bare, "one worker": one, "two workers": two}
    if any(run.get("pinned") for run in load["runs"]):  # earlier results have none
        servers["one worker on one core"] = run_of(load, "gateway", 1, pinned=True)
        servers["two workers, one core each"] = run_of(load, "gateway", 2, pinned=True)
    setting, derived, done = load["setting"], growth["derived"], growth["operations"]
    cold = load["cold_start"]
    plan = Plan()
    plans = [plan._replace(requests=requests) for requests in (10, plan.requests, 110)]
    found = [needs(each, load, growth) for each in plans]
    sqlite = 1 / derived["session_append_seconds"]
    postgres_workers = DEFAULT_POSTGRES // POOL
    worker_rate = plan.use / max(one["server_seconds"], two["server_seconds"])

    def line(label: str, cells: Sequence[str]) -> str:
        return f"| {label} | {' | '.join(cells)} |"

    def half(label: str, seconds: Callable[[dict[str, Any]], float], format: str) -> str:
        medians = [median(map(seconds, _runs_of(load, "gateway", workers))) for workers in (1, 2)]
        cells = [format.format(1e3 * each) for each in medians]
        return line(label, ["", *cells, *[""] * (len(servers) - 3)])

    lines = [
        "# Scaling",
        "",
        *_wrapped(
            "What a gateway, a store and a fleet job cost, and what a million sessions a day need. The numbers come "
            "from `load.json`, `growth.json` and `fleet.json` in `benchmarks/results`. `make bench` measures them "
            "again, and `python scripts/make_numbers.py` writes this page and its plots from them."
        ),
        "",
        *_wrapped(
            f"Measured on {load['machine']}, Python {load['python']}, with a load average of {load['load']:g} at the "
            f"end of the first run, {growth['load']:g} of the second and {fleet['load']:g} of the third. Clients, "
            "provider, workers and store shared that machine."
        ),
        "",
        "## The gateway under load",
        "",
        *_wrapped(
            f"{setting['sessions']:,} live sessions, each with its own connection and texts, requests of "
            f"{setting['mean_body_bytes'] / 1e3:.0f} kB on average, {setting['in_flight']} requests open at any time, "
            "a provider that answers at once, every message written to SQLite. A session grows by one round per "
            f"request, and {_percent(one['compacted'])} of the requests need a compaction. All runs start with the "
            "same stored sessions and with warm caches; runs with one and two workers alternate."
        ),
        "",
        line("", list(servers)),
        "|---|" + "---:|" * len(servers),
        line("requests per second", [f"{run['requests_per_second']:,.0f}" for run in servers.values()]),
        line("cores in use", [f"{run['cores']:.2f}" for run in servers.values()]),
        line("processor time per request", [f"{1e3 * _at_peak(run):.2f} ms" for run in servers.values()]),
        *(line(label, cells) for label, cells in _writes(list(servers.values()))),
        half("own time at half of that rate, median (of all runs)", lambda run: run["own_p50"], "{:.1f} ms"),
        half("the same, 99 of 100", lambda run: run["own_p99"], "{:.1f} ms"),
        half("the same, 99 of 100 without compactions", _without_compactions, "{:.1f} ms"),
        half("processor time per request at half of that rate", lambda run: run["server_seconds"], "{:.2f} ms"),
        line("memory of all processes", [f"{run['memory'] / 1e6:,.0f} MB" for run in servers.values()]),
        "",
        *_grown(load, one, two),
        "",
        *_wrapped(
            "The bare proxy forwards requests with Starlette and httpx as they are and does nothing else. At the peak "
            "a session's next request comes before its last one is written. So a write contains several requests, "
            "and a request takes less processor time than at half of the rate. Agents pause between requests, so for "
            f"them one core is good for about {1 / one['server_seconds']:,.0f} requests per second, and the plan below "
            "is made with that."
        ),
        "",
        *_many(load),
        *_wrapped(
            "A gateway that has never seen a session reads, counts and stores its whole history, and compacts it if it "
            f"is too long: {1e3 * cold['server_seconds']:.0f} ms of processor per session here, where "
            f"{_percent(_share(cold, 'compacted'))} of the sessions had to be compacted."
        ),
        "",
        "![Requests per second](images/scaling-load.svg)",
        "",
        *_soaked(soak),
        "",
        "## Fleet jobs",
        "",
        *_fleet(fleet, soak_fleet),
        "",
        "## Long and many sessions",
        "",
        *_wrapped(
            f"One session of {derived['messages']:,} messages ({derived['tokens'] / 1e6:.1f} million tokens) in a "
            f"SQLite file, and {derived['sessions']:,} sessions of {derived['session_messages']} messages. Each "
            "operation runs in a new process."
        ),
        "",
        "| operation | time | peak memory |",
        "|---|---:|---:|",
        *(
            line(label, [_seconds(done[name]["seconds"]), f"{done[name]['peak'] / 1e6:,.0f} MB"])
            for name, label in (
                ("append", "append all messages"),
                ("compact", f"first compaction, in {done['compact']['stages']} stages"),
                ("project", "open and project after it"),
                ("recall", "open and search"),
                ("delete", "delete"),
                ("sessions", f"write {derived['sessions']:,} sessions"),
            )
        ),
        "",
        *_wrapped(
            f"A million tokens take {derived['disk_per_million_tokens'] / 1e6:.0f} MB of disk in the long session, "
            f"whose messages have {derived['tokens'] / derived['messages']:.0f} tokens on average, and "
            f"{derived['sessions_disk_per_million_tokens'] / 1e6:.0f} MB in the short ones, whose messages have "
            f"{derived['session_tokens'] / derived['session_messages']:.0f}; the search index is included. The first "
            "compaction of a long history runs in stages of 20,000 messages, so its memory does not depend on the "
            "length."
        ),
        "",
        "![Time of an append](images/scaling-append.svg)",
        "",
        "![Peak memory](images/scaling-memory.svg)",
        "",
        "## A million sessions a day",
        "",
        *_wrapped(
            f"Assumed: sessions of {plan.tokens:,} stored tokens, {plan.seconds:g} seconds until a provider has "
            f"answered, {plan.busy:g} times the average load in the busiest minute, workers used at "
            f"{_percent(plan.use)} of their peak."
        ),
        "",
        line("requests of a session", [str(each.requests) for each in plans]),
        "|---|" + "---:|" * len(plans),
        line("requests per second, average", [f"{each.average:,.0f}" for each in found]),
        line("requests per second, busiest minute", [f"{each.peak:,.0f}" for each in found]),
        line("workers, one core each", [f"{each.workers:,}" for each in found]),
        line("memory of the workers", [f"{each.memory / 1e9:,.1f} GB" for each in found]),
        line("open requests", [f"{each.open_requests:,.0f}" for each in found]),
        line("connections of clients and to providers", [f"{2 * each.open_requests:,.0f}" for each in found]),
        line("connections to PostgreSQL, at most", [f"{each.database:,}" for each in found]),
        line("bytes per second in, and at most the same out", [f"{each.bytes_in / 1e6:,.0f} MB/s" for each in found]),
        line("disk per day", [f"{each.disk / 1e9:,.0f} GB" for each in found]),
        "",
        "```text",
        "requests per second = sessions × requests / 86,400 × busiest",
        "workers             = requests per second × processor time per request / share of the peak",
        "open requests       = requests per second × seconds of an answer",
        "bytes per second    = requests per second × mean size of a request",
        "disk                = sessions × tokens × disk per token",
        "```",
        "",
        "## What breaks first",
        "",
        *_item(
            1,
            f"**The core of a worker.** The plan assumes {worker_rate:,.0f} requests per second for each. Add workers "
            "(`--workers`), then machines. All of them need only the same store.",
        ),
        *_item(
            2,
            f"**SQLite**, which has one writer. It wrote {sqlite:,.0f} sessions of {derived['session_messages']} "
            "messages per second here. Beyond one machine, or when `kompakt_store_failures_total` grows, use "
            "PostgreSQL or Redis. Most requests do not wait for the store, because writes are queued. A request "
            "waits only if it stores a compaction, or if the queue is full.",
        ),
        *_item(
            3,
            f"**Connections to PostgreSQL.** A worker opens up to {POOL}, and a new PostgreSQL allows "
            f"{DEFAULT_POSTGRES}, which is enough for {postgres_workers} workers. Raise `max_connections`, or put a "
            "pooler with session pooling in front.",
        ),
        *_item(
            4,
            "**Open files.** A request uses two. The systemd unit allows 65,536 per process; keep `max_concurrency` of "
            "a worker below half of that.",
        ),
        *_item(
            5,
            "**Disk.** Sessions stay until they are deleted. `kompakt session gc --older-than 30d` deletes those that "
            "were not used for 30 days.",
        ),
        "",
        *_wrapped(
            "Limits of the measurement: one machine with two cores; requests of one tenant; a provider without "
            "latency, so that the gateway is the bottleneck; no TLS, which a proxy in front does. Measure with your "
            "own store: `python -m benchmarks.load --store postgresql://…`."
        ),
        "",
    ]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 135, break_long_words=False, break_on_hyphens=False)


def _item(number: int, text: str) -> list[str]:
    first, *rest = _wrapped(text)
    return [f"{number}. {first}", *(f"   {line}" for line in rest)]


def _at_peak(run: dict[str, Any]) -> float:
    """Return the processor time per request at the peak."""
    return run["cores"] / run["requests_per_second"]


def _writes(servers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Describe the writes at the peak; earlier results do not have them."""
    gateways = servers[1:]
    if "queued" in gateways[0]:
        yield "requests in a write", ["", *(f"{run['requests_per_write']:.1f}" for run in gateways)]
        ends = ("{:,}, {:,}".format(*run["queued"]) for run in gateways)
        yield "queued writes, at the start and at the end", ["", *ends]


def _grown(load: dict[str, Any], one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Say how many times the requests two workers serve, and why it is not twice as many."""
    ratios = {row["name"]: row["value"] for row in load["rows"] if row["name"].startswith("two workers over one")}
    bound = ratios.get("two workers over one, one processor each")
    bound_text = "" if bound is None else f", and {bound:.2f} times if each worker is bound to a core of its own"
    most = 2 / (_at_peak(two) + two["driver_seconds"]) / one["requests_per_second"]
    disturbed = max(run["others"] for run in load["runs"] if run["server"] == "gateway")
    return _wrapped(
        f"Two workers serve {ratios['two workers over one']:.2f} times as many requests as one{bound_text}. The goal "
        f"is {GOAL} times. One worker that is not bound used {one['cores']:.2f} cores, because its threads write, "
        "compact and send while its event loop runs. So two such workers do not find twice as many cores here: with "
        f"both cores busy all the time they could serve {most:.2f} times as many. Clients and provider take "
        f"{1e3 * two['driver_seconds']:.2f} ms of processor per request on the same cores. Other programs took up to "
        f"{_percent(disturbed)} of both cores during a run."
    )


def _fleet(fleet: dict[str, Any], soak: dict[str, Any]) -> list[str]:
    """Describe fleet jobs on local processes and on Ray."""

    def value(start: str, format: str) -> str:
        return format.format(row_value(fleet, start))

    found = _wrapped(
        f"{fleet['sessions']:,} sessions with {fleet['tokens'] / 1e6:.1f} million tokens, compacted by a fleet job "
        "in new processes. The time is that of the whole job with the start of its processes. Ray takes seconds to "
        "start, so its rate is measured from the first result on, and compared with that of the local engine. The "
        f"goals are {GOAL} times for two local workers over one process, and 0.75 times for Ray over local."
    )
    found += [
        "",
        "| | |",
        "|---|---:|",
        f"| one process | {value('one process', '{:.1f} s')} |",
        f"| local, two workers | {value('local, two workers', '{:.1f} s')} |",
        f"| local over one process | {value('local, two workers, compared', '{:.2f} times')} |",
        f"| local, from the first result on | {value('local, rate', '{:.0f} sessions per second')} |",
        f"| Ray, from the first result on | {value('Ray, two workers, rate', '{:.0f} sessions per second')} |",
        f"| Ray over local | {value('Ray, rate compared', '{:.2f} times')} |",
        f"| first result, local | {value('local, first result', '{:.1f} s')} |",
        f"| first result, Ray | {value('Ray, first result', '{:.1f} s')} |",
        "",
    ]
    wrong = soak["failures"] + soak["errors"]
    return found + _wrapped(
        f"Ray and the local engine give the same rows: {soak['tests']} tests, {wrong} failures, on {soak['sessions']} "
        f"sessions in {soak.get('formats', 4)} formats and two kinds of transcripts, 5 % of them broken files, after "
        "a killed worker, an interruption and the loss of a node. "
        f"(`python scripts/soak.py --fleet {soak['sessions']}`, `benchmarks/results/soak_fleet.json`.)"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"


# --- plots ---------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 260, 60, 36, 40
BLUE, GREY = "#3f51b5", "#9e9e9e"


def pictures(load: dict[str, Any], growth: dict[str, Any]) -> dict[Path, str]:
    """Draw the plots as SVG."""
    one, two, bare = run_of(load, "gateway", 1), run_of(load, "gateway", 2), run_of(load, "bare", 1)
    rates = [(name, run["requests_per_second"]) for name, run in (("bare proxy", bare), ("one worker", one))]
    rates.append(("two workers", two["requests_per_second"]))
    curve = [(at, 1e3 * seconds) for at, seconds in growth["operations"]["append"]["curve"]]
    peaks = [
        (name, growth["operations"][name]["peak"] / 1e6)
        for name in ("append", "compact", "project", "recall", "delete")
    ]
    return {
        IMAGES / "scaling-load.svg": bars("Requests per second", rates),
        IMAGES / "scaling-append.svg": curve_plot(
            "Milliseconds to append a message, by the length of the session", curve
        ),
        IMAGES / "scaling-memory.svg": bars(
            f"Peak memory in MB, a session of {growth['derived']['messages']:,} messages", peaks
        ),
    }


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Draw bars with their values."""
    top = max(value for _, value in values)
    room, floor = HEIGHT - TOP - BOTTOM - 16, HEIGHT - BOTTOM
    step = (WIDTH - LEFT) / len(values)
    parts: list[str] = []
    for place, (name, value) in enumerate(values):
        height, x = room * value / top, LEFT / 2 + step * (place + 0.5)
        parts.append(
            f'<rect x="{x - step * 0.3:.1f}" y="{floor - height:.1f}" width="{step * 0.6:.1f}" height="{height:.1f}" '
            f'fill="{BLUE}"/>'
        )
        parts.append(_text(x, floor - height - 5, f"{value:,.0f}"))
        parts.append(_text(x, floor + 18, name))
    return _svg(title, parts)


def curve_plot(title: str, points: Sequence[tuple[float, float]]) -> str:
    """Draw a line from zero, with the values of its ends."""
    right, top = points[-1][0], 1.25 * max(value for _, value in points)
    floor, room = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM

    def place(at: float, value: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 40) * at / right, floor - room * value / top

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    (first_x, first_y), (last_x, last_y) = place(*points[0]), place(*points[-1])
    parts = [
        f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - 20}" y2="{floor}" stroke="{GREY}"/>',
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>',
        _text(first_x, first_y - 10, f"{points[0][1]:.3f}"),
        _text(last_x - 10, last_y - 10, f"{points[-1][1]:.3f}"),
        _text(LEFT, floor + 18, "0"),
        _text(last_x - 20, floor + 18, f"{right:,.0f} messages"),
    ]
    return _svg(title, parts)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'font-family="sans-serif" font-size="13" fill="#555">'
    )
    rows = [
        head,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(WIDTH / 2, 20, title),
        *parts,
        "</svg>",
    ]
    return "\n".join(rows) + "\n"

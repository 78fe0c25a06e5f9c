"""The engine: one more step, a whole compaction, a long run, memory, and how much of a request stays what it was.

Agent Framework, the nearest peer, is measured beside it in the same process when it is installed (`make bench-peers`);
when not, its rows are missing and a note says so. It is handed its own messages, ready-made, and its own character
counter; kompakt's numbers include counting in o200k and writing what is new, and for a whole compaction also reading.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from tests.histories.plain import build

import kompakt
from benchmarks.live import Run
from benchmarks.measurement import Row, Spread, row, seconds, spread
from benchmarks.peers import AgentFramework, AgentFrameworkPlain, Contender, Kompakt, installed
from kompakt.model.messages import History, Message
from kompakt.model.tokens import vocabulary

UNLIMITED = 1_000_000_000
"""A budget at which nothing is ever due."""

STEPS = 300
BLOCK = 20
OUTPUT_CHARS = 1_000
"""Default mean size of a tool output."""

COLD_CHARS = 1_100
"""Mean size of a tool output at which 1,000 messages have 200,000 tokens."""
COLD_RUNS = 9
SMALL_CALLS = 5_000
STATELESS = 5_000
"""Messages of a history that is handed in whole."""
RUN_STEPS = 4_000
RUN_BUDGET = 50_000
STABLE_BUDGET = 20_000
PEER_SECONDS = 20
"""Time limit of a peer for its part of the long run."""


@cache
def history(messages: int) -> History:
    """Return a parsed session."""
    whole = kompakt.parse(build("openai-chat", messages=messages, mean_chars=OUTPUT_CHARS))
    return whole.with_messages(whole.messages[:messages])


@cache
def added() -> list[Any]:
    """Return the wire items of further steps: other texts and other ids than any session here has."""
    body = json.dumps(build("openai-chat", messages=3 * STEPS, mean_chars=OUTPUT_CHARS, seed=99))
    items = json.loads(body.replace('"call_', '"more_'))["messages"]
    return [item for item in items if item["role"] in ("assistant", "tool")][: 2 * STEPS]


@cache
def added_messages() -> tuple[Message, ...]:
    """Return the same steps, parsed."""
    return tuple(kompakt.parse(added(), "openai-chat"))


def pairs(items: Sequence[Any]) -> list[Sequence[Any]]:
    """Divide items into steps of two."""
    return [items[start : start + 2] for start in range(0, len(items), 2)]


@cache
def session(steps: int, seed: int) -> list[list[Any]]:
    """Return a session step by step: what is there at first, then what each step adds, up to its tool result."""
    items = build("openai-chat", messages=3 * steps, mean_chars=OUTPUT_CHARS, seed=seed)["messages"]
    found = [items[:2]]
    for item in items[2:]:
        if found[-1][-1]["role"] == "tool" or len(found) == 1:
            found.append([])
        found[-1].append(item)
    return found[: steps + 1]


def parsed_session(steps: int, seed: int) -> tuple[History, list[Sequence[Message]]]:
    """Return the same, parsed."""
    first, *rest = session(steps, seed)
    return kompakt.parse({"messages": first}), [kompakt.parse(step, "openai-chat").messages for step in rest]


def _peer() -> AgentFramework | None:
    peer = AgentFramework()
    return peer if installed(peer) else None


# --- one more step -----------------------------------------------------------------------------------------------


def track_steps(first: int, second: int) -> tuple[Spread, Spread, Spread]:
    """Time steps on two sizes in turn, both given the same messages: both in ms, and the second over the first."""
    runs = Run(history(first), UNLIMITED), Run(history(second), UNLIMITED)
    gc.collect()
    times: tuple[list[float], list[float]] = ([], [])
    for pair in pairs(added_messages()):
        for run, into in zip(runs, times, strict=True):
            into.append(seconds(lambda run=run, pair=pair: run.step(pair)))
    ratio = statistics.median(times[1]) / statistics.median(times[0])
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    near = Spread(ratio, ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10])
    return spread(times[0]).scaled(1000), spread(times[1]).scaled(1000), near


def track_step_from_wire(messages: int) -> Spread:
    """Time steps whose two messages come as wire items and are read first, in ms."""
    run = Run(history(messages), UNLIMITED)

    def step(pair: Any) -> float:
        return seconds(lambda: run.step(kompakt.parse(pair, "openai-chat").messages))

    return spread(step(pair) for pair in pairs(added())).scaled(1000)


def track_peer_step(peer: AgentFramework, messages: int) -> tuple[Spread, Spread]:
    """Time steps of kompakt and the peer in turn, nothing due: the peer's in ms, and the peer's over kompakt's.

    One step of the peer takes as long as hundreds of kompakt's, so each is held against the median of a block of them.
    """
    run = Run(history(messages), UNLIMITED)
    items: Any = kompakt.render(history(messages), "openai-chat")
    native = peer.read(items["messages"])
    peer.shrink(native, UNLIMITED, fast=True)  # the first call annotates everything
    own, wire = pairs(added_messages()), pairs(added())
    theirs: list[float] = []
    ratios: list[float] = []
    for block in range(0, len(own), BLOCK):
        median = statistics.median(seconds(lambda pair=pair: run.step(pair)) for pair in own[block : block + BLOCK])
        native.extend(peer.read(wire[block]))
        theirs.append(seconds(lambda: peer.shrink(native, UNLIMITED, fast=True)))
        ratios.append(theirs[-1] / median)
    return spread(theirs).scaled(1000), spread(ratios)


def measure_steps() -> list[Row]:
    """Measure one more step."""
    small, large, ratio = track_steps(1_000, 50_000)
    note = f"{STEPS} steps: two messages, {OUTPUT_CHARS:,} characters of tool output on average, nothing due"
    rows = [
        row("one more step on 50,000 messages", large, "ms", at_most=0.1, note=note),
        row("one more step on 1,000 messages", small, "ms"),
        row("the same, 50,000 over 1,000", ratio, "×", at_most=3, note="of the medians; p10 – p90 of the pairs"),
        row("one more step on 50,000, reading the two items too", track_step_from_wire(50_000), "ms"),
    ]
    peer = _peer()
    if peer is not None:
        alone, over = track_peer_step(peer, 10_000)
        rows += [
            row("Agent Framework: one more step on 10,000", alone, "ms", peer=True),
            row("Agent Framework over kompakt, one more step on 10,000", over, "×", at_least=1000),
        ]
    return rows


# --- a whole compaction ------------------------------------------------------------------------------------------


@cache
def cold_bytes(seed: int) -> bytes:
    """Return a session of 1,000 messages and 200,000 tokens as it travels; another seed has other texts."""
    return json.dumps(build("openai-chat", messages=1_000, mean_chars=COLD_CHARS, seed=seed)).encode()


def cold_seconds(policy: str, seed: int) -> float:
    """Time a compaction to half, from bytes to bytes, of texts never counted before."""
    given = cold_bytes(seed)

    def run() -> None:
        json.dumps(kompakt.compact(json.loads(given), 100_000, policy=policy).payload)

    return seconds(run)


def measure_cold() -> list[Row]:
    """Measure a whole compaction."""
    vocabulary("o200k")("Loading is not counting.")
    cold_seconds("window", 1_000)
    windows = [cold_seconds("window", seed) for seed in range(COLD_RUNS)]
    defaults = [cold_seconds("default", seed) for seed in range(COLD_RUNS, 2 * COLD_RUNS)]
    total = kompakt.count(json.loads(cold_bytes(0))).total
    note = f"1,000 messages, {total:,} tokens, to 100,000; from bytes to bytes, texts not seen before"
    rows = [
        row("cold compaction, `window`", spread(windows).scaled(1000), "ms", at_most=100, note=note),
        row("cold compaction, `default`", spread(defaults).scaled(1000), "ms", at_most=150),
    ]
    peer = _peer()
    if peer is not None:
        times = [_peer_cold(peer, seed) for seed in range(3)]
        plain = spread(_peer_cold(AgentFrameworkPlain(), seed) for seed in range(5))
        ratios = [theirs / own for theirs, own in zip(times, windows, strict=False)]
        rows += [
            row("Agent Framework: composed strategy", spread(times).scaled(1000), "ms", peer=True, note="3 runs"),
            row("Agent Framework over kompakt, cold compaction", spread(ratios), "×", at_least=50),
            row("Agent Framework: oldest groups first, no other step", plain.scaled(1000), "ms", peer=True),
        ]
    return rows


def _peer_cold(peer: AgentFramework, seed: int) -> float:
    native = peer.read(json.loads(cold_bytes(seed))["messages"])
    return seconds(lambda: peer.shrink(native, 100_000, fast=True))


# --- many small calls, and a call without state --------------------------------------------------------------------


@cache
def small_calls(seed: int) -> bytes:
    """Return a session of 5,000 small tool calls and 200,000 tokens as it travels."""
    random = Random(seed)
    messages: list[Any] = [
        {"role": "system", "content": "You are a careful agent."},
        {"role": "user", "content": "Find out why the import fails. Never touch the migration files."},
    ]
    for number in range(SMALL_CALLS):
        name = random.choice(("read_file", "search", "run_command"))
        given = json.dumps({"path": f"src/part_{random.randrange(300)}.py", "line": random.randrange(9_999)})
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": given}}
        output = f"value_{random.randrange(9_999)} = fetch({random.randrange(99_999)})"
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    return json.dumps({"messages": messages}).encode()


def small_seconds(seed: int) -> float:
    """Time a compaction of many small calls to half, from bytes to bytes, of texts never counted before."""
    given = small_calls(seed)
    return seconds(lambda: json.dumps(kompakt.compact(json.loads(given), 100_000).payload))


def stateless_seconds(seed: int) -> float:
    """Time a compaction of 5,000 messages less the time that reading and counting them takes."""
    payload = build("openai-chat", messages=STATELESS, mean_chars=OUTPUT_CHARS, seed=seed)
    counted = seconds(lambda: kompakt.count(payload))
    texts = build("openai-chat", messages=STATELESS, mean_chars=OUTPUT_CHARS, seed=seed + 500)
    return seconds(lambda: kompakt.compact(texts, RUN_BUDGET)) - counted


def measure_small_calls() -> list[Row]:
    """Measure many small calls, and a call that is given a long history and has no state."""
    small_seconds(1_000)
    small = [small_seconds(seed) for seed in range(COLD_RUNS)]
    stateless = [stateless_seconds(seed) for seed in range(COLD_RUNS)]
    total = kompakt.count(json.loads(small_calls(0))).total
    note = f"{SMALL_CALLS:,} calls, {total:,} tokens, to 100,000; from bytes to bytes, texts not seen before"
    again = f"budget {RUN_BUDGET:,}; the time to read and count another history of this size is subtracted"
    rows = [
        row("many small calls, `default`", spread(small).scaled(1000), "ms", at_most=150, note=note),
        row(f"{STATELESS:,} messages, no state", spread(stateless).scaled(1000), "ms", at_most=60, note=again),
    ]
    peer = _peer()
    if peer is not None:
        plain = AgentFrameworkPlain()
        theirs = [_peer_seconds(plain, json.loads(small_calls(seed))["messages"], 100_000) for seed in range(3)]
        history = build("openai-chat", messages=STATELESS, mean_chars=OUTPUT_CHARS)["messages"]
        long = [_peer_seconds(plain, history, RUN_BUDGET) for _ in range(3)]
        rows += [
            row("Agent Framework: many small calls, oldest groups first", spread(theirs).scaled(1000), "ms", peer=True),
            row(f"Agent Framework: {STATELESS:,} messages, oldest first", spread(long).scaled(1000), "ms", peer=True),
        ]
    return rows


def _peer_seconds(peer: AgentFramework, messages: list[Any], budget: int) -> float:
    native = peer.read(messages)
    return seconds(lambda: peer.shrink(native, budget, fast=True))


# --- a long run --------------------------------------------------------------------------------------------------


def long_run(policy: str) -> tuple[float, int, int]:
    """Run all steps with a budget check at each: total seconds, rewrites, largest request in tokens."""
    first, steps = parsed_session(RUN_STEPS, 7)
    run = Run(first, RUN_BUDGET, policy=policy)
    taken, largest = 0.0, 0
    for step in steps:
        taken += seconds(lambda step=step: run.step(step))
        largest = max(largest, run.context.projected_tokens)
    return taken, len({step.at_message for step in run.rewritten}), largest


def peer_run(peer: AgentFramework) -> tuple[float, int]:
    """Run the peer through the same steps until its time is up: seconds taken, and steps done."""
    first, *steps = session(RUN_STEPS, 7)
    native = peer.read(first)
    taken, done = 0.0, 0
    for step in steps:
        native.extend(peer.read(step))
        taken += seconds(lambda: peer.shrink(native, RUN_BUDGET, fast=True))
        done += 1
        if taken > PEER_SECONDS:
            break
    return taken, done


def measure_run() -> list[Row]:
    """Measure a long run."""
    rows: list[Row] = []
    for policy in ("window", "default"):
        found = [long_run(policy) for _ in range(3)]
        note = f"budget {RUN_BUDGET:,}, {found[0][1]} compactions, largest request {found[0][2]:,} tokens"
        name = f"{RUN_STEPS:,} steps, checked at each, `{policy}`"
        rows.append(row(name, spread(taken for taken, _, _ in found), "s", at_most=1, note=note))
    peer = _peer()
    if peer is not None:
        taken, steps = peer_run(peer)
        note = f"stopped after {PEER_SECONDS} s; its steps grow dearer, so {RUN_STEPS:,} take more than in proportion"
        name = f"Agent Framework: the first {steps:,} of these steps"
        rows.append(Row(name=name, value=taken, unit="s", peer=True, note=note if steps < RUN_STEPS else ""))
    return rows


# --- memory ------------------------------------------------------------------------------------------------------


def track_memory(messages: int) -> tuple[int, int]:
    """Measure the decoded history, and what messages, context and projection add to it, in bytes."""
    given = json.dumps(build("openai-chat", messages=messages, mean_chars=OUTPUT_CHARS)).encode()
    kompakt.Context(kompakt.parse(json.loads(given)), counter=kompakt.Counter())  # loads all that is loaded once
    gc.collect()
    tracemalloc.start()
    decoded = json.loads(given)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    context = kompakt.Context(kompakt.parse(decoded), counter=kompakt.Counter())
    context.project()
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - size
    tracemalloc.stop()
    return size, added


def measure_memory() -> list[Row]:
    """Measure memory."""
    size, added = track_memory(10_000)
    note = f"decoded JSON {size / 1e6:.1f} MB; messages, groups, counts and projection add {added / 1e6:.1f} MB"
    name = "memory of a context of 10,000 messages, over its decoded JSON"
    return [Row(name=name, value=added / size, unit="×", at_most=1.5, note=note)]


# --- stability ---------------------------------------------------------------------------------------------------


def stability(contender: Contender, *, max_seconds: float = 60) -> tuple[float, int]:
    """Return the share of steps after which the previous request is a prefix of the next, and the number of steps."""
    first, *steps = session(STEPS, 3)
    state, before = contender.grow(None, first, STABLE_BUDGET)
    kept = done = 0
    end = time.monotonic() + max_seconds
    for step in steps:
        state, now = contender.grow(state, step, STABLE_BUDGET)
        kept += now[: len(before)] == before
        done += 1
        before = now
        if time.monotonic() > end:
            break
    return kept / done, done


def live_stability(policy: str) -> float:
    """Return the same share for a live context."""
    first, steps = parsed_session(STEPS, 3)
    run = Run(first, STABLE_BUDGET, policy=policy)
    before = list(run.request)
    kept = 0
    for step in steps:
        now = run.step(step)
        kept += now[: len(before)] == before
        before = list(now)
    return kept / len(steps)


def measure_stability() -> list[Row]:
    """Measure how much of a request stays what it was."""
    note = f"{STEPS} steps, budget {STABLE_BUDGET:,} tokens; steps at which the request before is a prefix of the next"
    rows = [
        Row(name="prefix kept, live context, `window`", value=live_stability("window"), unit="share", at_least=0.95),
        Row(name="prefix kept, live context, `default`", value=live_stability("default"), unit="share", at_least=0.95),
        *[
            Row(
                name=f"prefix kept, {one.name}, no state",
                value=stability(one)[0],
                unit="share",
                at_least=0.95,
                note=note,
            )
            for one in (Kompakt("window"), Kompakt("default"))
        ],
    ]
    peer = _peer()
    if peer is not None:
        rows.append(Row(name="prefix kept, Agent Framework", value=stability(peer)[0], unit="share", peer=True))
    return rows


def measure() -> list[Row]:
    """Measure the area."""
    parts: Sequence[Callable[[], list[Row]]] = (
        measure_memory,
        measure_cold,
        measure_small_calls,
        measure_steps,
        measure_run,
        measure_stability,
    )
    rows: list[Row] = []
    for part in parts:
        rows += part()
        history.cache_clear()
        gc.collect()
    if _peer() is None:
        rows.append(Row(name="Agent Framework: not installed, see `make bench-peers`", value=0, unit="", peer=True))
    return rows

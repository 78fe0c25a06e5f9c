"""The program that coding agents run on events: ``kompakt-hook AGENT EVENT``, with JSON on standard input.

It runs at every tool call, so it imports only what the event needs; a small tool output costs the start of Python and
nothing else. It never breaks the agent: after any failure it prints nothing, exits with 0 and writes a line to a log.
Recording happens after the answer, in a process of its own.
"""

from __future__ import annotations

import os
import sys

from kompakt.hosts import places
from kompakt.hosts.response import HookResponse

TYPE_CHECKING = False  # the module typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIN_OUTPUT_BYTES = 12_000
"""Events about tool outputs with less data than this need no work: about 3,000 tokens."""

KEEP_OUTPUTS = "KOMPAKT_KEEP_OUTPUTS"
"""Variable of the environment that keeps large tool outputs as they are; empty and 0 do not."""

MAX_SECONDS = {"PostToolUse": 10.0}
"""Time for an event in which an agent waits for the store. A locked store would block the process for longer."""

OTHER_SECONDS = 25.0
"""Time for other events."""

CHECKED = "kompakt hooks work"
"""Answer to the event ``check``, which `kompakt doctor` sends."""


def main(arguments: list[str] | None = None) -> int:
    """Answer one event of an agent."""
    agent, event, *options = [*(sys.argv[1:] if arguments is None else arguments), "", ""]

    def work() -> None:
        data = sys.stdin.buffer.read()
        response = _answer(agent, event, data, recall="--no-recall" not in options)
        _print(response.text)
        if response.after is not None:
            _detach(response.after, f"{agent} {event}")

    _guarded(work, f"{agent} {event}")
    return 0


def _answer(agent: str, event: str, data: bytes, *, recall: bool) -> HookResponse:
    if event == "check":
        return HookResponse(CHECKED)
    if event == "PostToolUse" and (len(data) < MIN_OUTPUT_BYTES or os.environ.get(KEEP_OUTPUTS, "0") not in ("", "0")):
        return HookResponse()
    _limit_time(event, agent)
    import json  # late: small outputs end above

    given: dict[str, Any] = json.loads(data)
    event = event or given["hook_event_name"]
    if agent == "claude-code":
        from kompakt.hosts import claude_code  # late: one agent per call

        return claude_code.answer(event, given, recall=recall)
    if agent == "codex":
        from kompakt.hosts import codex

        return codex.answer(event, given, recall=recall)
    if agent in ("opencode", "pi"):
        from kompakt.hosts import shims

        return shims.answer(agent, event, given, recall=recall)
    raise ValueError(f"unknown agent {agent!r}")


def _limit_time(event: str, agent: str) -> None:
    """End the process without an answer when its time is over. Closing a blocked store would take longer."""
    import signal  # late: small outputs need no limit

    if not hasattr(signal, "setitimer"):
        return

    def end(*_: object) -> None:
        places.log(f"{agent} {event}: no answer in time")
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS.get(event, OTHER_SECONDS))


def _print(text: str) -> None:
    """Write to standard output without its buffer, which would fail a second time at exit if the agent has gone."""
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]


def _guarded(work: Callable[[], object], name: str) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 — a failing hook must not stop the agent
        places.log(f"{name}: {type(error).__name__}: {error}")


def _detach(work: Callable[[], object], name: str) -> None:
    """Run ``work`` in a process of its own, without the streams of this one; where there is no fork, run it here."""
    if not hasattr(os, "fork"):
        work()
        return
    if os.fork():
        return
    os.setsid()
    os.nice(5)  # recording can wait, and the agent cannot
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    _guarded(work, name)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

"""The inspector with 50,000 messages in a real browser: first paint, scrolling, and previews of 200,000 tokens.

`python -m benchmarks.inspector` needs Chromium and a machine that does nothing else; it writes results/inspector.json.
Each first visit is of a new server, in a process of its own as for a person, and a browser without cached files.
Previews are of a session with 100 long tool results, and of one with 5,000 short ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.measurement import Row, Spread, row, save, show, spread
from kompakt.session.store import open_store

MESSAGES = 50_000
TRIED = 200_000
RUNS = 5
FRAMES = 300

SCROLL = """
async frames => {
  const list = document.querySelector('#messages'), times = [];
  let last = performance.now();
  for (let at = 0; at < frames; at += 1) {
    list.scrollTop += 240;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}
"""


async def fill(path: Path, messages: int) -> None:
    """Store one session of that many messages, and two of 200,000 tokens."""
    async with await open_store(f"sqlite:///{path}") as store:
        for id, rounds, words in (("long", messages // 2 - 1, 12), ("large", 100, TRIED // 100), ("small", 5_000, 16)):
            body: list[dict[str, Any]] = [{"role": "user", "content": "Read all parts, then report."}]
            for at in range(rounds):
                given = json.dumps({"path": f"part_{at}.py"})
                call = {"id": f"c{at}", "type": "function", "function": {"name": "read", "arguments": given}}
                text = " ".join(f"word{(at * 31 + word) % 997}" for word in range(words // 2))
                body.append({"role": "assistant", "content": f"Part {at}.", "tool_calls": [call]})
                body.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
            body.append({"role": "assistant", "content": "Done."})
            session = await store.session(id)
            await session.save({"model": "gpt-5", "messages": body})


@contextmanager
def inspector(path: Path) -> Generator[str]:
    """Run ``kompakt inspect``; the value is the address with its token."""
    command = [sys.executable, "-m", "kompakt", "inspect", f"sqlite:///{path}", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().partition("#")[0]
        finally:
            process.kill()


SCREENS = {
    "list": ("#/", "tr[data-id=long]"),
    "overview": ("#/s/long", ".tile-value"),
    "messages": ("#/s/long/messages", "#messages .row:not(.waiting)"),
}
"""Screens of the long session: the address, and what is visible after the first paint."""


def visits(browser: Any, path: Path, screen: str) -> tuple[float, float]:
    """Open a screen; return seconds until it is visible, and the same for a second visit.

    The first visit is of a new server, whose index is empty, in a browser that has no file of the pages.
    """
    state, shown = SCREENS[screen]
    with inspector(path) as url:
        page = browser.new_page()
        found: list[float] = []
        for address in (url, url.split("?")[0]):
            start = time.perf_counter()
            page.goto(f"{address}{state}")
            page.locator(shown).first.wait_for()
            found.append(time.perf_counter() - start)
            page.goto("about:blank")
        page.close()
        return found[0], found[1]


def scrolling(browser: Any, path: Path) -> list[float]:
    """Scroll through the messages; return milliseconds per frame, in order of length."""
    with inspector(path) as url:
        page = browser.new_page()
        page.goto(f"{url}#/s/long/messages")
        page.locator("#messages .row:not(.waiting)").first.wait_for()
        page.get_by_role("heading", name="Read all parts").wait_for(timeout=120_000)  # counting has ended
        found = sorted(page.evaluate(SCROLL, FRAMES))
        page.close()
        return found


def trying(browser: Any, path: Path, session: str) -> tuple[Spread, Spread]:
    """Move the budget; return milliseconds that the server reports for each preview, and until the page shows it."""
    with inspector(path) as url:
        page = browser.new_page()
        page.goto(f"{url}#/s/{session}/try")
        page.get_by_role("region", name="Pivot as the model would read it").wait_for()
        field = page.get_by_role("spinbutton", name="Exact budget")
        reported: list[float] = []
        shown: list[float] = []
        for budget in range(60_000, 60_000 + RUNS * 10_000, 10_000):
            start = time.perf_counter()
            with page.expect_response("**/preview") as answered:
                field.fill(str(budget))
            answer = answered.value.json()
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            shown.append(1_000 * (time.perf_counter() - start))
            reported.append(1_000 * answer["seconds"])
            assert answer["due"]
            assert answer["tokens_before"] >= TRIED
        page.close()
        return spread(reported), spread(shown)


def measure(messages: int) -> list[Row]:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "k.db"
        with ThreadPoolExecutor() as pool:  # Playwright has an event loop in this thread
            pool.submit(asyncio.run, fill(path, messages)).result()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        seen = {screen: [visits(browser, path, screen) for _ in range(RUNS)] for screen in SCREENS}
        frames = scrolling(browser, path)
        tried = {session: trying(browser, path, session) for session in ("large", "small")}
        browser.close()
    name = f"{messages:,} messages"
    shape = {"large": "100 calls", "small": "5,000 calls"}
    return [
        *(row(f"{name}, {one}: first paint", spread(cold for cold, _ in seen[one]), "s", at_most=1) for one in seen),
        *(row(f"{name}, {one}: second visit", spread(warm for _, warm in seen[one]), "s", at_most=1) for one in seen),
        Row(name=f"frame while scrolling {name}, median", value=frames[len(frames) // 2], unit="ms", at_most=20),
        Row(name=f"frame while scrolling {name}, 95 of 100", value=frames[len(frames) * 95 // 100], unit="ms"),
        *(row(f"preview of {TRIED:,} tokens, {shape[one]}", tried[one][0], "ms", at_most=300) for one in tried),
        *(row(f"the same until the page shows it, {shape[one]}", tried[one][1], "ms") for one in tried),
    ]


def main(arguments: list[str]) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="benchmarks.inspector", description="Measure the inspector in a browser.")
    parser.add_argument("--quick", action="store_true", help="a short session; writes no result")
    given = parser.parse_args(arguments)
    rows = measure(2_000 if given.quick else MESSAGES)
    show("inspector", rows)
    if not given.quick:
        save("inspector", rows)
    return 1 if any(one.verdict == "MISSED" for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

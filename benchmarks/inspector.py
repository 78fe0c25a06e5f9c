"""The inspector with 50,000 messages in a real browser: first rows, scrolling, and a preview of 200,000 tokens.

`python -m benchmarks.inspector` needs Chromium. Each first visit is of a new server and a browser without cached files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from tests.inspector.inspector_server import inspector

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
    """Store one session of that many messages, and one of 200,000 tokens."""
    async with await open_store(f"sqlite:///{path}") as store:
        for id, rounds, words in (("long", messages // 2 - 1, 12), ("tried", 100, TRIED // 100)):
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


def first_rows(browser: Any, path: Path) -> tuple[float, float]:
    """Open the messages of the long session; return seconds until rows are visible, and the same for a second visit.

    The first visit is of a new server, whose index is empty, in a browser that has no file of the pages.
    """
    with inspector(path) as url:
        page = browser.new_page()
        found: list[float] = []
        for address in (url, url.split("?")[0]):
            start = time.perf_counter()
            page.goto(f"{address}#/s/long/messages")
            page.locator("#messages .row:not(.waiting)").first.wait_for()
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


def trying(browser: Any, path: Path) -> tuple[Spread, Spread]:
    """Move the budget; return milliseconds that the server reports for each preview, and until the page shows it."""
    with inspector(path) as url:
        page = browser.new_page()
        page.goto(f"{url}#/s/tried/try")
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
        visits = [first_rows(browser, path) for _ in range(RUNS)]
        frames = scrolling(browser, path)
        tried, seen = trying(browser, path)
        browser.close()
    name = f"{messages:,} messages"
    return [
        row(f"first rows of {name}", spread(cold for cold, _ in visits), "s", at_most=1),
        row(f"first rows of {name}, second visit", spread(warm for _, warm in visits), "s", at_most=1),
        Row(name=f"frame while scrolling {name}, median", value=frames[len(frames) // 2], unit="ms", at_most=20),
        Row(name=f"frame while scrolling {name}, 95 of 100", value=frames[len(frames) * 95 // 100], unit="ms"),
        row(f"preview of {TRIED:,} tokens", tried, "ms", at_most=300),
        row(f"preview of {TRIED:,} tokens, from the change of the budget to the page", seen, "ms"),
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

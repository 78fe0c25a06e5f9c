"""Take the screenshots of the inspector for the documentation, from the bundled session.

Needs Chromium and Textual. Run it after a change of the pages, and look at the result: the files depend on the fonts
of the machine, so no test compares them.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from tests.inspector.inspector_server import inspector  # noqa: E402

from kompakt.inspector.terminal.app import InspectorApp  # noqa: E402
from kompakt.session.store import open_store  # noqa: E402
from kompakt.view.inspection import open_inspection  # noqa: E402
from make_site import write_example  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDE = {"width": 1180, "height": 740}
SMALL = {"width": 390, "height": 1040}
LARGEST = 60_000
"""Bytes of one image."""

LARGEST_FIRST = 100_000
"""Bytes of the image in the README, which is the first that people see."""

TERMINAL = (110, 34)
"""Columns and rows."""

SHOTS: list[tuple[str, str, str, dict[str, int]]] = [
    ("inspector-session", "overview", "light", WIDE),
    ("inspector-context", "context", "dark", WIDE),
    ("inspector-compaction", "compaction", "light", {"width": 1100, "height": 900}),
    ("inspector-try", "try?budget=14000", "dark", WIDE),
    ("inspector-small", "overview", "dark", SMALL),
]


async def fill(path: Path) -> None:
    """Store the bundled session with two compactions."""
    body = json.loads((files("kompakt") / "data" / "long-session.json").read_text())
    messages = body.pop("messages")
    answers = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    first, second = (next(at for at in answers if at >= len(messages) * share) for share in (0.45, 0.8))
    async with await open_store(f"sqlite:///{path}") as store:
        session = await store.session("tidewatch")
        await session.save({**body, "messages": messages[:first]})
        await session.compact(24_000)
        await session.append(messages[first:second])
        await session.compact(24_000)
        await session.append(messages[second:])


def prepare(page: Any, base: str, state: str) -> None:
    """Open a state and wait until it is drawn."""
    page.goto(f"{base}#/s/tidewatch/{'compactions' if state == 'compaction' else state}")
    if state == "compaction":
        page.get_by_role("table", name="Compactions").get_by_role("link").first.click()
        page.get_by_role("option", name="pivot line").first.click()
        page.get_by_text("returns it byte for byte").wait_for()
        page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")


def save(name: str, png: bytes, largest: int = LARGEST) -> None:
    """Write an image, with fewer colours if it would be too large."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.save(path, optimize=True)
    for colours in (255, 160, 96, 64):
        if path.stat().st_size > largest:
            image.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    assert path.stat().st_size <= largest


async def draw_terminal(path: Path) -> str:
    """Return the terminal inspector of the session as SVG."""
    async with await open_inspection(path) as inspection:
        app = InspectorApp(inspection, "tidewatch")
        app.animation_level = "none"
        async with app.run_test(size=TERMINAL) as pilot:
            for _ in range(6):
                await pilot.pause(0.5)
            return app.export_screenshot()


def shoot_example(browser: Any, folder: Path) -> None:
    """Take the images of the README from an exported file."""
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, write_example(folder / "example.html")).result()
    for name, scheme in (("inspector", "light"), ("inspector-dark", "dark")):
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 760})
        page.goto((folder / "example.html").as_uri())
        page.locator("k-growth svg").first.wait_for()
        save(name, page.screenshot(), LARGEST_FIRST)
        page.close()


def shoot_terminal(browser: Any, path: Path) -> None:
    """Take the image of the terminal."""
    with ThreadPoolExecutor() as pool:
        drawn = path.with_name("terminal.svg")
        drawn.write_text(pool.submit(asyncio.run, draw_terminal(path)).result())
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})  # no fonts from the web
    page = context.new_page()
    page.goto(drawn.as_uri())
    save("inspector-terminal", page.locator("svg").screenshot())
    context.close()


def main() -> None:
    """Take all screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.db"
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, fill(path)).result()
        with inspector(path, write=True) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, state, scheme, size in SHOTS:
                context = browser.new_context(viewport=size, color_scheme=scheme)
                page = context.new_page()
                page.goto(url)
                page.get_by_role("row", name="Two boats").wait_for()
                prepare(page, url.split("?")[0], state)
                save(name, page.screenshot())
                context.close()
            shoot_example(browser, path.parent)
            shoot_terminal(browser, path)
            browser.close()


if __name__ == "__main__":
    main()

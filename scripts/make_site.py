"""Build the documentation site: python scripts/make_site.py [--builder mkdocs|zensical].

`prepare` collects the pages in build/docs: docs/, the other documents of the repository, the examples, and one page for
each problem code. Links between them are rewritten; a link to a file that is not on the site becomes plain text. Then
the builder runs strictly, and the site is checked: no dead link or anchor, no request to another host. llms.txt and
llms-full.txt are written beside the pages, and so is the Markdown of each page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
BUILD = ROOT / "build"
"""The folder that the configuration names: the pages are in its folder docs, the site in site."""

OTHER_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
    "benchmarks/results/exam/README.md": "results/exam.md",
    "benchmarks/results/admission/README.md": "results/admission.md",
}
"""Documents outside of docs/, with their place on the site."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^([ ]*)(`{3,}).*?^\1\2[ ]*$", re.M | re.S)
MARK = re.compile(r"<!-- /?(?:number|table|end of|admission exam)\b.*?-->[ ]*\n?(?=\n|\|)|<!-- /?number\b.*?-->", re.S)


# --- pages


def places() -> dict[Path, str]:
    """Return the place on the site of each file of the repository that is on it."""
    found = {path: str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*")) if path.is_file()}
    found |= {ROOT / name: place for name, place in OTHER_PAGES.items()}
    return found | {path: f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))}


def prepare(folder: Path = BUILD) -> None:
    """Write all pages to the folder docs."""
    from scripts.make_reference import problem_pages

    pages = folder / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    known = places()
    for source, place in known.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(page(source, known), encoding="utf-8")
        elif source.suffix == ".py":
            code = source.read_text(encoding="utf-8")
            target.write_text(f"# {source.name}\n\n```python\n{code}```\n", encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    (pages / "p").mkdir()
    for code, text in problem_pages().items():
        (pages / "p" / f"{code}.md").write_text(text, encoding="utf-8")
    index = pages / "reference" / "problems.md"
    linked = re.sub(
        r'<span id="([\w-]+)">([\w-]+)</span>', r"[\2](../p/\2.md){ #\1 }", index.read_text(encoding="utf-8")
    )
    index.write_text(linked, encoding="utf-8")


def page(source: Path, known: dict[Path, str]) -> str:
    """Return a page without the marks of generated figures, and with the links of the site."""
    text = MARK.sub("", source.read_text(encoding="utf-8"))
    parts: list[str] = []
    start = 0
    for fence in FENCE.finditer(text):
        parts += [_with_links(text[start : fence.start()], source, known), fence[0]]
        start = fence.end()
    return "".join([*parts, _with_links(text[start:], source, known)])


def _with_links(text: str, source: Path, known: dict[Path, str]) -> str:
    here = PurePosixPath(known[source]).parent

    def changed(found: re.Match[str]) -> str:
        image, label, target = found[1], found[2], found[3]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash, anchor = target.partition("#")
        place = known.get(Path(os.path.normpath(source.parent / path)))
        return f"{image}[{label}]({os.path.relpath(place, here)}{hash}{anchor})" if place else label

    return LINK.sub(changed, text)


# --- the inspector


EXAMPLE = "assets/inspector-example.html"
EXAMPLE_BUDGET = 30_000
EXAMPLE_ROUNDS = 4
"""The example is checked for compaction every few rounds, which is enough to see it grow and shrink."""

UP = {"mkdocs": "../../", "zensical": "../"}
"""From the page of the guide to the root. Zensical rewrites addresses in HTML, MkDocs does not."""

EMBEDDED = """
## Example

A bundled session that was compacted whenever it exceeded {budget:,} tokens, as `kompakt inspect --html`
writes it ([open it alone](../{example})):

<iframe src="{up}{example}" title="The inspector with an example session" style="width: 100%; height: 46rem; border:
1px solid var(--md-default-fg-color--lightest)"></iframe>
"""


async def write_example(path: Path) -> None:
    """Write the inspector's page of a bundled session that was compacted several times."""
    from importlib.resources import files

    import kompakt
    from kompakt.inspector.export import write_html
    from kompakt.view.inspection import open_inspection

    body = json.loads((files("kompakt") / "data" / "long-session.json").read_bytes())
    ends = [one.start + len(one) for one in kompakt.rounds(body)]
    async with await kompakt.open_store("memory:") as store:
        session = await store.session("tidewatch")
        for end in [*ends[::EXAMPLE_ROUNDS], ends[-1]]:
            await session.save({**body, "messages": body["messages"][:end]})
            if (await session.project()).tokens > EXAMPLE_BUDGET:
                await session.compact(budget=EXAMPLE_BUDGET)
        async with await open_inspection("memory:", store=store) as inspection:
            await write_html(inspection, path, session="tidewatch")


def embed_example(builder: str, folder: Path = BUILD) -> None:
    """Add the example to the guide of the inspector."""
    pages = folder / "docs"
    asyncio.run(write_example(pages / EXAMPLE))
    guide = pages / "guides" / "inspector.md"
    added = EMBEDDED.format(budget=EXAMPLE_BUDGET, example=EXAMPLE, up=UP[builder])
    guide.write_text(guide.read_text(encoding="utf-8") + added, encoding="utf-8")


# --- navigation


def navigation() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the sections of the navigation, each with titles and places of its pages."""
    nav = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]
    return [(title, list(_leaves(entries))) for section in nav for title, entries in section.items()]


def _leaves(entries: list[dict[str, str | list[dict[str, str]]]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for title, value in entry.items():
            if isinstance(value, str):
                yield title, value
            else:
                yield from _leaves(value)  # type: ignore[arg-type]


def write_llms(folder: Path = BUILD) -> None:
    """Write llms.txt, an index for language models, and llms-full.txt, all pages in one file."""
    pages, site = folder / "docs", folder / "site"
    index = ["# kompakt", "", f"> {yaml.safe_load(CONFIG.read_text(encoding='utf-8'))['site_description']}"]
    full: list[str] = []
    for section, entries in navigation():
        index += ["", f"## {section}", ""]
        for title, place in entries:
            text = (pages / place).read_text(encoding="utf-8")
            index.append(f"- [{title}]({place}): {_first_sentence(text)}")
            full.append(f"<!-- {place} -->\n\n{text.strip()}\n")
    (site / "llms.txt").write_text("\n".join(index) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")
    for path in pages.rglob("*.md"):
        target = site / path.relative_to(pages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _first_sentence(text: str) -> str:
    paragraphs = [part for part in FENCE.sub("", text).split("\n\n") if part.strip() and part[0] not in "#|!-<`"]
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    first = LINK.sub(lambda found: found[2], first)
    return re.split(r"(?<=[.:!?])\s", first)[0].rstrip(":")


# --- building and checking


def build(builder: str, folder: Path = BUILD) -> None:
    """Run the builder; it fails on warnings."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    config = CONFIG
    if folder != BUILD:
        config = folder / CONFIG.name
        config.write_text(CONFIG.read_text(encoding="utf-8").replace("_dir: build/", "_dir: "), encoding="utf-8")
    command = [sys.executable, "-m", builder, "build", "--strict", "--config-file", str(config)]
    command += ["--quiet"] if builder == "mkdocs" else []
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


class Found(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.add(given.get("href", ""))
        elif "src" in given:
            self.loaded.add(given["src"])


def problems(site: Path) -> list[str]:
    """List dead links and anchors, and files that would be loaded from another host."""
    pages = {path.resolve(): Found(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    wrong: list[str] = []
    for path, found in pages.items():
        name = path.relative_to(site.resolve())
        wrong += [f"{name} loads {target}" for target in sorted(found.loaded) if re.match(r"(?:https?:)?//", target)]
        for link in sorted(found.links | found.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists():
                wrong.append(f"{name} links to {link}, which does not exist")
            elif anchor and target in pages and not anchor.startswith("__") and anchor not in pages[target].ids:
                wrong.append(f"{name} links to {link}: the page has no such anchor")
    for path in site.rglob("*.css"):
        hosts = re.findall(r"url\([\"']?((?:https?:)?//[^)]+)", path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(site)} loads {target}" for target in hosts]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site in build/site.")
    parser.add_argument("--builder", choices=["mkdocs", "zensical"], default="mkdocs")
    parser.add_argument("--prepare", action="store_true", help="only collect the pages in build/docs")
    options = parser.parse_args()
    prepare()
    embed_example(options.builder)
    if options.prepare:
        return 0
    build(options.builder)
    write_llms()
    site = BUILD / "site"
    wrong = problems(site)
    for problem in wrong:
        print(problem, file=sys.stderr)
    if not wrong:
        print(f"{options.builder}: {site.relative_to(ROOT)}/index.html, {len(list(site.rglob('*.html')))} pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

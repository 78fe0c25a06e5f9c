"""Run every code block of the documentation, and check its links, paths and quoted output.

The Python blocks of a page share one namespace and run in order, in an empty folder. In console blocks, lines that
start with ``$ kompakt`` run in the same folder; each must exit with 0, or with N if a line ``# exit N`` follows. A
comment directly after a ``print`` is the output that the page promises.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scripts import make_numbers, make_reference, make_site
from tests.cli.commands import run
from tests.gateway.test_server import started
from tests.provider.script import Script
from tests.provider.server import Provider

import kompakt

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "kompakt"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUNNABLE = ("python", "console")
FRAMEWORKS = ROOT / "docs" / "integrations"
"""Pages whose examples need a framework; tests/integrations/suite_NAME.py runs them in its environment."""
OWN_PAGES = [page for page in PAGES if page.parent != FRAMEWORKS]

BLOCK = re.compile(r"^(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
COMMAND = re.compile(r"^\$ kompakt ?(?P<arguments>[^\n]*)\n(?P<output>(?:(?!\$ )[^\n]*\n)*)", re.M)
EXIT = re.compile(r"^# exit (\d+)$", re.M)
PRINTED = re.compile(r"^[^\n#]*\bprint\([^\n]*\n# ([^\n]+)$", re.M)
QUOTED_LOG = re.compile(r"^warning (.+)$", re.M)
PATH = re.compile(r"`((?:[\w.-]+/)*(?:[\w-]+/|[\w-]+\.py))`")


class Block(NamedTuple):
    """A fenced block of a page and its first line."""

    language: str
    text: str
    line: int


class Command(NamedTuple):
    """A command and its documented exit code."""

    arguments: list[str]
    redirect: tuple[str, str]
    expected: int


def blocks(text: str) -> list[Block]:
    """List the executable blocks of a page."""
    return [
        Block(found["language"], _dedent(found["text"], len(found["indent"])), text.count("\n", 0, found.start()) + 2)
        for found in BLOCK.finditer(text)
        if found["language"] in RUNNABLE
    ]


def _dedent(text: str, width: int) -> str:
    return "".join(line[min(width, len(line) - len(line.lstrip())) :] for line in text.splitlines(keepends=True))


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a console block; ``< FILE`` and ``> FILE`` at the end are supported."""
    for found in COMMAND.finditer(text if text.endswith("\n") else text + "\n"):
        words = shlex.split(found["arguments"], comments=True)
        redirect = ("", "")
        if len(words) > 2 and words[-2] in ("<", ">"):
            redirect, words = (words[-2], words[-1]), words[:-2]
        wanted = EXIT.search(found["output"])
        yield Command(words, redirect, int(wanted[1]) if wanted else 0)


def reader(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the page a home folder and a key of its own; ``install`` changes the settings of an agent."""
    for name in [name for name in os.environ if name.startswith(("KOMPAKT_", "XDG_", "CLAUDE_", "CODEX_"))]:
        if name != "KOMPAKT_EXAMPLES":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "local")


def run_console(block: Block, folder: Path, page: str) -> None:
    for command in commands(block.text):
        sign, name = command.redirect
        given = (folder / name).read_bytes() if sign == "<" else None
        answer = ["--yes"] if command.arguments[0] == "install" else []  # it asks a reader
        done = run(*command.arguments, *answer, input=given, cwd=folder)
        if sign == ">":
            (folder / name).write_text(done.out)
        context = f"{page}:{block.line}: kompakt {shlex.join(command.arguments)}\n{done.out}{done.err}"
        assert done.code == command.expected, context
        assert "Traceback" not in done.err, context


def run_python(block: Block, names: dict[str, Any], page: Path) -> None:
    """Run a block so that an error names the page and the line."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    for expected in PRINTED.findall(block.text):
        assert expected in printed.getvalue(), f"{page.name}:{block.line}: prints {printed.getvalue()!r}"


def not_public(text: str) -> list[str]:
    """List the imports from kompakt that are not public names of it or of its public modules."""
    modules = {f"kompakt.{name}" for name in kompakt.__all__ if inspect.ismodule(getattr(kompakt, name))}
    wrong: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("kompakt.")]
            wrong += [name for name in names if name not in modules]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kompakt":
            source = str(node.module)
            if source.startswith("kompakt.integrations."):
                public = declared(source)
            else:
                public = import_module(source).__all__ if source in {"kompakt", *modules} else ()
            wrong += [f"{source}.{alias.name}" for alias in node.names if alias.name not in public]
    return wrong


def declared(module: str) -> list[str]:
    """Return ``__all__`` of a module without importing it: an adapter needs its framework."""
    tree = ast.parse((PACKAGE.parent / module.replace(".", "/")).with_suffix(".py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


@cache
def log_templates() -> list[re.Pattern[str]]:
    """Return patterns for all texts of the package that have logging placeholders."""
    found = [
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"%[rsd]", node.value)
    ]
    return [re.compile(re.sub(r"%[rsd]", ".+?", re.escape(text))) for text in found]


LONG_PAGES = frozenset(["agents.md", "evaluating.md", "fleet.md", "sessions.md"])
"""Guides that take many seconds. `make check` leaves them to `make test`."""

CASES = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] if page.name in LONG_PAGES else [])
    for page in OWN_PAGES
]


class TestPages:
    @pytest.mark.parametrize("page", CASES)
    def test_every_block_runs(self, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader can copy every block, in the order of the page."""
        monkeypatch.chdir(tmp_path)
        reader(tmp_path, monkeypatch)
        names: dict[str, Any] = {"__name__": "__docs__"}
        if page.name == "README.md":
            (tmp_path / "session.json").write_bytes((files("kompakt") / "data" / "long-session.json").read_bytes())
            names["history"] = kompakt.load(tmp_path / "session.json").payload
        for block in blocks(page.read_text()):
            if block.language == "python":
                run_python(block, names, page)
            else:
                run_console(block, tmp_path, page.name)

    def test_only_public_modules_are_imported(self) -> None:
        """Examples depend on public names only."""
        texts = [
            *((page, block.text) for page in PAGES for block in blocks(page.read_text()) if block.language == "python"),
            *((path, path.read_text()) for path in sorted((ROOT / "examples").glob("*.py"))),
        ]
        wrong = [f"{path.name}: {name}" for path, text in texts for name in not_public(text)]
        assert len(texts) > 20
        assert wrong == []

    def test_blocks_that_need_a_framework_run_in_its_environment(self) -> None:
        """They are marked ``py``; a suite of tests/integrations runs every page that has one."""
        suites = "".join(path.read_text() for path in sorted((ROOT / "tests" / "integrations").glob("suite_*.py")))
        pages = [str(page.relative_to(ROOT)) for page in PAGES if re.search(r"^[ ]*```py$", page.read_text(), re.M)]
        assert "README.md" in pages
        assert [page for page in pages if f'"{page}", "py"' not in suites] == []

    def test_the_readme_has_blocks_of_both_kinds(self) -> None:
        """Guards against a first page without executable blocks."""
        found = blocks((ROOT / "README.md").read_text())
        assert {block.language for block in found} == {"python", "console"}
        assert any(list(commands(block.text)) for block in found if block.language == "console")

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
    def test_links_between_pages_lead_somewhere(self, page: Path) -> None:
        """Relative links name existing files."""
        links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == []

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
    def test_source_paths_exist(self, page: Path) -> None:
        """A path in backquotes names a file or folder of the repository or of the package."""
        if page.parent.name == "reference":
            return
        found = PATH.findall(page.read_text())
        assert [path for path in found if not any((root / path).exists() for root in (ROOT, PACKAGE))] == []

    def test_quoted_log_messages_exist(self) -> None:
        """A line ``warning …`` in a page is a message of the package, with its placeholders filled in."""
        quoted = [line for page in PAGES for line in QUOTED_LOG.findall(page.read_text())]
        assert quoted
        assert [line for line in quoted if not any(template.fullmatch(line) for template in log_templates())] == []

    def test_the_architecture_page_names_every_package(self) -> None:
        text = (ROOT / "docs" / "architecture.md").read_text()
        packages = [path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/__init__.py")]
        assert [str(path) for path in packages if f"`{path}/" not in text] == []

    def test_the_architecture_page_names_every_module(self) -> None:
        """By its path, or by a folder with one module per provider, format, kind or command."""
        text = (ROOT / "docs" / "architecture.md").read_text().partition("## Where to look")[2]
        folders = [re.findall(r"`([\w/]+)/`: one module per", line) for line in text.split("\n")]
        modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("[!_]*.py")]
        covered = {folder for found in folders for folder in found}
        public = {"strategies.py", "triggers.py", "admission.py"}
        assert [
            str(path)
            for path in modules
            if f"`{path}`" not in text and str(path.parent) not in covered and str(path) not in public
        ] == []


class TestExtras:
    def test_the_quick_start_lists_every_extra(self) -> None:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        page = (ROOT / "docs" / "quick-start.md").read_text()
        assert [name for name in extras if f"`{name}`" not in page and name not in ("dev", "bench")] == []


class TestReadme:
    """The promises of the first page about itself; its quick starts run in `TestPages` and here."""

    TEXT = (ROOT / "README.md").read_text()

    def test_is_short(self) -> None:
        assert len(self.TEXT.splitlines()) < 200
        quick = [found["text"] for found in BLOCK.finditer(self.TEXT)]
        assert len(quick) >= 7
        assert [text for text in quick if len(text.splitlines()) >= 10] == []

    def test_the_gateway_quick_start_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The three lines: start the gateway, point a client at it, ask whether it is protected.

        Also for a reader who has installed the plugin of section 1, which the same client name checks.
        """
        reader(tmp_path, monkeypatch)
        assert run("install", "claude-code", "--yes", cwd=tmp_path).code == 0
        serve, client, doctor = self._lines("kompakt serve")
        assert serve == "kompakt serve" and client.startswith("ANTHROPIC_BASE_URL=http://127.0.0.1:8484 claude")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
        with (
            Provider(Script(1), window=50_000) as provider,
            started(tmp_path, "--upstream", f"anthropic={provider.url}") as gate,
        ):
            here = doctor.replace("http://127.0.0.1:8484", gate.url)
            done = run(*shlex.split(here, comments=True)[1:], cwd=tmp_path)
        assert done.out.startswith("protected: yes"), done.out + done.err
        assert done.code == 0 and len(provider.requests) == 1

    def test_the_wrapped_client_finishes_a_session_that_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A provider with a window of 16,000 tokens rejects the history; through `wrap` it is answered."""
        block = next(block.text for block in blocks(self.TEXT) if "kompakt.wrap" in block.text)
        history = kompakt.load(str(files("kompakt") / "data" / "long-session.json")).payload
        request = {**history, "model": "gpt-3.5-turbo", "max_tokens": 500}
        with Provider(Script(0), window=16_000) as provider:
            monkeypatch.setenv("OPENAI_API_KEY", "local")
            monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
            names: dict[str, Any] = {}
            run_python(Block("python", block, 1), names, ROOT / "README.md")
            answer = names["client"].chat.completions.create(**request)
        assert answer.choices[0].message.content
        assert provider.requests[-1].prompt < 16_000

    def _lines(self, command: str) -> list[str]:
        """Return the lines of the shell block that starts with this command."""
        texts = [found["text"] for found in BLOCK.finditer(self.TEXT) if found["language"] == "sh"]
        return next(text for text in texts if text.startswith(command)).splitlines()


class TestReference:
    def test_no_generated_page_is_stale(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert make_reference.main(["--check"]) == 0, capsys.readouterr().err


class TestNumbers:
    """Measured figures come from benchmarks/results."""

    def test_no_document_is_stale_or_has_figures_of_its_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert make_numbers.main(["--check"]) == 0, capsys.readouterr().err

    def test_a_changed_result_changes_the_document(self) -> None:
        text = "It takes <!-- number: engine/rows/cold compaction, default/value = {:.0f} ms -->9 ms<!-- /number -->."
        value = make_numbers.value_at("engine/rows/cold compaction, default/value")
        assert f"-->{value:.0f} ms<!--" in make_numbers.renewed(text)
        table = make_numbers.renewed("<!-- table: exam -->\nold\n<!-- /table -->")
        assert "old" not in table and "| kompakt" in table

    def test_an_unknown_result_is_an_error(self) -> None:
        for path in ("no-such-file/rows", "engine/rows/no such row/value"):
            with pytest.raises(KeyError, match="no"):
                make_numbers.value_at(path)

    @pytest.mark.parametrize(
        "figure", ["76 ms", "1.3 ×", "21 MB/s", "0.9 GB", "27 %", "4,000 tokens/s", "24 s", "3 to 5 ms"]
    )
    def test_a_figure_without_marks_is_found(self, figure: str) -> None:
        page = ROOT / "docs" / "page.md"
        assert len(make_numbers.unmarked(page, f"It takes\n{figure} here.")) == 1
        marked = f"<!-- number: a = {{}} -->{figure}<!-- /number --> and `{figure}`"
        assert make_numbers.unmarked(page, f"{marked}\n```text\n{figure}\n```\n") == []


class TestSite:
    def test_the_navigation_is_complete(self) -> None:
        """Every page is in it once, but for examples and the pages of problem codes, and every entry is a page."""
        listed = [place for _, entries in make_site.navigation() for _, place in entries]
        pages = {place for place in make_site.places().values() if place.endswith(".md")}
        assert len(listed) == len(set(listed))
        assert set(listed) == {place for place in pages if not place.startswith("examples/")}

    def test_links_to_other_files_follow_them(self, tmp_path: Path) -> None:
        """Documents outside of docs/ have another place on the site; a file that is not there is no link."""
        known = make_site.places()
        text = make_site.page(ROOT / "docs" / "guides" / "agents.md", known)
        assert "](../examples/index.md)" in text
        assert "](docs/" not in make_site.page(ROOT / "CONTRIBUTING.md", known)
        assert "<!-- number" not in make_site.page(ROOT / "docs" / "migration" / "headroom.md", known)

    @pytest.mark.slow
    def test_the_site_builds_without_warnings_dead_links_or_foreign_files(self, tmp_path: Path) -> None:
        make_site.prepare(tmp_path)
        make_site.build("mkdocs", tmp_path)
        make_site.write_llms(tmp_path)
        site = tmp_path / "site"
        assert make_site.problems(site) == []
        assert (site / "p" / "OR-1" / "index.html").exists()
        assert "](guides/gateway.md): " in (site / "llms.txt").read_text()
        assert "# Run the gateway" in (site / "llms-full.txt").read_text()

    def test_dead_links_and_foreign_files_are_found(self, tmp_path: Path) -> None:
        page = '<a href="b/">b</a><a href="#top">up</a><a href="c.html">c</a><script src="https://cdn.example/x.js"></script>'
        (tmp_path / "a.html").write_text(page)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "index.html").write_text('<h1 id="top">b</h1><a href="../a.html#top">a</a>')
        assert [text.split()[1] + " " + text.split()[-1] for text in make_site.problems(tmp_path)] == [
            "loads https://cdn.example/x.js",
            "links anchor",
            "links exist",
            "links anchor",
        ]


class TestReading:
    """The reader of pages itself."""

    PAGE = (
        "# T\n\n```python\nx = 1\n```\n\n- a\n\n"
        "  ```console\n  $ kompakt check a.json\n  out\n  # exit 1\n  $ ls\n  ```\n"
    )

    def test_blocks_are_found(self) -> None:
        """Also inside a list, with line numbers."""
        found = blocks(self.PAGE)
        assert [(block.language, block.line) for block in found] == [("python", 4), ("console", 10)]
        assert found[1].text.startswith("$ kompakt")

    def test_commands_and_exit_codes_are_found(self) -> None:
        """Only kompakt commands run; the exit code follows the command."""
        assert list(commands(blocks(self.PAGE)[1].text)) == [Command(["check", "a.json"], ("", ""), 1)]
        piped = "$ kompakt check - < a.json\n$ kompakt repair a.json > b.json\n# exit 1\n"
        assert [(c.redirect, c.expected) for c in commands(piped)] == [(("<", "a.json"), 0), ((">", "b.json"), 1)]

    def test_imports_of_internal_names_are_found(self) -> None:
        """Also late imports, and internal names beside public ones."""
        text = "import kompakt.api\nimport kompakt.strategies\ndef f():\n    from kompakt import api, compact\n"
        assert not_public(text) == ["kompakt.api", "kompakt.api"]
        assert not_public("from kompakt.agent.tools import Tool\n") == ["kompakt.agent.tools.Tool"]
        assert not_public("from kompakt.events import Spoke\nimport kompakt\n") == []

    def test_a_broken_block_fails(self, tmp_path: Path) -> None:
        """An error in a block, or a wrong quoted output, fails the test."""
        with pytest.raises(ZeroDivisionError):
            run_python(Block("python", "1 / 0\n", 7), {}, tmp_path / "page.md")
        with pytest.raises(AssertionError, match="prints '1"):
            run_python(Block("python", "print(1)\n# 2\n", 7), {}, tmp_path / "page.md")
        with pytest.raises(AssertionError, match="no-such-file"):
            run_console(Block("console", "$ kompakt check no-such-file.json\n", 3), tmp_path, "page.md")

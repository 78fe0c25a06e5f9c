"""Structure of the code base: who may import whom, and what may not be written.

Everything is read from the source, late imports included, so a rule cannot be broken by hiding the import.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import kompakt

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kompakt"

LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "model": {"errors"},
    "wire": {"model"},
    "engine": {"model"},
    "store": {"model"},
    "files": {"model", "wire"},
    "strategies": {"engine"},
    "triggers": {"engine"},
    "admission": {"engine"},
    "api": {"wire", "engine", "store", "files"},
    "session": {"model", "wire", "engine", "store", "api"},
    "agent": {"session"},
    "events": {"agent"},
    "fleet": {"session"},
    "gateway": {"agent", "fleet", "inspector"},
    "inspector": {"agent", "fleet"},
    "integrations": {"agent", "fleet"},
    "evals": {"agent", "fleet"},
    "cli": {"gateway", "inspector", "integrations", "evals"},
    "__main__": {"cli"},
}
"""What each part stands on; it may import that and all that stands below. design.md draws it as

model  <-  wire, engine, store  <-  session  <-  agent, fleet  <-  gateway, inspector, integrations, evals, cli

with api.py on wire and engine, files.py on wire, and errors.py and version.py under everything. strategies.py,
triggers.py, admission.py and events.py are public names for parts of engine and agent.
"""

modules = sorted(SOURCE.rglob("*.py"))
ids = [str(path.relative_to(SOURCE)) for path in modules]
each_module = pytest.mark.parametrize("path", modules, ids=ids)


def tracked() -> list[Path]:
    """List the text files that are, or would be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def below(part: str) -> set[str]:
    """List all that a part may import beside itself."""
    found: set[str] = {"version", "errors"} - {part}
    for inner in LAYERS[part]:
        found |= {inner} | below(inner)
    return found


def part_of(module: str) -> str | None:
    """Name the part of the house that a dotted name lies in; the bare package is its public face."""
    names = module.split(".")
    return names[1] if len(names) > 1 else None


def dotted(path: Path) -> str:
    """Name the module in a file."""
    names = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """List the kompakt modules that a file imports anywhere in it, with or without those only a type checker reads."""
    tree = ast.parse(path.read_text())
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    unread = set() if for_types else {inner for block in typing for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "kompakt")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module and node.module.split(".")[0] == "kompakt":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if is_module(inner) else node.module


def is_module(name: str) -> bool:
    """Tell whether a dotted name is a module or a package of ours."""
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


class TestDirection:
    @each_module
    def test_imports_point_downwards(self, path: Path) -> None:
        """A part imports only what it stands on; nobody inside the house imports its public face."""
        part = part_of(dotted(path))
        if part is None:
            return
        allowed = below(part) | {part}
        wrong = [name for name in imports(path) if part_of(name) not in allowed]
        assert wrong == [], f"{part} may import {sorted(allowed)}"

    def test_the_drawing_has_every_part(self) -> None:
        """A new part of the house is drawn before it is built."""
        assert {part for path in modules if (part := part_of(dotted(path)))} <= LAYERS.keys()

    def test_neighbours_do_not_know_one_another(self) -> None:
        """Wire, engine and store never import one another: the drawing itself says so."""
        for part in ("wire", "engine", "store"):
            assert not below(part) & {"wire", "engine", "store"}

    def test_there_are_no_cycles(self) -> None:
        """Between modules, too, every import that runs points one way."""
        graph = {dotted(path): set(imports(path, for_types=False)) - {dotted(path)} for path in modules}
        while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
            for name in free:
                del graph[name]
        while unused := [name for name in graph if not any(name in needs for needs in graph.values())]:
            for name in unused:
                del graph[name]
        assert sorted(graph) == []

    def test_tests_of_this_kind_can_fail(self) -> None:
        """The drawing forbids what it should."""
        assert "wire" not in below("model")
        assert "cli" not in below("api")
        assert {"engine", "wire", "model", "errors"} <= below("cli")


class TestPublicNames:
    def test_they_are_sorted_and_complete(self) -> None:
        """``__all__`` is every public name that is imported on purpose, in order."""
        tree = ast.parse((SOURCE / "__init__.py").read_text())
        ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "kompakt" in str(node.module)]
        imported = [alias.asname or alias.name for node in ours for alias in node.names]
        assert kompakt.__all__ == sorted(kompakt.__all__)
        assert len(set(kompakt.__all__)) == len(kompakt.__all__)
        assert set(kompakt.__all__) == set(imported)

    def test_each_is_there_and_documented(self) -> None:
        """Every public name exists and says what it is."""
        for name in kompakt.__all__:
            value = getattr(kompakt, name)
            assert name == "__version__" or (value.__doc__ or "").strip(), name


BLANKET = {
    "engine/compaction/compact.py": 1,
    "engine/compaction/policies.py": 1,
    "engine/pivot/summarizer.py": 1,
    "engine/compaction/telemetry.py": 1,
    "agent/agent.py": 1,
    "agent/tools.py": 1,
}
"""How many blanket handlers may swallow: one each, around strategies and triggers (D8), listeners of compactions,
summarisers (B12), providers after a run, tools: anybody's code."""


class TestHandlers:
    @each_module
    def test_no_handler_takes_everything(self, path: Path) -> None:
        """A blanket handler may clean up and raise again, never swallow."""
        swallowing = []
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"all"}
            if names & {"all", "Exception", "BaseException"}:
                if not any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node)):
                    swallowing.append(node.lineno)
        assert len(swallowing) <= BLANKET.get(str(path.relative_to(SOURCE)), 0), swallowing


FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~])/(?:home|Users|root|work|tmp|mnt|opt)/[\w.-]+"),
    "a registry or index address": re.compile(
        r"https?://[^\s\"']*(?:pypi|simple/|artifactory|nexus|index-url)[^\s\"']*|--(?:extra-)?index-url|--trusted-host"
    ),
    "a drive letter": re.compile(r"(?<![\w])[A-Z]:\\\\?(?:Users|work)\b"),
}
"""Never written into a tracked file: it would tie the project to one machine or one network."""

EXEMPT = {
    # Sample data of a tool call, and this file's own patterns.
    "tests/test_structure.py",
}
QUOTED_PATHS = re.compile(r"/(?:home/(?:me|user|alice|dev)|Users/(?:me|user|alice|dev)|tmp/x|work/repo)\b")
"""Invented paths in sample data, which name no machine."""


class TestPortable:
    @pytest.mark.parametrize("what", FORBIDDEN)
    def test_nothing_ties_the_project_to_a_machine(self, what: str) -> None:
        """No tracked text file names a place that only one machine has."""
        found = []
        for path in tracked():
            name = str(path.relative_to(ROOT))
            if name in EXEMPT:
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            hits = (hit for hit in FORBIDDEN[what].finditer(text) if not QUOTED_PATHS.match(hit[0]))
            found += [f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]}" for hit in hits]
        assert found == []

    def test_something_is_looked_at(self) -> None:
        """The list of files is not empty, and holds the package itself."""
        assert SOURCE / "__init__.py" in tracked()
        assert len(list(chain(modules))) > 20

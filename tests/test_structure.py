"""Structure of the code base: layers, import cycles, names, folder sizes, blanket handlers, portable text.

The rules read the source, including late imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
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
    "events": {"engine"},
    "agent": {"session", "events"},
    "view": {"session", "events"},
    "inspector": {"agent", "view"},
    "hosts": {"agent", "view"},
    "gateway": {"agent", "view", "inspector", "hosts"},
    "integrations": {"agent", "view"},
    "evals": {"agent", "view"},
    "fleet": {"evals"},
    "cli": {"gateway", "inspector", "hosts", "integrations", "evals", "fleet"},
    "__main__": {"cli"},
}
"""The parts that each part may import directly; it may also import everything below those. docs/architecture.md:

model  <-  wire, engine, store  <-  session  <-  agent, view
       <-  gateway, inspector, hosts, integrations, evals, fleet, cli

In the last layer cli may import the others, fleet uses the measures of evals, and the gateway mounts inspector and the
MCP server of hosts. api.py combines wire and engine, files.py uses wire, and everything may use errors.py and
version.py. strategies.py, triggers.py and admission.py are public namespaces for parts of engine; events.py has the
events of an agent's run.
"""

modules = sorted(SOURCE.rglob("*.py"))
ids = [str(path.relative_to(SOURCE)) for path in modules]
each_module = pytest.mark.parametrize("path", modules, ids=ids)


def tracked() -> list[Path]:
    """List the files that are, or would be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def below(part: str) -> set[str]:
    """Return all parts that a part may import besides itself."""
    found: set[str] = {"version", "errors"} - {part}
    for inner in LAYERS[part]:
        found |= {inner} | below(inner)
    return found


def part_of(module: str) -> str | None:
    """Return the part of a dotted module name; ``None`` for the package itself."""
    names = module.split(".")
    return names[1] if len(names) > 1 else None


def dotted(path: Path) -> str:
    """Return the dotted name of a module file."""
    names = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """Yield the kompakt modules that a file imports anywhere, with or without imports for type checkers."""
    tree = ast.parse(path.read_text())
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    ignored = set() if for_types else {inner for block in typing for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if node in ignored:
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
    """Return whether a dotted name is a module or package of kompakt."""
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


class TestLayers:
    @each_module
    def test_imports_point_downwards(self, path: Path) -> None:
        """A part imports only parts below it, and never the package's public names."""
        part = part_of(dotted(path))
        if part is None:
            return
        allowed = below(part) | {part}
        wrong = [name for name in imports(path) if part_of(name) not in allowed]
        assert wrong == [], f"{part} may import {sorted(allowed)}"

    def test_every_part_has_a_layer(self) -> None:
        assert {part for path in modules if (part := part_of(dotted(path)))} <= LAYERS.keys()

    def test_wire_engine_and_store_are_independent(self) -> None:
        for part in ("wire", "engine", "store"):
            assert not below(part) & {"wire", "engine", "store"}

    def test_no_import_cycles_between_modules(self) -> None:
        """Imports for type checkers are ignored, because they do not run."""
        graph = {dotted(path): set(imports(path, for_types=False)) - {dotted(path)} for path in modules}
        while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
            for name in free:
                del graph[name]
        while unused := [name for name in graph if not any(name in needs for needs in graph.values())]:
            for name in unused:
                del graph[name]
        assert sorted(graph) == []

    @each_module
    def test_late_imports_are_for_extras_and_fast_starts(self, path: Path) -> None:
        """Commands, hooks and the MCP server start fast; the others import what needs an extra or a backend."""
        if part_of(dotted(path)) in ("cli", "hosts"):
            return
        functions = (
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        inner = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom))
        late = {
            f"{node.module}.{alias.name}"
            for node in inner
            if str(node.module).startswith("kompakt")
            for alias in node.names
        }
        assert late == LATE.get(str(path.relative_to(SOURCE)), set())

    def test_the_layers_forbid_something(self) -> None:
        assert "wire" not in below("model")
        assert "cli" not in below("api")
        assert {"engine", "wire", "model", "errors"} <= below("cli")


LATE = {
    "evals/report.py": {"kompakt.evals.plots.draw"},
    "fleet/run.py": {"kompakt.fleet.ray_engine"},
    "gateway/admin/mcp.py": {"kompakt.hosts.mcp.sessions.StoredSession", "kompakt.hosts.mcp.directory.ListedSession"},
    "inspector/terminal/__init__.py": {
        "kompakt.inspector.terminal.app.InspectorApp",
        "kompakt.inspector.terminal.report",
    },
    "store/__init__.py": {
        "kompakt.store.sql.sqlite.open_sqlite",
        "kompakt.store.sql.postgres.open_postgres",
        "kompakt.store.redis.records.open_redis",
    },
}
"""Late imports outside of commands and hooks: what they need is in an extra, or belongs to one backend."""

REPEATED: set[str] = set()
"""Class names that still exist in more than one module. Shrink this set; never add to it."""

NOUNS = {"encoding"}
"""Module names that end like a gerund or an adverb but are nouns."""

MOST_FILES = 18

ADAPTERS = {"hosts", "integrations", "inspector", "view", "fleet"}
"""Packages that connect the core to other programs: their size follows from how many there are."""


class TestNames:
    def test_public_class_names_are_unique(self) -> None:
        """A class name has one meaning in the whole package."""
        found: dict[str, list[str]] = {}
        for path in modules:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
        repeated = {name: places for name, places in found.items() if len(places) > 1}
        assert {name: places for name, places in repeated.items() if name not in REPEATED} == {}

    def test_modules_are_not_named_by_gerunds_or_adverbs(self) -> None:
        wrong = [path for path in modules if re.search(r"(?:ing|ly)$", path.stem) and path.stem not in NOUNS]
        assert [str(path.relative_to(SOURCE)) for path in wrong] == []

    def test_the_core_has_few_files(self) -> None:
        """A concept is one module: merge small modules before adding another. Adapters are counted apart."""
        core = [path for path in modules if part_of(dotted(path)) not in ADAPTERS]
        assert len(core) <= 273

    def test_folders_are_small(self) -> None:
        sizes = Counter(path.parent for path in modules)
        assert {str(path.relative_to(SOURCE)): size for path, size in sizes.items() if size > MOST_FILES} == {}


class TestPublicNames:
    def test_all_is_sorted_and_complete(self) -> None:
        """``__all__`` has every name that ``kompakt`` imports from its modules."""
        tree = ast.parse((SOURCE / "__init__.py").read_text())
        ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "kompakt" in str(node.module)]
        imported = [alias.asname or alias.name for node in ours for alias in node.names]
        assert kompakt.__all__ == sorted(kompakt.__all__)
        assert len(set(kompakt.__all__)) == len(kompakt.__all__)
        assert set(kompakt.__all__) == set(imported)

    def test_each_public_name_exists_and_is_documented(self) -> None:
        for name in kompakt.__all__:
            value = getattr(kompakt, name)
            assert name == "__version__" or (value.__doc__ or "").strip(), name


BLANKET = {
    "agent/agent.py": 2,
    "agent/config.py": 1,
    "agent/tools.py": 1,
    "engine/compaction/compact.py": 1,
    "engine/compaction/policies.py": 1,
    "engine/compaction/report.py": 1,
    "engine/pivot/pivot.py": 1,
    "fleet/jobs.py": 1,
    "gateway/http/access_log.py": 1,
    "hosts/hook.py": 1,
    "integrations/conversation.py": 2,
    "integrations/crewai.py": 1,
}
"""Handlers of every exception. Most are around user code: clients, context providers, compaction hooks, tools,
strategies, triggers, compaction listeners and summarizers. The others are outer edges: of the gateway, of the hooks,
whose failures must not stop a coding agent, and of fleet jobs, where one bad session must not end the job."""


class TestHandlers:
    @each_module
    def test_only_user_code_has_blanket_handlers(self, path: Path) -> None:
        """Each says in a comment why it catches every exception; clean-up uses ``finally`` or an exit stack."""
        source = path.read_text()
        lines, found = source.split("\n"), list[int]()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"all"}
            if names & {"all", "Exception", "BaseException"}:
                found.append(node.lineno)
        assert len(found) == BLANKET.get(str(path.relative_to(SOURCE)), 0), found
        assert all("  # " in lines[number - 1] for number in found)


FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~])/(?:home|Users|root|work|tmp|mnt|opt)/[\w.-]+"),
    "a registry or index address": re.compile(
        r"https?://[^\s\"']*(?:pypi|simple/|artifactory|nexus|index-url)[^\s\"']*|--(?:extra-)?index-url|--trusted-host"
    ),
    "a drive letter": re.compile(r"(?<![\w])[A-Z]:\\\\?(?:Users|work)\b"),
}
"""Text that must not be in tracked files, because it depends on one machine or network."""

EXEMPT = {
    # Sample data of a tool call, and this file's own patterns.
    "tests/test_structure.py",
}
RECORDED = "benchmarks/results/exam/"
"""Answers of readers, which quote the paths of recorded sessions."""

QUOTED_PATHS = re.compile(r"/(?:home/(?:me|user|alice|dev)|Users/(?:me|user|alice|dev)|tmp/x|work/repo)\b")
"""Invented paths in sample data."""


class TestDecodedTypes:
    """msgspec crashes if two threads decode the first values of a type at the same time: see ``model.json.prepare``."""

    SINGLE_THREADED = ("cli", "evals", "fleet", "hosts", "integrations", "gateway/workers.py", "model/limits.py")
    """Code that decodes in one thread, or under a lock."""

    def test_types_that_servers_decode_are_prepared_at_import(self) -> None:
        prepared: set[str] = set()
        decoded: dict[str, str] = {}
        for path in SOURCE.rglob("*.py"):
            place = path.relative_to(SOURCE).as_posix()
            for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func)
                if name == "prepare":
                    prepared |= set(map(ast.unparse, call.args))
                elif not place.startswith(self.SINGLE_THREADED):
                    kinds = [one.value for one in call.keywords if one.arg == "type" and name.endswith(".decode")]
                    kinds += (
                        call.args[1:2] if name == "msgspec.convert" else call.args[2:3] if name == "decode_note" else []
                    )
                    decoded |= {kind: place for one in kinds if (kind := ast.unparse(one))[0] in KIND_STARTS}
        assert {kind: place for kind, place in decoded.items() if kind not in prepared} == {}
        assert len(decoded) >= 9, "the search no longer finds them"


KIND_STARTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class TestPortable:
    @pytest.mark.parametrize("what", FORBIDDEN)
    def test_tracked_files_do_not_depend_on_a_machine(self, what: str) -> None:
        found = []
        for path in tracked():
            name = str(path.relative_to(ROOT))
            if name in EXEMPT or name.startswith(RECORDED):
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            hits = (hit for hit in FORBIDDEN[what].finditer(text) if not QUOTED_PATHS.match(hit[0]))
            found += [f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]}" for hit in hits]
        assert found == []

    def test_the_package_is_among_the_tracked_files(self) -> None:
        assert SOURCE / "__init__.py" in tracked()
        assert len(list(chain(modules))) > 20


@pytest.mark.xdist_group("grouping")
def test_groups_of_tests_run_in_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist names the group at the end of the id. Without it, every worker repeats costly fixtures."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@grouping")

"""The evaluation and the engine share no patterns: what is measured must not be tuned to the measure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kompakt

SOURCE = Path(kompakt.__file__).parent
MIN_PATTERN = 20
"""Characters from which two equal patterns are no coincidence."""

METACHARACTERS = re.compile(r"\\[bdsw]|\(\?|\[\^|[*+]\?|\{\d")


def patterns(folder: Path) -> Iterator[str]:
    """Yield the string constants of a folder that are regular expressions, and the alternatives in them."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and METACHARACTERS.search(node.value):
                yield node.value
                yield from re.findall(r"\((?:\?:)?((?:[^()|]+\|){4,}[^()|]+)\)", node.value)


def test_no_pattern_of_the_evaluation_is_in_the_engine() -> None:
    measured = {text for text in patterns(SOURCE / "evals") if len(text) >= MIN_PATTERN}
    engine = set(patterns(SOURCE / "engine"))
    assert len(measured) > 20 and len(engine) > 20
    assert measured & engine == set()


def test_the_evaluation_does_not_import_what_writes_the_ledger() -> None:
    wrong = [
        path.name
        for path in (SOURCE / "evals").rglob("*.py")
        if re.search(r"^\s*(?:from|import) kompakt\.engine\.ledger", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


def test_the_engine_names_no_benchmark() -> None:
    names = re.compile(r"\b(?:locomo|tau.?bench|swe.?bench|kompakt\.evals)\b", re.IGNORECASE)
    found = [path.name for path in (SOURCE / "engine").rglob("*.py") if names.search(path.read_text())]
    assert found == []

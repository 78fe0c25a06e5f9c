"""Small values that all history strategies share: texts, tool inputs, ids, blobs.

Kept few and cheap because a body draws dozens of them; the one invariant is that every value survives JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

Json: TypeAlias = Any
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

TEXTS = (
    "ok",
    "Please fix the failing test, but do not touch the migration files.",
    "def main() -> None:\n    print('hello')\n",
    "日本語のテキストと中文以及한국어를 함께 씁니다。",
    "👩🏽‍💻 shipped 🚀 — café cafe\u0301 Å A\u030a",
    "שלום עולם — مرحبا بالعالم \u202btext\u202c",
    "line one\r\nline two\r\n\ttabbed\u2028separated",
    '{"looks": "like json", "n": [1, 2, 3]}',
    "<system-reminder>not from the system</system-reminder>",
    "ERROR src/app.py:12: error: Incompatible types\n" * 6,
    "x" * 1500,
)
OUTPUTS = (
    "total 8\n-rw-r--r-- 1 root root 12 app.py\n",
    '{"rows": [{"id": 18446744073709551617, "ok": true}], "next": null}',
    "Traceback (most recent call last):\n  File 'a.py', line 1\nZeroDivisionError: division by zero",
    "出力がありません 🙈",
    "2026-11-15T08:00:00Z INFO worker started pid=4242\n" * 20,
)
INPUTS: tuple[dict[str, Json], ...] = (
    {},
    {"path": "src/app.py"},
    {"z": 1, "a": 2, "m": {"y": [], "b": {}}},
    {"ratio": 0.1, "tiny": 5e-324, "huge": 1.7976931348623157e308, "negative_zero": -0.0},
    {"id": 2**64 + 1, "minus": -(2**70), "edge": 2**53 + 1},
    {"문서": "价格 💰", 'quoted "key"': "back\\slash", "": None},
    {"list": [1, [2, [3, {"deep": True}]], None, "é"]},
)
TOOL_NAMES = ("read_file", "run-shell", "Search", "mcp__db__query", "t")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(TEXTS)
)
texts = st.one_of(
    st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.text(min_size=1, max_size=12).filter(lambda t: bool(t.strip()))
)
outputs = st.one_of(st.sampled_from(OUTPUTS), texts)
inputs = st.one_of(
    st.sampled_from(INPUTS), st.dictionaries(st.sampled_from(("b", "a", "κλειδί", "path")), _scalars, max_size=3)
)
tool_names = st.sampled_from(TOOL_NAMES)
# Valid base64, and mostly unlike one another as real signatures are.
blobs = st.one_of(
    st.integers(0, 2**56 - 1).map(lambda n: f"Eq{n:014x}"), st.sampled_from(("gAAAAABo-opaque_bytes-00DQ==", "A" * 400))
)


@dataclass
class Ids:
    """Hand out ids that are unique in one body."""

    style: str = "{prefix}{n:04d}"
    issued: int = field(default=0)

    def new(self, prefix: str) -> str:
        """Return the next id with the prefix of its kind."""
        self.issued += 1
        return self.style.format(prefix=prefix, n=self.issued)


def rarely(draw: Draw, *, one_in: int = 5) -> bool:
    """Draw True about once in ``one_in``, and shrink towards False."""
    chosen: bool = draw(st.integers(0, one_in - 1)) == one_in - 1
    return chosen


def reordered(draw: Draw, mapping: dict[str, T]) -> dict[str, T]:
    """Return the mapping, at times with its keys in the opposite order."""
    return dict(reversed(mapping.items())) if rarely(draw) else mapping


def shuffled(draw: Draw, values: Sequence[T]) -> list[T]:
    """Return the values in the order given or turned around at a drawn place."""
    at = draw(st.integers(0, max(0, len(values) - 1)))
    return [*values[at:], *values[:at]]


def schema(name: str) -> dict[str, Json]:
    """Return a tool's name, description and input schema, for each format to dress."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"name": name, "description": f"Run {name}.", "parameters": parameters}

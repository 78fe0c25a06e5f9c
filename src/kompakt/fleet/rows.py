"""The rows that a fleet job writes, and their Parquet schema.

A row is a function of its input and the settings of the job, apart from ``seconds``. So it does not matter which worker
or engine made it, in which order, or how often: rows with the same ``key`` and ``id`` are interchangeable, and the last
one written counts.

Payloads are JSON in one string column. As a struct column, Arrow would have to merge the schemas of all sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from kompakt.errors import UsageError
from kompakt.version import install_command

JobName: TypeAlias = Literal["compact", "evaluate", "check", "samples"]


WINDOW = "#window-"
"""Separates the session and the number of the window in the id of a sample."""


class RowKey(NamedTuple):
    """What identifies finished work: one input under one policy and budget."""

    source: str
    input_hash: str
    policy: str | None
    budget: int | None


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job on one session, or one window of it."""

    id: str
    """The session: its source, and its name if the source has several; for samples also the number of the window."""
    source: str
    """The input that the row was made from: a file, a line of a file, or a stored session."""
    input_hash: str
    job: JobName
    policy: str | None = None
    budget: int | None = None
    format: str | None = None
    messages: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    changed: bool | None = None
    fits: bool | None = None
    """Whether the result is within the budget; ``None`` without a budget."""
    problems: tuple[str, ...] = ()
    """What the provider would reject: in the input for ``check``, else in the result."""
    measures: str | None = None
    """For ``evaluate``: a JSON object with the numbers of passed and expected items of each kind."""
    roles: tuple[str, ...] = ()
    """For ``samples``: the role of each message in the payload."""
    mask: tuple[bool, ...] = ()
    """For ``samples``: whether each message in the payload is the model's own, and so a target of training."""
    seconds: float = 0.0
    error: str | None = None
    """Why there is no result."""
    payload: str | None = None
    """The resulting request body or list of messages, as JSON."""
    reference: str | None = None
    """The compaction that was written to the store, instead of a payload."""

    @property
    def key(self) -> RowKey:
        return RowKey(self.source, self.input_hash, self.policy, self.budget)


def printable(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def arrow() -> Any:
    """Import pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet  # type: ignore[reportUnusedImport] — makes ``pa.parquet`` available
    except ImportError:
        raise UsageError(f"fleet jobs need pyarrow; install it and Ray with: {install_command('fleet')}") from None
    return pa


def schema() -> Any:
    pa = arrow()
    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            pa.field("id", text, nullable=False),
            pa.field("source", text, nullable=False),
            pa.field("input_hash", text, nullable=False),
            pa.field("job", text, nullable=False),
            ("policy", text),
            ("budget", number),
            ("format", text),
            ("messages", number),
            ("tokens_before", number),
            ("tokens_after", number),
            ("changed", pa.bool_()),
            ("fits", pa.bool_()),
            ("problems", pa.list_(text)),
            ("measures", text),
            ("roles", pa.list_(text)),
            ("mask", pa.list_(pa.bool_())),
            ("seconds", pa.float64()),
            ("error", text),
            ("payload", text),
            ("reference", text),
        ]
    )


def to_table(rows: Sequence[FleetRow]) -> Any:
    """Return rows as a table."""
    columns = {name: [getattr(row, name) for row in rows] for name in FleetRow.__struct_fields__}
    return arrow().table(columns, schema=schema())


def from_table(table: Any) -> list[FleetRow]:
    """Return the rows of a table; columns that were not read have their defaults."""
    return [msgspec.convert({k: v for k, v in one.items() if v is not None}, FleetRow) for one in table.to_pylist()]


def newest(rows: Iterable[FleetRow]) -> list[FleetRow]:
    """Return the rows sorted; of several runs on the same source, policy and budget, only the last one counts.

    ``rows`` are in the order in which they were written. All rows of one run on one key are adjacent.
    """
    found: dict[tuple[str, str | None, int | None], dict[str, FleetRow]] = {}
    last: RowKey | None = None
    for row in rows:
        place = (row.source, row.policy, row.budget)
        if row.key != last or row.id in found[place]:
            found[place] = {}
            last = row.key
        found[place][row.id] = row
    every = (row for one in found.values() for row in one.values())
    return sorted(every, key=lambda row: (row.source, row.id, row.policy or "", row.budget or 0))

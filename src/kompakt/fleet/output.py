"""The output folder of a job: part files with rows, a manifest, a summary and a plot of sizes.

Invariants:

- A part file is written to a temporary name and then renamed. So a file that exists is complete, and an interrupted job
  continues from what is there.
- All rows of one task are in one part file. So a key that has any row is finished.
- A folder contains the rows of one job with one set of settings. Policies and budgets may be added.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kompakt import files
from kompakt.errors import UsageError
from kompakt.fleet.rows import FleetRow, RowKey, arrow, from_table, newest, to_table
from kompakt.model.json import indented_json
from kompakt.version import __version__

MANIFEST = "manifest.json"
ROWS = "rows"
PART = re.compile(r"part-(\d+)-\w+\.parquet")

FLUSH_SECONDS = (2.0, 60.0)
"""Rows are written to disk at least this often. The interval grows from the first to the second value, so that a long
job does not leave thousands of small files."""
FLUSH_SHARE = 0.02
"""The interval as a share of the time since the job started."""
FLUSH_ROWS = 2_000
FLUSH_BYTES = 64_000_000

LIGHT = [name for name in FleetRow.__struct_fields__ if name not in ("payload", "roles", "mask")]
"""Columns that are needed for resuming and for the summary."""

_log = logging.getLogger("kompakt.fleet")


class FleetRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One run of a job, as the manifest records it."""

    started: str
    engine: str
    workers: int
    """0 if the number follows from the CPUs of a Ray cluster."""
    versions: dict[str, str]
    finished: str | None = None
    interrupted: bool = False
    inputs: int = 0
    """Inputs of the source."""
    skipped: int = 0
    """Inputs whose rows were all there already."""
    rows: int = 0
    """Rows that this run wrote."""
    errors: int = 0
    seconds: float = 0.0


class FleetManifest(msgspec.Struct, kw_only=True):
    """What a folder contains and how it was made."""

    kompakt: str
    job: str
    source: str
    settings: dict[str, Any]
    """Settings that the rows depend on."""
    runs: list[FleetRun] = []


class FleetOutput:
    """Writes the rows of a run."""

    def __init__(self, folder: Path, manifest: FleetManifest, run: FleetRun) -> None:
        arrow()
        self.folder = folder
        self.run = run
        self.manifest = _joined(folder, manifest)
        self.manifest.runs.append(run)
        try:
            (folder / ROWS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{str(folder)!r}: {error.strerror or error}") from None
        self._token = secrets.token_hex(3)
        self._number = max((number for number, _ in parts(folder)), default=0)
        self._rows: list[FleetRow] = []
        self._bytes = 0
        self._began = self._flushed = time.monotonic()
        self.write_manifest()

    def write_manifest(self) -> None:
        files.write(self.folder / MANIFEST, indented_json(self.manifest))

    def finished(self, *, retry_errors: bool = False) -> set[RowKey]:
        """Return the keys of work that need not be done again."""
        rows = read_rows(self.folder, columns=["id", "source", "input_hash", "job", "policy", "budget", "error"])
        bad = {row.key for row in rows if row.error is not None} if retry_errors else set[RowKey]()
        return {row.key for row in rows} - bad

    def add(self, rows: Sequence[FleetRow]) -> None:
        """Take all rows of one task; they are on disk after a few seconds, or when enough of them are here."""
        self._rows += rows
        self._bytes += sum(len(row.payload or "") for row in rows)
        self.run.rows += len(rows)
        self.run.errors += sum(row.error is not None for row in rows)
        now = time.monotonic()
        least, most = FLUSH_SECONDS
        wait = min(most, max(least, FLUSH_SHARE * (now - self._began)))
        if len(self._rows) >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES or now - self._flushed >= wait:
            self.flush()

    def flush(self) -> None:
        """Write all rows to disk."""
        self._flushed = time.monotonic()
        if not self._rows:
            return
        self._number += 1
        target = self.folder / ROWS / f"part-{self._number:06}-{self._token}.parquet"
        temporary = target.with_name(f".{target.name}")
        try:
            with temporary.open("wb") as file:
                arrow().parquet.write_table(to_table(self._rows), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            raise UsageError(f"{target}: {error.strerror or error}; the rows before it are saved") from None
        self._rows, self._bytes = [], 0

    def close(self, *, interrupted: bool = False) -> None:
        """Write what is left, and the end of the run to the manifest."""
        self.flush()
        self.run.finished = now()
        self.run.interrupted = interrupted
        self.run.seconds = round(time.monotonic() - self._began, 3)
        self.write_manifest()


def _joined(folder: Path, manifest: FleetManifest) -> FleetManifest:
    """Return the manifest of a folder with the runs that it has.

    Raises:
        UsageError: the folder contains other things, or rows that were made with other settings.
    """
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{str(folder)!r} exists and is not the output of a fleet job; name a new folder")
        return manifest
    known = read_manifest(folder)
    wanted = {"kompakt": manifest.kompakt, "job": manifest.job, "source": manifest.source, **manifest.settings}
    found = {"kompakt": known.kompakt, "job": known.job, "source": known.source, **known.settings}
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise UsageError(
                f"{str(folder)!r} has rows of a job with {name} {found.get(name)!r}, not {wanted.get(name)!r}; "
                "name a new folder"
            )
    manifest.runs = known.runs
    return manifest


def read_manifest(folder: Path) -> FleetManifest:
    """Read the manifest of a folder.

    Raises:
        UsageError: it is missing or damaged.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=FleetManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder / MANIFEST}: not the manifest of a fleet job: {error}") from None


def parts(folder: Path) -> list[tuple[int, Path]]:
    """List the part files with their numbers, in the order in which they were written."""
    found = ((PART.fullmatch(path.name), path) for path in (folder / ROWS).glob("part-*.parquet"))
    return sorted((int(match[1]), path) for match, path in found if match is not None)


def read_rows(folder: Path, columns: Sequence[str] | None = None) -> list[FleetRow]:
    """Read the newest row of every session, policy and budget, sorted by source, id, policy and budget."""
    return newest(_read_parts(folder, columns))


def _read_parts(folder: Path, columns: Sequence[str] | None) -> Iterator[FleetRow]:
    pa = arrow()
    for _, path in parts(folder):
        try:
            table = pa.parquet.read_table(path, columns=None if columns is None else list(columns), partitioning=None)
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s is damaged and ignored: %s", path, error)
            continue
        yield from from_table(table)


def versions(engine: str) -> dict[str, str]:
    """Return the versions that a run depends on."""
    found = {"kompakt": __version__, "python": platform.python_version(), "pyarrow": arrow().__version__}
    if engine == "ray":
        import ray

        found["ray"] = ray.__version__
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

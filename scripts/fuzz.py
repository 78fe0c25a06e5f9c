"""Fuzz the readers with coverage guidance: only errors of kompakt may be raised.

    python scripts/fuzz.py [-max_total_time=60] [corpus directory]

Needs atheris (`pip install atheris`), which is not a dependency of the project. Other arguments are those of libFuzzer.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

DEFAULT_SECONDS = 60
FORMATS = (None, "openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


def seeds(folder: Path) -> None:
    """Write one small session per format as the initial corpus."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    plain = importlib.import_module("tests.histories.plain")
    encode = importlib.import_module("json").dumps
    for number, format in enumerate(FORMATS[1:], 1):
        body = plain.build(format, messages=4, mean_chars=20)
        (folder / f"{format}.json").write_bytes(bytes([number]) + encode(body).encode())
        (folder / f"{format}.detected.json").write_bytes(b"\0" + encode(body).encode())


def one_input(data: bytes) -> None:
    """Read bytes like a file, then check and repair the content."""
    from kompakt import api, files
    from kompakt.errors import KompaktError

    format = FORMATS[data[0] % len(FORMATS)] if data else None
    with contextlib.suppress(KompaktError):
        payload: Any = files.decode(data[1:], "fuzz").payload
        api.check(payload, format)
        repaired = api.repair(payload, format, strict=True)
        api.count(repaired.payload, format=format)
        api.groups(payload, format)


def main() -> None:
    """Run until the time is up or an unexpected error is raised."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ModuleNotFoundError:
        raise SystemExit("fuzz: atheris is not installed; pip install atheris") from None
    with atheris.instrument_imports(include=["kompakt"]):
        importlib.import_module("kompakt.api")
        importlib.import_module("kompakt.files")
    arguments = sys.argv[1:]
    if not any(argument.startswith("-max_total_time") for argument in arguments):
        arguments.append(f"-max_total_time={DEFAULT_SECONDS}")
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        atheris.Setup([sys.argv[0], *arguments, folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

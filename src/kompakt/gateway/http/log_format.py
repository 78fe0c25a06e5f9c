"""How log records are written: one line each, as JSON or for people, on standard error.

Of an error that nobody foresaw, only its kind and where it happened are written: what an error says may quote what a
client sent.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeAlias

import msgspec

from kompakt.gateway.errors import without_controls

_Raised: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_LEVELS = {"kompakt": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING, "httpx": logging.WARNING}


class TextFormatter(logging.Formatter):
    """Records for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        facts = "".join(f" {name}={_shown(value)}" for name, value in _facts(record).items())
        told = f"{moment} {record.levelname.lower()} {without_controls(record.getMessage())}{facts}"
        return f"{told}\n{self.formatException(record.exc_info)}" if record.exc_info else told

    def formatException(self, ei: _Raised) -> str:  # noqa: N802
        """Say what kind of error it was and where it came from, never what it said."""
        kind, _, at = ei
        return f"{''.join(traceback.format_tb(at))}{kind.__name__ if kind else ''}"


class JsonFormatter(TextFormatter):
    """Records for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": without_controls(record.getMessage()),
            **_facts(record),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "kompakt", {})
    return found if isinstance(found, dict) else {}


def _shown(value: object) -> str:
    text = without_controls(str(value))
    return f'"{text}"' if " " in text else text


def set_up(*, json: bool) -> None:
    """Write all records of the gateway and of what it stands on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    for name, level in _LEVELS.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False

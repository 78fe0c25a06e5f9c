"""Policies with strategies that kill or stop the worker in which they run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kompakt import Context, Policy
from kompakt.strategies import Summarization

MARK = "POISON"
"""A session with this text stops its worker."""


def is_marked(context: Context) -> bool:
    return any(MARK in message.text for message in context.archive.messages)


class Deadly:
    """Kills the process on a marked session: always, or only the first time."""

    awaits = False

    def __init__(self, once: Path | None = None) -> None:
        self.once = None if once is None else str(once)

    async def __call__(self, context: Context) -> bool:
        if is_marked(context):
            if self.once is None:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                Path(self.once or "").touch(exist_ok=False)
            except FileExistsError:
                return False
            os.kill(os.getpid(), signal.SIGKILL)
        return False


class Waiting:
    """Waits on a marked session for ever, and writes the id of its process."""

    awaits = False

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    async def __call__(self, context: Context) -> bool:
        if is_marked(context):
            Path(self.file).write_text(str(os.getpid()))
            while True:
                time.sleep(0.1)
        return False


def with_step(name: str, step: Deadly | Waiting) -> Policy:
    """Return the default policy with a step before it."""
    return Policy(name, (step, Summarization()))

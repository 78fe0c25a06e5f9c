"""The four walks of docs/architecture.md: each runs code of few modules, so that a reader can follow it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.agent.scripted_client import Scripted, calls
from tests.gateway.client_sessions import TASK, Talk, scripted
from tests.gateway.gateway_server import gateway
from tests.gateway.upstreams import Recorded

import kompakt

PACKAGE = Path(kompakt.__file__).parent
BUDGET = 4_000


@contextmanager
def walked() -> Iterator[set[str]]:
    """Collect the files whose functions are called, in this thread and in all that start meanwhile."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def history(steps: int = 40) -> list[dict[str, object]]:
    """Return a conversation with tool calls that exceeds the budget."""
    made: list[dict[str, object]] = [{"role": "user", "content": "Read all files. Never change one."}]
    for step in range(steps):
        call = {"type": "tool_use", "id": f"toolu_{step}", "name": "read", "input": {"path": f"src/f{step}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{step}", "content": f"value_{step} = {step}\n" * 40}
        made += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return made


def test_compact_a_payload() -> None:
    with walked() as files:
        done = kompakt.compact({"model": "claude-sonnet-4-5", "max_tokens": 1_000, "messages": history()}, BUDGET)
    assert done.changed
    assert 10 < len(files) <= 40


def test_a_gateway_request(tmp_path: Path) -> None:
    script = scripted(14)
    with (
        walked() as files,
        Recorded(script, window=20_000) as provider,
        gateway(provider.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        files.clear()  # what ran when the gateway started
        talk = Talk(gate.url, "anthropic", stream=False, lines=75)
        talk.run(script.task(TASK))
        talk.close()
        modules = set(files)
        assert gate.metric("kompakt_compactions_total") >= 1
    assert 40 < len(modules) <= 80


def test_a_stored_session(tmp_path: Path) -> None:
    async def walk() -> bool:
        async with await kompakt.open_store(f"sqlite:///{tmp_path / 's.db'}") as store:
            session = await store.session("one")
            await session.append({"model": "claude-sonnet-4-5", "max_tokens": 1_000, "messages": history()})
            done = await session.compact(BUDGET)
            await session.project()
            return done.changed

    with walked() as files:
        assert asyncio.run(walk())
    assert 20 < len(files) <= 52


def test_an_agent_step() -> None:
    def read(path: str) -> str:
        """Read a file."""
        return f"{path} is empty"

    with walked() as files:
        result = asyncio.run(
            kompakt.Agent(client=Scripted(calls("read", path="a.py"), "Done."), tools=[read]).run("Go.")
        )
    assert result.text == "Done."
    assert 20 < len(files) <= 50

"""Interrupted runs are resumed: completed work is not repeated, and no message is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_runs import SYSTEM, TASK, WINDOW, clean, client_for, ids, made_calls, said_in, scripted
from tests.provider import Provider

import kompakt
from kompakt.agent.agent import Agent
from kompakt.events import Answered
from kompakt.model.phrases import NOT_FINISHED
from kompakt.session import lock
from kompakt.session.store import Store, open_store

KILLS = int(os.environ.get("KOMPAKT_KILLS", "6"))
STRIDE = int(os.environ.get("KOMPAKT_STRIDE", "3"))


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lock.hold.__wrapped__.__kwdefaults__, "lease", 0.3)


class Trap:
    """Counts everything that is awaited through it and cancels the run at a chosen count, before or after."""

    def __init__(self, inner: Any, at: Callable[[], bool]) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def awaited(*arguments: Any, **options: Any) -> Any:
            if self._at():
                await asyncio.sleep(0)
            made = await found(*arguments, **options)
            if self._at():
                await asyncio.sleep(0)
            return made

        return awaited


class Bench:
    """A run of a few steps that can be cancelled at any await, and resumed."""

    def __init__(self, format: str) -> None:
        self.format = format
        self.script = scripted(6, parallel=0.6, seed=5)
        self.calls: Counter[str] = Counter()
        self.answered: list[str] = []
        self.left = -1
        self.running: asyncio.Task[Any] | None = None

    def due(self) -> bool:
        self.left -= 1
        if self.left == 0 and self.running is not None:
            self.running.cancel()
        return self.left == 0

    async def read_file(self, path: str) -> str:
        """Read a file."""
        self.calls[path] += 1
        if self.due():
            await asyncio.sleep(0)
        return f"content of {path}"

    async def main(self, provider: Provider, at: int, text: str | None) -> tuple[bool, list[kompakt.Message]]:
        """Cancel at the given await and resume; return whether there was such an await."""
        store = await open_store("memory:")
        trapped = Store(Trap(store.records, self.due))
        client = client_for(self.format, provider)
        self.left = at
        first = Agent(Trap(client, self.due), tools=[self.read_file], system=SYSTEM, store=trapped)
        self.running = asyncio.create_task(self.listen(first))
        done = True
        try:
            await self.running
        except asyncio.CancelledError:
            done = False
        self.left, self.running = -1, None
        agent = Agent(client, tools=[self.read_file], system=SYSTEM, store=store)
        was_saved = await (await store.session("s")).exists()
        result = await agent.run(text if was_saved else self.script.task(TASK), session="s")
        if not done:
            assert result.text == "All 6 steps are done."
        said = await said_in(store, "s", whole=text is None)  # otherwise the requests are repaired
        await client.close()
        await store.close()
        return done, said

    async def listen(self, agent: Agent) -> None:
        async for event in agent.stream(self.script.task(TASK), session="s"):
            if type(event) is Answered:
                self.answered.append(event.id)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("format", "text", "every"), [
    ("openai-chat", None, STRIDE),
    ("anthropic", None, 5),
    ("openai-responses", "Go on.", 11),
    ("gemini", "Go on.", 11),
    ("anthropic", "Go on.", 11),
])  # fmt: skip
def test_a_run_cancelled_at_any_await_is_resumed(format: str, text: str | None, every: int) -> None:
    at, cancelled = 1, 0
    while True:
        bench = Bench(format)
        with Provider(bench.script, window=WINDOW) as provider:
            done, said = asyncio.run(asyncio.wait_for(bench.main(provider, at, text), 30))
            calls, results = ids(said)
            assert calls == results, at
            assert provider.refusals == [], at
            assert max(bench.calls.values(), default=0) <= 1, at
            outputs = {result.call_id: result.output for message in said for result in message.results}
            assert set(calls) <= set(made_calls(bench.script))
            if text is None:
                clean(provider, breaks=0)
                assert calls == made_calls(bench.script), at
            for id in bench.answered:
                assert outputs[id] != NOT_FINISHED, (at, id)
            assert sum(message.text == bench.script.task(TASK) for message in said) == 1
        if done:
            break
        at, cancelled = at + every, cancelled + 1
    assert cancelled > 60 / every


def test_completed_tools_of_a_cancelled_step_keep_their_results() -> None:
    async def main() -> None:
        """Cancel at the given await and resume; return whether there was such an await."""
        script = scripted(1, make=lambda step, dice, tools: [("work", {"number": n}) for n in range(3)])
        was_saved, calls = asyncio.Event(), Counter[int]()

        async def work(number: int) -> str:
            """Work; number 1 runs forever."""
            calls[number] += 1
            if number == 1:
                await asyncio.sleep(0.05)
                was_saved.set()
                await asyncio.sleep(60)
            return f"made {number} " + "x" * 10_000

        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for("openai-chat", provider), tools=[work], system=SYSTEM) as agent:
                run = asyncio.create_task(agent.run(script.task(TASK), session="s"))
                await was_saved.wait()
                other = await agent.session("s")
                await other.request_compaction(auto=False)  # another write at the same time
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
                assert (await agent.run(None, session="s")).text == "All 1 steps are done."
                session = await agent.session("s")
                exported = await session.export(view="full")
                outputs = [r.output for m in kompakt.parse(exported, format="openai-chat") for r in m.results]
                assert [output[:6] for output in outputs] == ["made 0", NOT_FINISHED[:6], "made 2"]
                assert outputs[1] == NOT_FINISHED and calls == {0: 1, 1: 1, 2: 1}
                clean(provider)

    asyncio.run(main())


class SlowRecords:
    """Records of which each commit takes a while once ``slow`` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.slow, self.writes = asyncio.Event(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, *arguments: Any, **options: Any) -> Any:
        if self.slow.is_set():
            await asyncio.sleep(0.1)
        self.writes += 1
        return await self._inner.commit(*arguments, **options)


def test_a_run_that_is_cancelled_repeatedly_saves_its_results_before_it_ends() -> None:
    async def main() -> None:
        script = scripted(1, make=lambda step, dice, tools: [("work", {"number": n}) for n in range(2)])
        store = await open_store("memory:")
        records: Any = SlowRecords(store.records)

        async def work(number: int) -> str:
            """Work; number 1 runs forever."""
            if number == 1:
                await asyncio.sleep(60)
            records.slow.set()
            return "made 0"

        with Provider(script, window=WINDOW) as provider:
            client = client_for("openai-chat", provider)
            agent = Agent(client, tools=[work], system=SYSTEM, store=Store(records))
            run = asyncio.create_task(agent.run(script.task(TASK), session="s"))
            await records.slow.wait()
            for _ in range(3):
                await asyncio.sleep(0.01)
                run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            written = records.writes
            await asyncio.sleep(0.3)
            assert records.writes == written
            again = Agent(client, tools=[work], system=SYSTEM, store=store)
            assert (await again.run(None, session="s")).text == "All 1 steps are done."
            outputs = [result.output for message in await said_in(store, "s") for result in message.results]
            assert outputs == ["made 0", NOT_FINISHED]
            await client.close()
            await store.close()

    asyncio.run(main())


CHILD = """
import asyncio, sys
from kompakt.agent.agent import Agent
from kompakt.session import lock
from tests.agent.clients.client_servers import client_of
lock.hold.__wrapped__.__kwdefaults__["lease"] = 0.5
_, url, path, log, format, task = sys.argv

def work(path: str) -> str:
    "Work."
    with open(log, "a") as file:
        file.write(path + "\\n")
    return "\\n".join(f"{at}: {path} = compute(total, {at})" for at in range(60))

async def main():
    client = client_of(format, url, model="gpt-5", context_window=6_000, output_limit=500)
    agent = Agent(client, tools=[work], system="You work.", store=f"sqlite:///{path}")
    session = await agent.session("s")
    was_saved = await session.exists()
    async for event in agent.stream(None if was_saved else task, session="s"):
        if type(event).__name__ == "Answered":
            print(event.id, flush=True)
    print("END", event.text, flush=True)
    await agent.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_killed_at_random_moments_is_resumed(tmp_path: Path) -> None:
    script = scripted(10 * KILLS, parallel=0.3, seed=9)
    dice, log, kills, answered = random.Random(4), tmp_path / "log", 0, set[str]()
    with Provider(script, window=6_000) as provider:
        task, said = script.task(TASK), ""
        words = [provider.url, str(tmp_path / "a.db"), str(log), "openai-chat", task]
        for _ in range(KILLS * 4):
            child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE, text=True)
            if kills < KILLS:
                asked, end = len(provider.requests), time.monotonic() + 30
                while len(provider.requests) <= asked and child.poll() is None and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(dice.uniform(0, 0.5))
                if child.poll() is None:
                    os.kill(child.pid, signal.SIGKILL)
                    kills += 1
            said = child.communicate(timeout=120)[0]
            answered |= {line for line in said.split("\n") if line.startswith("call_")}
            if "END" in said:
                break
        assert said.rstrip().endswith(f"END All {script.steps} steps are done.") and kills >= 3
        clean(provider)
        _assert_whole(tmp_path / "a.db", script, log, kills)


def _assert_whole(path: Path, script: Any, log: Path, kills: int) -> None:
    async def read() -> list[kompakt.Message]:
        async with await open_store(f"sqlite:///{path}") as store:
            return await said_in(store, "s")

    said = asyncio.run(read())
    calls, results = ids(said)
    assert calls == results == made_calls(script)
    outputs = [result.output for message in said for result in message.results]
    done = Counter(log.read_text().split())
    assert sum(done.values()) <= len(calls)
    assert sum(output == NOT_FINISHED for output in outputs) <= 3 * kills
    assert sum(done.values()) >= sum(output != NOT_FINISHED for output in outputs)
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)

"""The examples run unchanged: agents against the strict provider, the others on files."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from examples import coding_agent, custom_strategy, research_agent, storage_maintenance
from tests.provider import Provider, Script

import kompakt
from kompakt.agent.clients import base as calling

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))
MAINS = {
    "coding_agent.py": coding_agent.main,
    "custom_strategy.py": custom_strategy.main,
    "research_agent.py": research_agent.main,
    "storage_maintenance.py": storage_maintenance.main,
}
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def served(provider: Provider) -> list[str]:
    return ["--base-url", f"{provider.url}/v1", "--model", "test-model", "--window", str(provider.window)]


def assert_flawless(provider: Provider) -> None:
    assert not provider.refusals and not provider.overflows and not provider.violations


def sent(provider: Provider, at: int = -1) -> str:
    return str(provider.requests[at].body["messages"])


class TestAll:
    def test_each_example_is_tested_and_listed(self) -> None:
        listed = set(re.findall(r"\[(\w+\.py)\]\(\1\)", (EXAMPLES / "README.md").read_text()))
        assert set(NAMES) == set(MAINS) == listed

    @pytest.mark.parametrize("name", NAMES)
    def test_each_states_how_to_run_it_and_is_short(self, name: str) -> None:
        text = (EXAMPLES / name).read_text()
        assert f"python examples/{name}" in (ast.get_docstring(ast.parse(text)) or "")
        assert len(text.splitlines()) <= 120

    @pytest.mark.parametrize("name", NAMES)
    def test_help_lists_the_options(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            MAINS[name](["--help"])
        assert ended.value.code == 0
        assert "usage:" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["coding_agent.py", "research_agent.py"])
    def test_no_provider_is_asked_unless_it_is_named(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a base URL no request is sent, even if an API key is set."""
        with pytest.raises(SystemExit) as ended:
            MAINS[name]([".", "Go."][-1 if name == "coding_agent.py" else 0 :])
        assert ended.value.code == 2
        assert "--base-url" in capsys.readouterr().err

    def test_one_runs_as_a_program(self) -> None:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "custom_strategy.py"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=ENVIRONMENT,
        )
        assert "compact:" in done.stdout and not done.stderr


class TestResearchAgent:
    STEPS = 30

    @pytest.fixture
    def texts(self, tmp_path: Path) -> Path:
        folder = tmp_path / "texts"
        (folder / "logs").mkdir(parents=True)
        dice = random.Random(7)
        for number in range(12):
            words = " ".join(dice.choices(["tide", "berth", "cargo", "crane", "pilot", "quay", "hold"], k=1_500))
            (folder / "logs" / f"{number}.txt").write_text(f"Log {number}: {words}")
        (folder / "picture.png").write_bytes(b"\x89PNG")
        return folder

    def calls(self, step: int, dice: random.Random, tools: list[Any]) -> Calls:
        if step == 1:
            return [("list_texts", {})]
        if step % 5 == 0:
            return [("take_note", {"text": f"finding {step}"})]
        return [("read_text", {"name": f"logs/{step % 12}.txt"})] if step != 8 else [("read_text", {"name": "no.txt"})]

    def test_it_reads_more_than_the_window_holds(self, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        script = Script(steps=self.STEPS, make=self.calls)
        with Provider(script, window=16_000) as provider:
            question = script.task("Which berth was free?")
            assert research_agent.main([str(texts), question, *served(provider)]) == 0
            assert_flawless(provider)
            steps = [record for record in provider.requests if record.kind == "step"]
            assert len(steps) == self.STEPS + 1
            assert len(provider.prefix_breaks) >= 1, "nothing was compacted: the example shows nothing"
            assert "logs/3.txt" in sent(provider, 1) and "picture" not in sent(provider, 1)
            assert "there is no text 'no.txt'" in sent(provider, 8)
        assert capsys.readouterr().out == f"All {self.STEPS} steps are done.\n"
        notes = Path("notes.md").read_text().splitlines()
        assert notes == [f"- finding {step}" for step in range(5, self.STEPS + 1, 5)]

    def test_the_environment_names_the_server(self, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = Script(steps=1, make=self.calls)
        with Provider(script) as provider:
            monkeypatch.setenv("LLM_BASE_URL", f"{provider.url}/v1")
            monkeypatch.setenv("LLM_MODEL", "test-model")
            monkeypatch.setenv("LLM_API_KEY", "sk-example")
            assert research_agent.main([str(texts), script.task("Which?"), "--window", "16000"]) == 0
            assert provider.requests[0].headers["authorization"] == "Bearer sk-example"

    def test_a_refusal_is_reported_and_counts_as_failure(self, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with Provider(Script(steps=1), window=10) as provider:
            arguments = ["--base-url", f"{provider.url}/v1", "--model", "test-model", "--window", "16000"]
            assert research_agent.main([str(texts), "Which berth was free?", *arguments]) == 1
        printed = capsys.readouterr()
        assert printed.err.strip() and "Traceback" not in printed.err and not printed.out


class TestCodingAgent:
    def calls(self, step: int, dice: random.Random, tools: list[Any]) -> Calls:
        return {
            1: [("write_file", {"path": "src/one.py", "content": "print('one')\n"})],
            2: [("run_command", {"command": f"{sys.executable} src/one.py; echo ran >> log"})],
            3: [("read_file", {"path": "src/one.py"}), ("read_file", {"path": "../secret"})],
        }.get(step, [("run_command", {"command": f"seq {step}000 {step}900"})])

    def test_it_works_in_its_folder_and_compacts(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / "project"
        folder.mkdir()
        (tmp_path / "secret").write_text("hush")
        script = Script(steps=20, make=self.calls)
        with Provider(script, window=16_000) as provider:
            assert coding_agent.main([script.task("Write it."), "--folder", str(folder), *served(provider)]) == 0
            assert_flawless(provider)
            assert all(record.stream for record in provider.requests if record.kind == "step")
            assert "is outside of the working directory" in sent(provider, 3) and "hush" not in sent(provider, 3)
        printed = capsys.readouterr().out
        assert "> write_file" in printed and "exit code 0\none" in printed and "! ValueError" in printed
        assert "[compacted: " in printed and "[end: session coding, 21 steps" in printed
        assert (folder / "log").read_text() == "ran\n"

    def test_it_continues_after_an_outage(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calling, "FIRST_PAUSE", 0.001)
        script = Script(steps=6, make=self.calls)
        with Provider(script) as provider:
            provider.fault(range(4, 5 + calling.MAX_RETRIES), "500")
            task = script.task("Write it.")
            assert coding_agent.main([task, "--session", "s", *served(provider)]) == 1
            assert capsys.readouterr().err.strip()
            assert coding_agent.main(["--session", "s", *served(provider)]) == 0
            assert_flawless(provider)
            assert script.step_of(task) == 7
        assert Path("log").read_text() == "ran\n"

    def test_resuming_requires_a_session(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Provider(Script(steps=1)) as provider:
            assert coding_agent.main(["--session", "new", *served(provider)]) == 1
            assert not provider.requests
        assert "no session 'new'" in capsys.readouterr().err

    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=lambda end: end.name)
    def test_it_continues_after_it_was_stopped(self, end: signal.Signals, tmp_path: Path) -> None:
        """Finished calls do not run again. A running call is reported as interrupted."""

        def calls(step: int, dice: random.Random, tools: list[Any]) -> Calls:
            waits = "; echo $$ > pid; exec sleep 60" if step == 3 else ""
            return [("run_command", {"command": f"echo {step} >> log{waits}"})]

        script = Script(steps=5, make=calls)
        with Provider(script) as provider:
            arguments = ["--session", "s", *served(provider)]
            command = [sys.executable, EXAMPLES / "coding_agent.py", script.task("Count."), *arguments]
            process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running = pid_in(tmp_path / "pid", process)
            process.send_signal(end)
            assert process.wait(10) == (130 if end is signal.SIGINT else -end)
            if end is signal.SIGKILL:
                os.kill(running, signal.SIGKILL)
                expire_locks(tmp_path / "agent.db")
            else:
                with pytest.raises(ProcessLookupError):
                    os.kill(running, 0)
            assert coding_agent.main(arguments) == 0
            assert_flawless(provider)
            assert len(provider.requests) == 6
            assert "Interrupted" in sent(provider, 3)
        assert Path("log").read_text().split() == ["1", "2", "3", "4", "5"]

    def test_a_command_that_takes_too_long_is_ended_with_its_children(self, tmp_path: Path) -> None:
        *_, run_command = coding_agent.tools_for(tmp_path, seconds=0.2)
        with pytest.raises(TimeoutError):
            asyncio.run(run_command("(sleep 1; touch late) & wait"))
        time.sleep(1.2)
        assert not (tmp_path / "late").exists()


def expire_locks(file: Path) -> None:
    """Let the lease of a dead holder run out, which would take its seconds."""
    connection = sqlite3.connect(file)
    assert connection.execute("update kompakt_locks set expires = 0").rowcount == 1
    connection.commit()
    connection.close()


def pid_in(file: Path, process: subprocess.Popen[bytes]) -> int:
    """Wait for a command that writes its process id, and return that."""
    end = time.monotonic() + 60
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    return int(file.read_text())


class TestCustomStrategy:
    def messages(self) -> list[Any]:
        def call(id: str, path: str) -> dict[str, Any]:
            function = {"name": "read", "arguments": f'{{"path": "{path}"}}'}
            return {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": id, "type": "function", "function": function}],
            }

        paths = {"c1": "a.py", "c2": "b.py", "c3": "a.py"}
        rounds = [
            (call(id, path), {"role": "tool", "tool_call_id": id, "content": f"{id} " * 300})
            for id, path in paths.items()
        ]
        return [{"role": "user", "content": "Read."}, *(message for pair in rounds for message in pair)]

    def test_only_the_older_answer_to_the_same_call_is_hidden(self) -> None:
        context = kompakt.Context(kompakt.parse(self.messages(), format="openai-chat"))
        assert asyncio.run(custom_strategy.hide_repeated(context))
        shown = [message.parts[0].output for message in context.project() if message.role == "tool"]
        assert ["c1 c1" in shown[0], "c2 c2" in shown[1], "c3 c3" in shown[2]] == [False, True, True]
        assert not asyncio.run(custom_strategy.hide_repeated(context)), "there is nothing left to do"

    def test_it_is_a_step_of_a_policy_and_can_be_undone_in_a_store(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert custom_strategy.main(["--budget", "40000"]) == 0
        printed = capsys.readouterr().out
        saved = re.search(r"hide_repeated took out (\d+)", printed)
        assert saved and int(saved[1]) > 0
        numbers = re.search(r"apply: (\d+) -> (\d+) tokens, changed: True\nundo: .*, (\d+) tokens again", printed)
        assert numbers and int(numbers[2]) < int(numbers[1]) == int(numbers[3])

    def test_unreadable_files_are_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert custom_strategy.main(["no-such-file.json"]) == 1
        assert "no-such-file.json" in capsys.readouterr().err


class TestStorageMaintenance:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        asyncio.run(self.fill(f"sqlite:///{tmp_path / 'agent.db'}"))
        return tmp_path / "agent.db"

    async def fill(self, url: str) -> None:
        async with await kompakt.open_store(url) as store:
            for name, turns in (("small", 1), ("large", 60)):
                said = [{"role": "user", "content": f"Begin {name}."}]
                for turn in range(turns):
                    said += [{"role": "assistant", "content": f"Answer {turn}. " * 40}]
                    said += [{"role": "user", "content": f"Question {turn}?"}]
                await (await store.session(name)).append(said, format="openai-chat")

    async def counts(self, file: Path) -> dict[str, int]:
        async with await kompakt.open_store(f"sqlite:///{file}") as store:
            return {session.id: await session.count() async for session in store.sessions()}

    def test_only_what_is_over_the_budget_is_compacted(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = asyncio.run(self.counts(file))
        assert storage_maintenance.main([str(file), "--budget", "4000", "--dry-run"]) == 0
        assert f"large: {before['large']} tokens, over the budget" in capsys.readouterr().out
        assert asyncio.run(self.counts(file)) == before
        assert storage_maintenance.main([str(file), "--budget", "4000"]) == 0
        after = asyncio.run(self.counts(file))
        assert after["small"] == before["small"] and after["large"] <= 4_000 < before["large"]
        printed = capsys.readouterr().out
        assert "compaction c" in printed and "2 sessions, 0 with problems" in printed

    def test_one_that_cannot_fit_does_not_keep_the_others(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert storage_maintenance.main([str(file), "--budget", "10"]) == 1
        printed = capsys.readouterr().out
        assert "large: DoesNotFit" in printed and "2 sessions, 2 with problems" in printed

    def test_damage_is_found(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        connection = sqlite3.connect(file)
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        table = next(name for name in tables if name.endswith("rows"))
        connection.execute(f"update {table} set content = x'00' where seq = 5")
        connection.commit()
        connection.close()
        assert storage_maintenance.main([str(file)]) == 1
        printed = capsys.readouterr().out
        assert "large: not as it should be: message 5" in printed and "2 sessions, 1 with problems" in printed

    def test_a_store_that_is_not_there_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit) as ended:
            storage_maintenance.main([str(tmp_path / "none.db")])
        assert ended.value.code == 2 and not (tmp_path / "none.db").exists()

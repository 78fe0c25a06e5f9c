"""A coding agent on any OpenAI-compatible server: it reads, writes and runs things in one folder.

    python examples/coding_agent.py --base-url http://localhost:8080/v1 --model NAME --session fix "Fix the tests."
    python examples/coding_agent.py --base-url http://localhost:8080/v1 --model NAME --session fix

The session is stored in agent.db. After an interrupt or a crash, run the second line: without a task, the session
continues where it stopped. LLM_BASE_URL, LLM_MODEL and LLM_API_KEY can replace the options. Commands of the model run
with your permissions, so use a folder and a machine that it may break.
"""

import argparse
import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kompakt import Agent, KompaktError, OpenAIChat
from kompakt.events import Answered, Called, Compacted, Recovered, Result, RunEvent, Spoke

SYSTEM = "You are a careful programmer. Look before you change anything, and run the tests before you say it is done."


def tools_for(folder: Path, seconds: float = 120) -> list[Callable[..., Any]]:
    """Return tools for a folder; the model gets their exceptions as error results."""
    folder = folder.resolve()

    def inside(path: str) -> Path:
        found = (folder / path).resolve()
        if not found.is_relative_to(folder):
            raise ValueError(f"{path} is outside of the working directory")
        return found

    def read_file(path: str) -> str:
        """Read a text file of the working directory."""
        return inside(path).read_text(encoding="utf-8", errors="replace")

    def write_file(path: str, content: str) -> str:
        """Write a text file of the working directory, replacing an existing one."""
        file = inside(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        return f"{len(content)} characters written"

    async def run_command(command: str) -> str:
        """Run a shell command in the working directory; returns its exit code and output."""
        process = await asyncio.create_subprocess_shell(
            command, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), seconds)
        finally:
            if process.returncode is None:  # timeout or cancellation: kill the whole process group
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return f"exit code {process.returncode}\n{output.decode(errors='replace')}"

    return [read_file, write_file, run_command]


def show(event: RunEvent) -> None:
    """Print an event."""
    match event:
        case Spoke(text):
            print(text, end="", flush=True)
        case Called(_, name, input):
            print(f"\n> {name} {input[:200]}")
        case Answered(_, _, output, is_error):
            print(f"{'! ' if is_error else '  '}{output[:200].strip()}")
        case Compacted(_, report) if report is not None:
            print(f"\n[compacted: {report.tokens_before} -> {report.tokens_after} tokens]")
        case Recovered(round, tokens):
            print(f"\n[overflow: {round} was shortened to {tokens} tokens]")
        case Result(_, session, steps, usage, stop):
            print(f"\n[{stop}: session {session}, {steps} steps, {usage.prompt} tokens in, {usage.output} out]")
        case _:
            pass


async def work(options: argparse.Namespace) -> None:
    client = OpenAIChat(
        options.model, base_url=options.base_url, api_key=options.api_key, context_window=options.window
    )
    async with Agent(client, tools=tools_for(options.folder), system=SYSTEM, store=options.store) as agent:
        async for event in agent.stream(options.task, session=options.session):
            show(event)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Let a model work on the code of a folder.")
    parser.add_argument("task", nargs="?", help="the task; without it, the session continues")
    parser.add_argument("--folder", type=Path, default=Path(), help="the working directory")
    parser.add_argument("--session", default="coding", help="id of the session")
    parser.add_argument("--store", default="sqlite:///agent.db")
    for name in ("base-url", "model", "api-key"):
        parser.add_argument(f"--{name}", default=os.environ.get("LLM_" + name.replace("-", "_").upper()))
    parser.add_argument("--window", type=int, help="context window in tokens, for models that kompakt does not know")
    options = parser.parse_args(argv)
    if not (options.base_url and options.model and options.folder.is_dir()):
        parser.error("--base-url, --model and an existing folder are required")
    try:
        asyncio.run(work(options))
    except KompaktError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n[stopped; continue with --session {options.session}]", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An OpenAI Agents assistant whose sessions are kept in a store and continue after a restart.

    python examples/frameworks/openai_agents_agent.py --session ann "Read texts/may.txt and remember the totals."
    python examples/frameworks/openai_agents_agent.py --session ann "Which total was the largest?"

Needs ``pip install 'kompakt[openai-agents]'`` and an API key of OpenAI.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool

from kompakt.integrations.openai_agents import KompaktSession, input_filter


@function_tool
def read_text(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8")


async def ask(model: Any, question: str, *, session: str, store: str, budget: int) -> str:
    """Answer in a session. The store keeps every item; the model sees what fits."""
    history = KompaktSession(session, store=store, budget=budget)
    compact = input_filter(budget=budget, recall=False)  # for turns that fill the window by themselves
    agent = Agent(name="assistant", model=model, tools=[read_text, history.recall_tool])
    config = RunConfig(call_model_input_filter=compact)
    return str((await Runner.run(agent, question, session=history, run_config=config, max_turns=100)).final_output)


def main() -> None:
    """Read the options and answer."""
    parser = argparse.ArgumentParser(description="Ask an assistant that remembers its sessions.")
    parser.add_argument("question")
    parser.add_argument("--model", default="gpt-5")
    parser.add_argument("--session", default="main")
    parser.add_argument("--store", default="sqlite:///agent.db")
    parser.add_argument("--budget", type=int, default=100_000, help="tokens of a request")
    options = parser.parse_args()
    work = ask(options.model, options.question, session=options.session, store=options.store, budget=options.budget)
    print(asyncio.run(work))


if __name__ == "__main__":
    main()

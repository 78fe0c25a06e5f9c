"""A LangChain agent that reads a folder of texts which is larger than its window.

    python examples/frameworks/langchain_agent.py openai:gpt-5 texts "What changed in May?"

Needs ``pip install 'kompakt[langchain]'`` and the package of the model, such as ``langchain-openai``.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from kompakt.integrations.langchain import KompaktMiddleware

SYSTEM = "You answer questions about a folder of texts. Read what matters, then answer."


def build(model: Any, folder: Path, *, budget: int, store: str | None = None) -> Any:
    """Return an agent whose requests stay within the budget. Its checkpointer keeps every message."""
    texts = {path.name: path for path in sorted(folder.glob("*.txt"))}

    @tool
    def list_texts() -> str:
        """List the names of the texts."""
        return "\n".join(texts)

    @tool
    def read_text(name: str) -> str:
        """Read a text."""
        return texts[name].read_text(encoding="utf-8") if name in texts else f"There is no text {name!r}."

    middleware = KompaktMiddleware(
        budget=budget,
        store=store,
        admission="gentle",
        on_compaction=lambda report: print(f"{report.tokens_before} -> {report.tokens_after} tokens", file=sys.stderr),
    )
    return create_agent(
        model, [list_texts, read_text], system_prompt=SYSTEM, middleware=[middleware], checkpointer=InMemorySaver()
    )


def ask(agent: Any, question: str, thread: str = "main") -> str:
    """Ask the agent in a thread; later questions of the thread continue it."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 200}
    return str(agent.invoke({"messages": [{"role": "user", "content": question}]}, config)["messages"][-1].content)


def main() -> None:
    """Read the options and answer."""
    parser = argparse.ArgumentParser(description="Answer a question about a folder of texts.")
    parser.add_argument("model", help="provider and model, such as openai:gpt-5")
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--budget", type=int, default=50_000, help="tokens of a request")
    parser.add_argument("--store", help="URL of a store that keeps the conversation, such as sqlite:///agent.db")
    options = parser.parse_args()
    agent = build(init_chat_model(options.model), options.folder, budget=options.budget, store=options.store)
    print(ask(agent, options.question))


if __name__ == "__main__":
    main()

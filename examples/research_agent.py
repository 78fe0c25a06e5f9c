"""A research agent: it reads a folder of text files and takes notes until it can answer a question.

    python examples/research_agent.py --base-url http://localhost:8080/v1 --model NAME FOLDER "What changed in May?"

Works with any OpenAI-compatible server. LLM_BASE_URL, LLM_MODEL and LLM_API_KEY can replace the options. The folder may
be larger than the model's window: what was read is compacted, and the notes are in a file.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kompakt import Agent, KompaktError, OpenAIChat

SYSTEM = "You answer questions about a folder of texts. Read what matters, note findings with their file, then answer."
PAGE = 8_000


def tools_for(folder: Path, notes: Path) -> list[Callable[..., str]]:
    """Return the tools: functions whose annotations and docstrings are sent to the model."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in (".txt", ".md") and path.is_file())
    texts = {path.relative_to(folder).as_posix(): path for path in found}

    def list_texts() -> str:
        """List the texts of the folder with their length in characters."""
        return "\n".join(f"{name}: {path.stat().st_size}" for name, path in texts.items()) or "There are none."

    def read_text(name: str, start: int = 0) -> str:
        """Read up to 8,000 characters of a text, from a character on."""
        if name not in texts:
            raise ValueError(f"there is no text {name!r}; list_texts tells what there is")
        return texts[name].read_text(encoding="utf-8", errors="replace")[start : start + PAGE]

    def take_note(text: str) -> str:
        """Write down a finding."""
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"- {text}\n")
        return "Noted."

    return [list_texts, read_text, take_note]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Answer a question from a folder of text files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--notes", type=Path, default=Path("notes.md"), help="file for the notes")
    for name in ("base-url", "model", "api-key"):
        parser.add_argument(f"--{name}", default=os.environ.get("LLM_" + name.replace("-", "_").upper()))
    parser.add_argument("--window", type=int, help="context window in tokens, for models that kompakt does not know")
    options = parser.parse_args(argv)
    if not (options.base_url and options.model and options.folder.is_dir()):
        parser.error("a folder, --base-url and --model are needed")
    try:
        print(asyncio.run(answer(options)))
    except KompaktError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def answer(options: argparse.Namespace) -> str:
    client = OpenAIChat(
        options.model, base_url=options.base_url, api_key=options.api_key, context_window=options.window
    )
    async with Agent(client, tools=tools_for(options.folder, options.notes), system=SYSTEM) as agent:
        result = await agent.run(options.question)
    return result.text


if __name__ == "__main__":
    sys.exit(main())

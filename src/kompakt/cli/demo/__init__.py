"""``kompakt demo``: one bundled session that no longer fits, and what kompakt does about it.

It needs no API key and no network, and leaves no file, process or port behind.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kompakt import api
from kompakt.cli.demo import provider
from kompakt.cli.input import AsJson
from kompakt.cli.output import waiting
from kompakt.model.json import indented_json
from kompakt.model.limits import price_of
from kompakt.model.messages import JsonObject
from kompakt.model.phrases import PIVOT_QUESTION
from kompakt.version import install_command

if TYPE_CHECKING:
    from rich.console import Console

PRICED_AS = "gpt-5"
"""Model in whose price the savings are stated. The scripted model has no price."""

QUESTION = "which commit fixed the double booking"
"""What the removed messages can answer and the summary cannot."""

ANSWER = "4a45e62"

_RECALL_TOKENS = 120
_RECALL_LINES = 4
_SUMMARY_LINES = 23
_WIDTH = 80

Fast = Annotated[bool, typer.Option("--fast", help="Use the library only; start no gateway.")]


class DemoStory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the demo shows."""

    messages: int
    tokens: int
    window: int
    error_status: int
    error: JsonObject
    gateway: bool
    """Whether a gateway sent the compacted request. Otherwise the library compacted it."""
    status: int
    problems: int
    """What `kompakt check` finds in the compacted request."""
    sent_messages: int
    sent_tokens: int
    summary: str
    question: str
    recalled: str
    answer: str
    answer_removed: bool
    """Whether the session has the answer and the compacted request does not."""
    priced_as: str
    cost_before: float
    """US dollars for the prompt of one request, without prompt cache."""
    cost_after: float

    @property
    def works(self) -> bool:
        return self.status == 200 and not self.problems and self.answer_removed and self.answer in self.recalled


def demo(fast: Fast = False, as_json: AsJson = False) -> None:
    """Show what kompakt does with a session that no longer fits.

    Runs one bundled session. Needs no API key and no network, and leaves nothing behind.

    \b
    Examples:
      kompakt demo
      kompakt demo --fast
    """
    with waiting("sending a session to a scripted provider"):
        story = _run(fast=fast)
    if as_json:
        typer.echo(indented_json(story), nl=False)
    else:
        _show(story)
    raise typer.Exit(0 if story.works else 1)


def session(name: str = "long-session.json") -> JsonObject:
    return msgspec.json.decode((resources("kompakt") / "data" / name).read_bytes())


def _run(*, fast: bool) -> DemoStory:
    body: JsonObject = {**session(), "model": "scripted"}
    done = None if fast else _by_gateway(body)
    is_gateway = done is not None
    if done is None:
        done = provider.send_by_library(body, QUESTION, _RECALL_TOKENS)
    before, after = api.count(body), api.count(done.sent)
    price = price_of(PRICED_AS)
    assert price is not None
    return DemoStory(
        messages=before.messages,
        tokens=before.total,
        window=provider.WINDOW,
        error_status=done.error_status,
        error=done.error,
        gateway=is_gateway,
        status=done.status,
        problems=len(api.check(done.sent)),
        sent_messages=after.messages,
        sent_tokens=after.total,
        summary=_summary(done.sent),
        question=QUESTION,
        recalled=done.recalled,
        answer=ANSWER,
        answer_removed=ANSWER in _text(body) and ANSWER not in _text(done.sent),
        priced_as=PRICED_AS,
        cost_before=before.total * price.input,
        cost_after=after.total * price.input,
    )


def _by_gateway(body: JsonObject) -> provider.DemoExchange | None:
    import asyncio  # late: `--help` does not need it

    try:
        return asyncio.run(provider.send_by_gateway(body, QUESTION, _RECALL_TOKENS))
    except ImportError as error:
        typer.echo(
            f"kompakt: the gateway needs {error.name}; install it with: {install_command('gateway')}. "
            "This demo uses the library instead.",
            err=True,
        )
        return None


def _text(value: JsonObject) -> str:
    return msgspec.json.encode(value).decode()


def _summary(body: JsonObject) -> str:
    """Return the summary in a compacted request: the answer to the question that kompakt inserts."""
    contents = [message["content"] for message in body["messages"]]
    return contents[contents.index(PIVOT_QUESTION) + 1] if PIVOT_QUESTION in contents else ""


# --- the text ----------------------------------------------------------------------------------------------------


def _show(story: DemoStory) -> None:
    from rich.console import Console  # late: `--help` does not need it

    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    page = _Page(console, min(_WIDTH, console.width))
    saved = story.tokens - story.sent_tokens
    page.say(
        "kompakt keeps the history of an agent inside the model's context window. Here is one bundled session and a "
        "scripted model: nothing is sent, and no API key is needed."
    )
    page.head("1. A coding agent's session has outgrown the model")
    page.say(f"{story.messages} messages, {story.tokens:,} tokens. The model takes at most {story.window:,}.")
    page.head(f"2. The provider rejects the request, now and on every retry: HTTP {story.error_status}")
    page.quote(json.dumps(story.error))
    page.head(f"3. The same request with kompakt: {story.sent_tokens:,} tokens, HTTP {story.status}")
    how = "`kompakt serve`, a proxy," if story.gateway else "`kompakt.compact`"
    page.say(
        f"{how} keeps the system prompt, the first request and the newest steps. A summary, written by code and not "
        "by a model, replaces the rest:"
    )
    page.quote(story.summary, most=_SUMMARY_LINES)
    page.head("4. Nothing is lost: a question that only the removed messages can answer")
    page.say(f'"{story.question.capitalize()}?" The tool `recall` finds {story.answer}:')
    page.quote(story.recalled, most=_RECALL_LINES)
    page.head(f"5. The request is {saved:,} tokens smaller ({saved / story.tokens:.0%}), and so is each later one")
    page.say(
        f"It costs ${story.cost_after:.3f}. With a larger window, the whole history would cost "
        f"${story.cost_before:.3f} each time (price of {story.priced_as}, without prompt cache)."
    )
    page.head("6. Use it")
    program = Path(sys.argv[0]).absolute()
    if program.is_relative_to(Path.cwd()):  # settings of an agent must not depend on this folder
        page.say("Install it first, as README.md shows. Then:")
    elif not shutil.which("kompakt"):
        page.say(f"kompakt is here: {program}")
    width = max(len(command) for command, _ in _NEXT)
    for command, use in _NEXT:
        page.say(f"kompakt {command:<{width}}  {use}")
    page.say("Python and frameworks: docs/quick-start.md")


_NEXT = (
    ("install claude-code", "coding agents: also codex, opencode, pi"),
    ("serve", "any other client: set its base URL"),
    ("compact FILE", "one request or transcript"),
    ("inspect FILE", "see a session in the browser"),
)
"""What a new user can do next."""


class _Page:
    """Prints paragraphs, headings and quotes within a width."""

    def __init__(self, console: Console, width: int) -> None:
        self._console = console
        self._width = width

    def head(self, text: str) -> None:
        self._console.print()
        self._console.print(text, style="bold")

    def say(self, text: str) -> None:
        for line in textwrap.wrap(text, self._width, break_on_hyphens=False):
            self._console.print(line)

    def quote(self, text: str, *, most: int | None = None) -> None:
        """Print a text after a bar, all of it or its first lines."""
        lines = [line for one in text.split("\n") for line in self._wrap(one)]
        for line in lines[:most]:
            self._console.print(f"  │ {line}", style="dim" if line.startswith("##") else "")
        if most is not None and len(lines) > most:
            self._console.print(f"  │ … and {len(lines) - most} more lines")

    def _wrap(self, line: str) -> list[str]:
        indent = "  " if line.startswith("- ") else ""
        return textwrap.wrap(line, self._width - 4, subsequent_indent=indent, break_on_hyphens=False) or [""]

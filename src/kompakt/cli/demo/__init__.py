"""``kompakt demo``: one bundled session that no longer fits, and what kompakt does about it.

It needs no API key and no network, and leaves no file, process or port behind.
"""

from __future__ import annotations

import os
import shlex
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
from kompakt.version import install_command, own_program

if TYPE_CHECKING:
    from rich.console import Console

PRICED_AS = "gpt-5"
"""Model in whose price the savings are stated. The scripted model has no price."""

QUESTION = "which commit fixed the double booking"
"""What the removed messages can answer and the summary cannot."""

ANSWER = "4a45e62"

_RECALL_TOKENS = 120
_RECALL_LINES = 3
_SHOWN_ENTRIES = (2, 1, 1)
"""How many entries of each section of the notes are shown; later sections are named only."""

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
        "kompakt keeps an agent's history inside the model's context window. This demo sends one bundled session to a "
        "scripted model on this machine: nothing leaves it, and no API key is needed."
    )
    page.head("1. The session of a coding agent has outgrown the model")
    page.say(f"{story.messages} messages, {story.tokens:,} tokens. The model takes at most {story.window:,}.")
    page.head(f"2. Without kompakt: HTTP {story.error_status}, now and on every retry")
    page.quote([story.error["error"]["message"]])
    page.head(f"3. With kompakt: {story.sent_tokens:,} tokens, HTTP {story.status}")
    how = "The proxy `kompakt serve`" if story.gateway else "The function `kompakt.compact`"
    page.say(
        f"{how} keeps the system prompt, the first request and the newest steps. Notes replace the rest. Ordinary code "
        "wrote them, not a model; most are quotes from the session:"
    )
    page.quote(_excerpt(story.summary))
    page.head("4. The model can search what the notes leave out")
    page.say(f'"{story.question.capitalize()}?" is not in the notes. The tool `recall` finds {story.answer}:')
    page.quote(story.recalled.split("\n"), most=_RECALL_LINES)
    page.head(f"5. This request is {saved:,} tokens smaller ({saved / story.tokens:.0%})")
    page.say("Later requests start from the notes and grow again, until the next compaction.")
    costs = f"${story.cost_before:.3f} before, ${story.cost_after:.3f} after"
    page.say(f"At {story.priced_as}'s input price without cache: {costs}.")
    page.head("6. Use it")
    for line in _next_steps():
        page.line(line)
    page.say("In Python, on a list of messages or a request body:")
    page.line(f"  small = kompakt.compact(request, budget={provider.WINDOW - provider.RESERVE:_}).payload")
    page.say("Frameworks and SDK clients: docs/quick-start.md in the repository")


def _excerpt(notes: str) -> list[str]:
    """Return the start of each section of the notes, and how much is left out."""
    intro, *sections = notes.split("\n## ")
    lines = intro.split("\n")
    for section, most in zip(sections, _SHOWN_ENTRIES, strict=False):
        title, *entries = section.split("\n")
        lines += [f"## {title}", *entries[:most]]
        if len(entries) > most:
            lines.append(f"… and {len(entries) - most} more")
    others = [section.partition("\n")[0].partition(",")[0] for section in sections[len(_SHOWN_ENTRIES) :]]
    return [*lines, *([f"… and {len(others)} more sections: {'; '.join(others)}"] if others else ())]


def _next_steps() -> list[str]:
    """Return commands that work as they are printed, each with its use."""
    program, clone = own_program(), Path(__file__).parents[4]
    running = shlex.split(program)[0]
    steps = [(f"{program} {rest}", use) for rest, use in _NEXT]
    before = list[str]()
    if (clone / "pyproject.toml").exists() and Path(running).is_relative_to(clone):
        # Settings of an agent that name a program in the clone would break with the clone.
        source = "." if Path.cwd() == clone else str(clone)
        before = [
            "For a coding agent (also codex, opencode, pi), first install outside the clone:",
            "  python3 -m venv ~/.kompakt",
            f"  ~/.kompakt/bin/pip install -q {shlex.quote(f'{source}[mcp,gateway]')}",
            f"  ~/.kompakt/bin/kompakt {_NEXT[0][0]}",
        ]
        here = shlex.quote(os.path.relpath(running)) if Path(running).is_relative_to(Path.cwd()) else program
        steps = [(f"{here} {rest}", use) for rest, use in _NEXT[1:]]
    width = max(len(command) for command, _ in steps)
    if width + max(len(use) for _, use in steps) + 6 > _WIDTH:
        return [*before, *(line for command, use in steps for line in (f"# {use}", f"  {command}"))]
    return [*before, *(f"  {command:<{width}}  # {use}" for command, use in steps)]


_NEXT = (
    ("install claude-code", "a coding agent: also codex, opencode, pi"),
    ("serve", "any other client: set its base URL"),
    ("inspect FILE", "see a transcript in the browser"),
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

    def line(self, text: str) -> None:
        """Print a line that is copied, so it is not broken."""
        self._console.print(text)

    def quote(self, texts: list[str], *, most: int | None = None) -> None:
        """Print texts after a bar, all of them or their first lines."""
        lines = [line for one in texts for line in self._wrap(one)]
        for line in lines[:most]:
            self._console.print(f"  │ {line}", style="dim" if line.startswith("##") else "")
        if most is not None and len(lines) > most:
            self._console.print(f"  │ … and {len(lines) - most} more lines")

    def _wrap(self, line: str) -> list[str]:
        indent = "  " if line.startswith("- ") else ""
        return textwrap.wrap(line, self._width - 4, subsequent_indent=indent, break_on_hyphens=False) or [""]

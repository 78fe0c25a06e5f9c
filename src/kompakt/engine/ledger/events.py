"""What happened, message by message: who said what, which call got which answer. Facts are drawn from it when needed.

Reading a message costs little: texts are only pointed at. What they say is worked out once, for the events that are no
longer shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kompakt.engine.ledger.extract.numbers import printed_numbers, told_numbers
from kompakt.engine.ledger.extract.outcomes import failure_lines, outcome, speaks_of_tests, test_totals, tests_of
from kompakt.engine.ledger.extract.shell import quotes
from kompakt.engine.ledger.extract.tasks import Tasks, is_task
from kompakt.engine.ledger.extract.tool_calls import Deed, deed_of, input_text, only_looks
from kompakt.engine.ledger.extract.user_words import binding, opening, own_words, question, request
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.quotes import harmless, keyed, one_line, quoted
from kompakt.model.messages import ToolCall, ToolResult
from kompakt.model.tokens import json_text

COMMAND = 60
"""Characters of a command's first line that are kept."""

ERROR = 80
"""Characters of a failure line that are kept."""

MAX_ORIGIN = 200
"""Characters kept of what a call was about."""

TOLD = 200
"""Characters kept of what the assistant told."""

_TAGS = re.compile(r"^\s*<[\w-]+>\s*")


def perhaps(text: str, most: int) -> bool:
    """Leave it to counting whether a text fits."""
    del text, most
    return True


class Order(msgspec.Struct, frozen=True):
    """What a ledger is to be written for."""

    room: int
    """Tokens it may take."""
    count: Callable[[str], int]
    is_hidden: Callable[[int], bool]
    """Whether the model no longer sees a message as it was."""
    reference: Callable[[int], str]
    upto: int
    """How many messages there are as far as this ledger knows."""
    shown: Callable[[], Iterable[str]]
    """The texts that the model still sees: a name that stands there need not be said again."""
    earlier: str | None = None
    """What an earlier pass wrote."""
    shown_at: frozenset[int] | None = None
    """The messages that are shown as they were, where that is at hand."""
    strips: bool = False
    """Whether what the assistant thought goes from every message, also from those that are shown."""
    fits: Callable[[str, int], bool] = perhaps
    """Whether a text has at most so many tokens; may say yes where only counting tells."""


THOUGHT = "thought"
"""The role of what the assistant only thought: names and values are taken from it, nothing it promised or asked."""


class Spoken(msgspec.Struct, gc=False):
    """Words of the user's or of the assistant's."""

    at: int
    role: str
    text: str

    def hidden_at(self) -> tuple[int, ...]:
        """Say which messages hold it."""
        return (self.at,)

    def lasting_facts(self, reference: str, tasks: Tasks) -> Iterator[Fact]:
        """Say what is so and has priority however old it is: all that the user said."""
        return self.facts(reference, tasks) if self.role == "user" else iter(())

    def facts(self, reference: str, tasks: Tasks) -> Iterator[Fact]:
        """Say what is so."""
        if self.role == "user":
            whole = request(self.text)
            lines = whole.split("\n") if whole else binding(self.text)
            for line in lines:
                yield Fact("word", line, "", reference, (), self.at)
        for key, number in told_numbers(own_words(self.text) if self.role == "user" else self.text):
            yield Fact("value", harmless(key), number, reference, (), self.at)
        if self.role in ("user", THOUGHT):
            return
        if asked := question(self.text):
            yield Fact("question", harmless(one_line(asked, TOLD)), "", reference, at=self.at)
        if told := opening(self.text, TOLD):
            yield Fact("remark", harmless(told), "", reference, at=self.at)


class Called(msgspec.Struct, gc=False):
    """A call and what came of it."""

    at: int
    call: ToolCall
    answered_at: int = -1
    result: ToolResult | None = None
    known: Deed | None = None
    said: str | None = None

    @property
    def words(self) -> str:
        """The words and numbers that the call was given."""
        if self.said is None:
            self.said = input_text(self.call)
        return self.said

    @property
    def deed(self) -> Deed:
        """What the call does."""
        if self.known is None:
            self.known = deed_of(self.call)
        return self.known

    def hidden_at(self) -> tuple[int, ...]:
        """Say which messages hold it."""
        return (self.at,) if self.answered_at < 0 else (self.at, self.answered_at)

    @property
    def command(self) -> str | None:
        """The command's first line, as far as it is kept."""
        command = self.deed.command
        return None if command is None else keyed(command.split("\n", 1)[0][:COMMAND])

    def lasting_facts(self, reference: str, tasks: Tasks) -> Iterator[Fact]:
        """Say what is so and has priority however old it is: tasks, and files that were changed."""
        if self.known is None and only_looks(self.call):
            return
        deed, result = self.deed, self.result
        yield from tasks.facts(deed.fields, result, reference, self.at)
        if result is not None and deed.files and not deed.reads and outcome(result) == "success":
            failures = failure_lines(result.output) if deed.command is not None else []
            for done, path in deed.files:
                if done != "read" and not any(path in line for line in failures):
                    yield Fact("file", keyed(path), done, reference, (), self.at)

    def facts(self, reference: str, tasks: Tasks) -> Iterator[Fact]:
        """Say what is so."""
        deed, result = self.deed, self.result
        yield from tasks.facts(deed.fields, result, reference, self.at)
        if result is None:
            return
        if deed.command is not None:
            yield from self._ran(deed, deed.command, result, reference)
            return
        how = outcome(result, is_data=deed.reads)
        if how == "success":
            for done, path in deed.files:
                yield Fact("file", keyed(path), done, reference, (), self.at)
            if not deed.files and not is_task(deed.fields):
                said = quoted(one_line(result.output, ERROR), ERROR)
                yield Fact("call", self.asked, "called", reference, (said,), self.at)
        else:
            notes = failure_lines(result.output) or [one_line(_TAGS.sub("", result.output), ERROR)]
            said = tuple([quoted(line, ERROR) for line in notes])
            yield Fact("failure", self.origin, "failed", reference, said, self.at)

    def _ran(self, deed: Deed, command: str, result: ToolResult, reference: str) -> Iterator[Fact]:
        """Say what is so after a command; one of several may have failed though the last did not."""
        output, is_quoted, at = result.output, quotes(command), self.at
        how = outcome(result)
        is_news = how != "success" or not (is_quoted or deed.reads)
        failures = failure_lines(output) if is_news or deed.files else []
        if how == "success":
            for done, path in deed.files:
                if not any(path in line for line in failures):
                    yield Fact("file", keyed(path), done, reference, (), at)
        is_tested = speaks_of_tests(output)
        notes = failures if is_news else []
        if is_tested:
            notes = [*notes, *[line for line in test_totals(output) if line not in notes]]
        yield Fact("command", self.command or "", how, reference, tuple([quoted(line, ERROR) for line in notes]), at)
        if is_tested and not is_quoted:
            for name, went in tests_of(output).items():
                yield Fact("test", _name(name), went, reference, (), at)
        for key, number in printed_numbers(output):
            yield Fact("value", _name(key), number, reference, (), at)

    @property
    def asked(self) -> str:
        """Name the call with the beginning of what it was given."""
        given = self.call.input if isinstance(self.call.input, str) else json_text(self.call.input)
        named = f"{self.call.name} {one_line(given, ERROR)}" if given not in ("", "{}", "null") else self.call.name
        return _plain(named) or "a call"

    @property
    def origin(self) -> str:
        """Name the call in a few words: the tool, and the file or address it was about."""
        about = next((path for _, path in self.deed.files), None) or self.deed.url
        return _plain(f"{self.call.name} {about or ''}"[:MAX_ORIGIN]) or "a call"


def _plain(text: str) -> str:
    """Take out of the name of a call what would be read as the end of it."""
    return harmless(text).replace("`", "'").replace(" said ", " ").strip()


def _name(text: str) -> str:
    """Say a name that a tool printed; one of several words is quoted, since it could be a sentence."""
    return quoted(text, ERROR) if " " in text else harmless(text)


Event = Spoken | Called

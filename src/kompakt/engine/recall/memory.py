"""Recall over one history: search by words, fetch by reference.

Names and index are made when first asked for and grow with the history, so a question costs what is new and the words
it asks for. Same history, same question, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from kompakt.engine.recall.answer import AnswerBuilder, AnswerPassage, answer, names
from kompakt.engine.recall.index import Index
from kompakt.engine.recall.passages import spoken
from kompakt.engine.recall.restore import Reference, fetch, read_reference
from kompakt.engine.recall.result import Recalled, label
from kompakt.engine.recall.search import search
from kompakt.errors import UsageError
from kompakt.model.messages import Message, ToolResult
from kompakt.model.references import References
from kompakt.model.tokens import Counter

DEFAULT_TOKENS = 1_000
"""Size of an answer: enough for a dozen passages, little enough to be asked for at any time."""

_NEWEST = 150
"""Passages at the end of the history whose names are offered when nothing was found."""


class Memory:
    """The original messages of a conversation, to be searched and restored."""

    __slots__ = ("_counter", "_given", "_index", "_messages", "_projection", "_references", "_shown", "_tools")

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        counter: Counter,
        projection: Iterable[Message] = (),
        references: Sequence[str] = (),
    ) -> None:
        self._messages: list[Message] = list(messages)
        self._projection = tuple(projection)
        """What the model sees anyway: names in it are not listed again."""
        self._shown: frozenset[str] | None = None
        self._counter = counter
        self._given = tuple(references)
        self._references = References(given=self._given)
        self._index = Index()
        self._tools: dict[str, str] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the messages; names and index are made again when they are needed."""
        return _restored, (self._messages, self._counter, self._projection, self._given)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Take the next message."""
        self._messages.append(message)

    def recall(self, asked: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Return what a reference names, else what a search finds, in at most ``tokens`` tokens.

        Raises:
            UsageError: ``asked`` is no text, or ``tokens`` is not positive.
        """
        if not isinstance(asked, str):  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"recall takes words or a reference as text, not {asked!r}")
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise UsageError(f"tokens={tokens!r} leaves no room for an answer; give a positive number, or None for all")
        found = self.fetch(asked, tokens=tokens)
        return self.search(asked, tokens=tokens) if found is None else found

    def fetch(self, reference: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled | None:
        """Return what a reference names; ``None`` when it is none, or names no message of this history."""
        read = read_reference(reference)
        place = None if read is None else self._place(read)
        if read is None or place is None:
            return None
        return fetch(self._messages[place], read, tokens=tokens, counter=self._counter)

    def lacks(self, asked: str) -> bool:
        """Tell whether a text is a reference that names no message of this history."""
        read = read_reference(asked) if isinstance(asked, str) else None  # type: ignore[reportUnnecessaryIsInstance]
        return read is not None and self._place(read) is None

    def search(self, query: str, *, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Return the passages that fit a query best."""
        for message in self._messages[self._index.messages :]:
            self._tools.update((call.id, call.name) for call in message.calls)
            self._index.add(message)
        self._name()
        ranked = search(self._index, query)
        shown = self._names_shown()
        used = (name for name in reversed(self._index.used) if name not in shown)
        found = answer(ranked, self._entry, used, shown=shown, tokens=tokens, counter=self._counter)
        return found if found else self._nothing(query, tokens)

    def _names_shown(self) -> frozenset[str]:
        if self._shown is None:
            parts = [part for message in self._projection for part in message.parts]
            self._shown = frozenset(name for part in parts for name in names(spoken(part)))
        return self._shown

    def _name(self) -> None:
        for message in self._messages[len(self._references.names) :]:
            self._references.add(message)

    def _place(self, read: Reference) -> int | None:
        self._name()
        return self._references.find(read.message)

    def _entry(self, place: int, score: float) -> AnswerPassage:
        passage = self._index.passages[place]
        message = self._messages[passage.message]
        part = message.parts[passage.part]
        alone = len(message.parts) == 1
        name = self._references.names[passage.message]
        reference = name if alone else f"{name}.{passage.part}"
        if passage.first_line:
            reference += f":{passage.first_line}-{passage.last_line}"
        tool = self._tools.get(part.call_id) if type(part) is ToolResult else None
        return AnswerPassage(
            place=place,
            score=score,
            message=passage.message,
            reference=reference,
            label=label(message, part, tool),
            text=self._index.text(place),
            whole=alone and not passage.start and not passage.first_line,
            named=self._index.is_named(place),
        )

    def _nothing(self, query: str, tokens: int | None) -> Recalled:
        """Say that nothing was found, and which names there are to ask for."""
        short = " ".join(query.split())[:60]
        text = f"[kompakt] Nothing found for {short!r}; ask with other words, or with a reference as printed."
        newest = range(len(self._index) - 1, max(-1, len(self._index) - 1 - _NEWEST), -1)
        seen = chain(reversed(self._index.used), (name for place in newest for name in names(self._index.text(place))))
        shown = self._names_shown()
        used = sorted((name for name in dict.fromkeys(seen) if name not in shown), key=lambda name: "/" not in name)
        line = AnswerBuilder(tokens=tokens, counter=self._counter).names_line((), used, beside=text)
        text = f"{text}\n{line}" if line else text
        size = self._counter.scaled(self._counter.text(text))
        return Recalled(text=text, tokens=size) if tokens is None or size <= tokens else Recalled(text="")


def _restored(
    messages: list[Message], counter: Counter, projection: tuple[Message, ...], references: tuple[str, ...]
) -> Memory:
    return Memory(messages, counter=counter, projection=projection, references=references)
